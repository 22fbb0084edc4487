// SPDX-License-Identifier: Apache-2.0

//go:build ofi

package fabric

import (
	"github.com/rocl-go/rocl"
	"github.com/rocl-go/rocl/ofi"
	"github.com/rocl-go/rocl/subsys/inproc"
	"github.com/rocl-go/rocl/subsys/shm"
	"github.com/rocl-go/rocl/subsys/tcp"
)

// Options lets a context use the best provider of libfabric that the machine has.
func Options() []rocl.Option {
	return []rocl.Option{rocl.WithTransports(inproc.New(), shm.New(), ofi.New(""), tcp.New())}
}

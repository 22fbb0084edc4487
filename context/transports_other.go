// SPDX-License-Identifier: Apache-2.0

//go:build !(linux || darwin || freebsd || netbsd || openbsd)

package context

import (
	"github.com/rocl-go/rocl/subsys"
	"github.com/rocl-go/rocl/subsys/inproc"
	"github.com/rocl-go/rocl/subsys/tcp"
)

// transports returns the transports of a context without [rocl.WithTransports]. This system shares
// no memory: a context that was asked for it there would warn of its lack.
func transports() []subsys.Transport { return []subsys.Transport{inproc.New(), tcp.New()} }

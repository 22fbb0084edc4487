// SPDX-License-Identifier: Apache-2.0

package tcp

import (
	"context"
	"net"

	"github.com/rocl-go/rocl/subsys"
	"github.com/rocl-go/rocl/subsys/stream"
)

// New returns the TCP transport. Its addresses are tcp://host:port. By default it listens on a free
// port of 127.0.0.1, or else of ::1.
func New() subsys.Transport { return transport{} }

type transport struct{}

func (transport) Name() string { return "tcp" }

func (transport) Listen(addr string, cfg subsys.Config) (subsys.Port, error) {
	return stream.Listen(addr, cfg, stream.Protocol{
		Scheme:   "tcp",
		Rounds:   8,
		Dialled:  func(context.Context, *net.TCPConn) (stream.Writer, error) { return new(writer), nil },
		Accepted: func(p *stream.Port, nc *net.TCPConn) error { return p.Join(nc, new(writer)) },
	})
}

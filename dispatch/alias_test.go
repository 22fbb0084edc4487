// SPDX-License-Identifier: Apache-2.0

package dispatch

import (
	"context"
	"strings"

	"github.com/rocl-go/rocl/buffers"
	"github.com/rocl-go/rocl/subsys"
)

// An alias is a transport by another name, without the abilities that only some connections have:
// messages go over it whole.
type alias struct {
	subsys.Transport
	name string
	send func(frames int) // called before each Send of a connection; may be nil
}

func (a alias) Name() string { return a.name }

func (a alias) to(addr string) string {
	return strings.Replace(addr, a.Transport.Name()+"://", a.name+"://", 1)
}

func (a alias) from(addr string) string {
	return strings.Replace(addr, a.name+"://", a.Transport.Name()+"://", 1)
}

func (a alias) Listen(addr string, cfg subsys.Config) (subsys.Port, error) {
	accept := cfg.Accept
	cfg.Accept = func(c subsys.Conn) subsys.Sink {
		ac := &aliasConn{Conn: c, a: a}
		s := accept(ac)
		if s == nil {
			return nil
		}
		return &aliasSink{Sink: s, conn: ac}
	}
	p, err := a.Transport.Listen(a.from(addr), cfg)
	if err != nil {
		return nil, err
	}
	return &aliasPort{p, a}, nil
}

type aliasPort struct {
	subsys.Port
	a alias
}

func (p *aliasPort) Addr() string             { return p.a.to(p.Port.Addr()) }
func (p *aliasPort) Reaches(addr string) bool { return p.Port.Reaches(p.a.from(addr)) }

func (p *aliasPort) Dial(ctx context.Context, addr string, s subsys.Sink) (subsys.Conn, error) {
	as := &aliasSink{Sink: s, conn: &aliasConn{a: p.a}}
	c, err := p.Port.Dial(ctx, p.a.from(addr), as)
	if err != nil {
		return nil, err
	}
	as.conn.Conn = c
	return as.conn, nil
}

type aliasConn struct {
	subsys.Conn
	a alias
}

func (c *aliasConn) Send(fs []subsys.Frame) (int, error) {
	if c.a.send != nil {
		c.a.send(len(fs))
	}
	return c.Conn.Send(fs)
}

func (c *aliasConn) Transport() string { return c.a.name }
func (c *aliasConn) Remote() string    { return c.a.to(c.Conn.Remote()) }

type aliasSink struct {
	subsys.Sink
	conn *aliasConn
}

func (s *aliasSink) Frames(_ subsys.Conn, fs []subsys.Frame) error { return s.Sink.Frames(s.conn, fs) }
func (s *aliasSink) Writable(subsys.Conn)                          { s.Sink.Writable(s.conn) }
func (s *aliasSink) Down(_ subsys.Conn, err error)                 { s.Sink.Down(s.conn, err) }
func (s *aliasSink) Room(_ subsys.Conn, h *subsys.Header) (*buffers.Buffer, error) {
	return s.Sink.Room(s.conn, h)
}

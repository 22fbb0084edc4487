// SPDX-License-Identifier: Apache-2.0

package tcp

import (
	"context"
	"errors"
	"fmt"
	"net"
	"sync"

	"github.com/rocl-go/rocl/internal/ratelog"
	"github.com/rocl-go/rocl/subsys"
	"github.com/rocl-go/rocl/subsys/stream"
)

// New returns the TCP transport. Its addresses are tcp://host:port. By default it listens on a free
// port of 127.0.0.1.
func New() subsys.Transport { return transport{} }

type transport struct{}

func (transport) Name() string { return "tcp" }

func parse(addr string) (string, error) { return stream.Host("tcp", addr) }

func (transport) Listen(addr string, cfg subsys.Config) (subsys.Port, error) {
	if addr == "" {
		addr = "tcp://127.0.0.1:0"
	}
	host, err := parse(addr)
	if err != nil {
		return nil, err
	}
	ln, err := net.Listen("tcp", host)
	if err != nil {
		return nil, fmt.Errorf("tcp: listening on %s: %w", addr, err)
	}
	p := &port{cfg: cfg, often: ratelog.New(cfg.Logger), ln: ln.(*net.TCPListener), conns: map[*conn]struct{}{}}
	p.accepting.Add(1)
	go p.accept()
	return p, nil
}

type port struct {
	cfg       subsys.Config
	often     *ratelog.Logger // for lines that unknown peers and retries can cause
	ln        *net.TCPListener
	accepting sync.WaitGroup

	mu     sync.Mutex
	closed bool
	conns  map[*conn]struct{} // connections that are not completely closed
	open   sync.WaitGroup     // counts conns
}

func (p *port) Addr() string { return "tcp://" + p.ln.Addr().String() }

func (p *port) Reaches(addr string) bool {
	_, err := parse(addr)
	return err == nil
}

func (p *port) accept() {
	defer p.accepting.Done()
	for {
		nc, err := p.ln.AcceptTCP()
		if err != nil {
			if errors.Is(err, net.ErrClosed) {
				return
			}
			// No descriptors were left, or the peer has gone already. Accept waits for the next
			// peer, but the loop must not spin.
			p.often.Warn("", "tcp: accepting", "err", err)
			stream.Pause(err)
			continue
		}
		c, err := p.adopt(nc)
		if err != nil {
			p.often.Warn("", "tcp: accepting", "err", err)
			continue
		}
		p.cfg.Count.ConnsIn.Add(1)
		if c.sink = p.cfg.Accept(c); c.sink == nil {
			c.Close()
			continue
		}
		c.Start()
	}
}

func (p *port) Dial(ctx context.Context, addr string, s subsys.Sink) (subsys.Conn, error) {
	host, err := parse(addr)
	if err != nil {
		return nil, err
	}
	nc, err := stream.Dial(ctx, host)
	if err != nil {
		return nil, fmt.Errorf("tcp: dialling %s: %w", addr, err)
	}
	c, err := p.adopt(nc)
	if err != nil {
		return nil, fmt.Errorf("tcp: dialling %s: %w", addr, err)
	}
	p.cfg.Count.ConnsOut.Add(1)
	c.sink = s
	return c, nil
}

// adopt makes a connection of the socket.
func (p *port) adopt(nc *net.TCPConn) (*conn, error) {
	c := &conn{port: p, remote: "tcp://" + nc.RemoteAddr().String(), poller: p.cfg.Poller()}
	if c.poller == nil {
		nc.Close()
		return nil, subsys.ErrClosed
	}
	if err := c.sock.Adopt(nc, p.cfg.Count); err != nil {
		return nil, err
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed {
		c.sock.Drop()
		return nil, subsys.ErrClosed
	}
	p.conns[c] = struct{}{}
	p.open.Add(1)
	return c, nil
}

func (p *port) forget(c *conn) {
	p.mu.Lock()
	delete(p.conns, c)
	p.mu.Unlock()
	p.open.Done()
}

func (p *port) Close() error {
	p.mu.Lock()
	if p.closed {
		p.mu.Unlock()
		return nil
	}
	p.closed = true
	conns := make([]*conn, 0, len(p.conns))
	for c := range p.conns {
		conns = append(conns, c)
	}
	p.mu.Unlock()
	err := p.ln.Close()
	p.accepting.Wait()
	for _, c := range conns {
		c.Close()
	}
	p.open.Wait()
	return err
}

// SPDX-License-Identifier: Apache-2.0

package tls

import (
	"cmp"
	"context"
	stdtls "crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"sync"
	"time"

	"github.com/rocl-go/rocl/internal/netsource"
	"github.com/rocl-go/rocl/internal/ratelog"
	"github.com/rocl-go/rocl/subsys"
	"github.com/rocl-go/rocl/subsys/stream"
)

const (
	shakeTimeout = 2 * time.Second // from the first byte to the last of a handshake
	maxPending   = 256             // handshakes in progress of accepted connections
)

var errCrowded = fmt.Errorf("%w: too many others shake hands", ErrStranger)

// New returns the TLS transport. Its addresses are tls://host:port. By default it listens on a free
// port of 127.0.0.1.
func New(cred Credentials) subsys.Transport { return transport{cred: cred, worn: worn} }

type transport struct {
	cred Credentials
	worn uint64
}

func (transport) Name() string { return "tls" }

func parse(addr string) (string, error) { return stream.Host("tls", addr) }

func (t transport) Listen(addr string, cfg subsys.Config) (subsys.Port, error) {
	if addr == "" {
		addr = "tls://127.0.0.1:0"
	}
	host, err := parse(addr)
	if err != nil {
		return nil, err
	}
	if t.cred == nil {
		return nil, fmt.Errorf("%w: none are given", ErrCredentials)
	}
	ln, err := net.Listen("tcp", host)
	if err != nil {
		return nil, fmt.Errorf("tls: listening on %s: %w", addr, err)
	}
	p := &port{transport: t, cfg: cfg, often: ratelog.New(cfg.Logger), ln: ln.(*net.TCPListener), conns: map[*conn]struct{}{}, strangers: subsys.NewStrangers(maxPending)}
	p.running.Add(1)
	go p.accept()
	return p, nil
}

type port struct {
	transport
	cfg     subsys.Config
	often   *ratelog.Logger // for lines that unknown peers and retries can cause
	ln      *net.TCPListener
	running sync.WaitGroup // goroutines in accept and greet

	mu        sync.Mutex
	closed    bool
	conns     map[*conn]struct{} // connections that are not completely closed
	open      sync.WaitGroup     // counts conns
	strangers *subsys.Strangers
}

// A stranger is an accepted connection that has not completed its handshake.
type stranger struct {
	nc    *net.TCPConn
	place *subsys.Stranger
	cut   error // the reason if the connection was cut, guarded by the port's mu
}

func (p *port) Addr() string { return "tls://" + p.ln.Addr().String() }

func (p *port) Reaches(addr string) bool {
	_, err := parse(addr)
	return err == nil
}

func (p *port) accept() {
	defer p.running.Done()
	for {
		nc, err := p.ln.AcceptTCP()
		if err != nil {
			if errors.Is(err, net.ErrClosed) {
				return
			}
			p.often.Warn("", "tls: accepting", "err", err)
			stream.Pause(err)
			continue
		}
		if s := p.admit(nc); s != nil {
			go p.greet(s)
		}
	}
}

// admit adds an accepted connection to the strangers, which may cut an older one. A genuine peer
// completes its handshake within milliseconds.
func (p *port) admit(nc *net.TCPConn) *stranger {
	p.mu.Lock()
	if p.closed {
		p.mu.Unlock()
		nc.Close()
		return nil
	}
	p.running.Add(1)
	p.mu.Unlock()
	s := &stranger{nc: nc}
	s.place = p.strangers.Add(netsource.Of(nc.RemoteAddr()), func() { p.cut(s) })
	p.mu.Lock()
	closed := p.closed
	p.mu.Unlock()
	if closed && s.place.Done() { // Close may have called CutAll before Add
		p.cut(s)
	}
	return s
}

// cut ends the handshake of s, which was removed from the strangers.
func (p *port) cut(s *stranger) {
	p.mu.Lock()
	defer p.mu.Unlock()
	s.cut = errCrowded
	if p.closed {
		s.cut = subsys.ErrClosed
	}
	s.nc.Close()
}

// greet completes the handshake of an accepted connection and makes a conn of it.
func (p *port) greet(s *stranger) {
	defer p.running.Done()
	remote := "tls://" + s.nc.RemoteAddr().String()
	c, err := p.shake(context.Background(), s.nc, false)
	if !s.place.Done() {
		p.mu.Lock()
		err = cmp.Or(s.cut, errCrowded) // cut may not have run yet
		p.mu.Unlock()
	}
	if err == nil {
		err = p.adopt(c, s.nc)
	}
	switch {
	case errors.Is(err, subsys.ErrClosed):
		s.nc.Close()
		return
	case err != nil:
		s.nc.Close()
		p.often.Info(netsource.OfURL(remote), "tls: refused", "remote", remote, "err", err)
		return
	}
	p.cfg.Count.ConnsIn.Add(1)
	if c.sink = p.cfg.Accept(c); c.sink == nil {
		c.Close()
		return
	}
	c.Start()
}

func (p *port) Dial(ctx context.Context, addr string, s subsys.Sink) (subsys.Conn, error) {
	host, err := parse(addr)
	if err != nil {
		return nil, err
	}
	nc, err := stream.Dial(ctx, host)
	if err != nil {
		return nil, fmt.Errorf("tls: dialling %s: %w", addr, err)
	}
	c, err := p.shake(ctx, nc, true)
	if err == nil {
		err = p.adopt(c, nc)
	}
	if err != nil {
		nc.Close()
		return nil, fmt.Errorf("tls: dialling %s: %w", addr, err)
	}
	p.cfg.Count.ConnsOut.Add(1)
	c.sink = s
	return c, nil
}

// shake makes the handshake and returns a conn of a peer that has authenticated. It does not close
// nc. adopt does so later, if it succeeds.
func (p *port) shake(ctx context.Context, nc *net.TCPConn, client bool) (*conn, error) {
	id, err := p.cred.identity(p.cfg.Logger)
	if err != nil {
		return nil, err
	}
	c := &conn{port: p, remote: "tls://" + nc.RemoteAddr().String(), wire: &wire{Conn: nc, mute: !client}}
	c.to = c.sock.Write
	if client {
		c.tls = stdtls.Client(c.wire, id.client)
	} else {
		c.tls = stdtls.Server(c.wire, id.server)
	}
	_ = nc.SetDeadline(time.Now().Add(shakeTimeout))
	err = c.tls.HandshakeContext(ctx)
	if client && errors.Is(err, io.EOF) {
		err = fmt.Errorf("%w (it says why to its own log only: another secret or cluster, or no TLS?)", err)
	}
	if err != nil {
		return nil, fmt.Errorf("handshake: %w", err)
	}
	c.wire.shaken = true
	return c, nil
}

// adopt gives the socket to c and adds c to the port's connections.
func (p *port) adopt(c *conn, nc *net.TCPConn) error {
	if c.poller = p.cfg.Poller(); c.poller == nil {
		return subsys.ErrClosed
	}
	if err := c.sock.Adopt(nc, p.cfg.Count); err != nil {
		return err
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed {
		c.sock.Drop()
		return subsys.ErrClosed
	}
	p.conns[c] = struct{}{}
	p.open.Add(1)
	return nil
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
	p.strangers.CutAll()
	err := p.ln.Close()
	p.running.Wait()
	for _, c := range conns {
		c.Close()
	}
	p.open.Wait()
	return err
}

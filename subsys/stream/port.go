// SPDX-License-Identifier: Apache-2.0

package stream

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net"
	"net/url"
	"slices"
	"sync"
	"syscall"

	"github.com/rocl-go/rocl/internal/os/sockerr"
	"github.com/rocl-go/rocl/internal/ratelog"
	"github.com/rocl-go/rocl/subsys"
)

// A Protocol is what distinguishes a transport over byte streams from the others.
type Protocol struct {
	// Scheme names the transport. Its addresses are scheme://host:port.
	Scheme string
	// Rounds is how many times a connection is read before another source gets its turn.
	Rounds int
	// Dialled makes the handshake on a connection that this end has dialled, and returns the
	// connection's Writer. It does not close nc.
	Dialled func(ctx context.Context, nc *net.TCPConn) (Writer, error)
	// Accepted takes a connection that the peer has dialled. After the handshake it calls p.Join.
	// It must not block, and makes a handshake in a goroutine of p.Go.
	Accepted func(p *Port, nc *net.TCPConn) error
	// Closing ends the handshakes in progress. Close calls it when Go starts nothing any more. It
	// may be nil.
	Closing func()
}

// A Port is the [subsys.Port] of a transport over byte streams.
type Port struct {
	proto   Protocol
	cfg     subsys.Config
	log     *ratelog.Logger // for lines that unknown peers and retries can cause
	ln      *net.TCPListener
	running sync.WaitGroup // the accepting goroutine and those of Go

	mu     sync.Mutex
	closed bool
	conns  map[*Conn]struct{} // connections that are not completely closed
	open   sync.WaitGroup     // counts conns
}

// Listen opens a port at addr, or at a free port of the loopback interface if addr is "": of
// 127.0.0.1, or else of ::1. If the machine does not give the port, for whatever reason, the error
// matches subsys.ErrUnavailable.
func Listen(addr string, cfg subsys.Config, proto Protocol) (subsys.Port, error) {
	ln, err := proto.listen(addr)
	if err != nil {
		return nil, err
	}
	p := &Port{proto: proto, cfg: cfg, log: ratelog.New(cfg.Logger), ln: ln.(*net.TCPListener), conns: map[*Conn]struct{}{}}
	p.Go(p.accept)
	return p, nil
}

// listen opens the listener of Listen.
func (proto *Protocol) listen(addr string) (net.Listener, error) {
	if addr == "" {
		ln, err := proto.listen(proto.Scheme + "://127.0.0.1:0")
		if err == nil {
			return ln, nil
		}
		ln, six := proto.listen(proto.Scheme + "://[::1]:0")
		if six != nil {
			return nil, fmt.Errorf("%w; %w", err, six)
		}
		return ln, nil
	}
	host, err := proto.host(addr)
	if err != nil {
		return nil, err
	}
	ln, err := net.Listen("tcp", host)
	if err != nil {
		return nil, fmt.Errorf("%s: listening on %s: %w: %w", proto.Scheme, addr, subsys.ErrUnavailable, err)
	}
	return ln, nil
}

// host returns the host:port of an address of the transport.
func (proto *Protocol) host(addr string) (string, error) {
	u, err := url.Parse(addr)
	if err != nil || u.Scheme != proto.Scheme || u.Host == "" || u.Port() == "" {
		return "", fmt.Errorf("%w: %q is not %s://host:port", subsys.ErrAddress, addr, proto.Scheme)
	}
	return u.Host, nil
}

// Addr implements [subsys.Port].
func (p *Port) Addr() string { return p.proto.Scheme + "://" + p.ln.Addr().String() }

// Reaches implements [subsys.Port].
func (p *Port) Reaches(addr string) bool {
	_, err := p.proto.host(addr)
	return err == nil
}

func (p *Port) accept() {
	for {
		nc, err := p.ln.AcceptTCP()
		if errors.Is(err, net.ErrClosed) {
			return
		}
		if err == nil {
			err = p.proto.Accepted(p, nc)
		}
		// No descriptors were left, or the peer has gone already. The loop waits for the next peer,
		// but must not spin.
		if err != nil && !errors.Is(err, subsys.ErrClosed) {
			// Cause: mostly no descriptors are left. Remedy: raise `ulimit -n`.
			p.log.Warn("", p.proto.Scheme+": accepting", "err", err)
			Pause(err)
		}
	}
}

// Go calls f in a goroutine for whose end Close waits. It reports false, and does nothing, if the
// port is closed.
func (p *Port) Go(f func()) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed {
		return false
	}
	p.running.Go(f)
	return true
}

// IsClosed reports whether Close was called.
func (p *Port) IsClosed() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.closed
}

// Join starts an accepted connection, unless the context refuses it. nc belongs to the port
// afterwards, also after an error. The error is [subsys.ErrClosed] if the port or the context is
// closed.
func (p *Port) Join(nc *net.TCPConn, w Writer) error {
	c, err := p.adopt(nc, w)
	if err != nil {
		return err
	}
	c.knock.begin(c, false)
	p.cfg.Count.ConnsIn.Add(1)
	if c.sink = p.cfg.Accept(c); c.sink == nil {
		return c.Close()
	}
	c.Start()
	return nil
}

// Dial implements [subsys.Port].
func (p *Port) Dial(ctx context.Context, addr string, s subsys.Sink) (subsys.Conn, error) {
	host, err := p.proto.host(addr)
	if err != nil {
		return nil, err
	}
	c, err := p.dial(ctx, host)
	if err != nil {
		return nil, fmt.Errorf("%s: dialling %s: %w", p.proto.Scheme, addr, err)
	}
	c.knock.begin(c, true)
	p.cfg.Count.ConnsOut.Add(1)
	c.sink = s
	return c, nil
}

func (p *Port) dial(ctx context.Context, host string) (*Conn, error) {
	nc, err := dial(ctx, host)
	if err != nil {
		return nil, err
	}
	w, err := p.proto.Dialled(ctx, nc)
	if err != nil {
		nc.Close()
		return nil, err
	}
	return p.adopt(nc, w)
}

// dial connects to a host:port. If nothing listens there, the error matches subsys.ErrNoPeer.
func dial(ctx context.Context, host string) (*net.TCPConn, error) {
	var d net.Dialer
	nc, err := d.DialContext(ctx, "tcp", host)
	if err != nil {
		if sockerr.Is(err, syscall.ECONNREFUSED) {
			err = fmt.Errorf("%w: %w", subsys.ErrNoPeer, err)
		}
		return nil, err
	}
	// A loopback dial to a free ephemeral port can connect to itself.
	if nc.LocalAddr().String() == nc.RemoteAddr().String() {
		nc.Close()
		return nil, subsys.ErrNoPeer
	}
	return nc.(*net.TCPConn), nil
}

// adopt makes a connection of the socket of nc, and closes nc.
func (p *Port) adopt(nc *net.TCPConn, w Writer) (*Conn, error) {
	c := &Conn{port: p, remote: p.proto.Scheme + "://" + nc.RemoteAddr().String(), poller: p.cfg.Poller(), out: w}
	c.opener, _ = w.(Opener)
	if c.poller == nil {
		nc.Close()
		return nil, subsys.ErrClosed
	}
	if err := c.sock.adopt(nc, p.cfg.Count); err != nil {
		return nil, err
	}
	if c.sock.isLocal {
		c.spinIn.most, c.spinOut.most = p.cfg.Spin, p.cfg.Spin
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed {
		c.sock.drop()
		return nil, subsys.ErrClosed
	}
	p.conns[c] = struct{}{}
	p.open.Add(1)
	return c, nil
}

func (p *Port) forget(c *Conn) {
	p.mu.Lock()
	delete(p.conns, c)
	p.mu.Unlock()
	p.open.Done()
}

// Close implements [subsys.Port].
func (p *Port) Close() error {
	p.mu.Lock()
	if p.closed {
		p.mu.Unlock()
		return nil
	}
	p.closed = true
	conns := slices.Collect(maps.Keys(p.conns))
	p.mu.Unlock()
	if p.proto.Closing != nil {
		p.proto.Closing()
	}
	err := p.ln.Close()
	for _, c := range conns {
		c.Close()
	}
	p.running.Wait()
	p.open.Wait()
	return err
}

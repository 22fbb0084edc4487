// SPDX-License-Identifier: Apache-2.0

package simnet

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net/url"
	"slices"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/rocl-go/rocl/subsys"
	"github.com/rocl-go/rocl/subsys/stream"
)

const scheme = "sim"

const rounds = 8 // reads of a connection before its goroutine gives up Config.Progress

// Transport returns the transport of the process. Its addresses are sim://host:port.
func (p *Process) Transport() subsys.Transport { return transport{p} }

type transport struct{ p *Process }

func (transport) Name() string { return scheme }

func (t transport) Listen(addr string, cfg subsys.Config) (subsys.Port, error) {
	host, err := "", error(nil)
	if addr != "" {
		if host, err = hostOf(addr); err != nil {
			return nil, err
		}
	}
	ln, err := t.p.listen(host)
	switch {
	case errors.Is(err, syscall.EADDRNOTAVAIL):
		return nil, fmt.Errorf("simnet: listening on %s: %w: %w", addr, subsys.ErrAddress, err)
	case err != nil:
		return nil, fmt.Errorf("simnet: listening on %s: %w: %w", addr, subsys.ErrUnavailable, err)
	}
	p := &port{process: t.p, cfg: cfg, ln: ln, conns: map[*conn]struct{}{}}
	p.running.Go(p.accept)
	return p, nil
}

// hostOf returns the host:port of an address of the transport.
func hostOf(addr string) (string, error) {
	u, err := url.Parse(addr)
	if err != nil || u.Scheme != scheme || u.Host == "" || u.Port() == "" {
		return "", fmt.Errorf("%w: %q is not %s://host:port", subsys.ErrAddress, addr, scheme)
	}
	return u.Host, nil
}

// A port implements [subsys.Port].
type port struct {
	process *Process
	cfg     subsys.Config
	ln      *listener
	running sync.WaitGroup // the accepting goroutine and those of conns

	mu       sync.Mutex
	isClosed bool
	conns    map[*conn]struct{}
}

func (p *port) Addr() string { return scheme + "://" + p.ln.Addr().String() }

func (p *port) Reaches(addr string) bool {
	_, err := hostOf(addr)
	return err == nil
}

func (p *port) accept() {
	for {
		nc, err := p.ln.accept()
		if err != nil {
			return // closed
		}
		c, err := p.adopt(nc, nil)
		if err != nil {
			continue
		}
		p.cfg.Count.ConnsIn.Add(1)
		if c.sink = p.cfg.Accept(c); c.sink != nil {
			c.Start()
		} else {
			c.Close()
		}
	}
}

// adopt makes a connection of nc, which it closes if the port is closed.
func (p *port) adopt(nc *tcpConn, s subsys.Sink) (*conn, error) {
	c := &conn{port: p, nc: nc, sink: s}
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.isClosed {
		nc.Close()
		return nil, subsys.ErrClosed
	}
	p.conns[c] = struct{}{}
	return c, nil
}

func (p *port) Dial(ctx context.Context, addr string, s subsys.Sink) (subsys.Conn, error) {
	host, err := hostOf(addr)
	if err != nil {
		return nil, err
	}
	nc, err := p.process.dial(ctx, host)
	if errors.Is(err, syscall.ECONNREFUSED) {
		err = fmt.Errorf("%w: %w", subsys.ErrNoPeer, err)
	}
	var c *conn
	if err == nil {
		c, err = p.adopt(nc, s)
	}
	if err != nil {
		return nil, fmt.Errorf("simnet: dialling %s: %w", addr, err)
	}
	p.cfg.Count.ConnsOut.Add(1)
	return c, nil
}

func (p *port) Close() error {
	p.mu.Lock()
	p.isClosed = true
	open := slices.Collect(maps.Keys(p.conns))
	p.mu.Unlock()
	p.ln.Close()
	for _, c := range open {
		c.Close()
	}
	p.running.Wait()
	return nil
}

// A conn implements [subsys.Conn], [subsys.Prober], [subsys.Streamer] and [subsys.OneSided].
type conn struct {
	port   *port
	nc     *tcpConn
	sink   subsys.Sink
	closed atomic.Bool
	in     stream.Reader // used by the goroutine of run

	// Network.mu guards the following fields.
	wantsRoom bool // Send has taken too little
	isRevived bool // memory has come back for the Reader
}

func (c *conn) Transport() string { return scheme }
func (c *conn) Remote() string    { return scheme + "://" + c.nc.remote.String() }
func (c *conn) Streams()          {}

func (c *conn) Unanswered() (owes bool, heard time.Duration) {
	c.nc.changed.L.Lock()
	defer c.nc.changed.L.Unlock()
	return c.nc.out.flying > 0, time.Since(c.nc.heard)
}

func (c *conn) Start() {
	p := c.port
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.isClosed || c.closed.Load() {
		return
	}
	c.in.Start(c, c.sink, &c.closed, &p.cfg, func() {
		c.nc.changed.L.Lock()
		defer c.nc.changed.L.Unlock()
		c.isRevived = true
		c.nc.changed.Broadcast()
	})
	p.running.Go(c.run)
}

// run delivers what arrives until the connection is closed.
func (c *conn) run() {
	defer c.in.Free()
	for {
		canRead, canWrite := c.await()
		c.port.cfg.Progress.Lock()
		if canWrite && !c.closed.Load() {
			c.sink.Writable(c)
		}
		if canRead && !c.closed.Load() {
			c.receive()
		}
		c.port.cfg.Progress.Unlock()
		if c.closed.Load() {
			return
		}
	}
}

// await waits until there is something to read, or room to write that Send lacked, or the
// connection is closed.
func (c *conn) await() (canRead, canWrite bool) {
	nc := c.nc
	nc.changed.L.Lock()
	defer nc.changed.L.Unlock()
	for {
		canRead = !c.in.Starved() && !nc.p.isStopped && (nc.in.unread > 0 || nc.in.hasEnded || nc.err != nil || c.isRevived)
		canWrite = c.wantsRoom && !nc.p.isStopped && nc.writeErrorLocked() == nil && nc.out.room() > 0
		if canRead || canWrite || c.closed.Load() || nc.p.isKilled {
			c.isRevived = false
			c.wantsRoom = c.wantsRoom && !canWrite
			return canRead || nc.p.isKilled, canWrite
		}
		nc.changed.Wait()
	}
}

// receive reads until nothing is left, or rounds times. The goroutine holds Config.Progress.
func (c *conn) receive() {
	for range rounds {
		n := 0
		space, err := c.in.Space()
		if err == nil {
			if n, err = c.nc.readNow(space); err != nil {
				err = fmt.Errorf("simnet: reading from %s: %w: %w", c.Remote(), subsys.ErrPeerClosed, err)
			} else if n > 0 {
				_, err = c.in.Took(n)
			}
		}
		if err != nil && !errors.Is(err, stream.ErrStarved) {
			c.fail(err)
		}
		if err != nil || n == 0 || c.closed.Load() {
			return
		}
	}
}

// Send implements [subsys.Conn]. It copies the frames, and takes them while there is any room.
func (c *conn) Send(fs []subsys.Frame) (int, error) {
	if c.closed.Load() {
		return 0, fmt.Errorf("simnet: sending to %s: %w", c.Remote(), subsys.ErrClosed)
	}
	nc := c.nc
	nc.changed.L.Lock()
	defer nc.changed.L.Unlock()
	if nc.writeErrorLocked() != nil {
		return 0, nil // the reader gets to the end after the last frames of the peer, and closes the connection
	}
	n, room := 0, nc.out.room()
	size := 0
	for ; n < len(fs) && size < room; n++ {
		size += subsys.HeaderLen + len(fs[n].Data)
	}
	if n < len(fs) {
		c.wantsRoom = true
	}
	if n == 0 {
		return 0, nil
	}
	b := make([]byte, 0, size)
	for i := range fs[:n] {
		f := &fs[i]
		if f.Type != subsys.TypeBatch {
			b = b[:len(b)+subsys.HeaderLen]
			f.Put(b[len(b)-subsys.HeaderLen:])
		}
		b = append(b, f.Data...)
		c.port.cfg.Count.Copies.Add(1)
		c.port.cfg.Count.CopiedB.Add(uint64(len(f.Data)))
	}
	nc.out.sendLocked(segment{b: b})
	return n, nil
}

func (c *conn) Close() error { c.end(); return nil }

// end closes the connection, once. isFirst reports whether this call closed it.
func (c *conn) end() (isFirst bool) {
	if !c.closed.CompareAndSwap(false, true) {
		return false
	}
	c.nc.Close()
	c.port.mu.Lock()
	defer c.port.mu.Unlock()
	delete(c.port.conns, c)
	return true
}

// fail closes the connection because of err and tells the sink, unless the connection was closed
// before.
func (c *conn) fail(err error) {
	if c.end() {
		c.sink.Down(c, err)
	}
}

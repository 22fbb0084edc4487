// SPDX-License-Identifier: Apache-2.0

// Package inproc joins contexts of one process. A frame is handed to the
// peer's sink by the sending goroutine: nothing is copied, nothing sleeps,
// and nothing but memory is used, so it works inside testing/synctest.
//
// A [Network] is the namespace in which ports find each other; its addresses
// are inproc://network/port, with the network's name drawn at random so that
// another process can tell that such an address is not for it.
package inproc

import (
	"context"
	"crypto/rand"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"

	"github.com/rocl-go/rocl/buffers"
	"github.com/rocl-go/rocl/subsys"
)

// A Network holds the ports of one namespace. Make it with NewNetwork.
type Network struct {
	name string
	mu   sync.Mutex
	next uint64
	by   map[string]*port
}

// NewNetwork makes an empty network that no other can be confused with.
func NewNetwork() *Network {
	return &Network{name: strings.ToLower(rand.Text()[:12]), by: map[string]*port{}}
}

// process joins the contexts of this process that were not given a network of
// their own.
var process = sync.OnceValue(NewNetwork)

// New returns the transport that joins all contexts of this process.
func New() subsys.Transport { return process().Transport() }

// Transport returns the transport over this network.
func (n *Network) Transport() subsys.Transport { return transport{n} }

type transport struct{ n *Network }

func (transport) Name() string { return "inproc" }

func (t transport) Listen(addr string, cfg subsys.Config) (subsys.Port, error) {
	n := t.n
	n.mu.Lock()
	defer n.mu.Unlock()
	if addr == "" {
		n.next++
		addr = fmt.Sprintf("inproc://%s/%d", n.name, n.next)
	}
	if !strings.HasPrefix(addr, "inproc://"+n.name+"/") {
		return nil, fmt.Errorf("%w: %q is not in inproc network %s", subsys.ErrAddress, addr, n.name)
	}
	if n.by[addr] != nil {
		return nil, fmt.Errorf("inproc: listening on %s: address in use", addr)
	}
	p := &port{n: n, addr: addr, cfg: cfg, conns: map[*conn]struct{}{}}
	n.by[addr] = p
	return p, nil
}

type port struct {
	n     *Network
	addr  string
	cfg   subsys.Config
	mu    sync.Mutex
	done  bool
	conns map[*conn]struct{}
}

func (p *port) Addr() string { return p.addr }

func (p *port) Reaches(addr string) bool {
	return strings.HasPrefix(addr, "inproc://"+p.n.name+"/")
}

func (p *port) Dial(_ context.Context, addr string, s subsys.Sink) (subsys.Conn, error) {
	if !p.Reaches(addr) {
		return nil, fmt.Errorf("inproc: dialling %s: %w", addr, subsys.ErrAddress)
	}
	p.n.mu.Lock()
	to := p.n.by[addr]
	p.n.mu.Unlock()
	if to == nil {
		return nil, fmt.Errorf("inproc: dialling %s: %w", addr, subsys.ErrNoPeer)
	}
	near, far := &conn{port: p, remote: addr, sink: s}, &conn{port: to, remote: p.addr}
	near.peer, far.peer = far, near
	// The sink is there before anybody can find the conn.
	if far.sink = to.cfg.Accept(far); far.sink == nil {
		return nil, fmt.Errorf("inproc: dialling %s: %w", addr, subsys.ErrNoPeer)
	}
	if !to.add(far) {
		far.fail(subsys.ErrClosed)
		return nil, fmt.Errorf("inproc: dialling %s: %w", addr, subsys.ErrNoPeer)
	}
	if !p.add(near) {
		far.fail(subsys.ErrPeerClosed)
		return nil, fmt.Errorf("inproc: dialling %s: %w", addr, subsys.ErrClosed)
	}
	p.cfg.Count.ConnsOut.Add(1)
	to.cfg.Count.ConnsIn.Add(1)
	far.started.Store(true)
	return near, nil
}

func (p *port) add(c *conn) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if !p.done {
		p.conns[c] = struct{}{}
	}
	return !p.done
}

func (p *port) forget(c *conn) {
	p.mu.Lock()
	delete(p.conns, c)
	p.mu.Unlock()
}

func (p *port) Close() error {
	p.n.mu.Lock()
	if p.n.by[p.addr] == p {
		delete(p.n.by, p.addr)
	}
	p.n.mu.Unlock()
	p.mu.Lock()
	p.done = true
	conns := make([]*conn, 0, len(p.conns))
	for c := range p.conns {
		conns = append(conns, c)
	}
	p.mu.Unlock()
	for _, c := range conns {
		c.Close()
	}
	return nil
}

type conn struct {
	port    *port
	peer    *conn
	remote  string
	sink    subsys.Sink
	started atomic.Bool
	closed  atomic.Bool
}

func (c *conn) Transport() string { return "inproc" }
func (c *conn) Remote() string    { return c.remote }
func (c *conn) Delivers() bool    { return true }

func (c *conn) Start() {
	if !c.started.Swap(true) && !c.peer.closed.Load() && c.peer.sink != nil {
		c.peer.sink.Writable(c.peer)
	}
}

func (c *conn) Send(fs []subsys.Frame) (int, error) {
	if c.closed.Load() || c.peer.closed.Load() {
		return 0, fmt.Errorf("inproc: sending to %s: %w", c.remote, subsys.ErrClosed)
	}
	if !c.peer.started.Load() {
		return 0, nil
	}
	n := len(fs)
	for i := range fs {
		if fs[i].Type == subsys.TypeRun {
			fs = split(fs) // the link was over a stream before
			break
		}
	}
	err := c.peer.sink.Frames(c.peer, fs)
	if buffers.IsTemporary(err) {
		var waits bool
		if waits, err = c.sendLater(fs); waits {
			return 0, nil
		}
	}
	if err != nil {
		c.peer.fail(err)
		c.fail(fmt.Errorf("inproc: sending to %s: %w", c.remote, subsys.ErrPeerClosed))
		return 0, subsys.ErrPeerClosed
	}
	return n, nil
}

// sendLater is for frames for which the peer lacks memory. It reports true if Writable
// will be called, when the peer's memory comes back.
func (c *conn) sendLater(fs []subsys.Frame) (waits bool, err error) {
	pool := c.peer.port.cfg.Pool
	pool.Await(c, func() { go c.sink.Writable(c) })
	if err = c.peer.sink.Frames(c.peer, fs); buffers.IsTemporary(err) {
		return true, nil
	}
	pool.Unawait(c) // some came back meanwhile
	return false, err
}

// split replaces runs by their frames.
func split(fs []subsys.Frame) (out []subsys.Frame) {
	for i := range fs {
		if fs[i].Type == subsys.TypeRun {
			out = fs[i].Split(out)
		} else {
			out = append(out, fs[i])
		}
	}
	return out
}

// fail takes this end down and tells its sink why.
func (c *conn) fail(err error) {
	if c.closed.CompareAndSwap(false, true) {
		c.port.forget(c)
		if c.sink != nil {
			c.sink.Down(c, err)
		}
	}
}

func (c *conn) Close() error {
	if c.closed.CompareAndSwap(false, true) {
		c.port.forget(c)
		c.peer.fail(subsys.ErrPeerClosed)
	}
	return nil
}

// SPDX-License-Identifier: Apache-2.0

package ofi

import (
	"context"
	"crypto/rand"
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"sync"
	"syscall"
	"time"

	"github.com/rocl-go/rocl/buffers"
	"github.com/rocl-go/rocl/internal/os/netsource"
	"github.com/rocl-go/rocl/internal/ratelog"
	"github.com/rocl-go/rocl/ofi/internal/fabric"
	"github.com/rocl-go/rocl/subsys"
	"github.com/rocl-go/rocl/subsys/stream"
)

const (
	shakeTimeout = 5 * time.Second // for a handshake
	maxPending   = 256             // accepted connections without a complete handshake
	linger       = 5 * time.Second // for a closed connection to send what it has taken
	drainMost    = time.Second     // for a port that is closed
)

// A port implements [subsys.Port].
type port struct {
	transport
	cfg     subsys.Config
	log     *ratelog.Logger
	ln      *net.TCPListener
	ip      netip.Addr // of ln
	ep      *fabric.Endpoint
	memory  memory
	own     *buffers.Pool // memory of messages that are sent
	pending *subsys.Handshakes
	running sync.WaitGroup // the accepting goroutine, those of handshakes, and those of control connections

	mostSends int // operations in progress at once, without the receives

	mu        sync.Mutex
	isClosed  bool
	conns     map[uint64]*conn // by their numbers in messages to this end
	peers     map[string]*peer // by the names of their endpoints
	ops       []operation
	free      []int // unused ops
	receives  int   // ops that receive
	exposed   int   // payloads that peers have not read
	ahead     int   // bytes of payloads that are read ahead, or were and are not delivered
	remotes   int   // ops that read or write peers' memory
	waiting   []*remote
	dirty     []*conn // those that progress must look at; see conn.isDirty
	blocked   []*conn // those for which the provider could take nothing; see conn.isBlocked
	isStarved bool    // there was no memory to receive into

	engine // used by the progress goroutine
}

// A peer is an endpoint to which connections lead.
type peer struct {
	name string
	at   fabric.Address
	refs int // connections, and operations in progress
}

// An operation is in progress at the endpoint. The endpoint knows it by its index in port.ops.
type operation struct {
	kind   opKind
	buf    *buffers.Buffer // its memory; nil if remote has it
	conn   *conn           // nil for receives
	peer   *peer           // of conn
	remote *remote         // nil for messages
	large  *large          // what an opRead reads
}

type opKind uint8

const (
	opNone opKind = iota // not in progress
	opReceive
	opSend
	opAck // a message without records
	opRead
	opRemoteRead
	opRemoteWrite
)

// open returns the port over ln and ep, and starts it.
func open(t transport, ln *net.TCPListener, ip netip.Addr, ep *fabric.Endpoint, cfg subsys.Config) *port {
	p := &port{
		transport: t, cfg: cfg, log: ratelog.New(cfg.Logger), ln: ln, ip: ip, ep: ep, own: buffers.New(),
		pending: subsys.NewHandshakes(maxPending), conns: map[uint64]*conn{}, peers: map[string]*peer{}, ops: make([]operation, mostOps),
	}
	if p.cfg.Progress == nil {
		p.cfg.Progress = new(sync.Mutex)
	}
	p.memory = memory{ep: ep, exposed: map[*exposure]struct{}{}, refused: func(err error) {
		// Cause: mostly RLIMIT_MEMLOCK. Remedy: raise `ulimit -l`.
		p.log.Warn("", t.name+": memory is not registered, so what lies in it is copied", "err", err)
	}}
	p.memory.areas.Store(new([]area))
	if p.mostSends = mostOps; p.isRXD() {
		p.mostSends = 256 // ofi_rxd takes more, and never ends the rest
	}
	for i := range p.ops {
		p.free = append(p.free, i)
	}
	p.running.Go(p.accept)
	return p
}

// Addr implements [subsys.Port].
func (p *port) Addr() string { return p.name + "://" + p.ln.Addr().String() }

// Reaches implements [subsys.Port].
func (p *port) Reaches(addr string) bool {
	host, err := p.hostOf(addr)
	return err == nil && p.reaches(p.ip, host)
}

func (p *port) accept() {
	for {
		nc, err := p.ln.AcceptTCP()
		if errors.Is(err, net.ErrClosed) {
			return
		}
		if err != nil {
			// Cause: mostly no descriptors are left. Remedy: raise `ulimit -n`.
			p.log.Warn("", p.name+": accepting", "err", err)
			stream.Pause(err)
			continue
		}
		h := p.pending.Add(netsource.Of(nc.RemoteAddr()), func() { nc.Close() })
		if !p.goes(func() { p.greet(nc, h) }) {
			h.Done()
			nc.Close()
		}
	}
}

// goes calls f in a goroutine for whose end Close waits. It reports false, and does nothing, if the
// port is closed.
func (p *port) goes(f func()) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.isClosed {
		return false
	}
	p.running.Go(f)
	return true
}

// greet completes the handshake of an accepted connection and starts it, unless the context refuses
// it.
func (p *port) greet(nc *net.TCPConn, h *subsys.Handshake) {
	c, err := p.greeted(nc)
	isIn := h.Done()
	if err != nil || !isIn {
		if c != nil {
			c.end(true)
		}
		nc.Close()
		if err != nil && !errors.Is(err, subsys.ErrClosed) {
			// Cause: the peer is no context, or uses another provider: see `err`. Remedy: correct
			// the peer.
			p.log.Info(netsource.Of(nc.RemoteAddr()), p.name+": refused", "remote", nc.RemoteAddr().String(), "err", err)
		}
		return
	}
	p.cfg.Count.ConnsIn.Add(1)
	if c.sink = p.cfg.Accept(c); c.sink == nil {
		c.Close()
		return
	}
	c.Start()
}

func (p *port) greeted(nc *net.TCPConn) (*conn, error) {
	if err := nc.SetDeadline(time.Now().Add(shakeTimeout)); err != nil {
		return nil, err
	}
	var far hello
	if err := far.read(nc); err != nil {
		return nil, err
	}
	c, err := p.adopt(nc)
	if err != nil {
		return nil, err
	}
	if err := c.meet(&far); err != nil {
		return c, err
	}
	return c, p.hello(c).write(nc)
}

// hello returns what this end says on the control connection of c.
func (p *port) hello(c *conn) *hello {
	return &hello{provider: p.provider, name: p.ep.Name(), conn: c.number}
}

// Dial implements [subsys.Port].
func (p *port) Dial(ctx context.Context, addr string, s subsys.Sink) (subsys.Conn, error) {
	host, err := p.hostOf(addr)
	if err != nil {
		return nil, err
	}
	c, err := p.dial(ctx, host)
	if err != nil {
		return nil, fmt.Errorf("%s: dialling %s: %w", p.name, addr, err)
	}
	p.cfg.Count.ConnsOut.Add(1)
	c.sink = s
	return c, nil
}

func (p *port) dial(ctx context.Context, host string) (*conn, error) {
	var d net.Dialer
	if !p.ip.IsUnspecified() {
		d.LocalAddr = &net.TCPAddr{IP: p.ip.AsSlice()} // the peer takes it for the host of the endpoint
	}
	nc, err := d.DialContext(ctx, "tcp", host)
	if errors.Is(err, syscall.ECONNREFUSED) {
		err = fmt.Errorf("%w: %w", subsys.ErrNoPeer, err)
	}
	if err != nil {
		return nil, err
	}
	stop := context.AfterFunc(ctx, func() { _ = nc.SetDeadline(time.Now()) })
	c, err := p.greets(nc.(*net.TCPConn))
	if !stop() && ctx.Err() != nil {
		err = context.Cause(ctx)
	}
	if err != nil {
		if c != nil {
			c.end(true)
		}
		nc.Close()
		return nil, err
	}
	return c, nil
}

// greets makes the handshake of a connection that this end has dialled.
func (p *port) greets(nc *net.TCPConn) (*conn, error) {
	if err := nc.SetDeadline(time.Now().Add(shakeTimeout)); err != nil {
		return nil, err
	}
	c, err := p.adopt(nc) // before the peer knows its number
	if err != nil {
		return nil, err
	}
	if err := p.hello(c).write(nc); err != nil {
		return c, err
	}
	var far hello
	if err := far.read(nc); err != nil {
		return c, err
	}
	return c, c.meet(&far)
}

// adopt makes a connection over the control connection nc.
func (p *port) adopt(nc *net.TCPConn) (*conn, error) {
	if err := p.begin(); err != nil {
		return nil, err
	}
	var number [8]byte
	_, _ = rand.Read(number[:])
	c := &conn{port: p, control: nc, remote: p.name + "://" + nc.RemoteAddr().String(), number: binary.LittleEndian.Uint64(number[:]), ended: make(chan struct{})}
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.isClosed {
		return nil, subsys.ErrClosed
	}
	p.conns[c.number] = c
	return c, nil
}

// meet makes the peer of hello h the peer of c, and begins to watch the control connection.
func (c *conn) meet(h *hello) error {
	p := c.port
	if h.provider != p.provider {
		return fmt.Errorf("%w: the peer has the provider %q", subsys.ErrProtocol, h.provider)
	}
	remote := c.control.RemoteAddr().(*net.TCPAddr).AddrPort().Addr().Unmap()
	if err := checkName(p.ep, h.name, remote); err != nil {
		return fmt.Errorf("%w: %w", subsys.ErrProtocol, err)
	}
	if err := c.control.SetDeadline(time.Time{}); err != nil {
		return err
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.isClosed || c.isClosed {
		return subsys.ErrClosed
	}
	q := p.peers[string(h.name)]
	if q == nil {
		at, err := p.ep.Insert(h.name)
		if err != nil {
			return err
		}
		q = &peer{name: string(h.name), at: at}
		p.peers[q.name] = q
	}
	q.refs++
	c.peer, c.farNumber = q, h.conn
	p.running.Go(c.watch)
	return nil
}

// leaveLocked undoes one reference to a peer. mu must be held.
func (p *port) leaveLocked(q *peer) {
	if q.refs--; q.refs == 0 {
		delete(p.peers, q.name)
		p.ep.Remove(q.at)
	}
}

// beginLocked returns the number of a new operation, or false if too many are in progress. mu must
// be held.
func (p *port) beginLocked(kind opKind, b *buffers.Buffer, c *conn) (n int, ok bool) {
	if len(p.free) == 0 || kind != opReceive && len(p.ops)-len(p.free)-p.receives >= p.mostSends {
		return 0, false
	}
	n = p.free[len(p.free)-1]
	p.free = p.free[:len(p.free)-1]
	o := &p.ops[n]
	*o = operation{kind: kind, buf: b, conn: c}
	if c != nil {
		o.peer = c.peer
		o.peer.refs++
	}
	return n, true
}

// finishLocked ends an operation and returns it. The caller gets its buffer. mu must be held.
func (p *port) finishLocked(n int) operation {
	o := p.ops[n]
	p.ops[n] = operation{}
	p.free = append(p.free, n)
	if o.peer != nil {
		p.leaveLocked(o.peer)
	}
	return o
}

// Close implements [subsys.Port]. It waits up to a second until the peers have what was sent.
func (p *port) Close() error {
	p.mu.Lock()
	if p.isClosed {
		p.mu.Unlock()
		return nil
	}
	p.isClosed = true
	all := make([]*conn, 0, len(p.conns))
	for _, c := range p.conns {
		all = append(all, c)
	}
	p.mu.Unlock()
	err := p.ln.Close()
	p.pending.CloseAll()
	for _, c := range all {
		c.Close()
	}
	p.drain(all)
	for _, c := range all {
		c.control.Close()
	}
	p.running.Wait()
	p.cfg.Progress.Lock()
	defer p.cfg.Progress.Unlock()
	p.stop()
	return errors.Join(err, p.own.Close())
}

// drain makes progress until the peers have what all has sent.
func (p *port) drain(all []*conn) {
	for end := time.Now().Add(drainMost); time.Now().Before(end); time.Sleep(100 * time.Microsecond) {
		p.cfg.Progress.Lock()
		if p.poller.Load() != nil {
			p.progress()
		}
		p.cfg.Progress.Unlock()
		hasAll := true
		p.mu.Lock()
		for _, c := range all {
			hasAll = hasAll && (c.isForgotten || c.peer == nil || c.credited == c.sent+uint32(len(c.queue)))
		}
		p.mu.Unlock()
		if hasAll {
			return
		}
	}
}

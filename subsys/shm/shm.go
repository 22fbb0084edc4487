// SPDX-License-Identifier: Apache-2.0

//go:build linux || darwin || freebsd || netbsd || openbsd

package shm

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"os"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/rocl-go/rocl/buffers"
	"github.com/rocl-go/rocl/internal/ratelog"
	"github.com/rocl-go/rocl/subsys"
	"github.com/rocl-go/rocl/subsys/stream"
)

var le = binary.LittleEndian

const (
	shakeTimeout = 2 * time.Second
	maxPending   = 64 // accepted sockets in the handshake
	maxSilent    = 16 // connections of one other user that are not admitted
)

// If there are many connections, a Look looks at those that were active lately, at most hotMost.
// One in coldEvery Looks also looks at one of the others, in turns. Memory that these have written
// is in no cache, and to fetch it takes longer than to look at the active ones.
const (
	hotMost   = 4
	coldEvery = 4
	fewConns  = 16 // number of connections up to which a Look looks at all
)

// New returns the shared memory transport. Its addresses are shm://NODE/NAME. NODE stands for the
// boot, the namespaces and the user that share memory, or, on systems other than Linux, for a
// folder of the user. Listen makes the pool of the context map memory that can be shared. If the
// kernel does not give the memory, the socket or the descriptors, Listen fails with
// subsys.ErrUnavailable and the reason.
func New() subsys.Transport { return transport{} }

// ForGroup is New for contexts of several users that are members of a group, given by its number.
// All of them must use a transport so made. Each may read all memory that the pool of another has
// shared. A member can do nothing else to another member's process: it cannot block, stop or end
// it. A faulty member can change a large message that it sent while the receiver reads it. So
// untrusted data must be copied (Message.Writable) before it is checked. To wake a sleeping context
// costs a few microseconds more than between processes of one user. Only Linux has this transport.
func ForGroup(gid int) subsys.Transport { return transport{group: &gid} }

type transport struct{ group *int }

func (transport) Name() string { return "shm" }

func (t transport) Listen(addr string, cfg subsys.Config) (subsys.Port, error) {
	if t.group != nil && !member(*t.group) {
		return nil, fmt.Errorf("shm: %w: this process is not in group %d", subsys.ErrUnavailable, *t.group)
	}
	if cfg.Progress == nil {
		cfg.Progress = new(sync.Mutex)
	}
	node, err := t.nodeName()
	if err != nil {
		return nil, fmt.Errorf("shm: naming this node: %w: %w", subsys.ErrUnavailable, err)
	}
	p := &port{cfg: cfg, log: ratelog.New(cfg.Logger), group: t.group, conns: map[*conn]struct{}{}, pending: make(chan struct{}, maxPending)}
	if err := p.listen(addr, node); err != nil {
		p.unlisten()
		return nil, err
	}
	p.list.Store(new([]*conn))
	p.isIdle.Store(true)
	if err = cfg.Pool.Share(); err == nil {
		if p.bell, err = newBell(); err == nil {
			if err = cfg.Pool.Register(p); err != nil {
				p.bell.close()
			}
		}
	}
	if err != nil {
		p.unlisten()
		return nil, fmt.Errorf("shm: listening on %s: %w: %w", p.addr, subsys.ErrUnavailable, err)
	}
	p.running.Go(func() { p.accept(p.ln, false) })
	if p.beside != nil {
		p.running.Go(func() { p.accept(p.beside, true) })
	}
	return p, nil
}

// A port is the shared memory port of one context. While its lock is held, only that of the Poller
// is taken.
type port struct {
	cfg     subsys.Config
	group   *int // group whose members may connect; nil: the same user only
	addr    address
	ln      *net.UnixListener
	beside  *net.UnixListener // beside the directory's socket; nil if there is none
	meeting meeting           // where the sockets are
	running sync.WaitGroup
	pending chan struct{}
	budget  budget
	log     *ratelog.Logger

	bell    *bell       // nil once closed
	isIdle  atomic.Bool // the bell tells peers that no goroutine looks
	list    atomic.Pointer[[]*conn]
	hot     [hotMost]*conn // recently active connections; this and the next three fields belong to the progress goroutine
	nextHot int            // index in hot that the next active connection replaces
	looks   uint           // Looks at hot only, for coldEvery
	turn    int            // index in list of the last cold connection

	followMu    sync.Mutex             // taken before a pool's lock
	follows     map[*buffers.Pool]bool // pools of other contexts in whose arenas a payload was lent
	followsNone bool                   // the port is closed

	mu          sync.Mutex
	closed      bool
	poller      *subsys.Poller // the poller that has the bell; nil before the first connection
	conns       map[*conn]struct{}
	raw         map[*net.UnixConn]struct{} // sockets in the handshake
	silent      map[uint32]int             // connections of other users that are not admitted, by user
	silentTotal int                        // the sum of silent
}

func (p *port) Addr() string { return p.addr.String() }

func (p *port) Reaches(addr string) bool {
	a, err := parse(addr)
	return err == nil && (a.node == p.addr.node || p.meets(a))
}

// choose sets the address of the port to addr, which must be of this node, or to one of its own if
// addr is "". folder is the name of its folder in addresses, or "".
func (p *port) choose(addr, node, folder string) error {
	p.addr = address{node: node, folder: folder, name: newName()}
	if addr == "" {
		return nil
	}
	at, err := parse(addr)
	if err != nil {
		return err
	}
	if at.node != node || at.folder != "" && at.folder != folder {
		return fmt.Errorf("%w: %s is not of this node, which is %s", subsys.ErrAddress, addr, node)
	}
	p.addr = at
	return nil
}

// socketOf returns the name or path of the socket at which another port can be dialled.
func (p *port) socketOf(a address) (string, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	switch {
	case p.closed:
		return "", subsys.ErrClosed
	case a.node == p.addr.node:
		return p.socket(a.name), nil
	case p.meets(a):
		return p.meeting.path(a.name), nil
	}
	return "", fmt.Errorf("%w: this node is %s", subsys.ErrAddress, p.addr.node)
}

// accept makes connections of the sockets that peers have dialled. isBeside is set for those in the
// folder.
func (p *port) accept(ln *net.UnixListener, isBeside bool) {
	for {
		uc, err := ln.AcceptUnix()
		if err != nil {
			if errors.Is(err, net.ErrClosed) {
				return
			}
			// Cause: no descriptors, a process of another user, or an unfinished handshake: see
			// `err`.
			p.log.Warn("", "shm: accepting", "err", err)
			stream.Pause(err)
			continue
		}
		done, err := p.begin(uc, isBeside)
		if err != nil {
			uc.Close()
			p.log.Warn("", "shm: accepting", "err", err)
			continue
		}
		p.pending <- struct{}{}
		p.running.Add(1)
		go func() {
			defer p.running.Done()
			defer func() { <-p.pending }()
			if err := p.welcome(uc, isBeside, done); err != nil {
				p.log.Warn("", "shm: accepting", "err", err)
			}
		}()
	}
}

// begin admits an accepted socket to the handshake. It refuses a user that may not connect, and one
// that has too many connections whose peer the sink does not know. done must be called when the
// sink knows the peer, or when the connection has ended.
func (p *port) begin(uc *net.UnixConn, isBeside bool) (done func(), err error) {
	raw, err := uc.SyscallConn()
	if err != nil {
		return nil, err
	}
	cred, err := p.peer(raw, isBeside)
	if err != nil {
		return nil, err
	}
	if int(cred.UID) == os.Getuid() {
		return func() {}, nil
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.silent[cred.UID] >= maxSilent || p.silentTotal >= maxPending-maxSilent {
		return nil, fmt.Errorf("user %d has %d connections that are not admitted yet, of %d of all other users", cred.UID, p.silent[cred.UID], p.silentTotal)
	}
	if p.silent == nil {
		p.silent = map[uint32]int{}
	}
	p.silent[cred.UID]++
	p.silentTotal++
	return sync.OnceFunc(func() {
		p.mu.Lock()
		defer p.mu.Unlock()
		p.silentTotal--
		if p.silent[cred.UID]--; p.silent[cred.UID] == 0 {
			delete(p.silent, cred.UID)
		}
	}), nil
}

// welcome makes a conn of an accepted socket. done is the function that begin returned.
func (p *port) welcome(uc *net.UnixConn, isBeside bool, done func()) error {
	c, err := p.shake(context.Background(), uc, isBeside, false)
	if err != nil {
		done()
		return err
	}
	c.onKnown = done
	p.cfg.Count.ConnsIn.Add(1)
	if c.sink = p.cfg.Accept(c); c.sink == nil {
		return c.Close()
	}
	c.Start()
	return nil
}

func (p *port) Dial(ctx context.Context, addr string, s subsys.Sink) (subsys.Conn, error) {
	a, err := parse(addr)
	if err != nil {
		return nil, err
	}
	at, err := p.socketOf(a)
	if err != nil {
		return nil, fmt.Errorf("shm: dialling %s: %w", addr, err)
	}
	var d net.Dialer
	nc, err := d.DialContext(ctx, network, at)
	if err != nil {
		if isRefused(err) {
			err = fmt.Errorf("%w: %w", subsys.ErrNoPeer, err)
		}
		return nil, fmt.Errorf("shm: dialling %s: %w", addr, err)
	}
	c, err := p.shake(ctx, nc.(*net.UnixConn), a.node != p.addr.node, true)
	if err != nil {
		return nil, fmt.Errorf("shm: dialling %s: %w", addr, err)
	}
	c.remote = addr
	p.cfg.Count.ConnsOut.Add(1)
	c.sink = s
	return c, nil
}

// track records a socket during its handshake, so that Close can end the handshake and wait for its
// goroutine, which uses the bell. It reports false if the port is closed.
func (p *port) track(uc *net.UnixConn) (untrack func(), ok bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed {
		return nil, false
	}
	if p.raw == nil {
		p.raw = map[*net.UnixConn]struct{}{}
	}
	p.raw[uc] = struct{}{}
	p.running.Add(1)
	return func() {
		p.mu.Lock()
		delete(p.raw, uc)
		p.mu.Unlock()
		p.running.Done()
	}, true
}

// adopt adds c to the port's connections.
func (p *port) adopt(c *conn) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed {
		return subsys.ErrClosed
	}
	if p.poller == nil {
		if err := c.poller.AddQuiet(p.bell.fd, p); err != nil {
			return err
		}
		p.poller = c.poller
	}
	p.conns[c] = struct{}{}
	return nil
}

func (p *port) forget(c *conn) {
	p.mu.Lock()
	delete(p.conns, c)
	p.mu.Unlock()
}

// enlist adds c to the list of connections that Look looks at. The list retains c from then on.
func (p *port) enlist(c *conn) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed || !c.tryRetain() {
		return false
	}
	l := append(slices.Clone(*p.list.Load()), c)
	p.list.Store(&l)
	p.poller.Wake() // frames that came before woke no goroutine
	return true
}

// nudge wakes the goroutine that looks at the connections, if the port is idle.
func (p *port) nudge() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if !p.closed && p.poller != nil && p.isIdle.Load() {
		p.poller.Wake()
	}
}

// delist undoes enlist. cfg.Progress must be held.
func (p *port) delist(c *conn) {
	p.mu.Lock()
	old := *p.list.Load()
	i := slices.Index(old, c)
	if i >= 0 {
		l := slices.Delete(slices.Clone(old), i, i+1)
		p.list.Store(&l)
	}
	p.mu.Unlock()
	if i >= 0 {
		if h := slices.Index(p.hot[:], c); h >= 0 {
			p.hot[h] = nil
		}
		c.drop()
	}
}

// Look implements subsys.Ring. The first Look after idle time looks at all connections.
func (p *port) Look() (frames int) {
	list := *p.list.Load()
	isAll := len(list) <= fewConns
	if p.bell != nil && p.isIdle.Load() {
		p.isIdle.Store(false)
		p.bell.setMode(subsys.Awake)
		isAll = true
	}
	if isAll {
		for _, c := range list {
			frames += p.lookAt(c)
		}
		return frames
	}
	for _, c := range p.hot {
		if c != nil {
			frames += p.lookAt(c)
		}
	}
	if p.looks++; p.looks%coldEvery > 0 {
		return frames
	}
	if list = *p.list.Load(); len(list) > 0 { // lookAt may have removed a connection
		p.turn++
		frames += p.lookAt(list[p.turn%len(list)])
	}
	return frames
}

// lookAt makes c process what has arrived, and removes a finished connection from the list.
func (p *port) lookAt(c *conn) (frames int) {
	frames = c.look()
	if c.closed.Load() {
		c.finish()
	}
	switch {
	case c.in.finished.Load() && !c.hasLoans():
		p.delist(c)
	case (frames > 0 || c.out.isFull.Load()) && !slices.Contains(p.hot[:], c):
		p.hot[p.nextHot] = c
		p.nextHot = (p.nextHot + 1) % hotMost
	}
	return frames
}

// Ready implements subsys.Source. It is called when a peer has rung.
func (p *port) Ready(subsys.Readiness) (frames int, again bool) { return p.Look(), false }

// answer is Ready for a peer that rings by a note on its connection. Many peers may have rung, and
// one Look serves all.
func (p *port) answer(c *conn) (frames int) {
	if p.isIdle.Load() {
		return p.Look()
	}
	return c.look()
}

func (p *port) SetIdle(how subsys.IdleMode) (arrived bool) {
	if p.bell != nil {
		p.isIdle.Store(true)
		p.bell.setMode(how)
		for _, c := range *p.list.Load() {
			c.back.write(c)
			if how == subsys.Asleep {
				c.trim()
			}
			if c.hasWork() {
				arrived = true
			}
		}
	}
	return arrived
}

// RegisterArena implements buffers.Registrar. Nothing is done: a peer learns of an arena with the
// first loan in it.
func (p *port) RegisterArena(buffers.Arena) error { return nil }

// UnregisterArena implements buffers.Registrar. The pool's lock is held.
func (p *port) UnregisterArena(a buffers.Arena) {
	for _, c := range *p.list.Load() {
		c.out.noteUnmapped(a.ID)
	}
	p.nudge()
}

// Close implements subsys.Port. Messages that peers have lent stay readable. Memory lent to peers
// is not used again.
func (p *port) Close() error {
	p.mu.Lock()
	if p.closed {
		p.mu.Unlock()
		return nil
	}
	p.closed = true
	for uc := range p.raw {
		_ = uc.SetDeadline(time.Now())
	}
	p.mu.Unlock()
	err := p.unlisten()
	p.running.Wait()
	p.cfg.Pool.Unregister(p)
	p.unfollow()

	p.mu.Lock()
	conns := make([]*conn, 0, len(p.conns))
	for c := range p.conns {
		if c.tryRetain() {
			conns = append(conns, c)
		}
	}
	p.mu.Unlock()
	p.cfg.Progress.Lock()
	defer p.cfg.Progress.Unlock()
	for _, c := range conns {
		c.Close()
		c.finish()
		c.out.abandonLoans(c)
		c.poller.Remove(c.sock)
		c.drop()
	}
	if p.poller != nil {
		p.poller.Remove(p.bell.fd)
	}
	for _, c := range *p.list.Load() {
		p.delist(c)
	}
	p.bell.close()
	p.bell = nil
	p.isIdle.Store(true)
	return err
}

// SPDX-License-Identifier: Apache-2.0

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
	maxPending   = 64 // accepted sockets that have not said hello
	maxSilent    = 16 // conns of one other user that are not admitted
)

// Of many conns a Look looks at those that had something lately, at most hotMost. One in
// coldEvery Looks looks at one of the others as well, in turns: what these have written is
// in no cache, and to fetch it takes longer than to look at those that are active.
const (
	hotMost   = 4
	coldEvery = 4
	fewConns  = 16 // up to so many it looks at all
)

// New returns the shared memory transport. Its addresses are shm://NODE/NAME;
// NODE names the boot, the namespaces and the user that share memory. A port's
// pool is told to lie in memory that can be shared; where the kernel has none such
// Listen fails with subsys.ErrUnavailable, and says why.
func New() subsys.Transport { return transport{} }

// ForGroup is New for contexts of several users, all of them members of a group,
// given by its number, and all of them of one transport so made. Any of them may
// read all the memory that another's pool has shared. A member can do nothing else to
// another's process: it cannot block, stop or end it. A member that misbehaves can
// change a large message that it sent while the receiver reads it: what is not trusted
// is copied (Message.Writable) before it is checked. To wake a sleeping context costs
// a few microseconds more than between processes of one user.
func ForGroup(gid int) subsys.Transport { return transport{group: &gid} }

type transport struct{ group *int }

func (transport) Name() string { return "shm" }

func (t transport) Listen(addr string, cfg subsys.Config) (subsys.Port, error) {
	if t.group != nil && !member(*t.group) {
		return nil, fmt.Errorf("shm: %w: this process is not of group %d", subsys.ErrUnavailable, *t.group)
	}
	node, err := t.here()
	if err != nil {
		return nil, fmt.Errorf("shm: naming this node: %w: %w", subsys.ErrUnavailable, err)
	}
	if addr == "" {
		addr = scheme + node + "/" + newName()
	}
	at, name, err := parse(addr)
	if err != nil {
		return nil, err
	}
	if at != node {
		return nil, fmt.Errorf("%w: %s is not of this node, which is %s", subsys.ErrAddress, addr, node)
	}
	ln, err := net.ListenUnix("unixpacket", &net.UnixAddr{Name: socket(node, name), Net: "unixpacket"})
	if err != nil {
		return nil, fmt.Errorf("shm: listening on %s: %w", addr, err)
	}
	if cfg.Progress == nil {
		cfg.Progress = new(sync.Mutex)
	}
	p := &port{cfg: cfg, log: ratelog.New(cfg.Logger), group: t.group, addr: addr, node: node, ln: ln, conns: map[*conn]struct{}{}, pending: make(chan struct{}, maxPending)}
	p.list.Store(new([]*conn))
	p.resting.Store(true)
	if err = cfg.Pool.Share(); err != nil {
		err = fmt.Errorf("%w: %w", subsys.ErrUnavailable, err)
	} else if p.bell, err = newBell(); err == nil {
		if err = cfg.Pool.Register(p); err != nil {
			p.bell.close()
		}
	}
	if err != nil {
		ln.Close()
		return nil, fmt.Errorf("shm: listening on %s: %w", addr, err)
	}
	p.running.Add(1)
	go p.accept()
	return p, nil
}

// A port is one context's. Its lock is taken before those of conns, never after.
type port struct {
	cfg     subsys.Config
	group   *int // that may attach; nil: the same user
	addr    string
	node    string
	ln      *net.UnixListener
	running sync.WaitGroup
	pending chan struct{}
	budget  budget
	log     *ratelog.Logger

	bell    *bell       // nil once closed
	resting atomic.Bool // no goroutine looks, as the peers have been told
	list    atomic.Pointer[[]*conn]
	hot     [hotMost]*conn // of the goroutine that makes progress, as are the next three
	nextHot int            // which of hot is given up for another
	looks   uint           // at hot
	turn    int            // in list

	followMu    sync.Mutex             // a pool's lock comes after
	follows     map[*buffers.Pool]bool // other contexts' pools in whose arenas something was lent
	followsNone bool                   // the port is closed

	mu     sync.Mutex
	closed bool
	poller *subsys.Poller // that the bell is in, once there was a conn
	conns  map[*conn]struct{}
	raw    map[*net.UnixConn]struct{} // sockets that are shaking hands
	silent map[uint32]int             // conns of other users that are not admitted,
	others int                        // and how many these are in all
}

func (p *port) Addr() string { return p.addr }

func (p *port) Reaches(addr string) bool {
	node, _, err := parse(addr)
	return err == nil && node == p.node
}

func (p *port) accept() {
	defer p.running.Done()
	for {
		uc, err := p.ln.AcceptUnix()
		if err != nil {
			if errors.Is(err, net.ErrClosed) {
				return
			}
			p.log.Warn("", "shm: accepting", "err", err)
			stream.Pause(err)
			continue
		}
		done, err := p.begin(uc)
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
			if err := p.welcome(uc, done); err != nil {
				p.log.Warn("", "shm: accepting", "err", err)
			}
		}()
	}
}

// begin lets an accepted socket shake hands, if its user may and has not too many
// connections already of which the sink does not know the peer. done must be called
// when it does, or the connection has ended.
func (p *port) begin(uc *net.UnixConn) (done func(), err error) {
	raw, err := uc.SyscallConn()
	if err != nil {
		return nil, err
	}
	who, err := p.peer(raw)
	if err != nil {
		return nil, err
	}
	if int(who.Uid) == os.Getuid() {
		return func() {}, nil
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.silent[who.Uid] >= maxSilent || p.others >= maxPending-maxSilent {
		return nil, fmt.Errorf("user %d has %d connections that nobody has admitted, of %d of other users", who.Uid, p.silent[who.Uid], p.others)
	}
	if p.silent == nil {
		p.silent = map[uint32]int{}
	}
	p.silent[who.Uid]++
	p.others++
	return sync.OnceFunc(func() {
		p.mu.Lock()
		defer p.mu.Unlock()
		p.others--
		if p.silent[who.Uid]--; p.silent[who.Uid] == 0 {
			delete(p.silent, who.Uid)
		}
	}), nil
}

// welcome makes a conn of an accepted socket. done is begin's.
func (p *port) welcome(uc *net.UnixConn, done func()) error {
	c, err := p.shake(context.Background(), uc, false)
	if err != nil {
		done()
		return err
	}
	c.known = done
	p.cfg.Count.ConnsIn.Add(1)
	if c.sink = p.cfg.Accept(c); c.sink == nil {
		return c.Close()
	}
	c.Start()
	return nil
}

func (p *port) Dial(ctx context.Context, addr string, s subsys.Sink) (subsys.Conn, error) {
	node, name, err := parse(addr)
	if err != nil {
		return nil, err
	}
	if node != p.node {
		return nil, fmt.Errorf("shm: dialling %s: %w: that is another node than %s", addr, subsys.ErrAddress, p.node)
	}
	var d net.Dialer
	nc, err := d.DialContext(ctx, "unixpacket", socket(node, name))
	if err != nil {
		if refused(err) {
			err = fmt.Errorf("%w: %w", subsys.ErrNoPeer, err)
		}
		return nil, fmt.Errorf("shm: dialling %s: %w", addr, err)
	}
	c, err := p.shake(ctx, nc.(*net.UnixConn), true)
	if err != nil {
		return nil, fmt.Errorf("shm: dialling %s: %w", addr, err)
	}
	c.remote = addr
	p.cfg.Count.ConnsOut.Add(1)
	c.sink = s
	return c, nil
}

// track notes a socket for as long as it shakes hands, so that Close can end it,
// and waits for who does so: they use the bell.
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

// adopt takes c among the port's conns.
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

// enlist lets c be looked at; it is held by the list from here on.
func (p *port) enlist(c *conn) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed || !c.hold() {
		return false
	}
	l := append(slices.Clone(*p.list.Load()), c)
	p.list.Store(&l)
	p.poller.Wake() // what came before rang for nobody
	return true
}

// nudge lets whoever looks at the conns do so.
func (p *port) nudge() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if !p.closed && p.poller != nil && p.resting.Load() {
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

// Look implements subsys.Ring. The first after a rest looks at all conns.
func (p *port) Look() (frames int) {
	list := *p.list.Load()
	isAll := len(list) <= fewConns
	if p.bell != nil && p.resting.Load() {
		p.resting.Store(false)
		p.bell.doze(subsys.Awake)
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
	if list = *p.list.Load(); len(list) > 0 { // a conn may have been taken from it
		p.turn++
		frames += p.lookAt(list[p.turn%len(list)])
	}
	return frames
}

// lookAt lets c work on what there is.
func (p *port) lookAt(c *conn) (frames int) {
	frames = c.look()
	if c.closed.Load() {
		c.sayClosed()
	}
	switch {
	case c.in.over.Load() && !c.lingers():
		p.delist(c)
	case (frames > 0 || c.out.stuck.Load()) && !slices.Contains(p.hot[:], c):
		p.hot[p.nextHot] = c
		p.nextHot = (p.nextHot + 1) % hotMost
	}
	return frames
}

// Ready implements subsys.Source: a peer has rung.
func (p *port) Ready(subsys.Readiness) (frames int, again bool) { return p.Look(), false }

// answer is Ready for a peer that rings by a note on its conn: many may have rung, and
// one Look sees all.
func (p *port) answer(c *conn) (frames int) {
	if p.resting.Load() {
		return p.Look()
	}
	return c.look()
}

// Doze implements subsys.Ring.
func (p *port) Doze(how subsys.Rest) (news bool) {
	if p.bell != nil {
		p.resting.Store(true)
		p.bell.doze(how)
		for _, c := range *p.list.Load() {
			c.back.tell(c)
			if how == subsys.Asleep {
				c.rest()
			}
			if c.news() {
				news = true
			}
		}
	}
	return news
}

// RegisterArena implements buffers.Registrar: a peer is told of an arena with the
// first loan in it.
func (p *port) RegisterArena(buffers.Arena) error { return nil }

// UnregisterArena implements buffers.Registrar. The pool's lock is held.
func (p *port) UnregisterArena(a buffers.Arena) {
	for _, c := range *p.list.Load() {
		c.out.forsake(a.ID)
	}
	p.nudge()
}

// Close implements subsys.Port. Messages that others lent stay readable; what is
// lent to others is not used again.
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
	err := p.ln.Close()
	p.running.Wait()
	p.cfg.Pool.Unregister(p)
	p.unfollow()

	p.mu.Lock()
	conns := make([]*conn, 0, len(p.conns))
	for c := range p.conns {
		if c.hold() {
			conns = append(conns, c)
		}
	}
	p.mu.Unlock()
	p.cfg.Progress.Lock()
	defer p.cfg.Progress.Unlock()
	for _, c := range conns {
		c.Close()
		c.sayClosed()
		c.out.abandon(c)
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
	p.resting.Store(true)
	return err
}

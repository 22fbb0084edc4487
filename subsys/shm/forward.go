// SPDX-License-Identifier: Apache-2.0

//go:build linux || darwin || freebsd || netbsd || openbsd

package shm

import (
	"slices"
	"sync"
	"sync/atomic"

	"github.com/rocl-go/rocl/buffers"
	"github.com/rocl-go/rocl/internal/os/memfd"
	"github.com/rocl-go/rocl/subsys"
	"golang.org/x/sys/unix"
)

// mostHops is how many times an arena is passed on. After that payloads are copied. So a message
// that travels in a circle does not keep ever more loans and mappings.
const mostHops = 8

// keptFDs counts the descriptors of peers' arenas that this process keeps to pass them on.
var keptFDs atomic.Int64

// mostKept limits keptFDs: a quarter of the descriptors that the process may have open.
var mostKept = sync.OnceValue(func() int64 {
	var most unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &most); err != nil {
		return 0
	}
	return int64(min(most.Cur/4, 1<<20))
})

// newArena returns an arena of c's peer with one use. It keeps the descriptor if the peer's memory
// may be passed on, and replaces it by -1 in fds.
func newArena(c *conn, id uint32, hops int, mem []byte, fds []int) *arena {
	a := &arena{Arena: buffers.Arena{ID: buffers.NewArenaID(), Mem: mem, FD: -1}, id: id, hops: hops}
	a.uses.Store(1)
	// A peer of another user would not believe this process about the loans that were passed on, so
	// its memory is not passed on.
	if c.ofUser && hops < mostHops {
		if keptFDs.Add(1) <= mostKept() {
			a.FD, fds[0] = fds[0], -1
		} else {
			keptFDs.Add(-1)
		}
	}
	return a
}

// close unmaps an arena without uses, and withdraws it from the peers to which it was announced.
func (a *arena) close() {
	for _, p := range a.announcedBy {
		p.UnregisterArena(a.Arena)
	}
	memfd.Unmap(a.Mem)
	if a.FD >= 0 {
		memfd.Close(a.FD)
		keptFDs.Add(-1)
	}
}

// A location is where a payload lies.
type location struct {
	*buffers.Arena
	off    int
	pool   *buffers.Pool // pool of the buffer
	from   *borrowed     // the loan that the payload is a part of; nil: the memory is this process's
	arena  *arena        // arena of from
	isHome bool          // from is a loan of the receiver: off is the offset in from
}

// locate returns where f's payload lies, if the peer may read it there.
func (c *conn) locate(f *subsys.Frame) (p location, ok bool) {
	p.pool = f.Buf.Pool()
	if l := f.Buf.Lender(); l != nil {
		return c.locateBorrowed(f, l)
	}
	if p.pool != c.port.cfg.Pool && c.isWary() {
		return p, false // the memory may not be for the peer
	}
	p.Arena, p.off, ok = f.Buf.Locate(f.Data)
	return p, ok
}

// locateBorrowed is locate for a payload in another process's memory.
func (c *conn) locateBorrowed(f *subsys.Frame, l buffers.Lender) (p location, ok bool) {
	if p.from, ok = l.(*borrowed); !ok || len(f.Data) == 0 {
		return p, false
	}
	if p.arena = p.from.arena.Load(); p.arena == nil { // the buffer was released already
		return p, false
	}
	if p.from.conn == c && f.Type != subsys.TypeBatch {
		p.isHome = true
		lent := buffers.Arena{Mem: p.from.mem}
		p.off, ok = lent.Offset(f.Data)
		return p, ok
	}
	if p.arena.FD < 0 || c.isWary() && c.port != p.from.conn.port {
		return p, false
	}
	p.Arena = &p.arena.Arena
	if p.off, ok = p.arena.Offset(f.Data); ok {
		// This must precede the peer's first access. If this process is killed, the lender then
		// knows that a third process may be reading.
		p.from.conn.mine.setPassed(p.from.loan)
	}
	return p, ok
}

// hops returns how many times the arena will have been passed on.
func (p *location) hops() uint32 {
	if p.from == nil {
		return 0
	}
	return uint32(p.arena.hops + 1)
}

// follow makes sure that the port learns when p's arena is unmapped. It reports false if that is
// not possible.
func (p *port) follow(at *location) bool {
	switch {
	case at.from != nil:
		a := at.arena
		a.announcedMu.Lock()
		defer a.announcedMu.Unlock()
		if !slices.Contains(a.announcedBy, p) {
			a.announcedBy = append(a.announcedBy, p)
		}
		return true
	case at.pool == p.cfg.Pool:
		return true
	}
	p.followMu.Lock()
	defer p.followMu.Unlock()
	if p.followsNone || p.follows[at.pool] {
		return !p.followsNone
	}
	if at.pool.Register(p) != nil {
		return false
	}
	for pool := range p.follows {
		if pool.IsClosed() { // a closed pool has no new buffers
			delete(p.follows, pool)
		}
	}
	if p.follows == nil {
		p.follows = map[*buffers.Pool]bool{}
	}
	p.follows[at.pool] = true
	return true
}

// unfollow unregisters the port from other pools, and makes later calls of follow fail.
func (p *port) unfollow() {
	p.followMu.Lock()
	defer p.followMu.Unlock()
	p.followsNone = true
	for pool := range p.follows {
		pool.Unregister(p)
	}
	p.follows = nil
}

// ownFrame reads the record of a frame whose payload this process has lent to the peer. The frame
// is delivered where it lies, and the peer's loan for it is given back at once.
func (in *receiver) ownFrame(c *conn, at uint64) (frames int, err error) {
	f, d, err := in.parse(c, at)
	if err != nil {
		return 0, err
	}
	if d.loan >= maxLoans || d.loan < uint32(len(in.loans)) && in.loans[d.loan] != nil && in.loans[d.loan].arena.Load() != nil {
		return 0, c.from(broken("loan %d while it is out", d.loan))
	}
	buf, data, err := c.out.part(c, &d)
	if err != nil {
		return 0, c.from(err)
	}
	c.back.add(c, d.loan)
	f.Data, f.Buf, f.Spare = data, buf, true
	return in.deliver()
}

// part returns a part of a payload that was lent to the peer, as a read-only buffer.
func (o *sender) part(c *conn, d *extent) (buf *buffers.Buffer, data []byte, err error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if d.arena >= uint32(len(o.loans)) || o.loans[d.arena].buf == nil {
		if c.dead.Load() || c.theirs.closed.Load() != 0 { // the end of the peer has ended its loans
			return nil, nil, subsys.ErrPeerClosed
		}
		return nil, nil, broken("a frame in loan %d, which is not out", d.arena)
	}
	l := &o.loans[d.arena]
	if size := uint64(len(l.data)); d.n == 0 || d.off > size || uint64(d.n) > size-d.off {
		return nil, nil, broken("a frame of %d bytes at %d of %d of loan %d", d.n, d.off, size, d.arena)
	}
	data = l.data[d.off : d.off+uint64(d.n)]
	return l.buf.View(data), data, nil
}

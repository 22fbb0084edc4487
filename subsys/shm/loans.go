// SPDX-License-Identifier: Apache-2.0

//go:build linux || darwin || freebsd || netbsd || openbsd

package shm

import (
	"math/bits"
	"sync"
	"sync/atomic"

	"github.com/rocl-go/rocl/buffers"
	"github.com/rocl-go/rocl/internal/lock"
)

// An arena is a mapped arena of the peer. It is used by the list of its conn until the peer
// withdraws it, and by each loan in it. It retains the conn.
type arena struct {
	buffers.Arena // as this process announces the arena if it passes loans on; FD is -1 if it cannot
	id            uint32
	hops          int // how many processes have passed the arena on
	uses          atomic.Int32

	announcedMu sync.Mutex
	announcedBy []*port // ports that have announced it
}

// drop ends one use. The last one unmaps the arena.
func (a *arena) drop(c *conn) {
	if a.uses.Add(-1) == 0 {
		a.close()
		c.back.drop(c)
		c.drop()
	}
}

// A borrowed is a loan that the peer has made, with the peer's number.
type borrowed struct {
	conn  *conn
	loan  uint32
	arena atomic.Pointer[arena] // nil: the number is not in use
	mem   []byte                // valid while the loan is in use
	buf   buffers.Buffer        // the buffer of the message
}

// borrow returns the loan that d describes and its memory. This process may read the memory until
// Return.
func (in *receiver) borrow(c *conn, d *extent) (b *borrowed, mem []byte, err error) {
	a := in.last
	if a == nil || a.id != d.arena {
		a = in.arenas[d.arena]
	}
	if a == nil {
		// The peer sent the note of the arena before the record.
		if _, _, err := c.readNotes(allNotes); err != nil {
			return nil, nil, c.from(err)
		}
		if a = in.arenas[d.arena]; a == nil {
			return nil, nil, c.from(broken("a loan in arena %d, which is unknown", d.arena))
		}
	}
	if size := uint64(len(a.Mem)); d.off > size || uint64(d.n) > size-d.off || d.n == 0 || d.loan >= maxLoans {
		return nil, nil, c.from(broken("loan %d of %d bytes at %d of %d", d.loan, d.n, d.off, size))
	}
	for uint32(len(in.loans)) <= d.loan {
		in.loans = append(in.loans, nil)
	}
	if b = in.loans[d.loan]; b == nil {
		b = &borrowed{conn: c, loan: d.loan}
		in.loans[d.loan] = b
		in.made++
	} else if b.arena.Load() != nil {
		return nil, nil, c.from(broken("loan %d while it is out", d.loan))
	}
	in.last = a
	c.mine.clearPassed(d.loan) // the last loan with this number may have been given back as lost
	a.uses.Add(1)
	b.arena.Store(a)
	b.mem = a.Mem[d.off : d.off+uint64(d.n) : d.off+uint64(d.n)]
	return b, b.mem, nil
}

// trimLoans frees most of the entries that a large number of simultaneous loans has left.
func (in *receiver) trimLoans() {
	for i, b := range in.loans {
		if in.made <= keptLoans {
			return
		}
		if b != nil && b.arena.Load() == nil {
			in.loans[i] = nil
			in.made--
		}
	}
}

// unlist removes an arena that the peer has withdrawn.
func (in *receiver) unlist(c *conn, a *arena) {
	delete(in.arenas, a.id)
	in.mapped -= uint64(len(a.Mem))
	in.last = nil // may be this arena
	a.drop(c)
}

// returns has the loans of the peer that this process gives back.
type returns struct {
	owed  atomic.Bool // there may be returned loans that the peer does not know of
	which [maxLoans / 64]atomic.Uint64
	lost  [maxLoans / 64]atomic.Uint64 // returned loans that a third process may still read
	ended atomic.Bool                  // no further loan is accepted

	isUntold atomic.Bool              // loans were given back, and the peer was not woken for them
	mu       lock.Mutex[levelReturns] // held while loans are given back to the peer
	written  uint64                   // loans given back since the start

	// One for the open conn, and one for each arena. While it is not 0, the peer's memory may be
	// read.
	uses atomic.Int32
}

// levelReturns is the lock level of returns.mu.
type levelReturns struct{}

func (levelReturns) Depth() (int, string) { return 130, "shm returns" }

// Return implements buffers.Lender.
//
// The peer polls the words in which loans are given back, so a write to them costs as much as a
// message. They are written when there is time: after the next frame is sent, at the next look at
// records, or before this context becomes idle. If it is idle now, they are written at once. A peer
// that is idle is woken for them when no more records come from it.
func (b *borrowed) Return(isAbandoned bool) {
	c, a := b.conn, b.arena.Load()
	b.arena.Store(nil) // before the peer may lend the number again
	if isAbandoned {
		c.back.lost[b.loan/64].Or(1 << (b.loan % 64))
	}
	c.back.add(c, b.loan)
	a.drop(c) // the arena retained the conn until now
}

// add records that a loan is to be given back. The caller must have retained the conn.
func (r *returns) add(c *conn, loan uint32) {
	r.which[loan/64].Or(1 << (loan % 64))
	r.owed.Store(true) // set before isIdle is read: the progress goroutine checks owed after it has set isIdle
	if r.ended.Load() || c.port.isIdle.Load() {
		r.write(c)
	}
}

// write gives the recorded loans back to the peer, and wakes its context if that is idle.
func (r *returns) write(c *conn) {
	r.giveBack(c)
	r.tell(c)
}

// giveBack is write without waking the peer. The caller must call tell, at the latest before this
// context becomes idle. The list cannot overflow: it has a place for each possible loan.
func (r *returns) giveBack(c *conn) {
	if !r.owed.Load() {
		return
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if !r.owed.Swap(false) {
		return
	}
	for i := range r.which {
		if r.which[i].Load() == 0 {
			continue
		}
		for set := r.which[i].Swap(0); set != 0; set &= set - 1 {
			loan := uint32(64*i + bits.TrailingZeros64(set))
			if bit := set & -set; r.lost[i].Load()&bit != 0 {
				r.lost[i].And(^bit)
				loan |= lostBit // passed stays set, in case this process is killed now
			} else {
				c.mine.clearPassed(loan) // before the peer may lend the number again
			}
			c.mine.giveBack(r.written, loan)
			r.written++
			r.isUntold.Store(true)
		}
	}
}

// tell wakes the peer's context if it is idle and loans were given back since the last time. A peer
// that sends sees them anyway.
func (r *returns) tell(c *conn) {
	if r.isUntold.Load() && r.isUntold.Swap(false) {
		c.ring()
	}
}

// end is called when no further loan will be accepted.
func (r *returns) end(c *conn) {
	for _, a := range c.in.arenas {
		c.in.unlist(c, a)
	}
	r.ended.Store(true) // before write: from here on Return calls write itself
	r.write(c)
	r.drop(c)
}

// drop ends one use. After the last one, all memory that the peer has lent belongs to the peer
// again, whatever the peer makes of head and of the returns.
func (r *returns) drop(c *conn) {
	if r.uses.Add(-1) == 0 {
		c.mine.done.Store(1)
	}
}

// SPDX-License-Identifier: Apache-2.0

package shm

import (
	"math/bits"
	"sync"
	"sync/atomic"

	"github.com/rocl-go/rocl/buffers"
	"github.com/rocl-go/rocl/internal/lock"
)

// An arena is one of the peer's, mapped. It is used by the list of its conn, until
// the peer says that it is no more, and by each loan in it; it holds the conn.
type arena struct {
	buffers.Arena // as this process announces it where it passes loans on; FD is -1 if it cannot
	id            uint32
	hops          int // processes that have passed it on
	uses          atomic.Int32

	toldMu sync.Mutex
	told   []*port // that have announced it
}

// drop ends one use; the last unmaps the arena.
func (a *arena) drop(c *conn) {
	if a.uses.Add(-1) == 0 {
		a.close()
		c.back.drop(c)
		c.drop()
	}
}

// A borrowed is a loan of the peer's, of which we have the same number.
type borrowed struct {
	conn  *conn
	loan  uint32
	arena atomic.Pointer[arena] // nil: it is not out
	mem   []byte                // while it is out
	buf   buffers.Buffer        // that a message has
}

// borrow finds what d describes. It is ours until Return.
func (in *receiver) borrow(c *conn, d *descriptor) (b *borrowed, mem []byte, err error) {
	a := in.last
	if a == nil || a.id != d.arena {
		a = in.arenas[d.arena]
	}
	if a == nil {
		// Its note was sent before.
		if _, _, err := c.listen(allNotes); err != nil {
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
	c.mine.clearPassed(d.loan) // the last one with this number may have been lost
	a.uses.Add(1)
	b.arena.Store(a)
	b.mem = a.Mem[d.off : d.off+uint64(d.n) : d.off+uint64(d.n)]
	return b, b.mem, nil
}

// trim gives back most of what many loans at once have left.
func (in *receiver) trim() {
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

// unlist forgets an arena.
func (in *receiver) unlist(c *conn, a *arena) {
	delete(in.arenas, a.id)
	in.mapped -= uint64(len(a.Mem))
	in.last = nil // it may be this one
	a.drop(c)
}

// Returns are the loans of the peer's that were given back.
type returns struct {
	owed  atomic.Bool // there may be some of which the peer has not been told,
	which [maxLoans / 64]atomic.Uint64
	lost  [maxLoans / 64]atomic.Uint64 // those of them that a third process may still read
	over  atomic.Bool                  // nothing is borrowed any more

	mu   lock.Mutex[levelReturns] // held while the peer is told
	told uint64                   // loans, ever

	// The conn's being open, and arenas: while there are such the peer's memory is
	// read.
	uses atomic.Int32
}

// levelReturns is that of returns.mu.
type levelReturns struct{}

func (levelReturns) Place() (int, string) { return 130, "shm returns" }

// Return implements buffers.Lender.
//
// The peer looks at the words that tell it all the time, so to write them costs as
// much as a message. It is told when there is time: after what is sent next, at the
// next look at what has come, or before our context rests. If it rests, that is now.
func (b *borrowed) Return(isAbandoned bool) {
	c, a := b.conn, b.arena.Load()
	b.arena.Store(nil) // before the peer may lend it again
	if isAbandoned {
		c.back.lost[b.loan/64].Or(1 << (b.loan % 64))
	}
	c.back.add(c, b.loan)
	a.drop(c) // by which the conn was held
}

// add notes that a loan is to be given back. The caller must hold the conn.
func (r *returns) add(c *conn, loan uint32) {
	r.which[loan/64].Or(1 << (loan % 64))
	r.owed.Store(true) // before it is seen that somebody looks, who looks for it before he rests
	if r.over.Load() || c.port.resting.Load() {
		r.tell(c)
	}
}

// tell tells the peer what came back. The numbers cannot overflow: as many fit as
// may be out.
func (r *returns) tell(c *conn) {
	if !r.owed.Load() {
		return
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if !r.owed.Swap(false) {
		return
	}
	before := r.told
	for i := range r.which {
		if r.which[i].Load() == 0 {
			continue
		}
		for set := r.which[i].Swap(0); set != 0; set &= set - 1 {
			loan := uint32(64*i + bits.TrailingZeros64(set))
			if bit := set & -set; r.lost[i].Load()&bit != 0 {
				r.lost[i].And(^bit)
				loan |= lostBit // and passed, should this process be killed now
			} else {
				c.mine.clearPassed(loan) // before the peer may lend it again
			}
			c.mine.giveBack(r.told, loan)
			r.told++
		}
	}
	if r.told != before {
		c.ring()
	}
}

// end notes that nothing more will be borrowed.
func (r *returns) end(c *conn) {
	for _, a := range c.in.arenas {
		c.in.unlist(c, a)
	}
	r.over.Store(true) // before it is told: Return does so from here on
	r.tell(c)
	r.drop(c)
}

// drop ends one use. With the last all that the peer has lent is its own, whatever
// it makes of how far we read, and of what came back.
func (r *returns) drop(c *conn) {
	if r.uses.Add(-1) == 0 {
		c.mine.done.Store(1)
	}
}

// SPDX-License-Identifier: Apache-2.0

package dispatch

import (
	"fmt"
	"maps"
	"slices"
	"sync/atomic"

	"github.com/rocl-go/rocl/buffers"
)

// A budget keeps the mailboxes of a context whose memory is bounded from promising
// more than it has: a quarter of the memory, and beyond that FirstCredit for each
// sending context and mailbox, and one message at a time that does not fit. Twice of
// what is promised and has not come is reserved, since buffers may be almost twice as
// long as what lies in them: the program and what it sends cannot use it. An eighth is
// reserved in any case, so that acknowledgements are read whatever else there is.
//
// A message from within the process lies in the buffer of its sender, and needs none of the
// receiver's memory. So the budget does not count it: only its mailbox's limit bounds it.
type budget struct {
	pool     *buffers.Pool
	memory   uint64                 // the limit of the pool; 0: none, and nothing is counted
	promised atomic.Int64           // by all mailboxes
	over     atomic.Pointer[inflow] // the one sender with a grant beyond the quarter
	hungry   atomic.Bool            // a sender may wait for what other mailboxes have promised
}

func (b *budget) init(p *buffers.Pool) {
	b.pool, b.memory = p, uint64(p.Limit())
	if b.memory > 0 {
		p.ReserveForGood(p.Limit() / 8)
	}
}

// counts reports whether messages of in need memory of the budget.
func (b *budget) counts(in *inflow) bool { return b.memory > 0 && in.l != nil }

// unpromised is how much may still be promised to in.
func (b *budget) unpromised(in *inflow) uint64 {
	if !b.counts(in) {
		return 1<<64 - 1
	}
	return uint64(max(min(b.pool.Unused()/2, int64(b.memory/4)-b.promised.Load()), 0))
}

// overpromised reports whether more than that has been promised, for messages of in.
func (b *budget) overpromised(in *inflow) bool {
	return b.counts(in) && b.promised.Load() > int64(b.memory/4)
}

// isTooLarge reports whether the memory is too small for what in needs beside what is
// stored of it.
func (d *Dispatcher) isTooLarge(in *inflow) bool {
	return d.counts(in) && in.need-in.consumed > d.memory/4*3
}

// fits reports whether in may be the one with a grant beyond the quarter, also in place
// of another of m. What is longer than three quarters of the memory never can.
func (d *Dispatcher) fits(m *Mailbox, in *inflow) bool {
	if !d.counts(in) {
		return true
	}
	need := in.need - in.consumed
	if o := d.over.Load(); o != nil && o != in && o != m.over || d.isTooLarge(in) {
		return false
	}
	if d.pool.Unused() < int64(need) {
		d.pool.Await(d, d.feed)
		return d.pool.Unused() >= int64(need)
	}
	return true
}

// reserved returns a buffer for n bytes that come, of the memory that is kept for them.
func (b *budget) reserved(n int) (*buffers.Buffer, error) {
	buf, err := b.pool.GetReserved(n)
	if err != nil {
		return nil, fmt.Errorf("dispatch: a buffer for %d bytes: %w", n, err)
	}
	return buf, nil
}

// lacksMemory reports whether a message of n bytes may have to wait for memory that the
// program or other messages use. A buffer may be almost twice as long as what lies in it.
func (b *budget) lacksMemory(n uint64) bool {
	return b.memory > 0 && b.pool.Unused() < 2*int64(n)
}

// promises counts what the mailbox has promised in more, or less. mu is held.
func (m *Mailbox) promises(in *inflow, more int64) {
	if m.closed {
		return
	}
	m.promise += uint64(more)
	if d := m.d; d.counts(in) {
		m.budgeted += more
		d.promised.Add(more)
		if more < 0 {
			d.feed()
		}
	}
}

// comes counts what may still come to the mailbox from in. mu is held.
func (m *Mailbox) comes(in *inflow, more int64) {
	if d := m.d; d.counts(in) && !m.closed {
		m.coming += more
		d.pool.Reserve(2 * more)
	}
}

// noMore drops what the mailbox, which closes, has promised. mu is held.
func (m *Mailbox) noMore() {
	m.promise = 0
	d := m.d
	if d.memory == 0 {
		return
	}
	d.promised.Add(-m.budgeted)
	d.pool.Reserve(-2 * m.coming)
	m.budgeted, m.coming = 0, 0
	d.feed()
}

// overEnds notes that no sender has a grant beyond the limit. mu is held.
func (m *Mailbox) overEnds() {
	if in := m.over; in != nil {
		m.over = nil
		if m.d.memory > 0 && m.d.over.CompareAndSwap(in, nil) {
			m.d.feed()
		}
	}
}

// feed lets all mailboxes grant what has become possible. It takes no lock.
func (d *Dispatcher) feed() {
	if d.hungry.Load() && d.hungry.CompareAndSwap(true, false) {
		go d.feedAll()
	}
}

func (d *Dispatcher) feedAll() {
	d.mu.RLock()
	boxes := slices.Collect(maps.Values(d.boxes))
	d.mu.RUnlock()
	for _, m := range boxes {
		m.mu.Lock()
		if len(m.needy) > 0 {
			d.hungry.Store(true) // before it is seen what fits
		}
		m.nextNeedy()
	}
}

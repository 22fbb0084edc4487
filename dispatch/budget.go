// SPDX-License-Identifier: Apache-2.0

package dispatch

import (
	"fmt"
	"maps"
	"slices"
	"sync"
	"sync/atomic"

	"github.com/rocl-go/rocl/buffers"
)

// A budget keeps the mailboxes of a context from promising more than the context's memory. They may
// promise a quarter of the memory. In addition they may promise FirstCredit for each sending
// context and mailbox, and one message at a time that does not fit.
//
// Twice the bytes that are promised and have not come are reserved, since buffers may be almost
// twice as long as the messages in them. The program, and what it sends, cannot use that memory. An
// eighth is reserved in any case, so that acknowledgements can always be read. Without a message
// that does not fit, the whole reservation is at most half of the memory: otherwise the FirstCredit
// of many idle senders would leave the program none, for ever.
//
// A message for which the program has given memory of its own (landing) needs none of the context's
// memory. So neither the budget nor the mailbox's limit counts it. A message that the memory never
// holds, and that has no memory of the program, is refused when its sender asks for credit.
//
// What this context sends uses the memory too. A message that waits for credit is discounted: as
// many bytes as it has may come beyond the limit. Otherwise two contexts whose memory is full of
// messages to each other would wait for ever.
//
// A message from within the process lies in its sender's buffer, and needs none of the receiver's
// memory. So the budget does not count it: only its mailbox's limit bounds it.
type budget struct {
	pool      *buffers.Pool
	memory    uint64                 // the limit of the pool; 0: no limit, and nothing is counted
	promised  atomic.Int64           // bytes that all mailboxes have promised
	oversize  atomic.Pointer[inflow] // the one sender with a grant beyond the quarter; nil: none
	hasQueued atomic.Bool            // a sender may wait for credit that other mailboxes have promised

	reserving   sync.Mutex // guards the following fields; no lock is taken while it is held
	outstanding int64      // bytes that all mailboxes have promised and that have not come
	reserved    int64      // bytes of the pool that are reserved for them
}

// reserve adds more, which may be negative, to the outstanding bytes, and reserves memory for them.
func (b *budget) reserve(more int64) {
	b.reserving.Lock()
	b.outstanding += more
	want := 2 * b.outstanding
	if b.oversize.Load() == nil {
		want = min(want, int64(b.memory/8*3))
	}
	more, b.reserved = want-b.reserved, want
	b.reserving.Unlock()
	if more != 0 {
		b.pool.Reserve(more)
	}
}

// init sets the pool, and reserves the eighth for arriving frames.
func (b *budget) init(p *buffers.Pool) {
	b.pool, b.memory = p, uint64(p.Limit())
	if b.memory > 0 {
		p.ReserveForGood(p.Limit() / 8)
	}
}

// counts reports whether messages of in need memory of the budget.
func (b *budget) counts(in *inflow) bool { return b.memory > 0 && in.l != nil }

// unpromised returns how much may still be promised to in.
func (b *budget) unpromised(in *inflow) uint64 {
	if !b.counts(in) {
		return 1<<64 - 1
	}
	return uint64(max(min(b.pool.Unused()/2, int64(b.memory/4)-b.promised.Load()), 0))
}

// overpromised reports whether more than the quarter has been promised, for messages of in.
func (b *budget) overpromised(in *inflow) bool {
	return b.counts(in) && b.promised.Load() > int64(b.memory/4)
}

// neverHolds reports whether the memory is too small for a message of n bytes, whatever else is in
// it.
func (b *budget) neverHolds(n int) bool { return b.memory > 0 && charge(n) > b.memory/4*3 }

// isTooLarge reports whether the memory is too small for the message that in needs credit for,
// beside the stored messages of in.
func (d *Dispatcher) isTooLarge(in *inflow) bool {
	return d.counts(in) && in.need-in.consumed > d.memory/4*3
}

// fits reports whether in may be the one sender with a grant beyond the quarter, or may replace
// another sender to m as that. A message longer than three quarters of the memory never fits.
func (d *Dispatcher) fits(m *Mailbox, in *inflow) bool {
	if !d.counts(in) {
		return true
	}
	need := in.need - in.consumed
	if o := d.oversize.Load(); o != nil && o != in && o != m.oversize || d.isTooLarge(in) {
		return false
	}
	if d.pool.Left() < int64(need) {
		d.pool.Await(d, d.grantAllSoon)
		return d.pool.Left() >= int64(need)
	}
	return true
}

// arriving returns a buffer for n bytes that arrive, from the memory that is kept for them.
func (b *budget) arriving(n int) (*buffers.Buffer, error) {
	buf, err := b.pool.GetReserved(n)
	if err != nil {
		return nil, fmt.Errorf("dispatch: a buffer for %d bytes: %w", n, err)
	}
	return buf, nil
}

// lacksMemory reports whether a message of n bytes may have to wait for memory that the program or
// other messages use. A buffer may be almost twice as long as the message in it.
func (b *budget) lacksMemory(n uint64) bool {
	return b.memory > 0 && b.pool.Unused() < 2*int64(n)
}

// addPromisedLocked adds more, which may be negative, to what the mailbox has promised. mu must be
// held.
func (m *Mailbox) addPromisedLocked(in *inflow, more int64) {
	if m.closed {
		return
	}
	more = in.takePosted(&in.posted, more)
	m.promise += uint64(more)
	if d := m.d; d.counts(in) {
		m.budgeted += more
		d.promised.Add(more)
		if more < 0 {
			d.grantAllSoon()
		}
	}
}

// addOutstandingLocked adds more, which may be negative, to what may still come to the mailbox from
// in. mu must be held.
func (m *Mailbox) addOutstandingLocked(in *inflow, more int64) {
	more = in.takePosted(&in.postedOut, more)
	if d := m.d; d.counts(in) && !m.closed {
		m.outstanding += more
		d.reserve(more)
	}
}

// dropPromisesLocked drops what the mailbox has promised, because it closes. mu must be held.
func (m *Mailbox) dropPromisesLocked() {
	m.promise = 0
	d := m.d
	if d.memory == 0 {
		return
	}
	d.promised.Add(-m.budgeted)
	d.reserve(-m.outstanding)
	m.budgeted, m.outstanding = 0, 0
	d.grantAllSoon()
}

// endOversizeLocked notes that no sender has a grant beyond the limit. mu must be held.
func (m *Mailbox) endOversizeLocked() {
	if in := m.oversize; in != nil {
		m.oversize = nil
		if m.d.memory > 0 && m.d.oversize.CompareAndSwap(in, nil) {
			m.d.reserve(0)
			m.d.grantAllSoon()
		}
	}
}

// grantAllSoon makes all mailboxes grant the credit that has become possible. It takes no lock.
func (d *Dispatcher) grantAllSoon() {
	if d.hasQueued.Load() && d.hasQueued.CompareAndSwap(true, false) {
		go d.grantAll()
	}
}

// grantAll makes all mailboxes grant credit. It runs in a goroutine of its own.
func (d *Dispatcher) grantAll() {
	d.mu.RLock()
	boxes := slices.Collect(maps.Values(d.boxes))
	d.mu.RUnlock()
	for _, m := range boxes {
		m.mu.Lock()
		if len(m.creditQueue) > 0 {
			d.hasQueued.Store(true) // before grantQueuedLocked: memory that comes back meanwhile calls grantAll again
		}
		m.grantQueuedLocked()
	}
}

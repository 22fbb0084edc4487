// SPDX-License-Identifier: Apache-2.0

package credit

import (
	"sync"
	"sync/atomic"

	"github.com/rocl-go/rocl/buffers"
)

// A Budget keeps the mailboxes of a context from promising more than the context's memory. They may
// promise a quarter of the memory. In addition they may promise First for each account, and one
// message at a time that does not fit.
//
// Twice the bytes that are promised and have not come are reserved, since buffers may be almost
// twice as long as the messages in them. The program, and what it sends, cannot use that memory. An
// eighth is reserved in any case, so that acknowledgements can always be read. Without a message
// that does not fit, the whole reservation is at most half of the memory: otherwise the First of
// many idle senders would leave the program none, for ever.
//
// A message for which the program has given memory of its own needs none of the context's memory.
// So neither the budget nor the mailbox's limit counts it. A message that the memory never holds,
// and that has no memory of the program, is refused when its sender asks for credit.
//
// What this context sends uses the memory too. A message that waits for credit is discounted: as
// many bytes as it has may come beyond the limit. Otherwise two contexts whose memory is full of
// messages to each other would wait for ever.
//
// A message from within the process lies in its sender's buffer, and needs none of the receiver's
// memory. So the budget does not count it: only its mailbox's limit bounds it.
//
// All methods may be called at the same time.
type Budget struct {
	pool      *buffers.Pool
	memory    uint64                  // the limit of the pool; 0: no limit, and nothing is counted
	freed     func()                  // is called when senders that wait may get credit
	promised  atomic.Int64            // bytes that all mailboxes have promised
	oversize  atomic.Pointer[Account] // the one account with a grant beyond the quarter; nil: none
	hasQueued atomic.Bool             // a sender may wait for credit that other mailboxes have promised

	reserving   sync.Mutex // guards the following fields; no lock is taken while it is held
	outstanding int64      // bytes that all mailboxes have promised and that have not come
	reserved    int64      // bytes of the pool that are reserved for them
}

// Init sets the pool, and reserves the eighth for arriving frames. freed is called when senders
// that wait may get credit of any mailbox, with locks held. It must return at once.
func (b *Budget) Init(p *buffers.Pool, freed func()) {
	b.pool, b.memory, b.freed = p, uint64(p.Limit()), freed
	if b.memory > 0 {
		p.ReserveForGood(p.Limit() / 8)
	}
}

// Close forgets senders that wait for memory.
func (b *Budget) Close() { b.pool.Unawait(b) }

// Memory returns the bytes of the context's memory, or 0 if it has no limit.
func (b *Budget) Memory() uint64 { return b.memory }

// Oversize returns the account with a grant beyond the quarter, or nil.
func (b *Budget) Oversize() *Account { return b.oversize.Load() }

// Promised returns the bytes that all mailboxes have promised.
func (b *Budget) Promised() int64 { return b.promised.Load() }

// NeverHolds reports whether the memory is too small for a message of n bytes, whatever else is in
// it.
func (b *Budget) NeverHolds(n int) bool { return b.memory > 0 && Charge(n) > b.memory/4*3 }

// Lacks reports whether a message of n bytes may have to wait for memory that the program or other
// messages use. A buffer may be almost twice as long as the message in it.
func (b *Budget) Lacks(n uint64) bool { return b.memory > 0 && b.pool.Unused() < 2*int64(n) }

// Queue notes that a sender may wait for credit that other mailboxes have promised.
func (b *Budget) Queue() { b.hasQueued.Store(true) }

// free makes all mailboxes grant the credit that has become possible.
func (b *Budget) free() {
	if b.hasQueued.Load() && b.hasQueued.CompareAndSwap(true, false) {
		b.freed()
	}
}

// reserve adds more, which may be negative, to the outstanding bytes, and reserves memory for them.
func (b *Budget) reserve(more int64) {
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

// counts reports whether messages of a need memory of the budget.
func (b *Budget) counts(a *Account) bool { return b.memory > 0 && a.local == nil }

// unpromised returns how much may still be promised to a.
func (b *Budget) unpromised(a *Account) uint64 {
	if !b.counts(a) {
		return 1<<64 - 1
	}
	return uint64(max(min(b.pool.Unused()/2, int64(b.memory/4)-b.promised.Load()), 0))
}

// isOver reports whether more than the quarter has been promised, for messages of a.
func (b *Budget) isOver(a *Account) bool {
	return b.counts(a) && b.promised.Load() > int64(b.memory/4)
}

// isTooLarge reports whether the memory is too small for the message that a needs credit for,
// beside the stored messages of a.
func (b *Budget) isTooLarge(a *Account) bool {
	return b.counts(a) && a.need-a.consumed > b.memory/4*3
}

// fits reports whether a may be the one account with a grant beyond the quarter, or may replace
// another account with r as that. A message longer than three quarters of the memory never fits.
func (b *Budget) fits(r *Receiver, a *Account) bool {
	if !b.counts(a) {
		return true
	}
	need := a.need - a.consumed
	if o := b.oversize.Load(); o != nil && o != a && o != r.oversize || b.isTooLarge(a) {
		return false
	}
	if b.pool.Left() < int64(need) {
		b.pool.Await(b, b.free)
		return b.pool.Left() >= int64(need)
	}
	return true
}

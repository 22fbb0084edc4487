// SPDX-License-Identifier: Apache-2.0

package dispatch

import (
	"context"
	"errors"
	"iter"
	"sync/atomic"
)

// An iteration is a loop over [Mailbox.Messages] that has taken a run out of its mailbox. It takes
// the messages of the run without the mailbox's lock. They count as received, so their senders have
// new credit. Any other receiver takes back what the loop has not come to.
type iteration struct {
	rest rest
	next atomic.Int32 // the message of rest.of that the loop takes next
}

// taken is the next of an iteration whose messages have been taken back.
const taken = 1 << 30

// Messages returns the messages that every sel selects, as they come, for a loop that ends with
// ctx, with the mailbox, or by itself. It yields an error, at last, in the cases in which Recv
// returns one that is neither the cause of ctx nor ErrClosed.
func (m *Mailbox) Messages(ctx context.Context, sel ...Select) iter.Seq2[*Message, error] {
	return func(yield func(*Message, error) bool) {
		it := new(iteration) // for one run after another: a loop does not allocate
		for {
			if len(sel) == 0 && ctx.Err() == nil && m.begin(it) {
				if goesOn := m.each(it, yield); !goesOn {
					return
				}
				continue
			}
			msg, err := m.Recv(ctx, sel...)
			if err != nil {
				if ctx.Err() == nil && !errors.Is(err, ErrClosed) {
					yield(nil, err)
				}
				return
			}
			if !yield(msg, nil) {
				return
			}
		}
	}
}

// begin takes the run at the front of the list out of the mailbox, and reports whether there is
// one. It takes none of a bounded mailbox, whose senders go by what has really been received, and
// none while another loop has one or a sender waits for credit.
func (m *Mailbox) begin(it *iteration) bool {
	m.mu.Lock()
	first := m.messages.First()
	if first == nil {
		m.storeQueuesLocked()
		first = m.messages.First()
	}
	if first == nil || first.rest.of == nil || m.iteration != nil || m.serial&Bounded != 0 || len(m.creditQueue) > 0 {
		m.mu.Unlock()
		return false
	}
	it.rest = first.rest
	it.rest.at--
	it.next.Store(it.rest.at)
	first.rest = rest{}
	m.messages.Remove(&first.place)
	n := int(it.rest.to - it.rest.at)
	m.count -= n
	m.taken += n
	m.iteration = it
	in := it.rest.of.in
	grant := m.consumeRestLocked(in, it.rest)
	m.mu.Unlock()
	if grant != 0 {
		in.from.credit(m, in)
	}
	return true
}

// each calls yield for the messages of an iteration, until there is none. It reports whether the
// loop goes on.
func (m *Mailbox) each(it *iteration, yield func(*Message, error) bool) (goesOn bool) {
	defer func() { // also if yield panics
		m.mu.Lock()
		if m.iteration == it {
			m.takeBackLocked()
		}
		m.mu.Unlock()
	}()
	for {
		i := it.next.Add(1) - 1
		if i >= it.rest.to {
			return true
		}
		if !yield(it.rest.of.message(int(i)), nil) {
			return false
		}
	}
}

// takeBackLocked puts what an iteration has not come to back into the list, before all other
// messages. mu must be held.
func (m *Mailbox) takeBackLocked() {
	it := m.iteration
	m.iteration = nil
	r := it.rest
	if r.at = it.next.Swap(taken); r.at >= r.to {
		return
	}
	for i := r.at; i < r.to; i++ {
		m.unconsumeLocked(r.of.in, len(r.of.items[i].data))
	}
	m.count += int(r.to - r.at)
	msg := r.of.message(int(r.at))
	if r.at++; r.at < r.to {
		msg.rest = r
	}
	m.messages.PushFront(msg, &msg.place)
	m.endSpinLocked()
}

// consumeRestLocked accounts for messages that leave the mailbox together. It returns the new
// credit of their sender, or 0. mu must be held.
func (m *Mailbox) consumeRestLocked(in *inflow, r rest) (grant uint64) {
	c := uint64(0)
	for i := r.at; i < r.to; i++ {
		c += in.charge(len(r.of.items[i].data))
	}
	m.stored -= c
	in.consumed += c
	m.addPromisedLocked(in, -int64(c))
	if m.oversize == in && in.consumed >= m.oversizeEnd {
		m.endOversizeLocked()
	}
	if in.isClosed {
		return 0
	}
	return m.grantLocked(in)
}

// SPDX-License-Identifier: Apache-2.0

package dispatch

import "sync/atomic"

// A mailbox can have one open run. Its messages have left the mailbox, and receives without
// selectors take them one by one, without the mailbox's lock. They count as received, so their
// sender has new credit. Whatever needs the messages in the list takes back first what no receive
// has taken: any receive with selectors, Peek, PutBack, Len, Close.
//
//	receives, without a lock             everything else, with Mailbox.mu
//	------------------------             --------------------------------
//	                                     openLocked: the first run leaves the list
//	take: claims the next message, by
//	      compare-and-swap of run.claims
//	                                     takeBackLocked: claims all the others, and lists them again
//
// A run that is used up and used again has another number in its claims.
type openRun struct {
	run    atomic.Pointer[run] // the run that was opened last; nil: none is open
	number atomic.Uint64       // of that opening
}

// claims says which messages of a run nobody has taken yet, and in which opening.
type claims uint64

func newClaims(number uint64, r rest) claims {
	return claims(number<<16 | uint64(r.to)<<8 | uint64(r.at))
}

func (c claims) number() uint64 { return uint64(c) >> 16 }
func (c claims) at() int32      { return int32(c & 0xff) }
func (c claims) to() int32      { return int32(c >> 8 & 0xff) }

// take takes the next message of the open run, or returns nil. Any goroutine may call take.
func (o *openRun) take() *Message {
	r := o.run.Load()
	if r == nil {
		return nil
	}
	for {
		c := claims(r.claims.Load())
		if c.number() != o.number.Load() || c.at() == c.to() {
			return nil
		}
		if r.claims.CompareAndSwap(uint64(c), uint64(c+1)) {
			return r.message(int(c.at()))
		}
	}
}

// openLocked opens the run at the front of the list behind its first message, which the caller is
// about to take and to account for. It does not after a run was taken back: receives with and
// without selectors may alternate. Nor does it in a bounded mailbox, whose senders go by what has
// really been received, or while a sender waits for credit. mu must be held; no run is open.
func (m *Mailbox) openLocked(first *Message) {
	if m.wasTakenBack || m.serial&Bounded != 0 || len(m.credit.Waiting()) > 0 {
		m.wasTakenBack = false
		return
	}
	r := first.rest
	first.rest = rest{}
	m.count -= int(r.to - r.at)
	m.taken += int(r.to - r.at)
	c := uint64(0)
	for i := r.at; i < r.to; i++ {
		c += r.of.in.Charge(len(r.of.items[i].data))
	}
	m.credit.Consume(&r.of.in.Account, c)
	number := m.d.openings.Add(1)
	r.of.claims.Store(uint64(newClaims(number, r)))
	m.open.number.Store(number)
	m.open.run.Store(r.of)
}

// takeBackLocked puts what nobody has taken of the open run back into the list, before all other
// messages. mu must be held.
func (m *Mailbox) takeBackLocked() {
	r := m.open.run.Load()
	if r == nil {
		return
	}
	m.open.run.Store(nil)
	var c claims
	for {
		c = claims(r.claims.Load())
		if c.number() != m.open.number.Load() || c.at() == c.to() {
			return
		}
		if r.claims.CompareAndSwap(uint64(c), uint64(newClaims(c.number(), rest{at: c.to(), to: c.to()}))) {
			break
		}
	}
	m.wasTakenBack = true
	left := rest{r, c.at(), c.to()}
	for i := left.at; i < left.to; i++ {
		m.unconsumeLocked(r.in, len(r.items[i].data))
	}
	m.count += int(left.to - left.at)
	msg := left.first()
	m.messages.PushFront(msg, &msg.place)
	m.endSpinLocked()
}

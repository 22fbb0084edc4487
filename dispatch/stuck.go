// SPDX-License-Identifier: Apache-2.0

package dispatch

import (
	"errors"
	"fmt"
	"time"
)

// A receiver may wait for one kind of message while its mailbox is full of other messages. It would
// wait for ever if more of the others come before the message that it selects. So while a receiver
// waits for a message that is not stored, its mailbox may hold twice its limit (internal/credit).
// Beyond that, it may hold one message of each sending context that has no message stored. If that
// is not enough, the receive fails:
//
//	Recv(Tag(2)) waits ──► limit reached: doubled ──► reached again ──► nothing comes and
//	                                                  nothing leaves for Config.GiveUp:
//	                                                  ErrStuck
//
// The wait gives other goroutines of the program time to receive what is stored: only the program
// knows whether there are any.

// ErrStuck is returned by a receive whose mailbox is full of messages that the receive does not
// select, while the messages that it selects have no room. See [Mailbox.Recv].
//
// Cause: the program waits for one message and leaves others unread. Remedy: receive them too, or
// raise `MailboxLimit`.
var ErrStuck = errors.New("rocl: the mailbox is full of messages that the receive does not select")

// A stuckWatch says when a mailbox is checked for receives that cannot succeed. The mailbox's mu
// guards it.
type stuckWatch struct {
	timer *time.Timer // calls checkStuck; nil until first set
	isSet bool        // the timer is set, or checkStuck is being called
	moved uint64      // what Mailbox.moved returned at the last check
}

// end stops the timer.
func (s *stuckWatch) end() {
	if s.timer != nil {
		s.timer.Stop()
	}
}

// mayBeStuckLocked reports whether senders and receivers of the mailbox may wait for each other. mu
// must be held.
func (m *Mailbox) mayBeStuckLocked() bool {
	return !m.closed && m.count > 0 && m.waiters.First() != nil && len(m.credit.Waiting()) > 0
}

// watchStuckLocked makes checkStuck check the mailbox now and then, for as long as
// mayBeStuckLocked. It is called when a receiver or a sender begins to wait. mu must be held.
func (m *Mailbox) watchStuckLocked() {
	if m.stuck.isSet || !m.mayBeStuckLocked() {
		return
	}
	m.stuck.isSet = true
	if m.stuck.timer == nil {
		m.stuck.timer = time.AfterFunc(m.d.cfg.GiveUp, m.checkStuck)
	} else {
		m.stuck.timer.Reset(m.d.cfg.GiveUp)
	}
}

// checkStuck fails receives that have waited since the last check, if nothing has come or left
// since then, and a sender of messages that they may select waits for credit. It runs in the
// goroutine of the timer.
func (m *Mailbox) checkStuck() {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.storeQueuesLocked()
	if !m.mayBeStuckLocked() {
		m.stuck.isSet = false
		return
	}
	moved, isComing := m.movedLocked()
	isStill := !isComing && moved == m.stuck.moved
	m.stuck.moved = moved
	for w := m.waiters.First(); w != nil; {
		next := w.place.Next()
		if senders := m.waitingSendersLocked(w); isStill && w.seen && senders > 0 {
			m.waiters.remove(w)
			w.cause = fmt.Errorf("%w: %d messages of %d bytes wait, and %d contexts that may send what it selects wait for room behind them", ErrStuck, m.count, m.credit.Stored(), senders)
			if w.claim() {
				m.d.mu.Lock()
				m.d.past.stuck++
				m.d.mu.Unlock()
				w.finish()
			}
		} else {
			w.seen = true
		}
		w = next
	}
	if m.stuck.isSet = m.mayBeStuckLocked(); m.stuck.isSet {
		m.stuck.timer.Reset(m.d.cfg.GiveUp)
	}
}

// movedLocked returns a number that grows with everything that comes to the mailbox, leaves it, or
// may come. isComing reports whether part of a message is still to come: a message that was granted
// credit beyond the limit, or that travels in pieces. mu must be held.
func (m *Mailbox) movedLocked() (sum uint64, isComing bool) {
	for in := range m.inflows {
		moved, expects := in.Moved()
		sum, isComing = sum+moved, isComing || expects
	}
	a, _, hasCome := m.credit.Oversize()
	return sum, isComing || a != nil && !hasCome
}

// waitingSendersLocked returns how many contexts wait for credit and may send messages that the
// receiver w selects. A message that is never let in, because it is larger than the memory, does
// not count. mu must be held.
func (m *Mailbox) waitingSendersLocked(w *waiter) (n int) {
	for _, a := range m.credit.Waiting() {
		if !m.credit.IsTooLarge(a) && w.sel.expects(a.Owner().(*inflow).from.context(), false) {
			n++
		}
	}
	return n
}

// SPDX-License-Identifier: Apache-2.0

package dispatch

import (
	"errors"
	"fmt"
	"time"
)

// A receiver that waits for one kind of message, while its mailbox is full of others, would
// wait for ever if the message that it wants lies behind more of the others. So while a
// receiver waits for what is not stored, its mailbox may hold twice its limit (roof), and
// beyond that one message of each sending context of which nothing is stored. If that is
// not enough, the receive fails:
//
//	Recv(Tag(2)) waits ──► limit reached: doubled ──► reached again ──► nothing comes and
//	                                                  nothing leaves for Config.GiveUp:
//	                                                  ErrStuck
//
// The wait is for other goroutines of the program that may receive what is stored: only the
// program knows whether there are some.

// ErrStuck is returned by a receive that waits for messages behind others which its mailbox
// has no room for. See [Mailbox.Recv].
var ErrStuck = errors.New("rocl: the mailbox is full of messages that the receive does not select")

// A stuckWatch is when a mailbox is looked at for receives that cannot be met. Guarded by the
// mailbox.
type stuckWatch struct {
	timer *time.Timer // calls judgeStuck; nil until first set
	isSet bool        // the timer is set, or judgeStuck is being called
	moved uint64      // what Mailbox.moved returned at the last look
}

// end stops the timer.
func (s *stuckWatch) end() {
	if s.timer != nil {
		s.timer.Stop()
	}
}

// roof returns the limit of the mailbox for what in is granted. It is doubled while a receiver
// waits for what in may send, and other messages are stored. mu is held.
func (m *Mailbox) roof(in *inflow) uint64 {
	if m.count > 0 && m.awaits(in, false) {
		return 2 * m.limit
	}
	return m.limit
}

// mayBeStuck reports whether senders and receivers of the mailbox may wait for each other.
// mu is held.
func (m *Mailbox) mayBeStuck() bool {
	return !m.closed && m.count > 0 && m.waiters.first != nil && len(m.needy) > 0
}

// watchStuck has the mailbox looked at, now and then, for as long as mayBeStuck. It is called
// as a receiver or a sender begins to wait. mu is held.
func (m *Mailbox) watchStuck() {
	if m.stuck.isSet || !m.mayBeStuck() {
		return
	}
	m.stuck.isSet = true
	if m.stuck.timer == nil {
		m.stuck.timer = time.AfterFunc(m.d.cfg.GiveUp, m.judgeStuck)
	} else {
		m.stuck.timer.Reset(m.d.cfg.GiveUp)
	}
}

// judgeStuck fails the receives that have waited since the last look, if nothing has come or
// left since then, and a sender whose messages they may want waits for credit.
func (m *Mailbox) judgeStuck() {
	m.mu.Lock()
	defer m.mu.Unlock()
	if !m.mayBeStuck() {
		m.stuck.isSet = false
		return
	}
	moved, isComing := m.moved()
	isStill := !isComing && moved == m.stuck.moved
	m.stuck.moved = moved
	for w := m.waiters.first; w != nil; {
		next := w.next
		if senders := m.blocked(w); isStill && w.seen && senders > 0 {
			m.waiters.remove(w)
			w.cause = fmt.Errorf("%w: %d messages of %d bytes wait, and %d contexts that may send what it selects wait for room behind them", ErrStuck, m.count, m.stored, senders)
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
	if m.stuck.isSet = m.mayBeStuck(); m.stuck.isSet {
		m.stuck.timer.Reset(m.d.cfg.GiveUp)
	}
}

// moved returns a number that grows with whatever comes to the mailbox, leaves it, or may
// come. isComing reports whether a message that was granted credit beyond the limit, or that
// travels in pieces, has not come wholly. mu is held.
func (m *Mailbox) moved() (sum uint64, isComing bool) {
	for in := range m.inflows {
		sum += in.received + in.consumed + in.granted
		isComing = isComing || in.expected > 0
	}
	return sum, isComing || m.over != nil && m.over.received < m.overEnd
}

// blocked returns how many contexts wait for credit, of which the receiver w may want a
// message. A message that is never let in, because it is larger than the memory, does not
// count. mu is held.
func (m *Mailbox) blocked(w *waiter) (n int) {
	for _, in := range m.needy {
		if !m.d.isTooLarge(in) && w.sel.expects(in.from.context(), false) {
			n++
		}
	}
	return n
}

// SPDX-License-Identifier: Apache-2.0

package dispatch

import (
	"fmt"
	"time"
)

// One sender at a time is granted credit beyond a mailbox's limit. The other senders wait until its
// message has been received. A sender's context uses such a grant at once, or gives it back. If its
// process is stopped or misbehaves, nothing comes, and the grant cannot be taken back: the message
// may be under way. So while other senders wait, the mailbox checks now and then how much of the
// message has arrived. If nothing has arrived between two checks, the link with that context is
// ended, as the link with a context out of reach is. Time in which this context lacks memory for
// the message does not count.

// holdMost returns the time between two checks.
func (d *Dispatcher) holdMost() time.Duration { return 3 * d.cfg.GiveUp }

// A suspect is a sender with a grant beyond the limit, and how much of its message has arrived. The
// zero value stands for no sender.
type suspect struct {
	in   *inflow
	end  uint64 // the end of the grant
	came uint64 // charged bytes, including the arrived bytes of a message in pieces
}

// judgeHolder ends the link of the sender with a grant beyond the limit if nothing of its message
// has arrived since the last check, and other senders wait. It runs in the goroutine of the timer
// judging.
func (m *Mailbox) judgeHolder() {
	m.mu.Lock()
	if m.closed || len(m.needy) == 0 {
		m.judging, m.suspect = nil, suspect{}
		m.mu.Unlock()
		return
	}
	in := m.over
	if in == nil && m.d.memory > 0 {
		in = m.d.over.Load() // the sender to another mailbox, with a grant beyond the budget
	}
	m.mu.Unlock()

	var now suspect
	if in != nil {
		now = in.suspect()
	}
	m.mu.Lock()
	isStuck := now.in != nil && now == m.suspect
	m.suspect = now
	if m.judging != nil && !m.closed {
		m.judging.Reset(m.d.holdMost())
	}
	m.mu.Unlock()
	if isStuck {
		m.d.often.Warn(in.l.peer.String(), "dispatch: ending a link: nothing comes of a large message for which others wait", "peer", in.l.peer, "resource", m.d.self.WithSerial(in.dst))
		in.l.die(fmt.Errorf("%w: %v does not send the large message that it was granted credit for, and others wait", ErrUnreachable, in.l.peer))
	}
}

// suspect returns how much has arrived of the message for which in was granted credit beyond the
// limit. It returns the zero value if all of it has arrived.
func (in *inflow) suspect() suspect {
	if in.l == nil { // a sender of this process uses the credit, or gives it back
		return suspect{}
	}
	in.l.d.take()
	defer in.l.d.give()
	have := 0
	if p := in.l.part(in.dst); p != nil {
		have = p.have
	}
	m := in.mb
	if m == nil {
		return suspect{}
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.over != in || in.received >= m.overEnd || m.d.lacksMemory(m.overEnd-in.received) {
		return suspect{}
	}
	return suspect{in: in, end: m.overEnd, came: in.received + uint64(have)}
}

// SPDX-License-Identifier: Apache-2.0

package dispatch

import (
	"fmt"
	"math"
	"time"
)

// One sender at a time is granted credit beyond a mailbox's limit. The other senders wait until its
// message has been received. A sender's context uses such a grant at once, or gives it back. If its
// process is stopped or misbehaves, nothing comes, and the grant cannot be taken back: the message
// may be under way. So while other senders wait, the mailbox checks now and then how much of the
// message has arrived. If nothing has arrived between two checks, the link with that context is
// ended, as the link with a context out of reach is. Time in which this context lacks memory for
// the message does not count.

// oversizeTimeout returns the time between two checks.
func (d *Dispatcher) oversizeTimeout() time.Duration {
	return 3 * min(d.cfg.GiveUp, math.MaxInt64/3)
}

// An oversizeProgress is a sender with a grant beyond the limit, and how much of its message has
// arrived. The zero value stands for no sender.
type oversizeProgress struct {
	in   *inflow
	end  uint64 // the end of the grant
	came uint64 // charged bytes, including the arrived bytes of a message in pieces
}

// checkOversize ends the link of the sender with a grant beyond the limit if nothing of its message
// has arrived since the last check, and other senders wait. It runs in the goroutine of the timer
// oversizeTimer.
func (m *Mailbox) checkOversize() {
	m.mu.Lock()
	if m.closed || len(m.credit.Waiting()) == 0 {
		m.oversizeTimer, m.oversizeSeen = nil, oversizeProgress{}
		m.mu.Unlock()
		return
	}
	a, _, _ := m.credit.Oversize()
	if a == nil {
		a = m.d.budget.Oversize() // of the sender to another mailbox, with a grant beyond the budget
	}
	m.mu.Unlock()
	var in *inflow
	if a != nil {
		in = a.Owner().(*inflow)
	}

	var now oversizeProgress
	if in != nil {
		now = in.oversizeProgress()
	}
	m.mu.Lock()
	isStuck := now.in != nil && now == m.oversizeSeen
	m.oversizeSeen = now
	if m.oversizeTimer != nil && !m.closed {
		m.oversizeTimer.Reset(m.d.oversizeTimeout())
	}
	m.mu.Unlock()
	if isStuck {
		// Cause: a sender took credit for a large message and does not send it. Remedy: see whether
		// it is stopped.
		m.d.often.Warn(in.l.peer.String(), "dispatch: ending a link: the peer does not send a large message, and other senders wait for it", "peer", in.l.peer, "resource", m.d.self.WithSerial(in.dst))
		in.l.endLink(fmt.Errorf("%w: %v does not send the large message that it was granted credit for, and other senders wait for it", ErrUnreachable, in.l.peer))
	}
}

// oversizeProgress returns how much has arrived of the message for which in was granted credit
// beyond the limit. It returns the zero value if all of it has arrived.
func (in *inflow) oversizeProgress() oversizeProgress {
	if in.l == nil { // a sender of this process uses the credit, or gives it back
		return oversizeProgress{}
	}
	in.l.d.progress.Lock()
	defer in.l.d.progress.Unlock()
	have := 0
	if p := in.l.part(in.dst); p != nil {
		have = p.have
	}
	m := in.mb
	if m == nil {
		return oversizeProgress{}
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	a, end, hasCome := m.credit.Oversize()
	if a != &in.Account || hasCome || m.d.budget.Lacks(end-a.Received()) {
		return oversizeProgress{}
	}
	return oversizeProgress{in: in, end: end, came: a.Received() + uint64(have)}
}

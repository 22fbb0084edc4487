// SPDX-License-Identifier: Apache-2.0

package dispatch

import (
	"fmt"
	"slices"
	"sync/atomic"
	"time"

	"github.com/rocl-go/rocl/internal/planted"
	"github.com/rocl-go/rocl/resource"
)

// Protocol: Credit
//
// A message is charged its length and 64. A context may have sent each resource 65,536 charged
// bytes before any Credit, and to a bounded one (bit 31 of the serial) 0: it asks with Need first.
// More than was granted cuts the connection. If the Credits for a bounded dst have a payload, all
// have the same, at most 1,610,612,800, and a message to it, also one in a Need, is charged at
// least that.
//
// A receiver grants more as messages are taken: it sends Credit with what was taken and what it
// will hold. It must answer a Need that it can grant when the rest was taken, else by TooLarge. It
// answers a message or a Need for no resource with Gone, or NoReply if that is a request.

// This file has the credit that a mailbox gives: the account of each sending context, and the queue
// of the senders that need more. doc.go draws the account; flow.go has the sender's side.

// overhead is what a message counts against credit and mailbox limits beyond its payload. So empty
// messages are bounded too.
const overhead = 64

// charge returns what a payload of n bytes counts against credit.
func charge(n int) uint64 { return uint64(n) + overhead }

// FirstCredit is what a context may send to a resource before it has been granted anything, in
// charged bytes.
const FirstCredit = 64 << 10

// An inflow is the account of one sending context with one mailbox: what it may send, in charged
// bytes since the session began. The mailbox's mu guards it.
type inflow struct {
	from      sendingSide // the sender's side: a link, or a context of this process
	l         *link       // from, if it is a link; else nil
	dst       uint32
	mb        *Mailbox    // nil: the resource does not exist
	home      *Mailbox    // the mailbox that messages have been delivered to; does not change after the first one
	granted   uint64      // what the sender may have sent
	announced uint64      // the last limit that a Credit frame had; the sender lowers it when it gives credit back
	received  uint64      // what has arrived
	expected  uint64      // the charge of a message in pieces that is arriving
	consumed  uint64      // what has left the mailbox
	need      uint64      // the sender waits for credit up to this; 0: it does not wait
	needFor   outgoing    // the message for which the sender waits, if the sender has told
	posted    uint64      // the part of granted-consumed for messages that come to the program's own memory: nothing counts it
	postedOut uint64      // the part of posted that has not arrived
	waiters   waitlist    // goroutines of a sender in this process that wait for credit
	queue     *localQueue // the messages of a sender in this process; nil: the sender is a link
	isClosed  bool        // the link has ended, or the context of this process that sends has closed
	endings   endings     // functions of a sender in this process; see OnEnd
	early     []cancelled // calls that were given up, the last mostEarly whose requests were not found
	creditRules

	replies atomic.Pointer[Flow] // the flow to the replies of the sender's context; nil before the first reply
}

// A sendingSide is the sender's side of an inflow: a link, for contexts of other processes, or a
// context of this one.
type sendingSide interface {
	// context returns the sending context.
	context() resource.GID
	// credit tells the sender how much it has been granted.
	credit(m *Mailbox, in *inflow)
	// refuse tells the sender that a message of its resource src is not delivered.
	refuse(in *inflow, src uint32, tag uint64, size int)
	// unanswered tells the sender that the request of its resource src, with the call's number,
	// gets no reply.
	unanswered(in *inflow, src uint32, number uint64, why byte)
	// mailboxClosed tells the sender that the mailbox is closed.
	mailboxClosed(in *inflow)
}

// checkCredit returns an error that matches ErrProtocol if a message of n bytes exceeds what its
// sender was granted. With the first message of the sender it opens the account.
func (in *inflow) checkCredit(n int) error {
	c := in.charge(n)
	if in.mb != nil {
		in.mb.mu.Lock()
		defer in.mb.mu.Unlock()
		if !in.wasOpened && !in.mb.closed { // the first message, for which memory is reserved
			in.mb.openAccountLocked(in)
		}
	}
	granted := in.granted
	if in.mb != nil && !in.wasOpened { // the mailbox has just been closed, which the sender does not know yet
		granted = in.mb.creditRulesOfLocked(in).first
	}
	if in.received+in.expected+c > granted {
		return fmt.Errorf("%w: message of %d bytes to %d exceeds its credit", ErrProtocol, n, in.dst)
	}
	return nil
}

// needsOnlyFirstLocked reports whether a waiting sender needs no more than what each context may
// always have. The mailbox's mu must be held.
func (in *inflow) needsOnlyFirstLocked() bool { return in.need-in.consumed <= in.first }

// stored returns how many charged bytes of the sender the mailbox keeps.
func (in *inflow) stored() uint64 { return in.received - in.consumed }

// expect notes that a message charged c is arriving in pieces, or with 0 that none is. It reports
// whether the mailbox is open.
func (m *Mailbox) expect(in *inflow, c uint64) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	in.expected = c
	return !m.closed
}

// admit lists a context that may send to the mailbox, and reports false if the mailbox is closed.
// The context is promised nothing before its first message is on its way: it may only wait for the
// end of the resource.
func (m *Mailbox) admit(in *inflow) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.closed {
		return false
	}
	m.listInflowLocked(in)
	return true
}

// listInflowLocked notes a context that may send to the mailbox, so that Close tells it. mu must be
// held.
func (m *Mailbox) listInflowLocked(in *inflow) {
	if m.inflows == nil {
		m.inflows = map[*inflow]struct{}{}
	}
	m.inflows[in] = struct{}{}
	if in.home == nil {
		in.home = m
	}
}

// openAccountLocked counts a listed context among those that send to the mailbox, which is open:
// the context's first message is on its way. closeAccount undoes that. mu must be held.
func (m *Mailbox) openAccountLocked(in *inflow) {
	in.creditRules, in.wasOpened = m.creditRulesOfLocked(in), true
	in.setGranted(in.first)
	m.addPromisedLocked(in, int64(in.first))
	m.addOutstandingLocked(in, int64(in.first))
	m.divideLimitLocked(m.flows + 1)
	if m.follower != nil {
		m.askTimesLocked(in)
		if in.l != nil {
			m.d.inBackground(in.l.lockAndPost)
		}
	}
}

// setGranted sets what the sender may have sent. The mailbox's mu must be held.
func (in *inflow) setGranted(total uint64) {
	in.granted = total
	if in.queue != nil {
		in.queue.limit.Store(total)
	}
}

// divideLimitLocked divides the limit among flows sending contexts. mu must be held.
func (m *Mailbox) divideLimitLocked(flows int) {
	m.flows, m.window = flows, m.limit/uint64(flows+1)
	if m.serial&Bounded == 0 {
		m.window = max(m.window, FirstCredit)
	} else {
		m.window -= m.window % max(m.unit, 1)
	}
}

// closeAccount closes the account of a context that sends no more, and takes back its unused
// credit.
func (m *Mailbox) closeAccount(in *inflow) {
	var ended []*ending
	defer func() { callAll(ended, ErrClosed) }() // only a context of this process has functions here, and it closes
	m.mu.Lock()
	defer m.grantQueuedLocked()
	if in.l == nil {
		in.queue.closeLocked()
	}
	m.addPromisedLocked(in, -int64(in.granted-in.received)) // what is stored is consumed later
	m.addOutstandingLocked(in, -int64(in.granted-in.received))
	in.setGranted(in.received)
	in.isClosed = true
	m.dequeueNeedLocked(in)
	in.waiters.fireAll()
	ended = in.endings.take()
	if _, isListed := m.inflows[in]; isListed {
		delete(m.inflows, in)
		m.past += in.received
	}
	if m.oversize == in {
		m.endOversizeLocked()
	}
	if in.wasOpened {
		m.divideLimitLocked(m.flows - 1)
	}
}

// consumeLocked accounts for a message that leaves the mailbox. It returns a sender to tell of new
// credit, and that credit, or 0. mu must be held.
func (m *Mailbox) consumeLocked(msg *Message) (grantee *inflow, grant uint64) {
	in := msg.in
	if msg.gone != nil { // the message took no credit
		return nil, 0
	}
	if planted.Is(planted.LostCredit) && len(msg.data) > 6<<10 {
		m.stored -= in.charge(len(msg.data))
		return nil, 0
	}
	m.consumeChargeLocked(in, in.charge(len(msg.data)))
	if m.holdsBackLocked(in) {
		return in, 0
	}
	if len(m.creditQueue) > 0 {
		if in.need != 0 && in.needsOnlyFirstLocked() {
			return in, m.grantNeedLocked(in)
		}
		if grantee = m.nextGranteeLocked(); grantee != nil {
			return grantee, m.grantNeedLocked(grantee)
		}
	}
	if in.isClosed {
		return in, 0
	}
	return in, m.grantLocked(in)
}

// consumeChargeLocked accounts for messages with a charge that leave the mailbox. mu must be held.
func (m *Mailbox) consumeChargeLocked(in *inflow, c uint64) {
	m.stored -= c
	in.consumed += c
	m.addPromisedLocked(in, -int64(c))
	if m.oversize == in && in.consumed >= m.oversizeEnd {
		m.endOversizeLocked()
	}
}

// heldBack is how long a sender of this process may wait although there is room.
const heldBack = time.Millisecond

// holdsBackLocked reports whether a context of this process that waits for credit is to wait until
// half of its window is free, or for heldBack. Otherwise a sender that is faster than its receiver
// would be woken for each message. mu must be held.
func (m *Mailbox) holdsBackLocked(in *inflow) bool {
	if in.need == 0 || in.queue == nil || m.serial&Bounded != 0 || in.isClosed || len(m.creditQueue) > 1 || in.granted-in.consumed <= m.window/2 ||
		m.messages.First() == nil || m.waiters.First() != nil {
		return false
	}
	if !m.isHolding {
		m.isHolding = true
		time.AfterFunc(heldBack, func() {
			m.mu.Lock()
			m.isHolding = false
			m.grantQueuedLocked()
		})
	}
	return true
}

// consumeEarlyLocked is consume for a message that its receiver may take much later, such as the
// reply to a call for which no goroutine waits yet. The sender may wait for the credit to send what
// that goroutine needs first. So another goroutine tells the sender. mu must be held.
func (m *Mailbox) consumeEarlyLocked(msg *Message) {
	if grantee, grant := m.consumeLocked(msg); grant != 0 {
		m.d.inBackground(func() {
			grantee.from.credit(m, grantee)
			m.mu.Lock()
			m.grantQueuedLocked()
		})
	}
}

// grantLocked decides whether a sender gets more credit, and returns its new limit or 0. Credit is
// renewed when half of it is used, so that a steady stream never waits. The credit of each context
// shrinks as more contexts share the mailbox. mu must be held.
func (m *Mailbox) grantLocked(in *inflow) uint64 {
	window := m.window
	out := in.granted - in.consumed // promised to this sender
	want := in.consumed + window
	if in.need == 0 && want > in.granted && out <= window/2 {
		more := want - in.granted
		free := uint64(0)
		if m.promise < m.limit {
			free = min(m.limit-m.promise, m.d.unpromised(in))
		}
		if more > free {
			more = free
			if out+more < in.first {
				more = in.first - out
			}
			if more -= more % in.step(); more == 0 {
				return 0
			}
		}
		m.addPromisedLocked(in, int64(more))
		m.addOutstandingLocked(in, int64(more))
		in.setGranted(in.granted + more)
		return in.granted
	}
	return 0
}

// onNeed notes that a sender waits for credit up to total, for the message o. It returns the grant
// that the sender can have at once, or 0. It fails if the mailbox is closed, the peer asks for too
// much, or the context never has memory for the message.
func (m *Mailbox) onNeed(in *inflow, total uint64, o outgoing) (grant uint64, err error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	switch {
	case m.closed:
		return 0, ErrGone
	case in.wasOpened:
	case total <= m.creditRulesOfLocked(in).first: // the peer waits for the end of the resource, and may never send
		return 0, nil
	default:
		m.openAccountLocked(in)
	}
	if total > in.granted+charge(MaxMessage) { // received may be less than granted: other senders of the peer may be about to use their grants
		return 0, ErrProtocol
	}
	if o != (outgoing{}) || total != in.need { // otherwise the peer repeats its last Need
		in.needFor = o
	}
	if total > in.granted && m.d.counts(in) && m.d.neverHolds(int(in.needFor.size)) && !m.hasLandingLocked(in, total) {
		m.dequeueNeedLocked(in)
		m.grantQueuedSoon()
		return 0, ErrTooLarge
	}
	return m.queueNeedLocked(in, total), nil
}

// queueNeedLocked is onNeed of an open mailbox. mu must be held.
func (m *Mailbox) queueNeedLocked(in *inflow, total uint64) (grant uint64) {
	m.storeQueuesLocked()
	wasFirst := len(m.creditQueue) > 0 && m.creditQueue[0] == in
	if total <= in.granted { // the sender has been told already, or waits no longer
		m.dequeueNeedLocked(in)
	} else {
		if in.need == 0 {
			m.creditQueue = append(m.creditQueue, in)
		}
		in.need = max(total, in.received+in.expected+in.unit) // the sender may not know the unit yet
		if m.nextGranteeLocked() == in || m.fitsLocked(in) && in.needsOnlyFirstLocked() {
			grant = m.grantNeedLocked(in)
		} else {
			m.d.hasQueued.Store(true)
			if m.oversizeTimer == nil {
				m.oversizeTimer = time.AfterFunc(m.d.oversizeTimeout(), m.checkOversize)
			}
			m.watchStuckLocked()
		}
	}
	if wasFirst && (len(m.creditQueue) == 0 || m.creditQueue[0] != in) {
		m.grantQueuedSoon()
	}
	return grant
}

// dequeueNeedLocked notes that a sender does not wait. mu must be held.
func (m *Mailbox) dequeueNeedLocked(in *inflow) {
	if in.need != 0 {
		in.need, in.needFor = 0, outgoing{}
		m.creditQueue = slices.DeleteFunc(m.creditQueue, func(o *inflow) bool { return o == in })
	}
}

// fitsLocked reports whether a waiting sender may be promised the credit it needs. The sender's
// request came behind everything that it has sent, so all of that has arrived. mu must be held.
func (m *Mailbox) fitsLocked(in *inflow) bool {
	more, out := in.need-in.granted, in.need-in.consumed
	switch {
	case m.landsLocked(in), in.needsOnlyFirstLocked(), m.promise+more <= m.limitForLocked(in) && more <= m.d.unpromised(in):
		return true
	case m.oversize != nil && m.oversize != in && !(m.oversize.received >= m.oversizeEnd && m.awaits(in, true)):
		return false
	case out > max(m.limit, charge(MaxMessage)), !m.d.fits(m, in):
		return false
	}
	return m.stored == 0 || m.awaits(in, false) && (in.stored() == 0 || out <= m.limit)
}

// awaits reports whether a receiver waits for a message that the context of in may send. With
// byName, only receivers that name this context alone count.
func (m *Mailbox) awaits(in *inflow, byName bool) bool {
	for w := m.waiters.First(); w != nil; w = w.place.Next() {
		if w.sel.expects(in.from.context(), byName) {
			return true
		}
	}
	return false
}

// nextGranteeLocked returns the waiting sender that gets the credit it needs next, or nil. That is
// the first sender with a message that the memory can hold, unless a receiver waits for a message
// of another sender. mu must be held.
func (m *Mailbox) nextGranteeLocked() *inflow {
	isFirst := true
	for _, in := range m.creditQueue {
		switch {
		case m.landsLocked(in):
			return in
		case m.d.isTooLarge(in): // the other senders do not wait for it
			continue
		case (isFirst || m.awaits(in, false)) && m.fitsLocked(in):
			return in
		case m.waiters.First() == nil:
			return nil
		}
		isFirst = false
	}
	return nil
}

// grantNeedLocked grants what a sender waits for, which then waits no longer. mu must be held.
func (m *Mailbox) grantNeedLocked(in *inflow) uint64 {
	if m.landsLocked(in) {
		more := in.need - in.granted
		in.posted, in.postedOut = in.posted+more, in.postedOut+more
		in.setGranted(in.need)
		m.dequeueNeedLocked(in)
		return in.granted
	}
	m.addPromisedLocked(in, int64(in.need-in.granted))
	m.addOutstandingLocked(in, int64(in.need-in.granted))
	if !in.needsOnlyFirstLocked() && (m.promise > m.limitForLocked(in) || m.d.overpromised(in)) {
		if m.d.counts(in) {
			m.d.oversize.CompareAndSwap(nil, in)
			if m.oversize != nil {
				m.d.oversize.CompareAndSwap(m.oversize, in)
			}
			m.d.reserve(0)
		} else {
			m.endOversizeLocked() // of the sender before: its message has arrived
		}
		m.oversize, m.oversizeEnd = in, in.need
	}
	in.setGranted(in.need)
	m.dequeueNeedLocked(in)
	if in.first == 0 || in.queue != nil { // otherwise the sender would have to ask for each message
		m.grantLocked(in)
	}
	return in.granted
}

// grantQueuedLocked gives the waiting senders their credit, in order, as long as it fits. It does
// not stop after the first sender, which may have given up meanwhile: nothing that it sends would
// then be consumed and let the next sender have credit. mu must be held; grantQueuedLocked releases
// it.
func (m *Mailbox) grantQueuedLocked() {
	for grantee := m.nextGranteeLocked(); grantee != nil; grantee = m.nextGranteeLocked() {
		m.grantNeedLocked(grantee)
		m.mu.Unlock()
		grantee.from.credit(m, grantee)
		m.mu.Lock()
	}
	m.mu.Unlock()
}

// grantQueuedSoon is grantQueuedLocked for callers that hold locks. One goroutine at a time is
// about to do it. mu must be held.
func (m *Mailbox) grantQueuedSoon() {
	if len(m.creditQueue) > 0 && !m.isGranting {
		m.isGranting = true
		go func() {
			m.mu.Lock()
			m.isGranting = false
			m.grantQueuedLocked()
		}()
	}
}

// takeBack lowers to total what a sender was granted. The sender knew of a grant of held. If more
// has been granted since, the sender keeps that.
func (m *Mailbox) takeBack(in *inflow, total, held uint64) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	switch {
	case m.closed:
		return ErrGone
	case held > in.granted || total > held || total < in.received+in.expected+in.first:
		return ErrProtocol
	case held < in.granted:
		return nil
	}
	m.dequeueNeedLocked(in)
	m.lowerGrantLocked(in, total)
	m.grantQueuedSoon()
	return nil
}

// lowerGrantLocked lowers to total what a sender was granted. mu must be held.
func (m *Mailbox) lowerGrantLocked(in *inflow, total uint64) {
	m.addPromisedLocked(in, -int64(in.granted-total))
	m.addOutstandingLocked(in, -int64(in.granted-total))
	in.setGranted(total)
	in.announced = total
	if m.oversize == in {
		m.endOversizeLocked()
	}
}

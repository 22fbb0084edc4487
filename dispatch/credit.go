// SPDX-License-Identifier: Apache-2.0

package dispatch

import (
	"fmt"
	"maps"
	"slices"
	"sync/atomic"
	"time"

	"github.com/rocl-go/rocl/dispatch/internal/credit"
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

// FirstCredit is what a context may send to a resource before it has been granted anything, in
// charged bytes.
const FirstCredit = credit.First

// An inflow is the account of one sending context with one mailbox: what it may send, in charged
// bytes since the session began. The mailbox's mu guards it.
type inflow struct {
	credit.Account
	from    sendingSide // the sender's side: a link, or a context of this process
	l       *link       // from, if it is a link; else nil
	dst     uint32
	mb      *Mailbox    // nil: the resource does not exist
	home    *Mailbox    // the mailbox that messages have been delivered to; does not change after the first one
	waiters waitlist    // goroutines of a sender in this process that wait for credit
	queue   *localQueue // the messages of a sender in this process; nil: the sender is a link
	endings endings     // functions of a sender in this process; see OnEnd
	early   []cancelled // calls that were given up, the last mostEarly whose requests were not found

	replies atomic.Pointer[Flow] // the flow to the replies of the sender's context; nil before the first reply
}

// newInflow returns the account of a link, or of a context of this process with a queue, that
// belongs to no mailbox yet.
func newInflow(from sendingSide, dst uint32, q *localQueue) *inflow {
	in := &inflow{from: from, dst: dst, queue: q}
	if in.l, _ = from.(*link); in.l != nil {
		in.Account = credit.NewAccount(in, nil)
	} else {
		in.Account = credit.NewAccount(in, &q.limit)
	}
	return in
}

// IsAwaited implements [credit.Owner]. The mailbox's mu must be held.
func (in *inflow) IsAwaited(byName bool) bool {
	for w := in.home.waiters.First(); w != nil; w = w.place.Next() {
		if w.sel.expects(in.from.context(), byName) {
			return true
		}
	}
	return false
}

// HasReceivers implements [credit.Owner]. The mailbox's mu must be held.
func (in *inflow) HasReceivers() bool { return in.home.waiters.First() != nil }

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
	r := &credit.Receiver{}
	if in.mb != nil {
		r = &in.mb.credit
		in.mb.mu.Lock()
		defer in.mb.mu.Unlock()
		if !in.IsOpen() && !in.mb.closed { // the first message, for which memory is reserved
			in.mb.openAccountLocked(in)
		}
	}
	if err := r.Check(&in.Account, in.Charge(n)); err != nil {
		return fmt.Errorf("%w: message of %d bytes to %d exceeds its credit", err, n, in.dst)
	}
	return nil
}

// expect notes that a message charged c is arriving in pieces, or with 0 that none is. It reports
// whether the mailbox is open.
func (m *Mailbox) expect(in *inflow, c uint64) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	in.Expect(c)
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
	m.credit.Open(&in.Account)
	if m.follower != nil {
		m.askTimesLocked(in)
		if in.l != nil {
			m.d.inBackground(in.l.lockAndPost)
		}
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
	m.credit.Close(&in.Account)
	in.waiters.fireAll()
	ended = in.endings.take()
	if _, isListed := m.inflows[in]; isListed {
		delete(m.inflows, in)
		m.past += in.Received()
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
		return nil, 0
	}
	a := &in.Account
	m.credit.Consume(a, in.Charge(len(msg.data)))
	if m.holdsBackLocked(in) {
		return in, 0
	}
	if len(m.credit.Waiting()) > 0 {
		if next := m.credit.NextAfter(a); next != nil {
			return next.Owner().(*inflow), m.credit.GrantNeed(next)
		}
	}
	if a.IsClosed() {
		return in, 0
	}
	return in, m.credit.Renew(a)
}

// heldBack is how long a sender of this process may wait although there is room.
const heldBack = time.Millisecond

// holdsBackLocked reports whether a context of this process that waits for credit is to wait until
// half of its window is free, or for heldBack. Otherwise a sender that is faster than its receiver
// would be woken for each message. mu must be held.
func (m *Mailbox) holdsBackLocked(in *inflow) bool {
	if !in.IsWaiting() || in.queue == nil || m.credit.IsBounded() || in.IsClosed() || len(m.credit.Waiting()) > 1 || m.credit.IsHalfUsed(&in.Account) ||
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

// onNeed notes that a sender waits for credit up to total, for the message o. It returns the grant
// that the sender can have at once, or 0. It fails if the mailbox is closed, the peer asks for too
// much, or the context never has memory for the message.
func (m *Mailbox) onNeed(in *inflow, total uint64, o credit.Outgoing) (grant uint64, err error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.closed {
		return 0, ErrGone
	}
	if !in.IsOpen() && m.credit.Opens(total) {
		m.openAccountLocked(in)
	}
	m.storeQueuesLocked()
	grant, others, err := m.credit.Ask(&in.Account, total, o)
	m.askedLocked(in, others)
	return grant, err
}

// askedLocked works on what an account that has asked for credit, and other ones, get. mu must be
// held.
func (m *Mailbox) askedLocked(in *inflow, others bool) {
	if in.IsWaiting() {
		if m.oversizeTimer == nil {
			m.oversizeTimer = time.AfterFunc(m.d.oversizeTimeout(), m.checkOversize)
		}
		m.watchStuckLocked()
	}
	if others {
		m.grantQueuedSoon()
	}
}

// grantQueuedLocked gives the waiting senders their credit, in order, as long as it fits. It does
// not stop after the first sender, which may have given up meanwhile: nothing that it sends would
// then be consumed and let the next sender have credit. mu must be held; grantQueuedLocked releases
// it.
func (m *Mailbox) grantQueuedLocked() {
	for a := m.credit.Next(); a != nil; a = m.credit.Next() {
		m.credit.GrantNeed(a)
		m.mu.Unlock()
		grantee := a.Owner().(*inflow)
		grantee.from.credit(m, grantee)
		m.mu.Lock()
	}
	m.mu.Unlock()
}

// grantQueuedSoon is grantQueuedLocked for callers that hold locks. One goroutine at a time is
// about to do it. mu must be held.
func (m *Mailbox) grantQueuedSoon() {
	if len(m.credit.Waiting()) > 0 && !m.isGranting {
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
	if m.closed {
		return ErrGone
	}
	err := m.credit.GiveBack(&in.Account, total, held)
	m.grantQueuedSoon()
	return err
}

// grantAll makes all mailboxes grant the credit that has become possible. It runs in a goroutine of
// its own.
func (d *Dispatcher) grantAll() {
	d.mu.RLock()
	boxes := slices.Collect(maps.Values(d.boxes))
	d.mu.RUnlock()
	for _, m := range boxes {
		m.mu.Lock()
		if len(m.credit.Waiting()) > 0 {
			d.budget.Queue() // before grantQueuedLocked: memory that comes back meanwhile calls grantAll again
		}
		m.grantQueuedLocked()
	}
}

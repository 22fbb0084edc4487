// SPDX-License-Identifier: Apache-2.0

package dispatch

import (
	"context"
	"fmt"
	"slices"
	"sync/atomic"
	"time"

	"github.com/rocl-go/rocl/dispatch/internal/wire"
	"github.com/rocl-go/rocl/internal/lock"
	"github.com/rocl-go/rocl/resource"
	"github.com/rocl-go/rocl/subsys"
)

// overhead is what a message counts against credit and mailbox limits beyond its payload. So empty
// messages are bounded too.
const overhead = 64

// charge returns what a payload of n bytes counts against credit.
func charge(n int) uint64 { return uint64(n) + overhead }

// An inflow is the account of one sending context with one mailbox: what it may send, in charged
// bytes since the session began. The mailbox's mu guards it.
type inflow struct {
	from     origin // the sender's side: a link, or a context of this process
	l        *link  // from, if it is a link; else nil
	dst      uint32
	mb       *Mailbox // nil: the resource does not exist
	home     *Mailbox // the mailbox that messages have been delivered to; does not change after the first one
	granted  uint64   // what the sender may have sent
	received uint64   // what has arrived
	expected uint64   // the charge of a message in pieces that is arriving
	consumed uint64   // what has left the mailbox
	need     uint64   // the sender waits for credit up to this; 0: it does not wait
	pin      *pin     // the pin of the last message that was stored
	waiters  waitlist // goroutines of a sender in this process that wait for credit
	hasLeft  bool     // the link has ended
	endings  endings  // functions of a sender in this process; see OnEnd
	creditTerms

	replies atomic.Pointer[Flow] // the flow to the replies of the sender's context; nil before the first reply
}

// An origin is the sending side of an inflow: a link, for contexts of other processes, or a context
// of this one.
type origin interface {
	// context returns the sending context.
	context() resource.GID
	// credit tells the sender how much it has been granted.
	credit(m *Mailbox, in *inflow)
	// refuse tells the sender that a message of its resource src was in vain.
	refuse(in *inflow, src uint32, tag uint64, size int)
	// unanswered tells the sender that the request of its resource src, with the call's number,
	// gets no reply.
	unanswered(in *inflow, src uint32, number uint64, why byte)
	// ends tells the sender that the mailbox is closed.
	ends(in *inflow)
}

// exceedsCredit reports whether a message charged c exceeds what its sender was granted.
func (in *inflow) exceedsCredit(c uint64) bool {
	if in.mb != nil {
		in.mb.mu.Lock()
		defer in.mb.mu.Unlock()
		if !in.hasEntered && !in.mb.closed { // the first message, for which memory is reserved
			in.mb.enter(in)
		}
	}
	granted := in.granted
	if in.mb != nil && !in.hasEntered { // the mailbox has just been closed, which the sender does not know yet
		granted = in.mb.creditTermsOf(in).first
	}
	return in.received+in.expected+c > granted
}

// expect notes that a message charged c is arriving in pieces, or with 0 that none is. It reports
// whether the mailbox is open.
func (m *Mailbox) expect(in *inflow, c uint64) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	in.expected = c
	return !m.closed
}

// isClosed reports whether the mailbox is closed. mu must not be held.
func (m *Mailbox) isClosed() bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.closed
}

// A Mailbox keeps the messages of one resource until they are received: the paper's message store
// (section 4.2), one for each resource. Messages are selected by origin and tag. Of the messages
// that match, the first one is received first.
//
// The limit, in charged bytes, bounds what is stored: senders get credit out of it, and wait when
// there is none. While a receiver waits for a message that is not stored, the limit is twice as
// large for the senders that may send it.
//
// Beyond the limit, each sending context may always have FirstCredit bytes that are not received
// yet. In addition, one sending context at a time gets the credit for a message that does not fit.
// The context gets this credit when nothing is stored, or when a receiver waits for a message that
// is not stored and no message of that context is stored. If a receiver names the context, the
// context need only wait until the message of the previous such context has arrived.
type Mailbox struct {
	d      *Dispatcher
	serial uint32
	limit  uint64
	unit   uint64 // the least that a message of a sender that knows it is charged; 0: overhead

	mu            lock.Mutex[levelMailbox]
	first         *Message
	last          *Message
	count         int
	stored        uint64               // charged bytes of the stored messages
	promise       uint64               // charged bytes granted and not yet consumed, including stored ones
	budgeted      int64                // the part of promise that the budget counts
	outstanding   int64                // the part of budgeted that has not arrived
	dense         uint64               // bytes of which twice as many may be held, however little is stored
	held          uint64               // bytes of memory that the stored messages keep from reuse
	pins          *pin                 // unused pins
	pinAgain      *pin                 // the pin of the last message that was put back
	compacted     *Message             // the last message that compact came to
	swept         *Message             // the last message that sweep came to
	sweeps        uint32               // how often sweep has been called
	sweeper       *time.Timer          // calls sweep; nil until first set
	isSweeping    bool                 // the sweeper is set
	sparse        int                  // sparse pins; while there are any, the sweeper is set
	inflows       map[*inflow]struct{} // accounts of all contexts that send, or may
	flows         int                  // contexts that send
	window        uint64               // the share of each of them in the limit
	creditQueue   []*inflow            // senders that wait for more credit, in order
	oversize      *inflow              // the one sender with a grant beyond the limit; nil: none
	oversizeEnd   uint64               // the end of that grant: oversize becomes nil when as much is consumed
	oversizeSeen  oversizeProgress     // the sender with such a grant when checkOversize looked last
	oversizeTimer *time.Timer          // calls checkOversize; nil: no sender waits
	stuck         stuckWatch
	closed        bool
	losses        losses // lost messages of the resource
	waiters       receivers
	matcher       *matcher // finds messages for receives with selectors; nil until a receive has passed messages over
	monitors      *monitor // monitors that put a message into this mailbox
	gone          *inflow  // the account of those messages; nil before the first

	originTimer      *time.Timer // calls checkOrigins; nil until first set
	isOriginTimerSet bool        // originTimer is set

	posts  map[posting]*Posted // the first Posted of each origin and tag; nil: none
	posted atomic.Int32        // how many are in posts

	handle   func(*Message) bool // called for each message; nil: messages wait for receivers
	handling bool

	calls       *calls // the calls, in the mailbox for replies; else nil
	callsClosed bool   // the resource begins no further calls; the mu of calls.box guards it
}

// newMailbox returns an empty mailbox that no message can come to yet; see publish. limit is in
// charged bytes; 0 means the default.
func newMailbox(d *Dispatcher, serial uint32, limit int) *Mailbox {
	if limit <= 0 {
		limit = d.cfg.Mailbox
	}
	m := &Mailbox{d: d, serial: serial, limit: uint64(limit)}
	m.dense = max(m.limit, FirstCredit)
	if serial&Bounded == 0 {
		m.limit = m.dense
	}
	if d.memory > 0 {
		m.dense = min(m.dense, d.memory/8)
	}
	m.share(0)
	return m
}

// FirstCredit is what a context may send to a resource before it has been granted anything, in
// charged bytes.
const FirstCredit = 64 << 10

// deliver stores or hands over data frames of one inflow, with payloads of size bytes together. It
// takes all of them or none. If call is not 0, fs is one frame: the request of the call with that
// number.
func (m *Mailbox) deliver(in *inflow, fs []subsys.Frame, size int, call uint64) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.closed {
		return ErrGone
	}
	c := charge(size) + overhead*uint64(len(fs)-1)
	if !in.hasEntered { // the first message
		m.enter(in)
	}
	if in.unit > overhead {
		c = 0
		for i := range fs {
			c += in.charge(len(fs[i].Data))
		}
	}
	if in.received+c > in.granted {
		return ErrProtocol
	}
	in.received += c
	m.stored += c
	m.addOutstanding(in, -int64(c))
	for len(fs) > 0 {
		n := 1
		for n < len(fs) && n < batchMost && fs[n].Buf == fs[0].Buf {
			n++
		}
		if n < batchLeast {
			n = 1
		}
		m.d.eachMessage(fs[:n], func(i int, msg *Message) {
			f := &fs[i]
			msg.data, msg.tag, msg.in = f.Data, f.Tag, in
			msg.from = in.l.peer.WithSerial(f.Src)
			if call != 0 && m.calls == nil {
				msg.call = call
			}
			m.put(msg)
		})
		fs = fs[n:]
	}
	return nil
}

// put hands a message that has arrived to a call, a Posted or a receiver, or stores it. mu must be
// held.
func (m *Mailbox) put(msg *Message) {
	if m.calls != nil {
		m.calls.reply(msg)
		return
	}
	if m.posts != nil && m.isPosted(msg) {
		return
	}
	if m.waiters.first != nil {
		if w := m.receiver(msg); w != nil {
			w.msg = msg
			w.grantee, w.grant = m.consume(msg)
			w.finish()
			return
		}
	}
	msg.prev = m.last
	if m.last != nil {
		m.last.next = msg
	} else {
		m.first = msg
	}
	m.last = msg
	m.count++
	if m.countMemory(msg); m.held > 2*m.dense {
		m.compact()
	}
	if m.handle != nil && !m.handling && !m.closed {
		m.handling = true
		m.d.running.Add(1) // before Close waits, which takes mu first
		go m.serve()
	}
}

// serve passes stored messages to handle, one at a time, until none is left.
func (m *Mailbox) serve() {
	defer m.d.running.Done()
	for {
		m.mu.Lock()
		msg := m.match(&Select{})
		if msg == nil {
			m.handling = false
			m.mu.Unlock()
			return
		}
		in := msg.in
		m.handOut(msg)
		if !m.handle(msg) {
			m.refuse(in, msg)
		}
		msg.Release()
	}
}

// refuse tells the sender of msg that the message was in vain.
func (m *Mailbox) refuse(in *inflow, msg *Message) {
	if msg.call != 0 {
		in.from.unanswered(in, msg.from.Serial(), msg.call, wire.WhyGone)
		msg.clearCall()
		return
	}
	in.from.refuse(in, msg.from.Serial(), msg.tag, msg.Len())
}

// match unlinks and returns the first message that f selects, or nil. mu must be held.
func (m *Mailbox) match(f *Select) *Message {
	msg := m.find(f)
	if msg != nil {
		m.unlink(msg)
	}
	return msg
}

// unlink takes a stored message from the list. mu must be held.
func (m *Mailbox) unlink(msg *Message) {
	if m.matcher != nil {
		m.matcher.remove(m, msg)
	}
	if msg.prev != nil {
		msg.prev.next = msg.next
	} else {
		m.first = msg.next
	}
	if msg.next != nil {
		msg.next.prev = msg.prev
	} else {
		m.last = msg.prev
	}
	if m.compacted == msg {
		m.compacted = msg.prev
	}
	if m.swept == msg {
		m.swept = msg.prev
	}
	msg.next, msg.prev = nil, nil
	m.count--
	m.uncountMemory(msg)
}

// consume accounts for a message that leaves the mailbox. It returns a sender to tell of new
// credit, and that credit, or 0. mu must be held.
func (m *Mailbox) consume(msg *Message) (grantee *inflow, grant uint64) {
	in := msg.in
	if msg.isGone { // the message took no credit
		return nil, 0
	}
	c := in.charge(len(msg.data))
	m.stored -= c
	in.consumed += c
	m.addPromised(in, -int64(c))
	if m.oversize == in && in.consumed >= m.oversizeEnd {
		m.endOversize()
	}
	if len(m.creditQueue) > 0 {
		if in.need != 0 && in.need-in.consumed <= in.first {
			return in, m.grantNeed(in)
		}
		if grantee = m.nextGrantee(); grantee != nil {
			return grantee, m.grantNeed(grantee)
		}
	}
	if in.hasLeft {
		return in, 0
	}
	return in, m.grant(in)
}

// grant decides whether a sender gets more credit, and returns its new limit or 0. Credit is
// renewed when half of it is used, so that a steady stream never waits. The credit of each context
// shrinks as more contexts share the mailbox. mu must be held.
func (m *Mailbox) grant(in *inflow) uint64 {
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
		m.addPromised(in, int64(more))
		m.addOutstanding(in, int64(more))
		in.granted += more
		return in.granted
	}
	return 0
}

// fits reports whether a waiting sender may be promised the credit it needs. The sender's request
// came behind everything that it has sent, so all of that has arrived. mu must be held.
func (m *Mailbox) fits(in *inflow) bool {
	more, out := in.need-in.granted, in.need-in.consumed
	switch {
	case out <= in.first, m.promise+more <= m.limitFor(in) && more <= m.d.unpromised(in):
		return true
	case m.oversize != nil && m.oversize != in && !(m.oversize.received >= m.oversizeEnd && m.awaits(in, true)):
		return false
	case out > max(m.limit, charge(MaxMessage)), !m.d.fits(m, in):
		return false
	}
	return m.stored == 0 || m.awaits(in, false) && (in.stored() == 0 || out <= m.limit)
}

// stored returns how many charged bytes of the sender the mailbox keeps.
func (in *inflow) stored() uint64 { return in.received - in.consumed }

// awaits reports whether a receiver waits for a message that the context of in may send. With
// byName, only receivers that name this context alone count.
func (m *Mailbox) awaits(in *inflow, byName bool) bool {
	for w := m.waiters.first; w != nil; w = w.next {
		if w.sel.expects(in.from.context(), byName) {
			return true
		}
	}
	for p := range m.posts {
		if p.from.Context() == in.from.context() {
			return true
		}
	}
	return false
}

// nextGrantee returns the waiting sender that gets the credit it needs next, or nil. That is the
// first sender with a message that the memory can hold, unless a receiver waits for a message of
// another sender. mu must be held.
func (m *Mailbox) nextGrantee() *inflow {
	isFirst := true
	for _, in := range m.creditQueue {
		switch {
		case m.d.isTooLarge(in): // the other senders do not wait for it
			continue
		case (isFirst || m.awaits(in, false)) && m.fits(in):
			return in
		case m.waiters.first == nil:
			return nil
		}
		isFirst = false
	}
	return nil
}

// grantNeed grants what a sender waits for, which then waits no longer. mu must be held.
func (m *Mailbox) grantNeed(in *inflow) uint64 {
	m.addPromised(in, int64(in.need-in.granted))
	m.addOutstanding(in, int64(in.need-in.granted))
	if in.need-in.consumed > in.first && (m.promise > m.limitFor(in) || m.d.overpromised(in)) {
		if m.d.counts(in) {
			m.d.oversize.CompareAndSwap(nil, in)
			if m.oversize != nil {
				m.d.oversize.CompareAndSwap(m.oversize, in)
			}
		} else {
			m.endOversize() // of the sender before: its message has arrived
		}
		m.oversize, m.oversizeEnd = in, in.need
	}
	in.granted = in.need
	m.dequeueNeed(in)
	if in.first == 0 { // otherwise the sender would have to ask for each message
		m.grant(in)
	}
	return in.granted
}

// dequeueNeed notes that a sender does not wait. mu must be held.
func (m *Mailbox) dequeueNeed(in *inflow) {
	if in.need != 0 {
		in.need = 0
		m.creditQueue = slices.DeleteFunc(m.creditQueue, func(o *inflow) bool { return o == in })
	}
}

// onNeed notes that a sender waits for credit up to total. It returns the grant that the sender can
// have at once, or 0. It fails if the mailbox is closed, or the peer asks for too much.
func (m *Mailbox) onNeed(in *inflow, total uint64) (grant uint64, err error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	switch {
	case m.closed:
		return 0, ErrGone
	case in.hasEntered:
	case total <= m.creditTermsOf(in).first: // the peer waits for the end of the resource, and may never send
		return 0, nil
	default:
		m.enter(in)
	}
	if total > in.granted+charge(MaxMessage) { // received may be less than granted: other senders of the peer may be about to use their grants
		return 0, ErrProtocol
	}
	return m.queueNeed(in, total), nil
}

// queueNeed is onNeed of an open mailbox. mu must be held.
func (m *Mailbox) queueNeed(in *inflow, total uint64) (grant uint64) {
	first := len(m.creditQueue) > 0 && m.creditQueue[0] == in
	if total <= in.granted { // the sender has been told already, or waits no longer
		m.dequeueNeed(in)
	} else {
		if in.need == 0 {
			m.creditQueue = append(m.creditQueue, in)
		}
		in.need = max(total, in.received+in.expected+in.unit) // the sender may not know the unit yet
		if m.nextGrantee() == in || m.fits(in) && in.need-in.consumed <= in.first {
			grant = m.grantNeed(in)
		} else {
			m.d.hasQueued.Store(true)
			if m.oversizeTimer == nil {
				m.oversizeTimer = time.AfterFunc(m.d.oversizeTimeout(), m.checkOversize)
			}
			m.watchStuck()
		}
	}
	if first && (len(m.creditQueue) == 0 || m.creditQueue[0] != in) {
		m.grantQueuedSoon()
	}
	return grant
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
	m.dequeueNeed(in)
	m.lowerGrant(in, total)
	m.grantQueuedSoon()
	return nil
}

// lowerGrant lowers to total what a sender was granted. mu must be held.
func (m *Mailbox) lowerGrant(in *inflow, total uint64) {
	m.addPromised(in, -int64(in.granted-total))
	m.addOutstanding(in, -int64(in.granted-total))
	in.granted = total
	if m.oversize == in {
		m.endOversize()
	}
}

// grantQueuedSoon is grantQueued for callers that hold locks.
func (m *Mailbox) grantQueuedSoon() {
	if len(m.creditQueue) > 0 {
		go func() {
			m.mu.Lock()
			m.grantQueued()
		}()
	}
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
	m.list(in)
	return true
}

// list notes a context that may send to the mailbox, so that Close tells it. mu must be held.
func (m *Mailbox) list(in *inflow) {
	if m.inflows == nil {
		m.inflows = map[*inflow]struct{}{}
	}
	m.inflows[in] = struct{}{}
	if in.home == nil {
		in.home = m
	}
}

// enter counts a listed context among those that send to the mailbox, which is open: the context's
// first message is on its way. leave undoes that. mu must be held.
func (m *Mailbox) enter(in *inflow) {
	in.creditTerms, in.hasEntered = m.creditTermsOf(in), true
	in.granted = in.first
	m.addPromised(in, int64(in.first))
	m.addOutstanding(in, int64(in.first))
	m.share(m.flows + 1)
}

// share divides the limit among flows sending contexts. mu must be held.
func (m *Mailbox) share(flows int) {
	m.flows, m.window = flows, m.limit/uint64(flows+1)
	if m.serial&Bounded == 0 {
		m.window = max(m.window, FirstCredit)
	} else {
		m.window -= m.window % max(m.unit, 1)
	}
}

// leave closes the account of a context that sends no more, and takes back its unused credit.
func (m *Mailbox) leave(in *inflow) {
	var ended *ending
	defer func() { ended.callAll(ErrClosed) }() // only a context of this process has functions here, and it closes
	m.mu.Lock()
	defer m.grantQueued()
	m.addPromised(in, -int64(in.granted-in.received)) // what is stored is consumed later
	m.addOutstanding(in, -int64(in.granted-in.received))
	in.granted, in.hasLeft = in.received, true
	m.dequeueNeed(in)
	in.waiters.fireAll()
	ended = in.endings.take()
	delete(m.inflows, in)
	if m.oversize == in {
		m.endOversize()
	}
	if in.hasEntered {
		m.share(m.flows - 1)
	}
}

// grantQueued gives the waiting senders their credit, in order, as long as it fits. It does not
// stop after the first sender, which may have given up meanwhile: nothing that it sends would then
// be consumed and let the next sender have credit. mu must be held; grantQueued releases it.
func (m *Mailbox) grantQueued() {
	for grantee := m.nextGrantee(); grantee != nil; grantee = m.nextGrantee() {
		m.grantNeed(grantee)
		m.mu.Unlock()
		grantee.from.credit(m, grantee)
		m.mu.Lock()
	}
	m.mu.Unlock()
}

// Recv returns the first message that every sel selects, and waits for it until ctx ends. A message
// that arrives as ctx ends is returned or kept, never lost. Recv returns ErrClosed once the mailbox
// is closed, and ErrSelect if no message can match. If sel names origins, and all of these have
// ended and left nothing that matches, it returns ErrGone, after some milliseconds.
//
// Any number of goroutines may call Recv at a time. A message that several of them select goes to
// the one that has waited longest. Functions that are passed to OnEnd, and Config.Logger and
// Config.Trust, may not call Recv: their callers may hold locks or the progress token.
//
// Recv fails with ErrStuck if it waits behind messages that it does not select. That is so when
// three conditions hold. The mailbox is full of such messages, although its limit is doubled
// meanwhile. A context from which a message could match waits for room. Nothing has come to the
// mailbox or been received from it for as long as Config.GiveUp. Then the receive could succeed
// only if another goroutine received what is stored, or if a context that has room sent a match.
// Recv does not fail if every context that its selectors name has room. No message is lost: receive
// some of the stored messages, and try again.
func (m *Mailbox) Recv(ctx context.Context, sel ...Select) (*Message, error) {
	var own Select
	f, err := merge(sel, &own)
	if err != nil {
		return nil, m.receiving(err)
	}
	m.mu.Lock()
	if msg := m.match(f); msg != nil {
		return m.handOut(msg), nil
	}
	if m.closed {
		m.mu.Unlock()
		return nil, m.receiving(ErrClosed)
	}
	w := m.d.waiter()
	w.sel = *f
	m.waiters.push(w)
	if !m.isOriginTimerSet && f.namesOrigins() {
		m.startOriginTimer()
	}
	if len(m.creditQueue) > 0 {
		m.watchStuck()
		m.grantQueued()
	} else {
		m.mu.Unlock()
	}

	err = m.d.wait(ctx, w)
	if err != nil {
		m.mu.Lock() // w may be handed a message until it is out of the list
		if w.listed {
			m.waiters.remove(w)
		}
		m.mu.Unlock()
	}
	if w.origins != nil {
		w.origins.stop()
	}
	msg, grantee, grant, cause := w.msg, w.grantee, w.grant, w.cause
	m.d.doneWaiting(w)
	switch {
	case msg != nil:
		return m.finishHandOut(msg, grantee, grant), nil
	case cause != nil:
		err = cause
	case err == nil: // fired without a message
		err = ErrClosed
	}
	return nil, m.receiving(err)
}

// receiving returns the error of a receive that fails because of err.
func (m *Mailbox) receiving(err error) error {
	return fmt.Errorf("rocl: receiving at %v: %w", m.d.self.WithSerial(m.serial), err)
}

// handOut lets msg, which is unlinked, leave the mailbox. mu must be held; handOut releases it.
func (m *Mailbox) handOut(msg *Message) *Message {
	grantee, grant := m.consume(msg)
	m.mu.Unlock()
	return m.finishHandOut(msg, grantee, grant)
}

// finishHandOut tells a sender, with the account grantee, of the credit that msg has left behind.
// mu must not be held.
func (m *Mailbox) finishHandOut(msg *Message, grantee *inflow, grant uint64) *Message {
	if msg.d != nil { // the message is in no batch
		msg.isHeld = true
		msg.d.held.Add(1)
	}
	if grant != 0 {
		grantee.from.credit(m, grantee)
		m.mu.Lock()
		m.grantQueued()
	}
	return msg
}

// TryRecv returns the first message that every sel selects, as [Mailbox.Recv] does, but does not
// wait: if no message matches, it returns ErrEmpty. It checks once what the transports have.
func (m *Mailbox) TryRecv(sel ...Select) (*Message, error) {
	msg, err := m.lookFor(sel)
	if err != nil {
		return nil, err
	}
	m.unlink(msg)
	return m.handOut(msg), nil
}

// An Envelope describes a message that is not received yet.
type Envelope struct {
	From resource.GID // the resource that sent the message
	Tag  uint64       // the number the sender gave it
	Len  int          // the length of its payload in bytes
}

// Peek describes the message that TryRecv would return, and leaves it in the mailbox. It fails as
// TryRecv does. Another goroutine may receive that message next.
func (m *Mailbox) Peek(sel ...Select) (Envelope, error) {
	msg, err := m.lookFor(sel)
	if err != nil {
		return Envelope{}, err
	}
	e := Envelope{From: msg.from, Tag: msg.tag, Len: msg.Len()}
	m.mu.Unlock()
	return e, nil
}

// lookFor returns the first message that matches sel, with mu held. If there is none, it checks
// once what the transports have. If there still is none, it returns an error, and mu is not held.
func (m *Mailbox) lookFor(sel []Select) (*Message, error) {
	var own Select
	f, err := merge(sel, &own)
	if err != nil {
		return nil, err
	}
	for try := 0; ; try++ {
		m.mu.Lock()
		if msg := m.find(f); msg != nil {
			return msg, nil
		}
		closed := m.closed
		m.mu.Unlock()
		if closed {
			return nil, ErrClosed
		}
		if try > 0 {
			return nil, ErrEmpty
		}
		m.d.pollOnce()
	}
}

// Len returns the number of stored messages, and their charged bytes.
func (m *Mailbox) Len() (messages int, stored uint64) {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.count, m.stored
}

// Close makes the mailbox refuse messages, and drops the stored ones. All contexts that have sent
// to it are told that the resource is gone. Blocked receives return ErrClosed.
func (m *Mailbox) Close() {
	m.mu.Lock()
	if m.closed {
		m.mu.Unlock()
		return
	}
	m.dropPromises()
	m.endOversize()
	if m.oversizeTimer != nil {
		m.oversizeTimer.Stop()
	}
	if m.originTimer != nil {
		m.originTimer.Stop()
	}
	m.stuck.end()
	m.closed = true
	msgs, ins, waiting := m.first, m.inflows, m.creditQueue
	m.inflows = nil
	m.first, m.last, m.count, m.stored, m.creditQueue = nil, nil, 0, 0, nil
	m.held, m.pins, m.pinAgain, m.sparse, m.compacted, m.swept, m.matcher = 0, nil, nil, 0, nil, nil, nil
	if m.sweeper != nil {
		m.sweeper.Stop()
	}
	m.waiters.fireAll()
	m.endPosts()
	for in := range ins {
		in.waiters.fireAll()
	}
	m.mu.Unlock()
	m.d.calls.endMailboxCalls(m)
	m.d.forget(m)
	m.unmonitor()
	closing := m.d.hasBegunClosing() // then all links hear a goodbye
	for in := range ins {
		if in.l == nil || !closing || slices.Contains(waiting, in) {
			in.from.ends(in)
		}
		if ended := m.takeEndings(in); ended != nil {
			m.notifyEnd(in, ended)
		}
	}
	for msgs != nil {
		msg := msgs
		msgs = msg.next
		if msg.in != nil && !msg.isGone {
			m.refuse(msg.in, msg)
		}
		msg.next, msg.prev, msg.in, msg.pin, msg.kept, msg.slot = nil, nil, nil, nil, 0, nil
		msg.Release()
	}
}

// SPDX-License-Identifier: Apache-2.0

package dispatch

import (
	"slices"
	"time"

	"github.com/rocl-go/rocl/dispatch/internal/credit"
	"github.com/rocl-go/rocl/dispatch/internal/list"
	"github.com/rocl-go/rocl/dispatch/internal/wire"
	"github.com/rocl-go/rocl/internal/lock"
	"github.com/rocl-go/rocl/internal/planted"
	"github.com/rocl-go/rocl/subsys"
)

// isClosed reports whether the mailbox is closed. mu must not be held.
func (m *Mailbox) isClosed() bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.closed
}

// A Mailbox keeps the messages of one resource until they are received: the message store of the
// RoCL paper (section 4.2), one for each resource. Messages are selected by origin and tag. Of the
// messages that match, the first one is received first.
//
// The limit, in charged bytes, bounds what is stored: senders get credit out of it, and wait when
// there is none. Package internal/credit says when they get more than that.
type Mailbox struct {
	d      *Dispatcher
	serial uint32

	arrivals
	open openRun

	mu       lock.Mutex[levelMailbox] // guards the following fields, unless they say otherwise
	closed   bool
	losses   losses    // lost messages of the resource; has a lock of its own
	follower *follower // keeps the messages that are followed; nil: none are

	// The stored messages, in the order in which they came.
	messages     list.List[Message]
	count        int           // of all of them, also those that a rest of a run has
	wasTakenBack bool          // the run that was opened last was taken back
	taken        int           // messages taken since a receiver waited last
	spinners     int           // receivers that poll for news
	filled       []*localQueue // local queues that have been stored since a receiver waited
	matcher      *matcher      // finds messages for receives with selectors; nil until a receive has passed messages over

	// Credit: the accounts of senders, and what they were granted.
	credit     credit.Receiver
	inflows    map[*inflow]struct{} // accounts of all contexts that send, or may
	past       uint64               // what has arrived from contexts whose accounts have ended, in charged bytes
	isGranting bool                 // a goroutine is about to give senders that wait their credit
	isHolding  bool                 // a timer is about to do that, since holdsBackLocked

	// Receivers, and other takers of messages.
	waiters  receivers
	handle   func(*Message) bool // called for each message; nil: messages wait for receivers
	handling bool                // a goroutine runs serve
	monitors list.List[monitor]  // monitors that put a message into this mailbox
	gone     *inflow             // the account of those messages; nil before the first

	// Calls.
	calls       *calls                    // the calls, in the mailbox for replies; else nil
	callsClosed bool                      // the resource begins no further calls; the mu of calls.box guards it
	onCancel    map[cancelKey]func(error) // functions of OnCancel; nil before the first

	// Timers, and what they compare.
	oversizeTimer    *time.Timer      // calls checkOversize; nil: no sender waits
	oversizeSeen     oversizeProgress // the sender with such a grant when checkOversize looked last
	stuck            stuckWatch
	originTimer      *time.Timer // calls checkOrigins; nil until first set
	isOriginTimerSet bool        // originTimer is set
}

// newMailbox returns an empty mailbox that no message can come to yet; see publish. limit is in
// charged bytes; 0 means the default. A bounded mailbox has at most so many messages; 0 means any
// number.
func newMailbox(d *Dispatcher, serial uint32, limit, messages int) *Mailbox {
	if limit <= 0 {
		limit = d.cfg.Mailbox
	}
	m := &Mailbox{d: d, serial: serial}
	if serial&Bounded == 0 {
		m.credit.Init(&d.budget, uint64(limit))
	} else {
		m.credit.InitBounded(&d.budget, uint64(limit), uint64(max(messages, 0)))
	}
	return m
}

// deliver stores or hands over data frames of one inflow, with payloads of size bytes together. It
// takes all of them or none. If call is not 0, fs is one frame: the request of the call with that
// number. If t is not nil, fs is one frame, ahead of which t has come.
func (m *Mailbox) deliver(in *inflow, fs []subsys.Frame, size int, call uint64, t *trace) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.closed {
		return ErrGone
	}
	c := credit.Charge(size) + credit.Overhead*uint64(len(fs)-1)
	if !in.IsOpen() { // the first message
		m.openAccountLocked(in)
	}
	if in.Unit() > credit.Overhead {
		c = 0
		for i := range fs {
			c += in.Charge(len(fs[i].Data))
		}
	}
	if err := m.credit.Arrive(&in.Account, c); err != nil {
		return err
	}
	m.storeQueuesLocked() // what has come before
	for len(fs) > 0 {
		n := togetherMost(fs)
		switch {
		case n > 1 && m.calls != nil:
			r := m.d.runOf(in, fs[:n])
			for i := range n {
				m.calls.replyLocked(r.message(i))
			}
		case n > 1 && m.storesRunsLocked():
			r := m.d.runOf(in, fs[:n])
			r.keepDense()
			m.storeRunLocked(r, 0, n)
		default:
			n = 1
			msg := m.messageOf(in, &fs[0], call)
			if t != nil {
				msg.trace = t
				m.arriveLocked(msg)
			}
			m.putLocked(msg)
		}
		fs = fs[n:]
	}
	m.arrivedLocked(in)
	return nil
}

// messageOf returns the message of a frame, which is the request of the call with a number, or
// another message if call is 0.
func (m *Mailbox) messageOf(in *inflow, f *subsys.Frame, call uint64) *Message {
	if f.Buf != nil && !f.Spare {
		f.Buf.Retain()
	}
	msg := m.d.message()
	msg.buf, msg.data, msg.tag, msg.in = f.Buf, f.Data, f.Tag, in
	msg.from = in.l.peer.WithSerial(f.Src)
	msg.isForgotten = f.Flags&wire.FlagForget != 0
	if m.calls == nil {
		msg.call = call
	}
	if f.Spare {
		f.Buf = nil
	}
	return msg
}

// arrivedLocked grants the next sender its credit if the message beyond the limit has arrived. A
// receiver may wait for the message of that sender alone. mu must be held.
func (m *Mailbox) arrivedLocked(in *inflow) {
	if a, _, hasCome := m.credit.Oversize(); a == &in.Account && hasCome {
		m.grantQueuedSoon()
	}
}

// putLocked hands a message that has arrived to a call or a receiver, or stores it. mu must be
// held.
func (m *Mailbox) putLocked(msg *Message) {
	if m.calls != nil {
		m.calls.replyLocked(msg)
		return
	}
	if m.waiters.First() != nil {
		if w := m.receiverLocked(msg); w != nil {
			w.msg = msg
			w.grantee, w.grant = m.consumeLocked(msg)
			w.finish()
			return
		}
	}
	if msg.call != 0 {
		msg.came = max(m.d.clock(), 1)
	}
	m.storeLocked(m.dense(msg))
}

// storeLocked adds a message to the list. mu must be held.
func (m *Mailbox) storeLocked(msg *Message) {
	m.messages.PushBack(msg, &msg.place)
	m.count++
	m.endSpinLocked()
	if m.handle != nil && !m.handling && !m.closed {
		m.handling = true
		m.handlesAtOnce.Store(false)
		m.d.running.Add(1) // before Close waits, which takes mu first
		go m.serve()
	}
}

// serve passes stored messages to handle, one at a time, until none is left.
func (m *Mailbox) serve() {
	defer m.d.running.Done()
	for msg := m.nextToHandle(); msg != nil; msg = m.nextToHandle() {
		in := msg.in
		if !m.handle(msg) {
			m.refuse(in, msg)
		}
		msg.Release()
	}
}

// nextToHandle takes the next message for serve. It returns nil if there is none, or if the mailbox
// is closed. Then serve ends.
func (m *Mailbox) nextToHandle() *Message {
	for {
		if msg := m.open.take(); msg != nil {
			return msg
		}
		m.mu.Lock()
		if msg := m.matchLocked(&Select{}); msg != nil {
			return m.handOutLocked(msg)
		}
		m.handlesAtOnce.Store(!m.closed)
		if m.news.Load() == nil {
			m.handling = false
			m.mu.Unlock()
			return nil
		}
		m.handlesAtOnce.Store(false) // the sender has not seen that
		m.mu.Unlock()
	}
}

// refuse tells the sender of msg that the message is not delivered, if the sender is to know.
func (m *Mailbox) refuse(in *inflow, msg *Message) {
	switch {
	case msg.call != 0:
		in.from.unanswered(in, msg.from.Serial(), msg.call, wire.WhyGone)
		msg.clearCall()
	case !msg.isForgotten:
		in.from.refuse(in, msg.from.Serial(), msg.tag, msg.Len())
	}
}

// matchLocked unlinks and returns the first message that f selects, or nil. If f selects all, the
// messages that came with it can be taken without the lock from then on. mu must be held.
func (m *Mailbox) matchLocked(f *Select) *Message {
	msg := m.findLocked(f)
	if msg != nil {
		if msg.rest.of != nil && f.isAll() {
			m.openLocked(msg)
		}
		m.unlinkLocked(msg)
	}
	return msg
}

// unlinkLocked takes a stored message from the list. mu must be held.
func (m *Mailbox) unlinkLocked(msg *Message) {
	if m.matcher != nil {
		m.matcher.remove(m, msg)
	}
	m.count--
	m.taken++
	if msg.rest.of != nil {
		next := msg.takeRest()
		m.messages.Replace(&msg.place, next, &next.place)
	} else {
		m.messages.Remove(&msg.place)
	}
}

// Len returns the number of stored messages, and their charged bytes.
func (m *Mailbox) Len() (messages int, stored uint64) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.storeQueuesLocked()
	m.takeBackLocked()
	return m.count, m.credit.Stored()
}

// Close makes the mailbox refuse messages, and drops the stored ones. All contexts that have sent
// to it are told that the resource is gone. Blocked receives return ErrClosed.
func (m *Mailbox) Close() {
	m.mu.Lock()
	if m.closed {
		m.mu.Unlock()
		return
	}
	for in := range m.inflows {
		if in.l == nil {
			in.queue.closeLocked()
		}
	}
	m.takeBackLocked()
	m.expandLocked()
	waiting := m.credit.Waiting()
	m.credit.CloseAll()
	if m.oversizeTimer != nil {
		m.oversizeTimer.Stop()
	}
	if m.originTimer != nil {
		m.originTimer.Stop()
	}
	m.stuck.end()
	if m.follower != nil {
		m.follower.timer.Stop()
	}
	m.closed = true
	m.endSpinLocked()
	msgs, ins := m.messages, m.inflows
	m.inflows = nil
	m.messages = list.List[Message]{}
	m.count = 0
	m.matcher = nil
	m.waiters.fireAll()
	for in := range ins {
		in.waiters.fireAll()
	}
	m.mu.Unlock()
	m.d.calls.endMailboxCalls(m)
	m.d.forget(m)
	m.unmonitor()
	closing := m.d.hasBegunClosing() // a context that closes tells all its links with a goodbye
	for in := range ins {
		if in.l == nil || !closing || slices.Contains(waiting, &in.Account) {
			in.from.mailboxClosed(in)
		}
		if ended := m.takeEndings(in); ended != nil {
			m.notifyEnd(in, ended)
		}
	}
	for msg := msgs.First(); msg != nil; msg = msgs.First() {
		msgs.Remove(&msg.place)
		if planted.Is(planted.UnreportedMessage) && msgs.First() == nil {
			msg.in = nil
		}
		if msg.in != nil && msg.gone == nil {
			m.refuse(msg.in, msg)
		}
		msg.in, msg.slot = nil, nil
		msg.Release()
	}
}

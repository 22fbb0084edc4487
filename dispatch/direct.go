// SPDX-License-Identifier: Apache-2.0

package dispatch

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"slices"
	"sync/atomic"
	"time"

	"github.com/rocl-go/rocl/buffers"
	"github.com/rocl-go/rocl/internal/os/clock"
	"github.com/rocl-go/rocl/resource"
)

// Contexts of one process, and the resources of one context, need no link. Send puts a message into
// the mailbox of its target, in the sender's buffer, and takes only the mailbox's lock. The credit
// is that of any sender. No connection can break, so nothing is acknowledged or retransmitted.

// A passageEnd counts what a context has sent to another context of its process. The other context
// has the other end.
type passageEnd struct {
	*Dispatcher
	addr  string // the address of this context's port
	other *passageEnd
	since time.Time

	messages, bytes atomic.Uint64 // what this context has sent
	_               [64]byte      // the other end counts at the same time
}

// passages are the routes of a context within the process. Dispatcher.mu guards them.
type passages struct {
	byPeer map[resource.GID]*passageEnd
	flows  map[*Mailbox]*Flow // flows to mailboxes of the process
}

// directly returns the flow to the resource with serial dst of a context of this process, d itself
// or another. It returns the same flow each time while the resource exists.
func (d *Dispatcher) directly(o neighbour, dst uint32) (*Flow, error) {
	m := o.mailbox(dst)
	if m == nil {
		return nil, ErrGone
	}
	m.mu.Lock() // either before Close of m, which then ends the flow, or after it
	defer m.mu.Unlock()
	if m.closed {
		return nil, d.closedErr()
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	f := d.passages.flows[m]
	switch {
	case f != nil:
		return f, nil
	case d.closing:
		return nil, ErrClosed
	}
	q := new(localQueue)
	in := newInflow(d, dst, q)
	in.mb = m
	f = &Flow{dst: dst, mb: m, in: in, to: o, queue: q}
	q.f = f
	f.tracing.Store(d.unfollowed(dst))
	d.passages.flows[m] = f
	m.listInflowLocked(in)
	m.waiters.isWaiting = &m.isWaiting // from now on senders of this process ask
	m.waiters.tell()
	return f, nil
}

// passage returns d's end of the route to o, or nil if one of the two contexts closes.
func (d *Dispatcher) passage(o neighbour) *passageEnd {
	mine := &passageEnd{Dispatcher: d, addr: o.home, since: time.Now()}
	its := &passageEnd{Dispatcher: o.Dispatcher, addr: o.at, since: mine.since}
	mine.other, its.other = its, mine
	if o.self.Compare(d.self) < 0 { // both contexts use one order: o may make the ends at the same time
		mine = its.join().other
		mine.join()
	} else {
		mine = mine.join()
		mine.other.join()
	}
	if d.hasBegunClosing() || o.hasBegunClosing() { // Close may have ended before join began
		mine.drop()
		return nil
	}
	return mine
}

// join adds an end to the routes of its context, unless there is one already, and returns the end
// that is there.
func (e *passageEnd) join() *passageEnd {
	e.mu.Lock()
	defer e.mu.Unlock()
	old := e.passages.byPeer[e.other.self]
	if old == nil && !e.closing {
		e.passages.byPeer[e.other.self] = e
	}
	return cmp.Or(old, e)
}

// drop takes both ends from the routes of their contexts, which keep the sums.
func (e *passageEnd) drop() {
	for _, e := range [...]*passageEnd{e, e.other} {
		e.mu.Lock()
		if e.passages.byPeer[e.other.self] == e {
			delete(e.passages.byPeer, e.other.self)
			e.past.addRoute(e.route())
		}
		e.mu.Unlock()
	}
}

// route returns the route as the context of the end sees it.
func (e *passageEnd) route() Route {
	o := e.other
	return Route{
		Peer: o.self, Transport: transportOf(o.addr), Remote: o.addr, Since: e.since,
		Sent: e.messages.Load(), SentBytes: e.bytes.Load(), Received: o.messages.Load(), ReceivedBytes: o.bytes.Load(),
	}
}

// leaveProcess ends the flows and routes that d has with contexts of the process, as d closes.
func (d *Dispatcher) leaveProcess() {
	d.mu.Lock()
	flows, ends := d.passages.flows, slices.Collect(maps.Values(d.passages.byPeer))
	d.passages.flows = nil
	d.mu.Unlock()
	for m, f := range flows {
		m.closeAccount(f.in)
	}
	others := map[*Dispatcher]bool{}
	for _, e := range ends {
		e.drop()
		others[e.other.Dispatcher] = true
	}
	for o := range others {
		if f := o.cfg.Ended; f != nil {
			f(d.self)
		}
	}
}

// deliver puts a message into the mailbox of f, a flow within the process, once there is credit for
// it. It waits for credit until ctx ends. If the message is the request of a call, deliver leaves b
// to its caller.
func (f *Flow) deliver(ctx context.Context, src uint32, tag uint64, b *buffers.Buffer, p purpose) error {
	if b.Len() > MaxMessage {
		return fmt.Errorf("%w: %d bytes, at most %d", ErrTooLarge, b.Len(), MaxMessage)
	}
	if p.call == 0 && p.trace == nil && f.queue.add(src, tag, b.Bytes(), b, p.isForgotten) {
		return nil
	}
	m, in := f.mb, f.in
	d := in.from.(*Dispatcher)
	m.mu.Lock()
	defer m.mu.Unlock()
	if err := f.opensLocked(); err != nil {
		return err
	}
	msg := m.d.message()
	msg.data, msg.buf, msg.from, msg.tag, msg.in = b.Bytes(), b, d.self.WithSerial(src), tag, in
	msg.isForgotten, msg.trace = p.isForgotten, p.trace
	if p.call != 0 && m.calls == nil {
		msg.call = p.call
	}
	if in.waiters.First() == nil && f.queue.takeCreditLocked(in.Charge(b.Len())) {
		m.takeInLocked(msg, f.passage)
		return nil
	}
	return m.admitDirect(ctx, msg, f.passage)
}

// opensLocked prepares a flow within the process for its first message. It fails if one of the two
// ends has closed. Mailbox.mu must be held.
func (f *Flow) opensLocked() error {
	m, in := f.mb, f.in
	d := in.from.(*Dispatcher)
	if m.closed || in.IsClosed() {
		return d.closedErr()
	}
	if f.passage == nil && m.d != d {
		if f.passage = d.passage(f.to); f.passage == nil {
			return d.closedErr()
		}
	}
	if !in.IsOpen() {
		m.openAccountLocked(in)
		f.queue.openLocked()
	}
	return nil
}

// takeInLocked puts a message that has credit into the mailbox. passage may be nil. mu must be
// held.
func (m *Mailbox) takeInLocked(msg *Message, passage *passageEnd) {
	m.credit.ArriveTaken(&msg.in.Account, msg.in.Charge(len(msg.data)))
	msg.isSent = true
	msg.buf.SetDelivered()
	if msg.call != 0 {
		msg.buf.Retain()
	}
	if t := msg.trace; t != nil {
		if t.sent != 0 {
			t.queued = clock.Own().Now()
		}
		m.arriveLocked(msg)
	}
	if passage != nil {
		passage.messages.Add(1)
		passage.bytes.Add(uint64(len(msg.data)))
	}
	m.storeQueuesLocked() // what has come before
	in := msg.in          // putLocked gives msg away
	m.putLocked(msg)
	m.arrivedLocked(in)
}

// closedErr returns the error of a sender within the process, d, when one end has closed.
func (d *Dispatcher) closedErr() error {
	if d.hasBegunClosing() {
		return ErrClosed
	}
	return ErrGone
}

// admitDirect accepts msg once there is credit for it. If it returns an error, msg is given back
// without its buffer. mu is held on entry and on return, and released while admitDirect waits.
func (m *Mailbox) admitDirect(ctx context.Context, msg *Message, passage *passageEnd) error {
	in, d := msg.in, msg.in.from.(*Dispatcher)
	w := d.waiter()
	w.msg, w.passage = msg, passage
	in.queue.closeLocked()
	in.waiters.push(w)
	m.serveDirectLocked(in)
	m.mu.Unlock()
	err := d.progress.Wait(ctx, &w.Waiter)
	m.mu.Lock()
	isAccepted := w.msg == nil // perhaps accepted as ctx ended, or before the mailbox was closed
	if w.place.IsListed() {
		in.waiters.remove(w)
	}
	d.doneWaiting(w)
	if isAccepted {
		return nil
	}
	msg.buf, msg.in = nil, nil
	msg.clearCall()
	msg.Release()
	if m.closed || in.IsClosed() {
		return d.closedErr()
	}
	if m.serveDirectLocked(in); in.waiters.First() == nil { // no goroutine of this sender waits any more: other senders may have the credit
		m.withdrawNeedLocked(in)
		return err
	}
	m.grantQueuedSoon()
	return err
}

// withdrawNeedLocked takes back what a context of this process was granted for a message that it
// does not send: other senders may have it. mu must be held.
func (m *Mailbox) withdrawNeedLocked(in *inflow) {
	m.credit.Withdraw(&in.Account)
	q := in.queue
	q.closeLocked() // no sender may take credit meanwhile
	if total := q.sent + in.First(); in.Granted() > total {
		m.credit.Lower(&in.Account, total)
	}
	q.openLocked()
	m.grantQueuedSoon()
}

// serveDirectLocked accepts the messages that wait for credit, in order, as long as there is some.
// Then it asks for what the first remaining message lacks. mu must be held.
func (m *Mailbox) serveDirectLocked(in *inflow) {
	for w := in.waiters.First(); w != nil; w = in.waiters.First() {
		if !m.takeLocalCreditLocked(in, len(w.msg.data)) {
			return
		}
		in.waiters.remove(w)
		m.takeInLocked(w.msg, w.passage)
		w.msg = nil // the message is no longer the sender's
		w.Fire()
	}
	in.queue.openLocked()
}

// takeLocalCreditLocked takes the credit for a message of n bytes of a context of this process. If
// there is too little, it asks for more and reports false. mu must be held.
func (m *Mailbox) takeLocalCreditLocked(in *inflow, n int) bool {
	q, c := in.queue, in.Charge(n)
	if q.takeCreditLocked(c) {
		return true
	}
	q.closeLocked() // the next senders wait behind this one
	a := &in.Account
	m.credit.Renew(a)
	if need := q.sent + c; need > a.Granted() && !a.WaitsFor(need) {
		m.storeQueuesLocked()
		_, others := m.credit.Wait(a, need)
		m.askedLocked(in, others)
	}
	m.credit.Ahead(a)
	return q.takeCreditLocked(c)
}

// context returns the context itself: a Dispatcher is the sending side of what it sends within the
// process.
func (d *Dispatcher) context() resource.GID { return d.self }

// credit accepts messages of this context that wait for credit of m.
func (d *Dispatcher) credit(m *Mailbox, in *inflow) {
	m.mu.Lock()
	m.serveDirectLocked(in)
	m.mu.Unlock()
}

// refuse reports a message of this context as undelivered.
func (d *Dispatcher) refuse(in *inflow, src uint32, tag uint64, size int) {
	d.mu.RLock()
	isOpen := !d.closed
	if isOpen {
		d.running.Add(1) // Close waits for the report; after Close there is none
	}
	d.mu.RUnlock()
	if isOpen {
		d.undelivered(Undelivered{From: d.self.WithSerial(src), To: in.mb.d.self.WithSerial(in.dst), Tag: tag, Bytes: size, Err: ErrGone})
		d.running.Done()
	}
}

// mailboxClosed drops the flow of this context to a mailbox that is closed.
func (d *Dispatcher) mailboxClosed(in *inflow) {
	d.mu.Lock()
	delete(d.passages.flows, in.mb)
	d.mu.Unlock()
}

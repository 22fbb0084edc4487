// SPDX-License-Identifier: Apache-2.0

package dispatch

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/rocl-go/rocl/buffers"
	"github.com/rocl-go/rocl/dispatch/internal/session"
	"github.com/rocl-go/rocl/dispatch/internal/wire"
	"github.com/rocl-go/rocl/resource"
	"github.com/rocl-go/rocl/subsys"
)

// A call is a request and the wait for its reply. The request is an ordinary message, sent with the
// number of the call. The reply goes to a mailbox that each context has for the replies to its
// calls, with that number as its tag:
//
//	caller                                      receiver of the request
//	------                                      -----------------------
//	Mailbox.Request
//	  enters the call into the table
//	  sends TypeCall and Data ────────────────► Mailbox.deliver, Mailbox.Recv
//	Pending.Wait                                Mailbox.Reply
//	  table: wakes the waiter ◄──────────────── sends Data to the serial Replies
//
// The mailbox for replies stores nothing: a reply is handed to the caller, or dropped. So a reply
// needs no room in the caller's mailbox, and uses no credit of its other messages.
//
// A call ends with an error when its target ends: Flow.OnEnd tells that, once for all calls over
// one flow. It also ends with an error when the receiver releases the request without a reply
// (TypeNoReply), and when the calling resource or its context closes.

// LastSerial is the last serial that a resource may have, apart from the bit Bounded.
const LastSerial uint32 = wire.Replies - 1

var (
	// ErrNoReply is returned by a call whose request was received and released without a reply.
	ErrNoReply = errors.New("rocl: request released without a reply")
	// ErrNotCall is returned when a reply is sent to a message that is no request of a call, or
	// that has its reply.
	ErrNotCall = errors.New("rocl: message waits for no reply")
	// ErrUnsupported is returned when the peer's version lacks what was asked for.
	ErrUnsupported = errors.New("rocl: peer lacks the feature")
)

const (
	callsKept = 1024        // entries above which the table of calls is freed when no call is in flight
	endKept   = time.Second // how long, at least, the end of a target is watched after its last call
)

// calls are the calls of a context that wait for their replies.
type calls struct {
	box *Mailbox // the mailbox for replies; its mu guards the fields below, and what calls keep in flows

	table    []call
	free     uint32 // the first unused entry, counted from 1; 0: none
	inFlight int
	begun    uint32             // calls so far, without 0 when it overflows
	watched  map[*Flow]struct{} // flows to targets, the end of which is watched
	sweeper  *time.Timer        // calls sweep; nil until first set
	isSet    bool               // the sweeper is set
	late     uint64             // replies that were dropped, because no call waited for them
	landings atomic.Int32       // calls that have a landing for the reply
}

// A call is an entry of the table. The lower half of a call's number is the entry's place, counted
// from 1. The upper half is how many calls there had been, so no two calls have the same number.
type call struct {
	w          *waiter  // nil: the entry is not used
	m          *Mailbox // the mailbox of the calling resource
	f          *Flow
	tag        uint64
	into       *landing // the landing of the reply; nil: none
	begun      uint32
	next, prev uint32 // neighbours among the calls over one flow; in unused entries, next in the free list
}

// flowCalls is what a flow knows of the calls over it. The mu of calls.box guards it.
type flowCalls struct {
	first     uint32 // entry of the table, counted from 1
	isWatched bool
	isUsed    bool        // a call was made since the sweeper looked last
	ended     error       // why the target has ended; nil: it has not
	cancel    func() bool // cancels the OnEnd of the watch
}

// target returns the resource to which the flow leads.
func (f *Flow) target() resource.GID {
	if f.mb != nil {
		return f.mb.d.self.WithSerial(f.dst)
	}
	return f.l.peer.WithSerial(f.dst)
}

// A Pending is a call whose request has been accepted. Wait must be called once.
type Pending struct {
	calls  *calls
	w      *waiter
	number uint64
	into   *landing
}

// Request sends the message in b as the request of a call from the resource of m. It waits as
// Flow.Send does, and fails with the same errors. It fails with ErrUnsupported if the peer's
// version has no calls. While no connection to the peer has been made, it waits for the first one,
// until ctx ends.
//
// b stays the caller's, whether Request fails or not. After Request has succeeded, other goroutines
// may read the buffer. Its bytes must not be changed before it is released, unless
// [buffers.Buffer.Refs] is 1.
func (m *Mailbox) Request(ctx context.Context, f *Flow, tag uint64, b *buffers.Buffer) (Pending, error) {
	p, err := m.begin(ctx, f, tag, nil)
	if err != nil {
		return Pending{}, err
	}
	if err = f.ask(ctx, m.serial, tag, b, p.number); err != nil {
		p.abandon()
		return Pending{}, err
	}
	return p, nil
}

// RequestBytes sends a copy of data as the request of a call, as [Mailbox.Request] does.
func (m *Mailbox) RequestBytes(ctx context.Context, f *Flow, tag uint64, data []byte) (Pending, error) {
	return m.requestBytes(ctx, f, tag, data, nil)
}

// RequestInto sends a copy of data as the request of a call, as [Mailbox.Request] does. The payload
// of the reply comes to lie in dst, if dst is long enough. dst belongs to the library until Wait
// returns. Then dst has the payload of the reply, or may have been written to in vain.
func (m *Mailbox) RequestInto(ctx context.Context, f *Flow, tag uint64, data, dst []byte) (Pending, error) {
	return m.requestBytes(ctx, f, tag, data, &landing{mem: dst})
}

// requestBytes is RequestBytes; into is the landing of the reply, or nil.
func (m *Mailbox) requestBytes(ctx context.Context, f *Flow, tag uint64, data []byte, into *landing) (Pending, error) {
	p, err := m.begin(ctx, f, tag, into)
	if err != nil {
		return Pending{}, err
	}
	copied := false
	if (f.mb == nil || f.spread != nil) && len(data) <= session.Inline {
		copied, err = f.queue(ctx, m.serial, tag, data, nil, p.number)
	}
	if !copied && err == nil {
		var b *buffers.Buffer
		if b, err = m.d.copied(data); err == nil {
			err = f.ask(ctx, m.serial, tag, b, p.number)
			b.Release()
		}
	}
	if err != nil {
		p.abandon()
		return Pending{}, err
	}
	return p, nil
}

// copied returns a buffer with a copy of p.
func (d *Dispatcher) copied(p []byte) (*buffers.Buffer, error) {
	b, err := d.Buffer(len(p))
	if err == nil && len(p) > 0 {
		copy(b.Bytes(), p)
		d.CountCopy(len(p))
	}
	return b, err
}

// ask is Send for the request of a call. It leaves b to the caller: the library takes a reference
// of its own.
func (f *Flow) ask(ctx context.Context, src uint32, tag uint64, b *buffers.Buffer, number uint64) error {
	if f.mb != nil && f.spread == nil {
		return f.deliver(ctx, src, tag, b, number)
	}
	copied, err := f.queue(ctx, src, tag, b.Bytes(), b, number)
	if copied && b.Refs() > 1 {
		b.SetDelivered()
	}
	return err
}

// begin enters a call into the table, and watches the end of its target.
func (m *Mailbox) begin(ctx context.Context, f *Flow, tag uint64, into *landing) (Pending, error) {
	c := &m.d.calls
	for {
		c.box.mu.Lock()
		var err error
		o := &f.calls
		switch {
		case c.box.closed || m.callsClosed:
			err = ErrClosed
		case o.ended != nil:
			err = o.ended
		case o.isWatched:
			o.isUsed = true
			p := Pending{calls: c, w: m.d.waiter(), into: into}
			p.number = c.add(call{w: p.w, m: m, f: f, tag: tag, into: into})
			c.box.mu.Unlock()
			return p, nil
		}
		c.box.mu.Unlock()
		if err == nil {
			err = c.watch(ctx, f)
		}
		if err != nil {
			return Pending{}, err
		}
	}
}

// watch makes the end of f's target end the calls over f.
func (c *calls) watch(ctx context.Context, f *Flow) error {
	cancel, err := f.OnEnd(ctx, func(err error) { c.endFlowCalls(f, err) })
	if err != nil {
		return err
	}
	c.box.mu.Lock()
	if o := &f.calls; !o.isWatched && o.ended == nil && !c.box.closed {
		o.isWatched, o.isUsed, o.cancel = true, true, cancel
		c.watched[f] = struct{}{}
		if !c.isSet {
			c.isSet = true
			if c.sweeper == nil {
				c.sweeper = time.AfterFunc(endKept, c.sweep)
			} else {
				c.sweeper.Reset(endKept)
			}
		}
		cancel = nil
	}
	c.box.mu.Unlock()
	if cancel != nil { // another goroutine has begun to watch
		cancel()
	}
	return nil
}

// sweep ends the watch of targets that have not been called lately. It runs in the sweeper's
// goroutine.
func (c *calls) sweep() {
	var unused []func() bool
	c.box.mu.Lock()
	for f := range c.watched {
		o := &f.calls
		if o.first == 0 && !o.isUsed {
			unused = append(unused, o.cancel)
			o.isWatched, o.cancel = false, nil
			delete(c.watched, f)
		}
		o.isUsed = false
	}
	if c.isSet = len(c.watched) > 0 && !c.box.closed; c.isSet {
		c.sweeper.Reset(endKept)
	}
	c.box.mu.Unlock()
	for _, cancel := range unused {
		cancel()
	}
}

// add enters a call, and returns its number. The mu of the box must be held, as for the methods
// up to reply.
func (c *calls) add(e call) (number uint64) {
	i := c.free
	if i == 0 {
		c.table = append(c.table, call{})
		i = uint32(len(c.table))
	} else {
		c.free = c.table[i-1].next
	}
	if c.begun++; c.begun == 0 {
		c.begun = 1
	}
	c.inFlight++
	e.begun, e.next = c.begun, e.f.calls.first
	if e.next != 0 {
		c.table[e.next-1].prev = i
	}
	e.f.calls.first = i
	c.table[i-1] = e
	if e.into != nil {
		c.landings.Add(1)
	}
	return uint64(e.begun)<<32 | uint64(i)
}

// find returns the place of a call, counted from 1, or 0 if no such call waits.
func (c *calls) find(number uint64) (i uint32) {
	i = uint32(number)
	if i == 0 || uint64(i) > uint64(len(c.table)) {
		return 0
	}
	if e := &c.table[i-1]; e.w == nil || e.begun != uint32(number>>32) {
		return 0
	}
	return i
}

// remove takes a call from the table.
func (c *calls) remove(i uint32) {
	e := &c.table[i-1]
	if e.prev != 0 {
		c.table[e.prev-1].next = e.next
	} else {
		e.f.calls.first = e.next
	}
	if e.next != 0 {
		c.table[e.next-1].prev = e.prev
	}
	if e.into != nil {
		c.landings.Add(-1)
	}
	*e = call{next: c.free}
	c.free = i
	if c.inFlight--; c.inFlight == 0 && len(c.table) > callsKept {
		c.table, c.free = nil, 0
	}
}

// fail ends a call with an error.
func (c *calls) fail(i uint32, err error) {
	w := c.table[i-1].w
	c.remove(i)
	w.cause = err
	w.fire()
}

// reply hands a reply to its caller. It drops a reply for which no call waits, or that comes from a
// resource other than the call's target.
func (c *calls) reply(msg *Message) {
	i := c.find(msg.tag)
	if i == 0 || c.table[i-1].f.target() != msg.from {
		c.late++
		c.box.discard(msg)
		return
	}
	w := c.table[i-1].w
	msg.tag = c.table[i-1].tag
	c.remove(i)
	w.msg = msg
	w.grantee, w.grant = c.box.consume(msg)
	w.fire()
}

// landing returns the landing of the reply of target to a call, or nil. mu must not be held.
func (c *calls) landing(number uint64, target resource.GID) *landing {
	c.box.mu.Lock()
	defer c.box.mu.Unlock()
	if i := c.find(number); i != 0 && c.table[i-1].f.target() == target {
		return c.table[i-1].into
	}
	return nil
}

// discard drops a message that has just come. Its sender is told of the credit that this gives back
// with the next grant, or when it asks for credit. mu must be held.
func (m *Mailbox) discard(msg *Message) {
	c := msg.in.charge(len(msg.data))
	m.stored -= c
	msg.in.consumed += c
	m.addPromised(msg.in, -int64(c))
	if m.oversize == msg.in && msg.in.consumed >= m.oversizeEnd {
		m.endOversize()
	}
	m.grantQueuedSoon()
	msg.in = nil
	msg.Release()
}

// end ends a call to target with an error, if the call waits. The mu of the box must not be held,
// as for all functions below.
func (c *calls) end(number uint64, target resource.GID, err error) {
	c.box.mu.Lock()
	if i := c.find(number); i != 0 && c.table[i-1].f.target() == target {
		c.fail(i, err)
	}
	c.box.mu.Unlock()
}

// endFlowCalls ends all calls over a flow whose target has ended.
func (c *calls) endFlowCalls(f *Flow, err error) {
	c.box.mu.Lock()
	o := &f.calls
	o.ended, o.isWatched, o.cancel = err, false, nil
	delete(c.watched, f)
	for o.first != 0 {
		c.fail(o.first, err)
	}
	c.box.mu.Unlock()
}

// endMailboxCalls ends the calls of a mailbox that is being closed, which begins no further calls.
// Closing the mailbox for replies ends all calls.
func (c *calls) endMailboxCalls(m *Mailbox) {
	c.box.mu.Lock()
	m.callsClosed = true
	if m == c.box && c.sweeper != nil {
		c.sweeper.Stop()
	}
	for i := range c.table {
		if c.inFlight == 0 {
			break
		}
		if e := &c.table[i]; e.w != nil && (e.m == m || m == c.box) {
			c.fail(uint32(i+1), ErrClosed)
		}
	}
	c.box.mu.Unlock()
}

// abandon ends a call whose request was not accepted.
func (p Pending) abandon() {
	p.take()
	p.clear()
	p.calls.box.d.doneWaiting(p.w)
}

// take takes the call from the table, if it is still in it. After that its waiter is not fired any
// more.
func (p Pending) take() {
	p.calls.box.mu.Lock()
	if i := p.calls.find(p.number); i != 0 {
		p.calls.remove(i)
	}
	p.calls.box.mu.Unlock()
}

// clear makes sure that nothing writes to the landing of a call that has failed.
func (p Pending) clear() {
	if p.into != nil && p.into.isInUse() {
		p.into.withdraw(p.calls.box.d)
	}
}

// Wait returns the reply, which belongs to the caller until Release. Its tag is that of the
// request. A reply that comes as ctx ends is returned; a later reply is dropped. Wait fails:
//
//	ErrGone           the target has been deleted, or its context has ended
//	ErrUnreachable    the target's context has been out of reach for Config.GiveUp
//	ErrNoReply        the request was received, and released without a reply
//	ErrClosed         the calling resource or its context has been closed
//	cause of Cancel   Cancel has ended the call
//	cause of ctx      ctx has ended
func (p Pending) Wait(ctx context.Context) (*Message, error) {
	d := p.calls.box.d
	err := d.wait(ctx, p.w)
	if err != nil {
		p.take()
	}
	msg, grantee, grant, end := p.w.msg, p.w.grantee, p.w.grant, p.w.cause
	d.doneWaiting(p.w)
	switch {
	case msg != nil && p.into != nil:
		msg = p.calls.box.finishHandOut(msg, grantee, grant)
		p.into.copyIn(d, msg)
		return msg, nil
	case msg != nil:
		return p.calls.box.finishHandOut(msg, grantee, grant), nil
	}
	p.clear()
	switch {
	case end != nil:
		return nil, end
	}
	return nil, err
}

// Cancel ends the call, unless it has ended or its reply has come. Then Wait returns cause, or
// context.Canceled if cause is nil. Any goroutine may call Cancel, at any time, also after Wait has
// returned.
func (p Pending) Cancel(cause error) {
	cause = cmp.Or(cause, context.Canceled)
	c := p.calls
	c.box.mu.Lock()
	if i := c.find(p.number); i != 0 {
		c.fail(i, cause)
	}
	c.box.mu.Unlock()
}

// request is the part of a message that is the request of a call.
type request struct {
	call  uint64 // the number of the call; 0: the message is no request
	state atomic.Uint32
}

// States of a request.
const (
	unreplied = iota
	replying
	replied
)

// IsCall reports whether the message is the request of a call. The sender of a request waits for a
// reply, until the message has been replied to or released.
func (m *Message) IsCall() bool { return m.call != 0 }

// clearCall makes the message an ordinary one, for which no sender waits.
func (m *Message) clearCall() {
	m.call = 0
	m.state.Store(unreplied)
}

// endRequest is called when a request is released. If no reply has been sent, it tells the sender
// that none comes.
func (m *Message) endRequest() {
	number, in, state := m.call, m.in, m.state.Load()
	m.clearCall()
	if state == unreplied {
		in.from.unanswered(in, m.from.Serial(), number, wire.WhyReleased)
	}
}

// Reply sends the message in b as the reply to the request msg, from the resource that received
// msg. The caller gets it with the request's tag. Reply does not release msg. Any goroutine may
// call Reply, but msg may not be released before Reply has returned. Reply waits as Flow.Send does.
// If it fails, b stays the caller's and msg may be replied to again.
//
// Reply fails with ErrNotCall if msg is no request, or has its reply. It fails with ErrGone or
// ErrUnreachable if the caller's context is known to have ended. Otherwise a reply to a call that
// has ended is dropped, and is not reported as undelivered.
func (m *Mailbox) Reply(ctx context.Context, msg *Message, b *buffers.Buffer) error {
	return m.reply(ctx, msg, b.Bytes(), b)
}

// ReplyBytes sends a copy of p as the reply to the request msg, as [Mailbox.Reply] does.
func (m *Mailbox) ReplyBytes(ctx context.Context, msg *Message, p []byte) error {
	return m.reply(ctx, msg, p, nil)
}

// reply is Reply; p is the payload of b, or, if b is nil, to be copied.
func (m *Mailbox) reply(ctx context.Context, msg *Message, p []byte, b *buffers.Buffer) error {
	if msg.call == 0 || msg.in.dispatcher() != m.d || !msg.state.CompareAndSwap(unreplied, replying) {
		return ErrNotCall
	}
	in := msg.in
	f, isNew, err := in.back()
	if err == nil {
		err = f.answer(ctx, in.dst, msg.call, msg.tag, p, b)
	}
	if err != nil && !isNew && ctx.Err() == nil && (errors.Is(err, ErrGone) || errors.Is(err, ErrUnreachable)) {
		in.replies.CompareAndSwap(f, nil) // the link of f may have ended while the caller lives
		if f, _, err = in.back(); err == nil {
			err = f.answer(ctx, in.dst, msg.call, msg.tag, p, b)
		}
	}
	if err != nil {
		msg.state.Store(unreplied)
		return err
	}
	msg.state.Store(replied)
	return nil
}

// dispatcher returns the context that receives the messages of in.
func (in *inflow) dispatcher() *Dispatcher {
	if in.l != nil {
		return in.l.d
	}
	return in.mb.d
}

// back returns the flow to the replies of the sender's context. isNew reports whether it was not
// known before.
func (in *inflow) back() (f *Flow, isNew bool, err error) {
	if f := in.replies.Load(); f != nil {
		return f, false, nil
	}
	l := in.l
	switch {
	case l == nil && in.from.(*Dispatcher).hasBegunClosing():
		err = fmt.Errorf("%w: %v", ErrGone, in.from.context())
	case l == nil:
		f, err = in.mb.d.Flow(in.from.context(), wire.Replies)
	case l.ended():
		err = l.cause()
	case l.key.lane == 0:
		f = l.flow(wire.Replies)
	default:
		f, err = l.d.Flow(l.peer, wire.Replies)
	}
	if err == nil {
		in.replies.Store(f)
	}
	return f, true, err
}

// cause returns why the link has ended.
func (l *link) cause() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.life.Cause()
}

// answer sends a reply over f, whose rules choose the lane by the tag of the request. p is the
// payload of b, or, if b is nil, to be copied.
func (f *Flow) answer(ctx context.Context, src uint32, number, tag uint64, p []byte, b *buffers.Buffer) (err error) {
	if s := f.spread; s != nil {
		lane, _ := s.rules.pick(tag, len(p))
		if f, err = s.lane(lane); err != nil {
			return err
		}
	}
	if b != nil {
		return f.give(ctx, src, number, b)
	}
	if f.mb == nil && len(p) <= session.Inline {
		if copied, err := f.accept(ctx, src, number, p, nil, nil, 0); copied || err != nil {
			return err
		}
	}
	if b, err = f.dispatcher().copied(p); err != nil {
		return err
	}
	if err = f.give(ctx, src, number, b); err != nil {
		b.Release()
	}
	return err
}

// give is Send over the lane of f.
func (f *Flow) give(ctx context.Context, src uint32, tag uint64, b *buffers.Buffer) error {
	copied, err := f.accept(ctx, src, tag, b.Bytes(), b, nil, 0)
	if copied {
		b.EndCopied()
	}
	return err
}

// mayCall waits until it is known whether the peer understands calls, and fails if it does not. mu
// must be held; mayCall releases it while it waits.
func (l *link) mayCall(ctx context.Context) error {
	for !l.hasMet && !l.life.HasEnded() {
		l.act(l.life.Wanted())
		if l.hasMet || l.life.HasEnded() {
			break
		}
		if err := l.waitIn(ctx, &l.met); err != nil {
			return err
		}
	}
	if l.hasMet && !l.hasCalls {
		return fmt.Errorf("%w: calls to %v", ErrUnsupported, l.peer)
	}
	return nil
}

// copyCall is copy for a request, directly behind the frame with the number of its call. mu must be
// held.
func (l *link) copyCall(h *subsys.Header, p []byte, number uint64) bool {
	if len(p) > session.Inline {
		return false
	}
	if !l.s.Fits(2*subsys.HeaderLen + len(p)) { // both frames or none
		b, err := l.d.cfg.Pool.Get(l.s.BatchLen())
		if err != nil {
			return false
		}
		l.s.Open(b)
	}
	c := callFrame(h.Dst, h.Src, number)
	return l.s.Add(&c, nil) && l.s.Add(h, p)
}

// callFrame returns the frame that goes before a request.
func callFrame(dst, src uint32, number uint64) subsys.Header {
	return subsys.Header{Type: wire.TypeCall, Dst: dst, Src: src, Tag: number}
}

// unanswered tells the peer that the request of its resource src gets no reply.
func (l *link) unanswered(in *inflow, src uint32, number uint64, why byte) {
	l.mu.Lock()
	if l.life.HasEnded() {
		l.mu.Unlock()
		return
	}
	l.put(wire.TypeNoReply, in.dst, src, number, why)
	if l.s.Pending() > mostPending {
		l.attend()
	}
	l.post()
}

// unanswered ends the call of a context of this process, the request of which gets no reply.
func (d *Dispatcher) unanswered(in *inflow, _ uint32, number uint64, why byte) {
	target := in.mb.d.self.WithSerial(in.dst)
	d.calls.end(number, target, whyNoReply(why, target))
}

// whyNoReply returns the error of a call that ends without a reply.
func whyNoReply(why byte, target resource.GID) error {
	if why == wire.WhyGone {
		return fmt.Errorf("%w: %v", ErrGone, target)
	}
	return fmt.Errorf("%w: by %v", ErrNoReply, target)
}

// A nextCall is the call that the next frame is the request of. The zero value is none.
type nextCall struct {
	dst, src uint32
	number   uint64
}

// onCall notes the number of the call that the next frame is the request of. The token must be
// held.
func (l *link) onCall(f *subsys.Frame) error {
	if f.Tag == 0 || len(f.Data) > 0 {
		return fmt.Errorf("%w: call number %d, with %d bytes", ErrProtocol, f.Tag, len(f.Data))
	}
	l.nextCall = nextCall{f.Dst, f.Src, f.Tag}
	return nil
}

// called returns the number of the call that f is the request of, or 0 if f is no request. The
// token must be held.
func (l *link) called(f *subsys.Frame) (number uint64, err error) {
	c := l.nextCall
	if c.number == 0 && f.Flags&wire.FlagCall == 0 {
		return 0, nil
	}
	l.nextCall = nextCall{}
	if c.number == 0 || f.Flags&wire.FlagCall == 0 || c.dst != f.Dst || c.src != f.Src {
		return 0, fmt.Errorf("%w: a frame from %d to %d where the request of a call from %d to %d is due", ErrProtocol, f.Src, f.Dst, c.src, c.dst)
	}
	return c.number, nil
}

// onNoReply ends a call that gets no reply. The token must be held.
func (l *link) onNoReply(f *subsys.Frame) error {
	if len(f.Data) != 1 {
		return fmt.Errorf("%w: the end of a call with %d bytes", ErrProtocol, len(f.Data))
	}
	target := l.peer.WithSerial(f.Dst)
	l.d.calls.end(f.Tag, target, whyNoReply(f.Data[0], target))
	return nil
}

// notDelivered answers a message for a resource that does not exist. If the message is a request,
// call is the number of the call. The token must be held.
func (l *link) notDelivered(dst, src uint32, tag uint64, size int, call uint64) {
	if call != 0 {
		l.answer(wire.TypeNoReply, dst, src, call, wire.WhyGone)
		return
	}
	l.answer(wire.TypeGone, dst, src, tag, lost(src, size)...)
}

// isReported reports whether a message is reported if it is not delivered. A request is not,
// because its call returns an error. A reply is not, because no call of a context that has ended
// waits for it.
func isReported(h *subsys.Header) bool {
	return h.Flags&wire.FlagCall == 0 && h.Dst != wire.Replies
}

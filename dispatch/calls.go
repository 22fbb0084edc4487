// SPDX-License-Identifier: Apache-2.0

package dispatch

import (
	"context"
	"errors"
	"sync/atomic"
	"time"

	"github.com/rocl-go/rocl/resource"
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

// LastSerial is the last serial that a resource may have, apart from the bits Bounded and Routed.
const LastSerial uint32 = Routed - 2 // with Routed it is not wire.Replies

var (
	// ErrNoReply is returned by a call whose request was received and released without a reply.
	//
	// Cause: the receiver does not reply to requests, as `rocl recv`. Remedy: use `Send`, or let it
	// reply.
	ErrNoReply = errors.New("rocl: request released without a reply")
	// ErrNotCall is returned when a reply is sent to a message that is no request of a call, or
	// that has its reply.
	//
	// Cause: `Reply` to no request, or a second one. Remedy: check `Message.IsCall`.
	ErrNotCall = errors.New("rocl: message waits for no reply")
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

// beginCall enters a call into the table, and watches the end of its target.
func (m *Mailbox) beginCall(ctx context.Context, f *Flow, tag uint64, into *landing) (Pending, error) {
	c := &m.d.calls
	for {
		c.box.mu.Lock()
		var err error
		o := &f.calls
		switch {
		case c.box.closed || m.callsClosed:
			err = ErrClosed
		case o.ended != nil:
			err = beforehand(o.ended)
		case o.isWatched:
			o.isUsed = true
			p := Pending{calls: c, w: m.d.waiter(), into: into}
			p.number = c.addLocked(call{w: p.w, m: m, f: f, tag: tag, into: into})
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

// addLocked enters a call, and returns its number. box.mu must be held.
func (c *calls) addLocked(e call) (number uint64) {
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
	e.begun = c.begun
	c.table[i-1] = e
	c.linkLocked(i, e.f)
	if e.into != nil {
		c.landings.Add(1)
	}
	return uint64(e.begun)<<32 | uint64(i)
}

// findLocked returns the place of a call, counted from 1, or 0 if no such call waits. box.mu must
// be held.
func (c *calls) findLocked(number uint64) (i uint32) {
	i = uint32(number)
	if i == 0 || uint64(i) > uint64(len(c.table)) {
		return 0
	}
	if e := &c.table[i-1]; e.w == nil || e.begun != uint32(number>>32) {
		return 0
	}
	return i
}

// linkLocked makes a call one over the flow f, and puts it into the list of that. box.mu must be
// held.
func (c *calls) linkLocked(i uint32, f *Flow) {
	e := &c.table[i-1]
	e.f, e.prev, e.next = f, 0, f.calls.first
	if e.next != 0 {
		c.table[e.next-1].prev = i
	}
	f.calls.first = i
}

// unlinkLocked takes a call out of the list of its flow. box.mu must be held.
func (c *calls) unlinkLocked(i uint32) *call {
	e := &c.table[i-1]
	if e.prev != 0 {
		c.table[e.prev-1].next = e.next
	} else {
		e.f.calls.first = e.next
	}
	if e.next != 0 {
		c.table[e.next-1].prev = e.prev
	}
	return e
}

// removeLocked takes a call from the table. box.mu must be held.
func (c *calls) removeLocked(i uint32) {
	e := c.unlinkLocked(i)
	if e.into != nil {
		c.landings.Add(-1)
	}
	*e = call{next: c.free}
	c.free = i
	if c.inFlight--; c.inFlight == 0 && len(c.table) > callsKept {
		c.table, c.free = nil, 0
	}
}

// failLocked ends a call with an error. box.mu must be held.
func (c *calls) failLocked(i uint32, err error) {
	w := c.table[i-1].w
	c.removeLocked(i)
	w.cause = err
	w.Fire()
}

// replyLocked hands a reply to its caller. It drops a reply for which no call waits, or that comes
// from a resource other than the call's target. box.mu must be held.
func (c *calls) replyLocked(msg *Message) {
	i := c.findLocked(msg.tag)
	if i == 0 || c.table[i-1].f.target() != msg.from {
		c.late++
		c.box.discardLocked(msg)
		return
	}
	w := c.table[i-1].w
	msg.tag = c.table[i-1].tag
	c.removeLocked(i)
	w.msg = msg
	c.box.consumeEarlyLocked(msg)
	w.Fire()
}

// landing returns the landing of the reply of target to a call, or nil. box.mu must not be
// held.
func (c *calls) landing(number uint64, target resource.GID) *landing {
	c.box.mu.Lock()
	defer c.box.mu.Unlock()
	return c.landingLocked(number, target)
}

// landingLocked is landing with box.mu held.
func (c *calls) landingLocked(number uint64, target resource.GID) *landing {
	if i := c.findLocked(number); i != 0 && c.table[i-1].f.target() == target {
		return c.table[i-1].into
	}
	return nil
}

// discardLocked drops a message that has just come. Its sender is told of the credit that this
// gives back with the next grant, or when it asks for credit. mu must be held.
func (m *Mailbox) discardLocked(msg *Message) {
	m.credit.Consume(&msg.in.Account, msg.in.Charge(len(msg.data)))
	m.grantQueuedSoon()
	msg.in = nil
	msg.Release()
}

// end ends a call to target with an error, if the call waits. box.mu must not be held.
func (c *calls) end(number uint64, target resource.GID, err error) {
	c.box.mu.Lock()
	if i := c.findLocked(number); i != 0 && c.table[i-1].f.target() == target {
		c.failLocked(i, err)
	}
	c.box.mu.Unlock()
}

// endFlowCalls ends all calls over a flow whose target has ended. box.mu must not be held.
func (c *calls) endFlowCalls(f *Flow, err error) {
	c.box.mu.Lock()
	o := &f.calls
	o.ended, o.isWatched, o.cancel = err, false, nil
	delete(c.watched, f)
	for o.first != 0 {
		c.failLocked(o.first, err)
	}
	c.box.mu.Unlock()
}

// endMailboxCalls ends the calls of a mailbox that is being closed, which begins no further calls.
// Closing the mailbox for replies ends all calls. box.mu must not be held.
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
			c.failLocked(uint32(i+1), ErrClosed)
		}
	}
	c.box.mu.Unlock()
}

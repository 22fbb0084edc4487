// SPDX-License-Identifier: Apache-2.0

package dispatch

import (
	"context"
	"encoding/binary"
	"fmt"
	"sync/atomic"

	"github.com/rocl-go/rocl/buffers"
	"github.com/rocl-go/rocl/dispatch/internal/session"
	"github.com/rocl-go/rocl/dispatch/internal/wire"
	"github.com/rocl-go/rocl/subsys"
)

// A Flow leads from this context to one resource: it has the link and the credit. Concurrent use is
// fine. Messages sent one after another arrive in that order.
//
// Over a link, the flow has the sender's side of the credit. Its numbers are charged bytes since
// the session began:
//
//	0             sent              limit              asked
//	├──────────────┼──────────────────┼──────────────────┤
//	│ was sent     │ may be sent      │ the first waiter │
//	               │ without waiting  │ needs this       │
//
// asked is 0 if no Need frame is open. A sender that gives up leaves its Need behind: the credit
// for it may still come. unasked has the least and the greatest of such limits, and giveBackLocked
// returns the credit that they bring.
type Flow struct {
	l         *link
	dst       uint32
	sent      uint64   // charged bytes, in all; l.mu guards this and the fields below
	limit     uint64   // the charged bytes that may be sent, in all
	asked     uint64   // the limit that was asked for last; 0: none
	askedFor  outgoing // the message for which it was asked
	unit      uint64   // the least that a message is charged, as the receiver has said
	unasked   span     // limits that were asked for, may still be granted, and that no sender waits for
	gone      error
	waiters   waitlist
	tryCredit tryCredit
	line      session.Line // messages that have no frame numbers yet
	cancels   []lineCancel // cancellations of requests in line, in order
	calls     flowCalls
	tracing   atomic.Pointer[tracing] // nil: no trace travels ahead of a message

	// A flow to a resource of this process has no link, but these:
	mb      *Mailbox
	in      *inflow
	queue   *localQueue
	to      neighbour
	passage *passageEnd // the end that counts what is sent; nil before the first message, and to this context itself; mb.mu guards it
}

// goneMost is how many resources that are gone a link remembers, to refuse messages to them at
// once. Messages to further resources are refused by the peer again.
const goneMost = 1024

// dropGoneLocked drops a flow whose resource is gone, and remembers the resource. mu must be held.
func (l *link) dropGoneLocked(f *Flow) {
	delete(l.flows, f.dst)
	if l.goneDst == nil {
		l.goneDst = map[uint32]error{}
	}
	if len(l.goneDst) >= goneMost {
		for dst := range l.goneDst {
			delete(l.goneDst, dst)
			break
		}
	}
	l.goneDst[f.dst] = f.gone
}

// flow returns the flow to the resource of the peer with serial dst, and makes it if necessary.
func (l *link) flow(dst uint32) *Flow {
	l.mu.Lock()
	defer l.mu.Unlock()
	f := l.flows[dst]
	if f == nil {
		if err := l.goneDst[dst]; err != nil && !l.life.HasEnded() { // serials are not used again
			return &Flow{l: l, dst: dst, gone: err}
		}
		f = l.newFlow(dst)
		if l.life.HasEnded() {
			f.gone = l.life.Cause()
		}
	}
	return f
}

// newFlow makes the flow to the resource of the peer with serial dst. mu must be held, or the link
// must not be published.
func (l *link) newFlow(dst uint32) *Flow {
	f := &Flow{l: l, dst: dst, limit: firstCredit(dst)}
	f.tracing.Store(l.d.unfollowed(dst))
	l.flows[dst] = f
	return f
}

// Dead reports whether the flow has failed for good. A caller that keeps flows should then ask for
// a new one.
func (f *Flow) Dead() bool {
	if f.mb != nil {
		f.mb.mu.Lock()
		defer f.mb.mu.Unlock()
		return f.mb.closed || f.in.isClosed
	}
	f.l.mu.Lock()
	defer f.l.mu.Unlock()
	return f.gone != nil
}

// Send accepts the message in b, from the resource of this context with serial src. If Send returns
// nil, the message will be delivered, in order, if both contexts live and the resource exists. A
// message that is not delivered is reported to Config.Undelivered.
//
// If Send returns nil, the caller's reference to b belongs to the library. The library releases it
// when it has copied the payload, when the peer has acknowledged the message, when the message is
// reported, or, within the process, when its receiver releases it. Until then the bytes of b must
// not be changed, also by a caller that has kept a reference of its own. If Send fails, b stays the
// caller's.
//
// Send waits, until ctx ends, for credit of the resource, for senders of this context that wait for
// that credit already, and for room in the session of the link. Send fails:
//
//	ErrTooLarge       b is longer than MaxMessage, or than the memory of the resource's context holds
//	ErrGone           the resource does not exist or has ended, or its context has
//	ErrUnreachable    the resource's context has been out of reach for Config.GiveUp
//	ErrClosed         this context has been closed
//	cause of ctx      ctx has ended while Send waited
func (f *Flow) Send(ctx context.Context, src uint32, tag uint64, b *buffers.Buffer) error {
	return f.sendFor(ctx, src, tag, b, f.traced(ctx, purpose{}))
}

// sendFor is Send for a message that is no request.
func (f *Flow) sendFor(ctx context.Context, src uint32, tag uint64, b *buffers.Buffer, why purpose) error {
	if f.mb != nil {
		return f.deliver(ctx, src, tag, b, why)
	}
	copied, err := f.accept(ctx, src, tag, b.Bytes(), b, why)
	if copied {
		b.EndCopied()
	}
	return err
}

// SendBytes sends a copy of p, as [Flow.Send] does. If p is small, SendBytes makes the copy
// directly behind the frame's header.
func (f *Flow) SendBytes(ctx context.Context, src uint32, tag uint64, p []byte) error {
	return f.sendBytesFor(ctx, src, tag, p, f.traced(ctx, purpose{}))
}

// SendAndForget sends a copy of p, as [Flow.SendBytes] does. If the message is not delivered, it is
// neither counted nor reported. Flush and Close do not wait for it.
func (f *Flow) SendAndForget(ctx context.Context, src uint32, tag uint64, p []byte) error {
	return f.sendBytesFor(ctx, src, tag, p, f.traced(ctx, purpose{isForgotten: true}))
}

// sendBytesFor is SendBytes for a message that is no request.
func (f *Flow) sendBytesFor(ctx context.Context, src uint32, tag uint64, p []byte, why purpose) error {
	if f.mb != nil {
		if why.trace == nil && f.queue.add(src, tag, p, nil, why.isForgotten) {
			return nil
		}
	} else if len(p) <= session.Inline && why.trace == nil {
		copied, err := f.accept(ctx, src, tag, p, nil, why)
		if copied || err != nil {
			return err
		}
	}
	d := f.dispatcher()
	b, err := d.bufferWithin(ctx, len(p))
	if err != nil {
		return err
	}
	if len(p) > 0 {
		copy(b.Bytes(), p)
		d.CountCopy(len(p))
	}
	if err = f.sendFor(ctx, src, tag, b, why); err != nil {
		b.Release()
	}
	return err
}

// dispatcher returns the context that sends over the flow.
func (f *Flow) dispatcher() *Dispatcher {
	if f.mb != nil {
		return f.in.from.(*Dispatcher)
	}
	return f.l.d
}

// accept queues a message over a link. Its payload p is that of b. accept reports whether it made a
// copy. If b is nil and it could not copy, it has done nothing. If the message is the request of a
// call, accept leaves b to its caller.
func (f *Flow) accept(ctx context.Context, src uint32, tag uint64, p []byte, b *buffers.Buffer, why purpose) (copied bool, err error) {
	if len(p) > MaxMessage {
		return false, fmt.Errorf("%w: %d bytes, at most %d", ErrTooLarge, len(p), MaxMessage)
	}
	l := f.l
	l.mu.Lock()
	if f.gone != nil {
		err := beforehand(f.gone)
		l.mu.Unlock()
		return false, err
	}
	c := max(charge(len(p)), f.unit)
	if f.gone == nil && f.waiters.First() == nil && f.sent+c <= f.limit && l.s.HasRoom() {
		f.sent += c
	} else if err := f.admit(ctx, c, outgoing{src, tag, uint32(len(p))}, b); err != nil {
		l.mu.Unlock()
		return false, err
	}
	return f.enqueueLocked(src, tag, p, b, why), nil
}

// enqueueLocked queues a message that has credit, and returns what accept does. mu must be held;
// enqueueLocked releases it.
func (f *Flow) enqueueLocked(src uint32, tag uint64, p []byte, b *buffers.Buffer, why purpose) (copied bool) {
	call := why.call
	l, c := f.l, max(charge(len(p)), f.unit)
	var h subsys.Header // field by field: a literal would be built elsewhere and copied
	h.Len, h.Type, h.Tag, h.Src, h.Dst = uint32(len(p)), wire.TypeData, tag, src, f.dst
	queues := l.s.Splits(len(p)) || f.line.IsWaiting()
	h.Flags = why.flags()
	if why.trace != nil && !queues {
		l.putTraceLocked(f.dst, src, why.trace.encode())
	}
	if call != 0 {
		copied = !queues && l.copyCallLocked(&h, p, call)
	} else {
		copied = !queues && l.copyLocked(&h, p)
	}
	if !copied {
		if b == nil {
			f.sent -= c
			l.mu.Unlock()
			return false
		}
		if call != 0 {
			b.Retain()
		}
		if b.Refs() > 1 {
			b.BeginSend()
		}
		if m := (subsys.Frame{Header: h, Data: p, Buf: b}); queues {
			if l.s.Queue(&f.line, &m, call); why.trace != nil {
				f.line.SetTrace(why.trace.encode()[:])
			}
		} else {
			if call != 0 {
				l.putLocked(wire.TypeCall, f.dst, src, call)
			}
			l.s.PushRequest(&m, call)
		}
		l.attendLocked()
	} else if len(p) > 0 {
		l.traffic.copies++
		l.traffic.copiedB += uint64(len(p))
	}
	if call != 0 || f.dst == wire.Replies {
		l.pace.calls.Add(1)
	}
	l.sentNow++
	l.traffic.sentB += uint64(len(p))
	if call != 0 && copied {
		l.postSoonLocked()
	} else {
		l.postLocked()
	}
	return copied
}

// admit takes credit for c more bytes, of the message o, once there is some and the session has
// room. While it waits, the message's buffer b is discounted; b may be nil. Senders that wait for
// credit get it in the order in which they came. Senders that wait for room in the session are
// woken together, and go on in no particular order. mu is held on entry and on return, and released
// while admit waits.
func (f *Flow) admit(ctx context.Context, c uint64, o outgoing, b *buffers.Buffer) error {
	l := f.l
	for f.gone == nil && !l.s.HasRoom() {
		if err := l.waitInLocked(ctx, &l.full); err != nil {
			return err
		}
	}
	c = max(c, f.unit) // the unit may have been told meanwhile
	switch {
	case f.gone != nil:
		return f.gone
	case f.waiters.First() == nil && f.sent+c <= f.limit:
		f.sent += c
		return nil
	}
	if b != nil {
		b.Discount()
	}
	w := l.d.waiter()
	w.charge, w.sends = c, o
	f.waiters.push(w)
	if f.serveLocked() {
		l.postLocked()
		l.mu.Lock()
	}
	// A waiter that is fired has been given its credit, or f has failed.
	l.liveness.starved++
	l.watchLocked()
	err := l.await(ctx, &f.waiters, w)
	l.liveness.starved--
	if err != nil {
		if f.skipLocked() {
			l.postLocked()
			l.mu.Lock()
		}
		return err
	}
	return f.gone
}

// A span is the least and the greatest of some limits; zeros mean that there are none.
type span struct{ least, most uint64 }

// add adds the limit n.
func (s *span) add(n uint64) {
	if s.least == 0 || n < s.least {
		s.least = n
	}
	s.most = max(s.most, n)
}

// forgetLocked notes that no sender waits for the limit that was asked for last. mu must be held.
func (f *Flow) forgetLocked() {
	if f.asked > f.limit {
		f.unasked.add(f.asked)
	}
	f.asked = 0
}

// askLocked asks for credit up to need, for the message o. mu must be held.
func (f *Flow) askLocked(need uint64, o outgoing) {
	if need != f.asked {
		f.forgetLocked()
	}
	f.asked, f.askedFor = need, o
	f.l.putLocked(wire.TypeNeed, f.dst, o.src, need, o.needPayload()...)
}

// skipLocked goes on when a sender, or a held message, has given up: the next one may need less. It
// reports whether there is something to write. mu must be held.
func (f *Flow) skipLocked() bool {
	asks := f.serveLocked()
	unasks := f.withdrawNeedLocked()
	return f.giveBackLocked() || unasks || asks
}

// withdrawNeedLocked tells the receiver that no sender waits any more, if that is so. It reports
// whether there is something to write. mu must be held.
func (f *Flow) withdrawNeedLocked() bool {
	if f.waiters.First() != nil || f.gone != nil || f.asked <= f.limit {
		return false
	}
	f.forgetLocked()
	f.l.putLocked(wire.TypeNeed, f.dst, 0, f.limit)
	return true
}

// giveBackLocked returns the credit that was granted to a sender that no longer waits, because
// other contexts may wait for it. It reports whether there is something to write. mu must be held.
func (f *Flow) giveBackLocked() bool {
	u := f.unasked
	if f.waiters.First() != nil || f.gone != nil || u.least == 0 || f.limit < u.least {
		return false
	}
	if f.limit >= u.most { // more than that is not to come
		f.unasked = span{}
	}
	if f.limit > u.most || f.limit-f.sent <= firstCredit(f.dst) {
		return false
	}
	held := f.limit
	f.limit = f.sent + firstCredit(f.dst)
	f.l.putLocked(wire.TypeNeed, f.dst, 0, f.limit, heldPayload(held)...)
	return true
}

// heldPayload returns the payload of a Need that gives credit back.
func heldPayload(n uint64) []byte { return binary.LittleEndian.AppendUint64(nil, n) }

// serveLocked gives the available credit to the senders that wait for it, in order. Then it asks
// for what the first remaining sender lacks. The question goes behind what was sent, which the
// receiver must know first. serveLocked reports whether there is something to write: a question, or
// a message that was held. mu must be held.
func (f *Flow) serveLocked() (asks bool) {
	for w := f.waiters.First(); w != nil; w = f.waiters.First() {
		w.charge = max(w.charge, f.unit)
		if need := f.sent + w.charge; need > f.limit {
			if (need != f.asked || w.sends != f.askedFor) && !f.line.IsWaiting() { // need is less than before if the first sender has given up
				f.askLocked(need, w.sends)
				asks = true
			}
			break
		}
		f.sent += w.charge
		f.waiters.remove(w)
		if w.held != nil {
			f.enqueueHeldLocked(w)
			asks = true
		} else {
			w.Fire()
		}
	}
	return asks
}

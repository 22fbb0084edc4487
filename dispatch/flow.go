// SPDX-License-Identifier: Apache-2.0

package dispatch

import (
	"context"
	"encoding/binary"
	"fmt"
	"sync/atomic"

	"github.com/rocl-go/rocl/buffers"
	"github.com/rocl-go/rocl/dispatch/internal/credit"
	"github.com/rocl-go/rocl/dispatch/internal/session"
	"github.com/rocl-go/rocl/dispatch/internal/wire"
	"github.com/rocl-go/rocl/subsys"
)

// A Flow leads from this context to one resource: it has the link and the credit. Concurrent use is
// fine. Messages sent one after another arrive in that order.
type Flow struct {
	l         *link
	dst       uint32
	credit    credit.Sender // l.mu guards this and the fields below
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
	f := &Flow{l: l, dst: dst, credit: credit.NewSender(firstCredit(dst))}
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
		return f.mb.closed || f.in.IsClosed()
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
	c := f.credit.Charge(len(p))
	if f.waiters.First() != nil || !l.s.HasRoom() || !f.credit.Take(c) {
		err := f.admit(ctx, c, credit.Outgoing{Src: src, Tag: tag, Size: uint32(len(p))}, b)
		if err == nil {
			return f.enqueueLocked(src, tag, p, b, why), nil
		}
		l.mu.Unlock()
		return false, err
	}
	return f.enqueueLocked(src, tag, p, b, why), nil
}

// enqueueLocked queues a message that has credit, and returns what accept does. mu must be held;
// enqueueLocked releases it.
func (f *Flow) enqueueLocked(src uint32, tag uint64, p []byte, b *buffers.Buffer, why purpose) (copied bool) {
	call := why.call
	l, c := f.l, f.credit.Charge(len(p))
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
			f.credit.PutBack(c)
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
func (f *Flow) admit(ctx context.Context, c uint64, o credit.Outgoing, b *buffers.Buffer) error {
	l := f.l
	for f.gone == nil && !l.s.HasRoom() {
		if err := l.waitInLocked(ctx, &l.full); err != nil {
			return err
		}
	}
	c = max(c, f.credit.Unit()) // which may have been told meanwhile
	switch {
	case f.gone != nil:
		return f.gone
	case f.waiters.First() == nil && f.credit.Take(c):
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

// askLocked asks for the credit that the message o, charged c, needs, unless it was asked for last,
// or large messages that have their credit have still to be sent. It reports whether it has asked.
// mu must be held.
func (f *Flow) askLocked(c uint64, o credit.Outgoing) bool {
	if f.line.IsWaiting() {
		return false
	}
	need, isNew := f.credit.Ask(c, o)
	if isNew {
		f.l.putLocked(wire.TypeNeed, f.dst, o.Src, need, needPayload(o)...)
	}
	return isNew
}

// skipLocked goes on when a sender, or a held message, has given up or was refused. The next one
// may need less. It reports whether there is something to write. mu must be held.
func (f *Flow) skipLocked() bool {
	asks := f.serveLocked()
	unasks := f.withdrawNeedLocked()
	return f.giveBackLocked(true) || unasks || asks
}

// withdrawNeedLocked tells the receiver that no sender waits any more, if that is so. It reports
// whether there is something to write. mu must be held.
func (f *Flow) withdrawNeedLocked() bool {
	if f.waiters.First() != nil || f.gone != nil {
		return false
	}
	limit, isOpen := f.credit.Withdraw()
	if isOpen {
		f.l.putLocked(wire.TypeNeed, f.dst, 0, limit)
	}
	return isOpen
}

// giveBackLocked returns the credit that no sender uses: one has just given up, or did so before
// the credit came. Other contexts may wait for it. giveBackLocked reports whether there is
// something to write. mu must be held.
func (f *Flow) giveBackLocked(hasGivenUp bool) bool {
	if f.waiters.First() != nil || f.gone != nil {
		return false
	}
	limit, held, gives := f.credit.GiveBack(hasGivenUp)
	if gives {
		f.l.putLocked(wire.TypeNeed, f.dst, 0, limit, heldPayload(held)...)
	}
	return gives
}

// heldPayload returns the payload of a Need that gives credit back.
func heldPayload(n uint64) []byte { return binary.LittleEndian.AppendUint64(nil, n) }

// serveLocked gives the available credit to the senders that wait for it, in order. Then it asks
// for what the first remaining sender lacks. The question goes behind what was sent, which the
// receiver must know first. serveLocked reports whether there is something to write: a question, or
// a message that was held. mu must be held.
func (f *Flow) serveLocked() (asks bool) {
	for w := f.waiters.First(); w != nil; w = f.waiters.First() {
		w.charge = max(w.charge, f.credit.Unit())
		if !f.credit.Take(w.charge) {
			return f.askLocked(w.charge, w.sends) || asks
		}
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

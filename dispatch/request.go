// SPDX-License-Identifier: Apache-2.0

package dispatch

import (
	"cmp"
	"context"

	"github.com/rocl-go/rocl/buffers"
	"github.com/rocl-go/rocl/dispatch/internal/session"
)

// This file has the caller's side of a call: the request, and the wait for its reply. calls.go has
// the table of the calls that wait.

// Request sends the message in b as the request of a call from the resource of m. It waits as
// Flow.Send does, and fails with the same errors.
//
// b stays the caller's, whether Request fails or not. After Request has succeeded, other goroutines
// may read the buffer. Its bytes must not be changed before it is released, unless
// [buffers.Buffer.Refs] is 1.
func (m *Mailbox) Request(ctx context.Context, f *Flow, tag uint64, b *buffers.Buffer) (Pending, error) {
	p, err := m.beginCall(ctx, f, tag, nil)
	if err != nil {
		return Pending{}, err
	}
	if err = f.sendRequest(ctx, m.serial, tag, b, f.traced(ctx, purpose{call: p.number})); err != nil {
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
// returns. If Wait has returned a reply that is not longer than dst, dst begins with its payload.
// Otherwise the contents of dst are not defined.
func (m *Mailbox) RequestInto(ctx context.Context, f *Flow, tag uint64, data, dst []byte) (Pending, error) {
	return m.requestBytes(ctx, f, tag, data, &landing{mem: dst})
}

// requestBytes is RequestBytes; into is the landing of the reply, or nil.
func (m *Mailbox) requestBytes(ctx context.Context, f *Flow, tag uint64, data []byte, into *landing) (Pending, error) {
	p, err := m.beginCall(ctx, f, tag, into)
	if err != nil {
		return Pending{}, err
	}
	copied := false
	why := f.traced(ctx, purpose{call: p.number})
	if f.mb == nil && len(data) <= session.Inline && why.trace == nil {
		copied, err = f.accept(ctx, m.serial, tag, data, nil, why)
	}
	if !copied && err == nil {
		var b *buffers.Buffer
		if b, err = m.d.copyToBuffer(ctx, data); err == nil {
			err = f.sendRequest(ctx, m.serial, tag, b, why)
			b.Release()
		}
	}
	if err != nil {
		p.abandon()
		return Pending{}, err
	}
	return p, nil
}

// sendRequest is Send for the request of a call. It leaves b to the caller: the library takes a
// reference of its own.
func (f *Flow) sendRequest(ctx context.Context, src uint32, tag uint64, b *buffers.Buffer, why purpose) error {
	if f.mb != nil {
		return f.deliver(ctx, src, tag, b, why)
	}
	copied, err := f.accept(ctx, src, tag, b.Bytes(), b, why)
	if copied && b.Refs() > 1 {
		b.SetDelivered()
	}
	return err
}

// copyToBuffer returns a buffer with a copy of p.
func (d *Dispatcher) copyToBuffer(ctx context.Context, p []byte) (*buffers.Buffer, error) {
	b, err := d.bufferWithin(ctx, len(p))
	if err == nil && len(p) > 0 {
		copy(b.Bytes(), p)
		d.CountCopy(len(p))
	}
	return b, err
}

// A Pending is a call whose request has been accepted. Wait must be called once.
type Pending struct {
	calls  *calls
	w      *waiter
	number uint64
	into   *landing
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
	err := d.progress.Wait(ctx, &p.w.Waiter)
	if err != nil {
		e := p.take()
		if e.w != nil {
			e.tellCancelled(p.number, cmp.Or(ctx.Err(), err))
			err = e.f.Explain(err)
		}
	}
	msg, end := p.w.msg, p.w.cause
	d.doneWaiting(p.w)
	if msg != nil {
		p.calls.box.finishHandOut(msg, nil, 0) // consumeEarlyLocked has told the sender of new credit
		if p.into != nil {
			p.into.copyIn(d, msg)
		}
		return msg, nil
	}
	p.withdrawLanding()
	if end != nil {
		return nil, end
	}
	return nil, err
}

// Cancel ends the call, unless it has ended or its reply has come. Then Wait returns cause, or
// context.Canceled if cause is nil. If there is no connection, Wait returns a *[NoConnectionError]
// that matches it. Any goroutine may call Cancel, at any time, also after Wait has returned.
func (p Pending) Cancel(cause error) {
	cause = cmp.Or(cause, context.Canceled)
	c := p.calls
	var e call
	c.box.mu.Lock()
	if i := c.findLocked(p.number); i != 0 {
		e = c.table[i-1]
		c.failLocked(i, e.f.Explain(cause))
	}
	c.box.mu.Unlock()
	if e.w != nil {
		e.tellCancelled(p.number, cause)
	}
}

// abandon ends a call whose request was not accepted.
func (p Pending) abandon() {
	p.take()
	p.withdrawLanding()
	p.calls.box.d.doneWaiting(p.w)
}

// take takes the call from the table, and returns it, if it is still in it. After that its waiter
// is not fired any more.
func (p Pending) take() (e call) {
	p.calls.box.mu.Lock()
	defer p.calls.box.mu.Unlock()
	if i := p.calls.findLocked(p.number); i != 0 {
		e = p.calls.table[i-1]
		p.calls.removeLocked(i)
	}
	return e
}

// withdrawLanding makes sure that nothing writes to the landing of a call that has failed.
func (p Pending) withdrawLanding() {
	if p.into != nil && p.into.isInUse() {
		p.into.withdraw(p.calls.box.d)
	}
}

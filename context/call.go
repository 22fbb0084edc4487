// SPDX-License-Identifier: Apache-2.0

package context

import (
	stdctx "context"
	"fmt"

	"github.com/rocl-go/rocl/buffers"
	"github.com/rocl-go/rocl/dispatch"
	"github.com/rocl-go/rocl/resource"
)

// Call sends the message in b as a request to the resource with identifier to, and returns the
// reply, which has the same tag. The receiver gets a message for which [dispatch.Message.IsCall]
// reports true, and answers it with [Resource.Reply]. The reply belongs to the caller until
// Release. Any number of goroutines may call at once.
//
// If Call returns a reply, it has taken over the caller's reference to b. If it fails, b stays the
// caller's: call with it again, or release it. Do not write to it. The request may have been sent,
// and other goroutines may still read the buffer. A receiver in this process may have changed it.
//
// Call waits, as [Resource.Send] does, while the target's mailbox has no room. Then it waits for
// the reply, until ctx ends. A reply needs no room in this resource's mailbox, and uses no credit
// of its other messages: a call does not wait for messages to be received here. Replies have no
// order with other messages from the target.
//
// Call fails with rocl.ErrGone as soon as the target has ended. On this node that takes
// milliseconds after the resource was deleted or its process killed. On another node it also fails
// when gossip says that the node is dead. Call fails with rocl.ErrUnreachable if the target's
// context is out of reach for as long as [WithGiveUp] says, and the error says why. It fails with
// rocl.ErrNoReply if the receiver has released the request without a reply. Whatever the error, the
// receiver may have worked on the request. A reply that has arrived is returned, even if the target
// has ended since.
//
// In a cluster of two nodes gossip declares no node dead: a node that reaches no other member
// cannot tell a dead node from a cut. Then the call ends after the time of WithGiveUp.
//
// Call fails with rocl.ErrClosed if this resource or its context is closed, with rocl.ErrTooLarge,
// or with the cause of ctx's end. Then the request leaves the target's mailbox, if it is still
// there. A receiver that has it learns of the end by [dispatch.Message.OnCancel]; its reply is
// dropped. A request that was not delivered is not reported to [WithUndelivered], because the error
// says so.
func (r *Resource) Call(ctx stdctx.Context, to resource.GID, tag uint64, b *buffers.Buffer) (*dispatch.Message, error) {
	p, err := r.start(ctx, to, func(f *dispatch.Flow) (dispatch.Pending, error) { return r.box.Request(ctx, f, tag, b) })
	if err != nil {
		return nil, err
	}
	m, err := p.Wait(ctx)
	if err == nil {
		b.Release()
	}
	return m, err
}

// CallBytes sends a copy of data as a request and returns the reply, as [Resource.Call] does with a
// buffer. data stays the caller's.
func (r *Resource) CallBytes(ctx stdctx.Context, to resource.GID, tag uint64, data []byte) (*dispatch.Message, error) {
	p, err := r.StartCallBytes(ctx, to, tag, data)
	if err != nil {
		return nil, err
	}
	return p.Wait(ctx)
}

// CallInto is like [Resource.CallBytes], and puts the payload of the reply into dst, if it is not
// longer than dst. The system call reads a large payload that comes over TCP right into dst. Any
// other payload is copied into dst before CallInto returns. Message.Bytes of the reply is then the
// beginning of dst. A longer reply is received as by CallBytes, outside dst.
//
// The library owns dst until CallInto returns. Then dst is the caller's again, whether CallInto
// fails or not. The reply must not be used after dst is changed. CallInto may also write bytes of
// dst behind the reply and, if it fails, any bytes of dst. If ctx ends while the reply is being
// read, CallInto returns when the reading goroutine has finished its system call.
func (r *Resource) CallInto(ctx stdctx.Context, to resource.GID, tag uint64, data, dst []byte) (*dispatch.Message, error) {
	p, err := r.start(ctx, to, func(f *dispatch.Flow) (dispatch.Pending, error) { return r.box.RequestInto(ctx, f, tag, data, dst) })
	if err != nil {
		return nil, err
	}
	return p.Wait(ctx)
}

// start sends the request of a call to the resource to: request sends it over a flow.
func (r *Resource) start(ctx stdctx.Context, to resource.GID, request func(*dispatch.Flow) (dispatch.Pending, error)) (Pending, error) {
	p := Pending{to: to}
	err := r.withFlow(ctx, to, func(f *dispatch.Flow) (err error) {
		p.p, err = request(f)
		return err
	})
	return p, wrapCall(to, err)
}

// wrapCall adds the target to the error of a call, if there is one.
func wrapCall(to resource.GID, err error) error {
	if err != nil {
		return fmt.Errorf("rocl: call %v: %w", to, err)
	}
	return nil
}

// A Pending is a call that [Resource.StartCall] or [Resource.StartCallBytes] has started: its
// request has been accepted. [Pending.Wait] returns its reply. The zero value is no call.
type Pending struct {
	p  dispatch.Pending
	to resource.GID
}

// StartCall sends the request of a call, as [Resource.Call] does, and does not wait for the reply:
// [Pending.Wait] does. So one goroutine may have many calls in flight, whose requests and replies
// travel in batches. A request may stay unwritten for up to a millisecond, unless a goroutine of
// the context waits.
//
// StartCall waits, until ctx ends, while the target's mailbox has no room. It fails with the errors
// of Call that concern the request. If it succeeds, it has taken over the caller's reference to b,
// whose bytes must not be changed. The end of ctx then does not end the call; [Pending.Cancel]
// does. If StartCall fails, b stays the caller's.
func (r *Resource) StartCall(ctx stdctx.Context, to resource.GID, tag uint64, b *buffers.Buffer) (Pending, error) {
	p, err := r.start(ctx, to, func(f *dispatch.Flow) (dispatch.Pending, error) { return r.box.Request(ctx, f, tag, b) })
	if err != nil {
		return Pending{}, err
	}
	b.Release()
	return p, nil
}

// StartCallBytes sends a copy of data as the request of a call, as [Resource.StartCall] does with a
// buffer. data stays the caller's.
func (r *Resource) StartCallBytes(ctx stdctx.Context, to resource.GID, tag uint64, data []byte) (Pending, error) {
	return r.start(ctx, to, func(f *dispatch.Flow) (dispatch.Pending, error) { return r.box.RequestBytes(ctx, f, tag, data) })
}

// Wait returns the reply, as [Resource.Call] does, and fails with the same errors. The end of ctx
// ends the call. Wait must be called once for each call: a reply that no goroutine takes stays in
// memory.
func (p Pending) Wait(ctx stdctx.Context) (*dispatch.Message, error) {
	m, err := p.p.Wait(ctx)
	return m, wrapCall(p.to, err)
}

// Cancel ends the call, unless it has ended or its reply has come. Wait then fails with an error
// that wraps cause, or context.Canceled if cause is nil. The receiver learns of it as of the end of
// the context of [Resource.Call]. Any goroutine may call Cancel at any time, even after Wait has
// returned.
func (p Pending) Cancel(cause error) { p.p.Cancel(cause) }

// Reply sends the message in b as the reply to the request m. It comes from the resource that
// received m, which is r or another resource of its context. Reply does not release m. Any
// goroutine may call it, once for each request, before m is released.
//
// If Reply returns nil, it has taken over the caller's reference to b. If it fails, b stays the
// caller's, and m may be replied to again. nil means that the reply will arrive if both contexts
// live and the caller waits for it. Reply waits, until ctx ends, while the caller's context has no
// credit left for replies. That context gives credit back as soon as a reply arrives.
//
// Reply fails with rocl.ErrNotCall if m is not a request, or has been replied to, and with
// rocl.ErrGone or rocl.ErrUnreachable if the caller's context is known to have ended. It fails with
// rocl.ErrClosed if r is deleted, with rocl.ErrTooLarge, or with the cause of ctx's end. A reply to
// a call that has ended in another way is dropped without an error or a report.
func (r *Resource) Reply(ctx stdctx.Context, m *dispatch.Message, b *buffers.Buffer) error {
	return r.reply(m, func() error { return r.box.Reply(ctx, m, b) })
}

// ReplyBytes sends a copy of data as the reply to the request m, as [Resource.Reply] does with a
// buffer. data stays the caller's.
func (r *Resource) ReplyBytes(ctx stdctx.Context, m *dispatch.Message, data []byte) error {
	return r.reply(m, func() error { return r.box.ReplyBytes(ctx, m, data) })
}

// reply replies to m by send, unless r is deleted.
func (r *Resource) reply(m *dispatch.Message, send func() error) error {
	err := dispatch.ErrClosed
	if !r.deleting.Load() {
		err = send()
	}
	if err != nil {
		return fmt.Errorf("rocl: reply to %v: %w", m.From(), err)
	}
	return nil
}

// Poll reads what has arrived for the context, as a goroutine that waits in the context does, and
// does not wait. It reports whether something has arrived, or another goroutine is reading. A
// program needs it only to learn of what has arrived before it goes on, such as the end of a call
// whose request it has (see [dispatch.Message.OnCancel]).
func (c *Context) Poll() (arrived bool) { return c.disp.Poll() }

// SPDX-License-Identifier: Apache-2.0

package context

import (
	stdctx "context"
	"fmt"

	"github.com/rocl-go/rocl/buffers"
	"github.com/rocl-go/rocl/dispatch"
	"github.com/rocl-go/rocl/resource"
)

// Call sends the message in b to the resource with identifier to, as a request, and returns
// the reply, which has the same tag. The receiver gets an ordinary message, for which
// [dispatch.Message.IsCall] reports true, and answers it with [Resource.Reply]. The reply
// belongs to the caller until Release. Any number of goroutines may call at once.
//
// If Call returns a reply, it has taken over the caller's reference to b. If it fails, b stays
// the caller's: call with it again, or release it. Do not write to it: the request may have
// been sent, and other goroutines may still read it. A receiver in this process may have
// changed it.
//
// Call waits, as Send does, while the target's mailbox has no room, and then for the reply,
// until ctx ends. A reply needs no room in this resource's mailbox, and uses none of the credit
// of its other messages: a call does not wait for messages to be received here. Replies have
// no order with other messages from the target.
//
// Call fails with rocl.ErrGone as soon as the target has ended: within milliseconds where the
// resource was deleted or its process killed on this node, and when gossip says that the node
// is dead on another. It fails with rocl.ErrUnreachable where the target's context is out of
// reach for as long as [WithGiveUp] says, and with rocl.ErrNoReply if the receiver has released
// the request without a reply. Whatever the error, the request may have been worked on.
//
// Call also fails with rocl.ErrUnsupported if the target's context is of a version without
// calls, such as 0.1.0; with rocl.ErrClosed if this resource or its context is closed; with
// rocl.ErrTooLarge; or with the cause of ctx's end. The receiver is not told when ctx ends; its
// reply is dropped. A request that was not delivered is not reported to [WithUndelivered]: the
// error says so.
func (r *Resource) Call(ctx stdctx.Context, to resource.GID, tag uint64, b *buffers.Buffer) (*dispatch.Message, error) {
	var p dispatch.Pending
	m, err := r.await(ctx, to, &p, r.try(ctx, to, func(f *dispatch.Flow) (err error) {
		p, err = r.box.Request(ctx, f, tag, b)
		return err
	}))
	if err == nil {
		b.Release()
	}
	return m, err
}

// CallBytes is Call with a copy of data, which stays the caller's.
func (r *Resource) CallBytes(ctx stdctx.Context, to resource.GID, tag uint64, data []byte) (*dispatch.Message, error) {
	var p dispatch.Pending
	return r.await(ctx, to, &p, r.try(ctx, to, func(f *dispatch.Flow) (err error) {
		p, err = r.box.RequestBytes(ctx, f, tag, data)
		return err
	}))
}

// CallInto is CallBytes that has the payload of the reply lie in dst, if it is not longer than dst.
// A large payload that comes over TCP is read there by the system call: it is not copied. Any other
// is copied there before CallInto returns. Message.Bytes of the reply is then the
// beginning of dst. A longer reply is received as by CallBytes, and lies elsewhere.
//
// dst is the library's until CallInto returns, and the caller's again then, whether it fails or not;
// the reply must not be used any more once dst is changed. Bytes of dst behind the reply, or all of
// them if CallInto fails, may have been written. When ctx ends while the reply is being read, CallInto
// returns as soon as the goroutine that reads has let go of dst, which takes no longer than a system call.
func (r *Resource) CallInto(ctx stdctx.Context, to resource.GID, tag uint64, data, dst []byte) (*dispatch.Message, error) {
	var p dispatch.Pending
	return r.await(ctx, to, &p, r.try(ctx, to, func(f *dispatch.Flow) (err error) {
		p, err = r.box.RequestInto(ctx, f, tag, data, dst)
		return err
	}))
}

// await waits for the reply of a call whose request has been sent, unless err is not nil.
func (r *Resource) await(ctx stdctx.Context, to resource.GID, p *dispatch.Pending, err error) (m *dispatch.Message, _ error) {
	if err == nil {
		m, err = p.Wait(ctx)
	}
	if err != nil {
		return nil, calling(to, err)
	}
	return m, nil
}

// calling returns the error of a call that fails because of err.
func calling(to resource.GID, err error) error { return fmt.Errorf("rocl: calling %v: %w", to, err) }

// A Pending is a call whose request has been accepted, and whose reply may not have come. The
// zero value is none.
type Pending struct {
	p  dispatch.Pending
	to resource.GID
}

// StartCall sends the request of a call, as [Resource.Call] does, and does not wait for the
// reply: [Pending.Wait] does. So one goroutine may have many calls in flight, whose requests and
// replies travel in batches. A request may stay unwritten for up to a millisecond, unless a
// goroutine of the context waits.
//
// StartCall waits, until ctx ends, while the target's mailbox has no room, and fails with the errors of Call that
// concern the request. If it succeeds, it has taken over the caller's reference to b, whose bytes must not be
// changed, and the end of ctx does nothing: [Pending.Cancel] ends the call. If it fails, b stays the caller's.
func (r *Resource) StartCall(ctx stdctx.Context, to resource.GID, tag uint64, b *buffers.Buffer) (Pending, error) {
	var p dispatch.Pending
	err := r.try(ctx, to, func(f *dispatch.Flow) (err error) {
		p, err = r.box.Request(ctx, f, tag, b)
		return err
	})
	if err != nil {
		return Pending{}, calling(to, err)
	}
	b.Release()
	return Pending{p, to}, nil
}

// Wait returns the reply, as [Resource.Call] does, and fails with the same errors. When ctx ends, the
// call ends. Wait must be called once for each call: a reply that nobody waits for stays in memory.
func (p Pending) Wait(ctx stdctx.Context) (*dispatch.Message, error) {
	m, err := p.p.Wait(ctx)
	if err != nil {
		return nil, calling(p.to, err)
	}
	return m, nil
}

// Cancel ends the call, unless it has ended or its reply has come: Wait fails with an error that wraps
// cause. The receiver is not told, and its reply is dropped. Any goroutine may call Cancel, at any time, also
// after Wait has returned.
func (p Pending) Cancel(cause error) { p.p.Cancel(cause) }

// Reply sends the message in b as the reply to the request m, from the resource to which m
// came, which is r or another one of its context. It does not release m. Any goroutine may
// call it, once for each request, at any time before m is released.
//
// If Reply returns nil, it has taken over the caller's reference to b. If it fails, b stays the
// caller's, and m may be replied to again. nil means that the reply will arrive if both contexts
// live and the caller waits for it. Reply waits until ctx ends while the caller's context has no
// credit left for replies, which it gives back as soon as one arrives.
//
// Reply fails with rocl.ErrNotCall if m is no request, or has been replied to; with
// rocl.ErrGone, or rocl.ErrUnreachable, where the caller's context is known to have ended; with
// rocl.ErrClosed if r is deleted, rocl.ErrTooLarge, or the cause of ctx's end. A reply to a call
// that has ended in another way is dropped without an error or a report.
func (r *Resource) Reply(ctx stdctx.Context, m *dispatch.Message, b *buffers.Buffer) error {
	err := dispatch.ErrClosed
	if !r.gone.Load() {
		err = r.box.Reply(ctx, m, b)
	}
	return r.replied(m, err)
}

// ReplyBytes is Reply with a copy of data, which stays the caller's.
func (r *Resource) ReplyBytes(ctx stdctx.Context, m *dispatch.Message, data []byte) error {
	err := dispatch.ErrClosed
	if !r.gone.Load() {
		err = r.box.ReplyBytes(ctx, m, data)
	}
	return r.replied(m, err)
}

func (r *Resource) replied(m *dispatch.Message, err error) error {
	if err != nil {
		return fmt.Errorf("rocl: replying to %v: %w", m.From(), err)
	}
	return nil
}

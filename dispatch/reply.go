// SPDX-License-Identifier: Apache-2.0

package dispatch

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/rocl-go/rocl/buffers"
	"github.com/rocl-go/rocl/dispatch/internal/wire"
)

// This file has the receiver's side of a call: a message that is a request, and its reply.

// request is the part of a message that is the request of a call.
type request struct {
	call  uint64 // the number of the call; 0: the message is no request
	state atomic.Uint32
	came  int64 // when the message was stored, by Dispatcher.clock; 0: it was not
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
	m.call, m.came = 0, 0
	m.state.Store(unreplied)
}

// Waited returns the time since the request of a call was stored in its mailbox. It returns 0 for
// other messages, and for a request that a receiver waited for.
func (m *Message) Waited() time.Duration {
	if m.came == 0 {
		return 0
	}
	return time.Duration(m.in.home.d.clock() - m.came)
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
	send := func(f *Flow) error {
		if b != nil {
			return f.Send(ctx, in.dst, msg.call, b)
		}
		return f.SendBytes(ctx, in.dst, msg.call, p)
	}
	f, isNew, err := in.replyFlow()
	if err == nil {
		err = send(f)
	}
	if err != nil && !isNew && ctx.Err() == nil && (errors.Is(err, ErrGone) || errors.Is(err, ErrUnreachable)) {
		in.replies.CompareAndSwap(f, nil) // the link of f may have ended while the caller lives
		if f, _, err = in.replyFlow(); err == nil {
			err = send(f)
		}
	}
	if err != nil {
		msg.state.Store(unreplied)
		return err
	}
	msg.state.Store(replied)
	if msg.trace != nil {
		msg.trace.reach(Replied)
	}
	return nil
}

// dispatcher returns the context that receives the messages of in.
func (in *inflow) dispatcher() *Dispatcher {
	if in.l != nil {
		return in.l.d
	}
	return in.mb.d
}

// replyFlow returns the flow to the replies of the sender's context, over the link that the request
// came over. isNew reports whether it was not known before.
func (in *inflow) replyFlow() (f *Flow, isNew bool, err error) {
	if f := in.replies.Load(); f != nil {
		return f, false, nil
	}
	l := in.l
	switch {
	case l == nil && in.from.(*Dispatcher).hasBegunClosing():
		err = fmt.Errorf("%w: %v", ErrGone, in.from.context())
	case l == nil:
		f, err = in.mb.d.directly(neighbour{Dispatcher: in.from.(*Dispatcher)}, wire.Replies)
	case l.ended():
		err = l.cause()
	default:
		f = l.flow(wire.Replies)
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

// SPDX-License-Identifier: Apache-2.0

package dispatch

import (
	"fmt"

	"github.com/rocl-go/rocl/dispatch/internal/session"
	"github.com/rocl-go/rocl/dispatch/internal/wire"
	"github.com/rocl-go/rocl/subsys"
)

// Protocol: Calls
//
// A caller numbers its calls, u64 from 1. A call is two frames with the same dst and src, one
// directly behind the other: Call with the number in tag, and the request, Data or Begin with bit 0
// of flags. The reply is Data or Begin to the serial 2,147,483,647 of the caller, with the number
// in tag, the target in src, and credit as for any resource. A caller drops a reply to no call in
// flight, or from another resource. Each request gets one reply or NoReply, unless it is cancelled,
// or its target or a context ends: the caller learns that by Gone with src 0, for which it asks by
// Need, by Bye, or by the end of the session. Cancel goes behind the request; a receiver that
// stores the request drops it, and answers nothing.

// This file has the frames of calls on a link: the one that goes before a request, and the one that
// says that no reply comes. It also has what tells requests from other messages.

// copyCallLocked is copy for a request, directly behind the frame with the number of its call. mu
// must be held.
func (l *link) copyCallLocked(h *subsys.Header, p []byte, number uint64) bool {
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

// takeCallOf takes and returns the number of the call that f is the request of, or 0 if f is no
// request. The token must be held.
func (l *link) takeCallOf(f *subsys.Frame) (number uint64, err error) {
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
	l.d.calls.end(f.Tag, target, whyNoReply(f.Data[0]))
	return nil
}

// unanswered tells the peer that the request of its resource src gets no reply.
func (l *link) unanswered(in *inflow, src uint32, number uint64, why byte) {
	l.mu.Lock()
	if l.life.HasEnded() {
		l.mu.Unlock()
		return
	}
	l.putLocked(wire.TypeNoReply, in.dst, src, number, why)
	if l.s.Pending() > l.mostPending {
		l.attendLocked()
	}
	l.postLocked()
}

// unanswered ends the call of a context of this process, the request of which gets no reply.
func (d *Dispatcher) unanswered(in *inflow, _ uint32, number uint64, why byte) {
	target := in.mb.d.self.WithSerial(in.dst)
	d.calls.end(number, target, whyNoReply(why))
}

// whyNoReply returns the error of a call that ends without a reply.
func whyNoReply(why byte) error {
	switch why {
	case wire.WhyGone:
		return ErrGone
	case wire.WhyTooLarge:
		return fmt.Errorf("%w: the memory of the target's context never holds the request", ErrTooLarge)
	}
	return ErrNoReply
}

// notDelivered answers a message for a resource that does not exist. If the message is a request,
// call is the number of the call. The token must be held.
func (l *link) notDelivered(dst, src uint32, tag uint64, size int, p purpose) {
	switch {
	case p.call != 0:
		l.answer(wire.TypeNoReply, dst, src, p.call, wire.WhyGone)
	case p.isForgotten:
		l.answer(wire.TypeGone, dst, src, tag)
	default:
		l.answer(wire.TypeGone, dst, src, tag, gonePayload(src, size)...)
	}
}

// isReported reports whether a message is reported if it is not delivered. A request is not,
// because its call returns an error. A reply is not, because no call of a context that has ended
// waits for it. A message of SendAndForget is not either.
func isReported(h *subsys.Header) bool {
	return h.Flags&(wire.FlagCall|wire.FlagForget) == 0 && h.Dst != wire.Replies
}

// A purpose says whether the fate of a message matters, and to what. The zero value is a message
// that is reported if it is not delivered.
type purpose struct {
	call        uint64 // the number of the call that the message is the request of; 0: none
	isForgotten bool   // the message was sent by SendAndForget
	trace       *trace // what travels ahead of the message; nil: nothing
}

// purposeOf returns the purpose of a message that was received with flags, and whose frame TypeCall
// had the number call; 0: there was none.
func purposeOf(call uint64, flags uint8) purpose {
	return purpose{call: call, isForgotten: flags&wire.FlagForget != 0}
}

// flags returns the flags of the message's frames.
func (p purpose) flags() uint8 {
	switch {
	case p.call != 0:
		return wire.FlagCall
	case p.isForgotten:
		return wire.FlagForget
	}
	return 0
}

// SPDX-License-Identifier: Apache-2.0

package dispatch

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/rocl-go/rocl/dispatch/internal/wire"
	"github.com/rocl-go/rocl/subsys"
)

// A caller that gives up a call whose request was accepted tells the receiver so, in a frame that
// needs no credit and no goroutine. At most as many such frames wait as requests were accepted, and
// credit limits those. The receiver's mailbox looks for the request:
//
//	stored              it is dropped, and no receiver gets it
//	received            the function of Message.OnCancel is called
//	neither             it was replied to, or is about to be watched or put back: the number is kept
//	                    for OnCancel and PutBack
//
// A request may wait in the line of its flow behind a large message. Then the frame waits too, so
// that it does not overtake the request. If a session is given up, the frame goes with the request:
// the successor does not take over a request whose frame was queued, and gets a later frame.

// mostEarly is how many numbers of cancelled calls an account keeps for requests that OnCancel may
// be about to watch.
const mostEarly = 64

// A cancelled is a call that its caller has given up.
type cancelled struct {
	number uint64
	why    byte
}

// cause returns the reason for which the caller has given up the call.
func (c cancelled) cause() error {
	if c.why == wire.WhyDeadline {
		return context.DeadlineExceeded
	}
	return context.Canceled
}

// A cancelKey names a request in a mailbox.
type cancelKey struct {
	in     *inflow
	number uint64
}

// whyCancelled returns the reason, in a Cancel frame, of a call that ends with cause.
func whyCancelled(cause error) byte {
	if errors.Is(cause, context.DeadlineExceeded) {
		return wire.WhyDeadline
	}
	return wire.WhyCancelled
}

// tellCancelled tells the receiver of a call's request that the caller has given up the call. No
// lock may be held.
func (e *call) tellCancelled(number uint64, cause error) {
	f, c := e.f, cancelled{number, whyCancelled(cause)}
	if f.mb != nil {
		f.mb.cancelRequests(f.in, []cancelled{c})
		return
	}
	l := f.l
	l.mu.Lock()
	for l.heir != nil { // it has taken the request over, unless the request may have been delivered
		heir := l.heir
		l.mu.Unlock()
		l = heir
		l.mu.Lock()
		if f = l.flows[f.dst]; f == nil {
			l.mu.Unlock()
			return
		}
	}
	if f.gone != nil || l.life.HasEnded() {
		l.mu.Unlock()
		return
	}
	if f.dropHeldLocked(number) {
		f.skipLocked()
		l.postLocked()
		return
	}
	if f.line.IsWaiting() {
		f.cancels = append(f.cancels, lineCancel{f.line.Put(), e.m.serial, c})
		l.mu.Unlock()
		return
	}
	l.putLocked(wire.TypeCancel, f.dst, e.m.serial, c.number, c.why)
	if l.s.Pending() > l.mostPending {
		l.attendLocked()
	}
	if l.conn == nil { // it is written with the request
		l.mu.Unlock()
		return
	}
	l.postLocked()
}

// A lineCancel is a cancellation that waits until so many messages have left the line of its flow.
type lineCancel struct {
	behind uint64
	src    uint32
	cancelled
}

// putCancelsLocked puts the Cancel frames whose requests have left the line. l.mu must be held.
func (f *Flow) putCancelsLocked() {
	for len(f.cancels) > 0 && f.cancels[0].behind <= f.line.Gone() {
		c := f.cancels[0]
		f.cancels = f.cancels[1:]
		f.l.putLocked(wire.TypeCancel, f.dst, c.src, c.number, c.why)
	}
}

// onCancel works on Cancel frames to one resource. The token must be held.
func (l *link) onCancel(fs []subsys.Frame) error {
	cs := make([]cancelled, len(fs))
	for i := range fs {
		if f := &fs[i]; f.Tag == 0 || len(f.Data) != 1 || l.nextCall.number != 0 {
			return fmt.Errorf("%w: the cancellation of call %d, with %d bytes", ErrProtocol, f.Tag, len(f.Data))
		}
		cs[i] = cancelled{fs[i].Tag, fs[i].Data[0]}
	}
	if in := l.inflow(fs[0].Dst); in.mb != nil {
		in.mb.cancelRequests(in, cs)
	}
	return nil
}

// cancelRequests drops the stored requests of calls that the sender has given up, and calls the
// functions of OnCancel of those that were received. mu must not be held.
func (m *Mailbox) cancelRequests(in *inflow, cs []cancelled) {
	m.mu.Lock()
	if m.closed {
		m.mu.Unlock()
		return
	}
	left := make(map[uint64]struct{}, len(cs))
	for _, c := range cs {
		left[c.number] = struct{}{}
	}
	for msg := m.messages.First(); msg != nil && len(left) > 0; {
		next := msg.place.Next()
		if _, is := left[msg.call]; is && msg.in == in && msg.call != 0 {
			delete(left, msg.call)
			m.unlinkLocked(msg)
			msg.clearCall()
			m.discardLocked(msg)
		}
		msg = next
	}
	var calls []func()
	for _, c := range cs {
		if _, is := left[c.number]; !is {
			continue
		}
		if f := m.onCancel[cancelKey{in, c.number}]; f != nil {
			delete(m.onCancel, cancelKey{in, c.number})
			calls = append(calls, func() { f(c.cause()) })
		} else if in.early = append(in.early, c); len(in.early) > mostEarly {
			in.early = in.early[1:]
		}
	}
	m.mu.Unlock()
	for _, f := range calls {
		f()
	}
}

// takeEarlyLocked returns the cancellation of a call whose request was not found, and forgets it.
// The mailbox's mu must be held.
func (in *inflow) takeEarlyLocked(number uint64) (c cancelled, isCancelled bool) {
	i := slices.IndexFunc(in.early, func(c cancelled) bool { return c.number == number })
	if i < 0 {
		return cancelled{}, false
	}
	c = in.early[i]
	in.early = append(in.early[:i:i], in.early[i+1:]...)
	return c, true
}

// OnCancel makes f be called once if the caller gives up the call of which m is the request, before
// stop is called. cause is context.DeadlineExceeded or context.Canceled, as the caller's context
// says. f may be called before OnCancel returns, and must not wait: the goroutine that calls it may
// make progress for the whole context. A request that is cancelled before a receive takes it is
// dropped. stop must be called before m is released or put back. If m is no request, f is never
// called.
func (m *Message) OnCancel(f func(cause error)) (stop func()) {
	if m.call == 0 {
		return func() {}
	}
	box, key := m.in.home, cancelKey{m.in, m.call}
	box.mu.Lock()
	if c, isCancelled := key.in.takeEarlyLocked(key.number); isCancelled {
		box.mu.Unlock()
		f(c.cause())
		return func() {}
	}
	if box.onCancel == nil {
		box.onCancel = map[cancelKey]func(error){}
	}
	box.onCancel[key] = f
	box.mu.Unlock()
	return func() {
		box.mu.Lock()
		delete(box.onCancel, key)
		box.mu.Unlock()
	}
}

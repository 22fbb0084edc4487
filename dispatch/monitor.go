// SPDX-License-Identifier: Apache-2.0

package dispatch

import (
	"context"
	"errors"

	"github.com/rocl-go/rocl/dispatch/internal/list"
	"github.com/rocl-go/rocl/resource"
)

// A monitor puts a message into a mailbox when a resource has ended.
type monitor struct {
	m        *Mailbox
	of       resource.GID
	tag      uint64
	cancel   func() bool         // cancels OnEnd; nil while OnEnd has not returned
	release  func() bool         // ends context.AfterFunc; nil: the monitor's context never ends
	hasEnded bool                // the message has been put, or is not wanted any more
	place    list.Place[monitor] // in m's list
}

// Monitor puts a message into m once the resource of has ended, behind all messages from it. The
// message is from that resource, has the given tag, and IsGone reports true for it. It takes no
// credit, so it is stored even if m is full. If the resource has ended already, the message may be
// put before Monitor returns. It is put once at most.
//
// After stop, or a moment after ctx has ended, the message is no longer put; if it has been put
// before, it stays. m forgets the monitor when m is closed. If the context of m closes first, there
// is no message.
//
// Monitor waits while the link to the resource's context has no room for a frame. If ctx ends
// meanwhile, Monitor returns the cause.
func (m *Mailbox) Monitor(ctx context.Context, of resource.GID, tag uint64) (stop func(), err error) {
	if ctx.Err() != nil {
		return nil, context.Cause(ctx)
	}
	w := &monitor{m: m, of: of, tag: tag}
	m.mu.Lock()
	if m.closed {
		m.mu.Unlock()
		return nil, ErrClosed
	}
	m.monitors.PushFront(w, &w.place)
	m.mu.Unlock()
	cancel, err := m.d.OnEnd(ctx, of.Context(), of.Serial(), w.ended)
	if err != nil {
		w.stop()
		return nil, err
	}
	var release func() bool
	if ctx.Done() != nil {
		release = context.AfterFunc(ctx, w.stop)
	}
	m.mu.Lock()
	hasEnded := w.hasEnded
	if !hasEnded {
		w.cancel, w.release = cancel, release
	}
	m.mu.Unlock()
	if hasEnded {
		w.drop(cancel, release)
	}
	return w.stop, nil
}

// ended puts the message. OnEnd calls it, with the reason.
func (w *monitor) ended(err error) {
	m := w.m
	m.mu.Lock()
	isFirst, cancel, release := w.endLocked()
	if isFirst && !m.closed && !errors.Is(err, ErrClosed) {
		msg := m.d.message()
		if m.gone == nil {
			m.gone = &inflow{home: m}
		}
		msg.from, msg.tag, msg.in, msg.gone = w.of, w.tag, m.gone, err
		m.storeQueuesLocked() // what has come before
		m.putLocked(msg)
	}
	m.mu.Unlock()
	w.drop(cancel, release)
}

// stop prevents that the message is put.
func (w *monitor) stop() {
	w.m.mu.Lock()
	_, cancel, release := w.endLocked()
	w.m.mu.Unlock()
	w.drop(cancel, release)
}

// endLocked takes w out of the list. It reports whether w was in it, and returns the functions for
// drop. m.mu must be held.
func (w *monitor) endLocked() (isFirst bool, cancel, release func() bool) {
	if w.hasEnded {
		return false, nil, nil
	}
	w.hasEnded = true
	w.m.monitors.Remove(&w.place)
	cancel, release = w.cancel, w.release
	w.cancel, w.release = nil, nil
	return true, cancel, release
}

// drop ends OnEnd and AfterFunc, which refer to w. m.mu must not be held.
func (w *monitor) drop(cancel, release func() bool) {
	if cancel != nil {
		cancel()
	}
	if release != nil {
		release()
	}
}

// unmonitor ends the monitors of a mailbox that has been closed.
func (m *Mailbox) unmonitor() {
	for {
		m.mu.Lock()
		w := m.monitors.First()
		m.mu.Unlock()
		if w == nil {
			return
		}
		w.stop()
	}
}

// SPDX-License-Identifier: Apache-2.0

package dispatch

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/rocl-go/rocl/resource"
)

// A receive that selects messages of some resources would wait for ever once these have ended. So a
// receive that has waited for some milliseconds registers for their ends (OnEnd), and fails
// when all of them have ended. Until then it costs nothing: a timer of the mailbox checks the
// receivers that wait.

// originCheckEvery is the time between two checks. A receiver that was in the mailbox at one check
// gets a watch at the next.
const originCheckEvery = 10 * time.Millisecond

// originRetryAfter is the time after which register is called again for a resource with a context
// that was given up: the resource may live, and send.
const originRetryAfter = time.Second

// An originWatch belongs to one receive, and tells whether a message that it selects can still
// come. m.mu guards its fields except the first four.
type originWatch struct {
	m        *Mailbox
	w        *waiter // the receiver; nil once hasEnded is set
	ctx      context.Context
	end      context.CancelFunc
	left     int           // resources that have not ended
	undo     []func() bool // cancels the OnEnd of each of them
	again    *time.Timer   // calls register again; nil until first set
	hasEnded bool          // the receive has returned, or is about to
}

// origins returns the resources that s may select messages of, or nil if it may select messages of
// any resource.
func (s *Select) origins() []resource.GID {
	if s.more == nil || s.more.any == nil {
		return s.namedFrom()
	}
	var all []resource.GID
	for i := range s.more.any {
		froms := s.more.any[i].namedFrom()
		if froms == nil {
			return nil
		}
		all = append(all, froms...)
	}
	slices.SortFunc(all, resource.GID.Compare)
	return slices.Compact(all)
}

// namesOrigins reports whether s selects messages of some resources only.
func (s *Select) namesOrigins() bool { return s.hasFrom || s.more != nil && s.origins() != nil }

// startOriginTimerLocked starts the checks of receivers, after a receiver that names origins has
// begun to wait. mu must be held.
func (m *Mailbox) startOriginTimerLocked() {
	if m.originTimer == nil {
		m.originTimer = time.AfterFunc(originCheckEvery, m.checkOrigins)
	} else {
		m.originTimer.Reset(originCheckEvery)
	}
	m.isOriginTimerSet = true
}

// checkOrigins gives a watch to each receiver that names origins and was in the mailbox at the last
// check. It runs in the goroutine of the timer originTimer.
func (m *Mailbox) checkOrigins() {
	var begun []*originWatch
	m.mu.Lock()
	m.isOriginTimerSet = false
	for w := m.waiters.First(); w != nil; w = w.place.Next() {
		switch {
		case w.origins != nil || !w.sel.namesOrigins():
		case !w.isOld:
			w.isOld, m.isOriginTimerSet = true, true
		default:
			w.origins = &originWatch{m: m, w: w}
			w.origins.ctx, w.origins.end = context.WithCancel(m.d.ctx)
			begun = append(begun, w.origins)
		}
	}
	if m.isOriginTimerSet {
		m.originTimer.Reset(originCheckEvery)
	}
	for _, u := range begun {
		origins := u.w.sel.origins()
		u.left = len(origins)
		m.d.inBackground(func() { u.register(origins) })
	}
	m.mu.Unlock()
}

// register registers for the ends of some resources. No lock may be held.
func (u *originWatch) register(origins []resource.GID) {
	for _, id := range origins {
		undo, err := u.m.d.OnEnd(u.ctx, id.Context(), id.Serial(), func(err error) { u.noteEnd(id, err) })
		if err != nil {
			return // the receive ends, or its context closes
		}
		u.m.mu.Lock()
		hasEnded := u.hasEnded
		if !hasEnded {
			u.undo = append(u.undo, undo)
		}
		u.m.mu.Unlock()
		if hasEnded {
			undo()
			return
		}
	}
}

// noteEnd notes that a resource has ended, or its context was given up. It is called with the
// progress token held, or without.
func (u *originWatch) noteEnd(id resource.GID, err error) {
	m := u.m
	m.mu.Lock()
	defer m.mu.Unlock()
	switch {
	case u.hasEnded || errors.Is(err, ErrClosed):
	case errors.Is(err, ErrGone):
		if u.left--; u.left == 0 && u.w.place.IsListed() {
			m.waiters.remove(u.w)
			u.w.cause = fmt.Errorf("%w: %v has ended, and no message from it is left", ErrGone, id)
			if u.w.claim() {
				u.w.finish()
			}
		}
	default:
		u.again = time.AfterFunc(originRetryAfter, func() { m.d.inBackground(func() { u.register([]resource.GID{id}) }) })
	}
}

// stop ends the watch of a receive that no longer waits.
func (u *originWatch) stop() {
	u.m.mu.Lock()
	u.hasEnded = true
	undo, again := u.undo, u.again
	u.undo, u.w = nil, nil
	u.m.mu.Unlock()
	u.end()
	if again != nil {
		again.Stop()
	}
	for _, undo := range undo {
		undo()
	}
}

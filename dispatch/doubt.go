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
// receive that has waited for some milliseconds asks to be told of their ends (OnEnd), and fails
// when all of them have ended. Until then it costs nothing: a timer of the mailbox checks the
// receivers that wait.

// doubtAfter is the time between two checks. A receiver that was in the mailbox at one check gets a
// doubt at the next.
const doubtAfter = 10 * time.Millisecond

// doubtAgain is the time after which doubt.ask is called again for a resource with a context that
// was given up: the resource may live, and send.
const doubtAgain = time.Second

// A doubt belongs to one receive, and tells whether a message that it selects can still come. m.mu
// guards its fields except the first four.
type doubt struct {
	m      *Mailbox
	w      *waiter // the receiver; nil once isOver is set
	ctx    context.Context
	end    context.CancelFunc
	left   int           // resources that have not ended
	undo   []func() bool // cancels the OnEnd of each of them
	again  *time.Timer   // calls ask again; nil until first set
	isOver bool          // the receive has returned, or is about to
}

// origins returns the resources that s may select messages of, or nil if it may select messages of
// any resource.
func (s *Select) origins() []resource.GID {
	if s.more == nil || s.more.any == nil {
		return s.froms()
	}
	var all []resource.GID
	for i := range s.more.any {
		froms := s.more.any[i].froms()
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

// doubts starts the checks of receivers, after a receiver that names origins has begun to wait. mu
// must be held.
func (m *Mailbox) doubts() {
	if m.doubting == nil {
		m.doubting = time.AfterFunc(doubtAfter, m.lookAtDoubts)
	} else {
		m.doubting.Reset(doubtAfter)
	}
	m.isDoubting = true
}

// lookAtDoubts gives a doubt to each receiver that names origins and was in the mailbox at the last
// check. It runs in the goroutine of the timer doubting.
func (m *Mailbox) lookAtDoubts() {
	var begun []*doubt
	m.mu.Lock()
	m.isDoubting = false
	for w := m.waiters.first; w != nil; w = w.next {
		switch {
		case w.doubt != nil || !w.sel.namesOrigins():
		case !w.isOld:
			w.isOld, m.isDoubting = true, true
		default:
			w.doubt = &doubt{m: m, w: w}
			w.doubt.ctx, w.doubt.end = context.WithCancel(m.d.life)
			begun = append(begun, w.doubt)
		}
	}
	if m.isDoubting {
		m.doubting.Reset(doubtAfter)
	}
	for _, u := range begun {
		origins := u.w.sel.origins()
		u.left = len(origins)
		m.d.inBackground(func() { u.ask(origins) })
	}
	m.mu.Unlock()
}

// ask registers for the ends of some resources. No lock may be held.
func (u *doubt) ask(origins []resource.GID) {
	for _, id := range origins {
		undo, err := u.m.d.OnEnd(u.ctx, id.Context(), id.Serial(), func(err error) { u.told(id, err) })
		if err != nil {
			return // the receive ends, or its context closes
		}
		u.m.mu.Lock()
		isOver := u.isOver
		if !isOver {
			u.undo = append(u.undo, undo)
		}
		u.m.mu.Unlock()
		if isOver {
			undo()
			return
		}
	}
}

// told notes that a resource has ended, or its context was given up. It is called with the progress
// token held, or without.
func (u *doubt) told(id resource.GID, err error) {
	m := u.m
	m.mu.Lock()
	defer m.mu.Unlock()
	switch {
	case u.isOver || errors.Is(err, ErrClosed):
	case errors.Is(err, ErrGone):
		if u.left--; u.left == 0 && u.w.listed {
			m.waiters.remove(u.w)
			u.w.cause = fmt.Errorf("%w: %v has ended, and no message from it is left", ErrGone, id)
			if u.w.claim() {
				u.w.finish()
			}
		}
	default:
		u.again = time.AfterFunc(doubtAgain, func() { m.d.inBackground(func() { u.ask([]resource.GID{id}) }) })
	}
}

// over ends the doubt of a receive that no longer waits.
func (u *doubt) over() {
	u.m.mu.Lock()
	u.isOver = true
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

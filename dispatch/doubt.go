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

// A receive that selects messages of some resources would wait for ever once these have
// ended. So a receive that has waited for some milliseconds asks to be told of their ends
// (OnEnd), and fails when all have. Until then it costs nothing: a timer of the mailbox looks
// at the receivers that wait.

// doubtAfter is the time between two looks. A receive that was there at one look has a doubt
// at the next.
const doubtAfter = 10 * time.Millisecond

// doubtAgain is the time after which a resource whose context was given up is asked for again:
// it may live, and send.
const doubtAgain = time.Second

// A doubt is that of one receive, whether a message can come that it selects. Its fields but
// the first four are guarded by m.mu.
type doubt struct {
	m      *Mailbox
	w      *waiter // the receiver, until isOver
	ctx    context.Context
	end    context.CancelFunc
	left   int           // resources that have not ended
	undo   []func() bool // ends the waiting for them
	again  *time.Timer   // nil: not set yet
	isOver bool          // the receive has returned, or is about to
}

// origins returns the resources whose messages s may select, or nil if it may select those
// of any.
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

// doubts sees to it that the receivers are looked at, one of which names origins. mu must be
// held.
func (m *Mailbox) doubts() {
	if m.doubting == nil {
		m.doubting = time.AfterFunc(doubtAfter, m.lookAtDoubts)
	} else {
		m.doubting.Reset(doubtAfter)
	}
	m.isDoubting = true
}

// lookAtDoubts gives a doubt to each receiver that names origins and was there at the last
// look.
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

// ask asks to be told of the ends of some resources. No lock may be held.
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

// told notes that a resource has ended, or its context was given up. It is called with the
// progress token held, or without.
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

// over ends the doubt of a receive that does not wait any more.
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

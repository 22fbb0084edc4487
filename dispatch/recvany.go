// SPDX-License-Identifier: Apache-2.0

package dispatch

import (
	"context"
	"fmt"
	"math/rand/v2"
	"sync/atomic"
)

// A receiverGroup has the receivers of one RecvAny, one in each mailbox. The first mailbox that has
// a message for one of them, or is closed, claims the group, with the mailbox's lock held, and
// fires the lead. Later mailboxes pass such a receiver over. RecvAny claims the group itself when
// its context ends, so exactly one message is handed over, or none.
type receiverGroup struct {
	isClaimed atomic.Bool
	lead      *waiter // the waiter that RecvAny waits with, which is in no list
	by        *waiter // the receiver that the group was claimed for; nil: RecvAny claimed it
	boxes     []*Mailbox
	members   []*waiter // the receivers in the order of boxes; nil: not in that mailbox yet
}

// claim reports whether the group was free and is now the caller's.
func (u *receiverGroup) claim() bool { return u.isClaimed.CompareAndSwap(false, true) }

// claim reports whether w, which has been removed from its list, may be finished.
func (w *waiter) claim() bool { return w.group == nil || w.group.claim() }

// finish fires a receiver that has been claimed.
func (w *waiter) finish() {
	if u := w.group; u != nil {
		u.by = w
		u.lead.Fire()
		return
	}
	w.Fire()
}

// receiverLocked removes and returns the first receiver that msg is for, claimed, or nil. The
// caller finishes it. mu must be held.
func (m *Mailbox) receiverLocked(msg *Message) *waiter {
	for {
		w := m.waiters.findLocked(msg)
		if w == nil {
			return nil
		}
		if m.waiters.remove(w); w.claim() {
			return w
		}
	}
}

// RecvAny receives from several mailboxes of one Dispatcher, as [Mailbox.Recv] does from one. It
// returns the index of the mailbox that the message, or ErrClosed, comes from. The index is -1 with
// other errors, among them ErrGone, and ErrStuck of any of the mailboxes. If several mailboxes have
// a message, RecvAny chooses one of them at random. It fails with ErrSelect if boxes is empty, or
// if the mailboxes belong to several Dispatchers.
func RecvAny(ctx context.Context, boxes []*Mailbox, sel ...Select) (int, *Message, error) {
	var own Select
	f, err := merge(sel, &own)
	if err != nil {
		return -1, nil, err
	}
	d, err := dispatcherOf(boxes)
	if err != nil {
		return -1, nil, err
	}
	start := rand.IntN(len(boxes))
	if i, msg := receiveStored(boxes, start, f); msg != nil {
		return i, msg, nil
	}
	u := &receiverGroup{lead: d.waiter(), boxes: boxes, members: make([]*waiter, len(boxes))}
	for i := range boxes {
		if !u.join((start+i)%len(boxes), f) {
			break
		}
	}
	if err = d.progress.Wait(ctx, &u.lead.Waiter); err != nil {
		u.claim() // fails if a mailbox has claimed the group
	}
	u.leave()
	of, w := u.winner()
	msg, grantee, grant, cause := w.msg, w.grantee, w.grant, w.cause
	u.free(d)
	switch {
	case msg != nil:
		return of, boxes[of].finishHandOut(msg, grantee, grant), nil
	case cause != nil: // no mailbox will have a message
		return -1, nil, cause
	case of >= 0:
		err = ErrClosed
	default:
		err = d.Explain(err, f.namedFrom()...)
	}
	return of, nil, err
}

// dispatcherOf returns the Dispatcher of all boxes.
func dispatcherOf(boxes []*Mailbox) (*Dispatcher, error) {
	if len(boxes) == 0 {
		return nil, fmt.Errorf("%w: no mailbox to receive from", ErrSelect)
	}
	d := boxes[0].d
	for _, m := range boxes {
		if m.d != d {
			return nil, fmt.Errorf("%w: mailboxes of the contexts %v and %v", ErrSelect, d.self, m.d.self)
		}
	}
	return d, nil
}

// receiveStored receives the first stored message that f selects, from the first of boxes that has
// one, beginning at start. It returns nil if there is none.
func receiveStored(boxes []*Mailbox, start int, f *Select) (int, *Message) {
	for i := range boxes {
		i = (start + i) % len(boxes)
		m := boxes[i]
		if f.isAll() {
			if msg := m.open.take(); msg != nil {
				return i, msg
			}
		}
		m.mu.Lock()
		if msg := m.matchLocked(f); msg != nil {
			return i, m.handOutLocked(msg)
		}
		m.mu.Unlock()
	}
	return -1, nil
}

// join makes the group wait for a message of mailbox i. It reports false if the group has been
// claimed, for that mailbox or another one.
func (u *receiverGroup) join(i int, f *Select) bool {
	m := u.boxes[i]
	m.mu.Lock()
	w := m.d.waiter()
	w.sel, w.group = *f, u
	u.members[i] = w
	msg := m.findLocked(f)
	switch {
	case msg == nil && !m.closed && !u.isClaimed.Load():
		m.addReceiverLocked(w)
		return true
	case (msg != nil || m.closed) && u.claim():
		if msg != nil {
			m.unlinkLocked(msg)
			w.msg = msg
			w.grantee, w.grant = m.consumeLocked(msg)
		}
		w.finish()
	}
	m.mu.Unlock()
	return false
}

// leave takes the receivers out of their mailboxes. A mailbox that has claimed the group has
// finished with it once its lock can be taken again.
func (u *receiverGroup) leave() {
	for i, w := range u.members {
		if w == nil {
			continue
		}
		m := u.boxes[i]
		m.mu.Lock()
		if w.place.IsListed() {
			m.waiters.remove(w)
		}
		m.mu.Unlock()
		if w.origins != nil {
			w.origins.stop()
		}
	}
}

// winner returns the receiver that the group was claimed for, and the index of its mailbox. If
// RecvAny has claimed the group, it returns -1 and the lead, which has no message. leave must have
// been called.
func (u *receiverGroup) winner() (int, *waiter) {
	for i, w := range u.members {
		if w != nil && w == u.by {
			return i, w
		}
	}
	return -1, u.lead
}

// free gives the waiters back for reuse.
func (u *receiverGroup) free(d *Dispatcher) {
	for _, w := range u.members {
		if w != nil {
			w.group = nil
			d.doneWaiting(w)
		}
	}
	d.doneWaiting(u.lead)
}

// SPDX-License-Identifier: Apache-2.0

package dispatch

import (
	"sync/atomic"

	"github.com/rocl-go/rocl/dispatch/internal/list"
)

// receivers are the waiters of a mailbox for messages, first come first served. A message that
// comes is compared with the first few receivers. If it passes over more of them, these are put
// into queues by the key of what they select. After that a message checks the first receiver of
// each of three queues: those of its origin, of its tag, and of both. Then it checks, one by one,
// the receivers whose selectors have no single key. So a thousand receivers that wait for different
// replies delay no message, but receivers without a key do.
type receivers struct {
	waitlist
	isWaiting *atomic.Bool              // set while the list is not empty; nil: nobody asks
	queues    map[key]list.List[waiter] // key of kind 0: the receiver selects messages with no single key
	until     *waiter                   // this receiver and all before it are in queues; nil: none
	order     uint64                    // the order of the last receiver in a queue
	most      int                       // the most queues that there have been at once
}

// A queuePos is the position of a receiver in the queue of its key.
type queuePos struct {
	place list.Place[waiter]
	order uint64 // of two receivers, the first one has the lower order; 0: in no queue
}

// push appends w.
func (l *receivers) push(w *waiter) {
	l.waitlist.push(w)
	l.tell()
}

// findLocked returns the first receiver that msg is for, or nil. The mailbox's mu must be held.
func (l *receivers) findLocked(msg *Message) *waiter {
	w := l.First()
	if w == nil || w.sel.matches(msg) {
		return w
	}
	return l.findBehind(msg)
}

// findBehind is find for the case that msg is not for the first receiver.
func (l *receivers) findBehind(msg *Message) *waiter {
	if l.until != nil {
		var found *waiter
		for kind := uint64(byFrom); kind <= byBoth; kind++ {
			q := l.queues[keyOf(kind, msg.from, msg.tag)]
			if w := q.First(); w != nil && (found == nil || w.queuePos.order < found.queuePos.order) {
				found = w
			}
		}
		q := l.queues[key{}]
		for w := q.First(); w != nil && (found == nil || w.queuePos.order < found.queuePos.order); w = w.queuePos.place.Next() {
			if w.sel.matches(msg) {
				found = w
			}
		}
		if found != nil {
			return found
		}
	}
	first := l.First()
	if l.until != nil {
		first = l.until.place.Next()
	}
	w, passed := first, 0
	for ; w != nil && !w.sel.matches(msg); w = w.place.Next() {
		passed++
	}
	if passed > passedFew {
		for ; first != w; first = first.place.Next() {
			l.enqueue(first)
		}
	}
	return w
}

// enqueue adds w, the receiver behind until, to the queue of its key.
func (l *receivers) enqueue(w *waiter) {
	if l.queues == nil {
		l.queues = map[key]list.List[waiter]{}
	}
	k := w.sel.key()
	q := l.queues[k]
	l.order++
	w.queuePos.order = l.order
	q.PushBack(w, &w.queuePos.place)
	l.queues[k] = q
	l.most = max(l.most, len(l.queues))
	l.until = w
}

// remove removes w, which is in the list.
func (l *receivers) remove(w *waiter) {
	if w.queuePos.order != 0 {
		l.dequeue(w)
	}
	l.waitlist.remove(w)
	l.tell()
}

// tell sets isWaiting.
func (l *receivers) tell() {
	if has := l.First() != nil; l.isWaiting != nil && l.isWaiting.Load() != has {
		l.isWaiting.Store(has)
	}
}

// dequeue takes w out of its queue.
func (l *receivers) dequeue(w *waiter) {
	if l.until == w {
		l.until = w.place.Prev()
	}
	k := w.sel.key()
	q := l.queues[k]
	q.Remove(&w.queuePos.place)
	w.queuePos.order = 0
	if q.First() != nil {
		l.queues[k] = q
		return
	}
	delete(l.queues, k)
	if len(l.queues) == 0 && l.most > sparedSlots { // a map does not shrink
		l.queues, l.most = nil, 0
	}
}

// fireAll removes all receivers and fires them.
func (l *receivers) fireAll() {
	for w := l.First(); w != nil; w = l.First() {
		if l.remove(w); w.claim() {
			w.finish()
		}
	}
}

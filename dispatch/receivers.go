// SPDX-License-Identifier: Apache-2.0

package dispatch

// Receivers are the waiters of a mailbox for messages, first come first served. A message
// that comes is compared with the first few. Where it passes over more, these are put into
// queues by the key of what they select, of which a message looks at four. A receiver is
// passed over once, and so a thousand that wait for different replies delay no message.
type receivers struct {
	waitlist
	queues map[key]waitqueue // the key of kind 0: what is selected has no single key
	until  *waiter           // this receiver and those before are in queues; nil: none
	order  uint64            // of the last one in a queue
	most   int               // queues that there have been at once
}

// A waitqueue has the receivers of one key, in the order in which they came.
type waitqueue struct{ first, last *waiter }

// A place is that of a receiver in a waitqueue.
type place struct {
	next, prev *waiter
	order      uint64 // of two receivers the first one has the lesser order; 0: in no queue
}

// find returns the first receiver that msg is for, or nil. The mailbox must be locked.
func (l *receivers) find(msg *Message) *waiter {
	w := l.first
	if w == nil || w.sel.matches(msg) {
		return w
	}
	return l.findBehind(msg)
}

// findBehind is find where msg is not for the first receiver.
func (l *receivers) findBehind(msg *Message) *waiter {
	if l.until != nil {
		var found *waiter
		for kind := uint64(byFrom); kind <= byBoth; kind++ {
			if w := l.queues[keyOf(kind, msg.from, msg.tag)].first; w != nil && (found == nil || w.place.order < found.place.order) {
				found = w
			}
		}
		for w := l.queues[key{}].first; w != nil && (found == nil || w.place.order < found.place.order); w = w.place.next {
			if w.sel.matches(msg) {
				found = w
			}
		}
		if found != nil {
			return found
		}
	}
	first := l.first
	if l.until != nil {
		first = l.until.next
	}
	w, passed := first, 0
	for ; w != nil && !w.sel.matches(msg); w = w.next {
		passed++
	}
	if passed > passedFew {
		for ; first != w; first = first.next {
			l.enqueue(first)
		}
	}
	return w
}

func (l *receivers) enqueue(w *waiter) {
	if l.queues == nil {
		l.queues = map[key]waitqueue{}
	}
	k := w.sel.key()
	q := l.queues[k]
	l.order++
	w.place = place{prev: q.last, order: l.order}
	if q.last != nil {
		q.last.place.next = w
	} else {
		q.first = w
	}
	q.last = w
	l.queues[k] = q
	l.most = max(l.most, len(l.queues))
	l.until = w
}

// remove removes w, which is in the list.
func (l *receivers) remove(w *waiter) {
	if w.place.order != 0 {
		l.dequeue(w)
	}
	l.waitlist.remove(w)
}

func (l *receivers) dequeue(w *waiter) {
	if l.until == w {
		l.until = w.prev
	}
	k := w.sel.key()
	q := l.queues[k]
	if w.place.prev != nil {
		w.place.prev.place.next = w.place.next
	} else {
		q.first = w.place.next
	}
	if w.place.next != nil {
		w.place.next.place.prev = w.place.prev
	} else {
		q.last = w.place.prev
	}
	w.place = place{}
	if q.first != nil {
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
	for l.first != nil {
		w := l.first
		if l.remove(w); w.claim() {
			w.finish()
		}
	}
}

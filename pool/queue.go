// SPDX-License-Identifier: Apache-2.0

package pool

import (
	"context"
	"time"
)

// item is a unit in a pool.
type item struct {
	Unit
	ctx    context.Context
	at     time.Duration // when it was submitted, since the epoch of the set
	seq    uint64        // its number, where the queue needs one
	ticket *Ticket       // nil: nothing refers to the unit
}

func (it *item) isGap() bool { return it.Run == nil }

func (it *item) setPlace(at uint64) {
	if it.ticket != nil {
		it.ticket.place = at
	}
}

// queue is the order in which a pool gives out its units. Its pool's lock is held.
type queue interface {
	push(it item)
	pop() item                     // the next unit that may run; called only where ready is not 0
	ended(key uint64)              // a unit of this key, which pop gave out, has ended
	remove(key, place uint64) item // takes out the unit of this key with a ticket that has this place
	drain() []item                 // takes out all units, in the order in which they would run
	ready() int                    // units that pop could give out now
	len() int                      // units in the queue
	busy(key uint64) bool          // units of this key run, or wait, and others of it have to wait for them
}

func newQueue(p Policy) queue {
	switch p {
	case Priority:
		return &heap{before: higherPriority}
	case EarliestFirst:
		return &heap{before: earlierDeadline}
	case Keyed:
		return &keyed{lines: make(map[uint64]*line)}
	}
	return &fifo{}
}

// popAll takes out all units of a queue in which each may run.
func popAll(q queue) []item {
	all := make([]item, 0, q.len())
	for q.len() > 0 {
		all = append(all, q.pop())
	}
	return all
}

// fifo gives its units out in the order of submission.
type fifo struct{ ring[item, *item] }

func (q *fifo) ended(uint64)                {}
func (q *fifo) remove(_, place uint64) item { return q.ring.remove(place) }
func (q *fifo) drain() []item               { return popAll(q) }
func (q *fifo) ready() int                  { return q.n }
func (q *fifo) len() int                    { return q.n }
func (q *fifo) busy(uint64) bool            { return q.n > 0 }

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
	at     time.Duration // time of submission since the epoch of the set
	seq    uint64        // sequence number, if the queue needs one
	ticket *Ticket       // nil if nothing refers to the unit
}

func (it *item) isGap() bool { return it.Run == nil }

func (it *item) setPosition(at uint64) {
	if it.ticket != nil {
		it.ticket.position = at
	}
}

// queue is the queue of a pool in the order of its policy. Its methods are called with the pool's
// lock held.
type queue interface {
	push(it item)
	pop() item                        // the next unit that may run; ready must not be 0
	ended(key uint64)                 // a unit of this key that pop returned has ended
	remove(key, position uint64) item // removes the unit with this key and this position in its ticket
	drain() []item                    // removes all units, in the order in which they would run
	ready() int                       // number of units that pop could return now
	len() int                         // number of units
	busy(key uint64) bool             // whether a further unit of this key would have to wait for others
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

// popAll removes all units of a queue in which each unit may run.
func popAll(q queue) []item {
	all := make([]item, 0, q.len())
	for q.len() > 0 {
		all = append(all, q.pop())
	}
	return all
}

// fifo returns its units in the order of submission.
type fifo struct{ ring[item, *item] }

func (q *fifo) ended(uint64)                   {}
func (q *fifo) remove(_, position uint64) item { return q.ring.remove(position) }
func (q *fifo) drain() []item                  { return popAll(q) }
func (q *fifo) ready() int                     { return q.n }
func (q *fifo) len() int                       { return q.n }
func (q *fifo) busy(uint64) bool               { return q.n > 0 }

// SPDX-License-Identifier: Apache-2.0

package pool

import (
	"context"
	"time"
)

// item is a unit in a pool.
type item struct {
	Unit
	ctx context.Context
	at  time.Duration // when it was submitted, since the epoch of the set
	seq uint64        // its number, where the queue needs one
}

// queue is the order in which a pool gives out its units. Its pool's lock is held.
type queue interface {
	push(it item)
	pop() item        // the next unit that may run; called only where ready is not 0
	ended(key uint64) // a unit of this key, which pop gave out, has ended
	ready() int       // units that pop could give out now
	len() int         // units in the queue
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

// fifo gives its units out in the order of submission.
type fifo struct{ ring[item] }

func (q *fifo) ended(uint64) {}
func (q *fifo) ready() int   { return q.n }
func (q *fifo) len() int     { return q.n }

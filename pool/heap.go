// SPDX-License-Identifier: Apache-2.0

package pool

// heap is a binary heap. Units that are equal in its order are in the order of submission.
// (container/heap would allocate for each unit.)
type heap struct {
	before func(a, b *item) bool
	items  []item
	seq    uint64
}

func higherPriority(a, b *item) bool { return a.Priority > b.Priority }

// earlierDeadline reports whether a has the earlier deadline. Units without a deadline come last.
func earlierDeadline(a, b *item) bool {
	if a.Deadline.IsZero() || b.Deadline.IsZero() {
		return !a.Deadline.IsZero() && b.Deadline.IsZero()
	}
	return a.Deadline.Before(b.Deadline)
}

func (q *heap) less(i, j int) bool {
	a, b := &q.items[i], &q.items[j]
	return q.before(a, b) || !q.before(b, a) && a.seq < b.seq
}

func (q *heap) push(it item) {
	q.seq++
	it.seq = q.seq
	q.items = append(q.items, it)
	q.up(len(q.items) - 1)
}

// up moves the item at i up while it comes before its parent.
func (q *heap) up(i int) {
	for i > 0 {
		parent := (i - 1) / 2
		if !q.less(i, parent) {
			break
		}
		q.swap(i, parent)
		i = parent
	}
	q.items[i].setPosition(uint64(i))
}

// down moves the item at i down while a child comes before it.
func (q *heap) down(i int) {
	for n := len(q.items); ; {
		child := 2*i + 1
		if child+1 < n && q.less(child+1, child) {
			child++
		}
		if child >= n || !q.less(child, i) {
			break
		}
		q.swap(i, child)
		i = child
	}
	q.items[i].setPosition(uint64(i))
}

// swap exchanges two items, of which the one at moving has not reached its position. It sets the
// position of the other one only.
func (q *heap) swap(i, moving int) {
	q.items[i], q.items[moving] = q.items[moving], q.items[i]
	q.items[i].setPosition(uint64(i))
}

func (q *heap) pop() item { return q.remove(0, 0) }

func (q *heap) remove(_, position uint64) item {
	i, last := int(position), len(q.items)-1
	it := q.items[i]
	q.items[i], q.items[last] = q.items[last], item{}
	q.items = q.items[:last]
	if last == 0 && cap(q.items) > maxKeptItems {
		q.items = nil
	}
	if i < last {
		q.down(i)
		q.up(i)
	}
	return it
}

func (q *heap) ended(uint64)     {}
func (q *heap) drain() []item    { return popAll(q) }
func (q *heap) ready() int       { return len(q.items) }
func (q *heap) len() int         { return len(q.items) }
func (q *heap) busy(uint64) bool { return len(q.items) > 0 }

// SPDX-License-Identifier: Apache-2.0

package pool

// heap is a binary heap. Units of which neither is before the other come in the order of
// submission. (container/heap would allocate for each unit.)
type heap struct {
	before func(a, b *item) bool
	items  []item
	seq    uint64
}

func higherPriority(a, b *item) bool { return a.Priority > b.Priority }

// earlierDeadline puts units without a deadline behind those that have one.
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
	for i := len(q.items) - 1; i > 0; {
		parent := (i - 1) / 2
		if !q.less(i, parent) {
			break
		}
		q.items[i], q.items[parent] = q.items[parent], q.items[i]
		i = parent
	}
}

func (q *heap) pop() item {
	it, last := q.items[0], len(q.items)-1
	q.items[0], q.items[last] = q.items[last], item{}
	q.items = q.items[:last]
	if last == 0 && cap(q.items) > keepRoom {
		q.items = nil
	}
	for i := 0; ; {
		child := 2*i + 1
		if child >= last {
			return it
		}
		if child+1 < last && q.less(child+1, child) {
			child++
		}
		if !q.less(child, i) {
			return it
		}
		q.items[i], q.items[child] = q.items[child], q.items[i]
		i = child
	}
}

func (q *heap) ended(uint64) {}
func (q *heap) ready() int   { return len(q.items) }
func (q *heap) len() int     { return len(q.items) }

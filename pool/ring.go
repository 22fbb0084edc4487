// SPDX-License-Identifier: Apache-2.0

package pool

// keepRoom is for how many items an empty queue keeps memory.
const keepRoom = 1024

// ring is a first-in first-out queue that grows. The length of items is a power of two.
type ring[T any] struct {
	items    []T
	first, n int
}

func (r *ring[T]) push(v T) {
	if r.n == len(r.items) {
		items := make([]T, max(8, 2*r.n))
		k := copy(items, r.items[r.first:])
		copy(items[k:], r.items[:r.first])
		r.items, r.first = items, 0
	}
	r.items[(r.first+r.n)&(len(r.items)-1)] = v
	r.n++
}

func (r *ring[T]) pop() T {
	var none T
	v := r.items[r.first]
	r.items[r.first] = none
	r.first = (r.first + 1) & (len(r.items) - 1)
	r.n--
	if r.n == 0 && len(r.items) > keepRoom {
		*r = ring[T]{}
	}
	return v
}

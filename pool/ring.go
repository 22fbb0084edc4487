// SPDX-License-Identifier: Apache-2.0

package pool

// maxKeptItems is the largest number of items for which an empty queue keeps memory.
const maxKeptItems = 1024

// entry is an element of a ring. Its zero value is a gap.
type entry[T any] interface {
	*T
	isGap() bool
	setPosition(at uint64) // stores the position of the entry, for remove
}

// ring is a first-in first-out queue that grows, and from which entries may be removed at any
// position. The length of entries is a power of two. The entry at position i is in
// entries[i%len(entries)]. The first entry is not a gap.
type ring[T any, E entry[T]] struct {
	entries    []T
	first, end uint64 // places of the first entry and after the last one
	n          int    // number of entries that are not gaps
}

func (r *ring[T, E]) slot(at uint64) E { return &r.entries[at&uint64(len(r.entries)-1)] }

func (r *ring[T, E]) push(v T) {
	if int(r.end-r.first) == len(r.entries) {
		r.grow()
	}
	e := r.slot(r.end)
	*e = v
	e.setPosition(r.end)
	r.end++
	r.n++
}

// grow makes room: it doubles the memory, or drops the gaps if half the entries are gaps.
func (r *ring[T, E]) grow() {
	old := *r
	if 2*r.n > len(r.entries) || r.n == 0 {
		r.entries = make([]T, max(8, 2*len(r.entries)))
		for at := r.first; at != r.end; at++ {
			*r.slot(at) = *old.slot(at)
		}
		return
	}
	*r = ring[T, E]{entries: make([]T, len(r.entries))}
	for at := old.first; at != old.end; at++ {
		if e := old.slot(at); !e.isGap() {
			r.push(*e)
		}
	}
}

func (r *ring[T, E]) pop() T { return r.remove(r.first) }

// remove removes the entry at a position and returns it.
func (r *ring[T, E]) remove(at uint64) T {
	var gap T
	e := r.slot(at)
	v := *e
	*e = gap
	r.n--
	for r.first != r.end && r.slot(r.first).isGap() {
		r.first++
	}
	if r.n == 0 && len(r.entries) > maxKeptItems {
		*r = ring[T, E]{}
	}
	return v
}

// SPDX-License-Identifier: Apache-2.0

// Package histogram counts how large things are, at the price of two atomic
// additions each, for whoever wants to export it.
package histogram

import (
	"math/bits"
	"sync/atomic"
)

// Buckets is how many there are; the last has all that is larger.
const Buckets = 24

// A Histogram has a bucket for each power of two. The zero value counts from 1
// on; of durations it is made with [Durations]. It may be used concurrently.
type Histogram struct {
	shift   uint
	sum     atomic.Uint64
	buckets [Buckets]atomic.Uint64
}

// Durations returns a histogram of nanoseconds, whose first bucket ends at
// 1.024 µs and whose last but one at 4.3 s.
func Durations() *Histogram { return &Histogram{shift: 10} }

// Observe counts one thing.
func (h *Histogram) Observe(size uint64) {
	n := 0
	if size > 0 {
		n = bits.Len64((size - 1) >> h.shift)
	}
	h.buckets[min(n, Buckets-1)].Add(1)
	h.sum.Add(size)
}

// A Snapshot is what a Histogram has counted.
type Snapshot struct {
	Count, Sum uint64
	Bounds     []uint64 // the largest size in each bucket but the last, which has none
	Below      []uint64 // how many are not larger than the bound
}

// Snapshot returns what was counted. What is observed meanwhile may be in the
// sum and not yet in the count, or the other way round.
func (h *Histogram) Snapshot() Snapshot {
	s := Snapshot{Sum: h.sum.Load(), Bounds: make([]uint64, Buckets-1), Below: make([]uint64, Buckets-1)}
	for i := range h.buckets {
		s.Count += h.buckets[i].Load()
		if i < len(s.Bounds) {
			s.Bounds[i], s.Below[i] = 1<<(uint(i)+h.shift), s.Count
		}
	}
	return s
}

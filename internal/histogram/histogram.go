// SPDX-License-Identifier: Apache-2.0

// Package histogram counts sizes and durations for metrics. A count costs two atomic additions.
package histogram

import (
	"math/bits"
	"sync/atomic"
)

// bucketCount is the number of buckets. The last one has all larger sizes.
const bucketCount = 24

// A Histogram has a bucket for each power of two. The first bucket of the zero value ends at 1. A
// histogram of durations is made with [Durations]. It may be used concurrently.
type Histogram struct {
	shift   uint
	sum     atomic.Uint64
	buckets [bucketCount]atomic.Uint64
}

// Durations returns a histogram of nanoseconds. Its first bucket ends at 1.024 µs, and the last but
// one at 4.3 s.
func Durations() *Histogram { return &Histogram{shift: 10} }

// Observe counts one size.
func (h *Histogram) Observe(size uint64) {
	n := 0
	if size > 0 {
		n = bits.Len64((size - 1) >> h.shift)
	}
	h.buckets[min(n, bucketCount-1)].Add(1)
	h.sum.Add(size)
}

// A Snapshot has the counts of a Histogram at one moment.
type Snapshot struct {
	Count, Sum uint64
	Bounds     []uint64 // the largest size of each bucket except the last, which has none
	Below      []uint64 // for each bound, the number of sizes up to it
}

// Snapshot returns the counts. A size observed meanwhile may be in the sum and not yet in the
// count, or the reverse.
func (h *Histogram) Snapshot() Snapshot {
	s := Snapshot{Sum: h.sum.Load(), Bounds: make([]uint64, bucketCount-1), Below: make([]uint64, bucketCount-1)}
	for i := range h.buckets {
		s.Count += h.buckets[i].Load()
		if i < len(s.Bounds) {
			s.Bounds[i], s.Below[i] = 1<<(uint(i)+h.shift), s.Count
		}
	}
	return s
}

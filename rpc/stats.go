// SPDX-License-Identifier: Apache-2.0

package rpc

import (
	"cmp"
	"math/bits"
	"slices"
	"sync/atomic"
	"time"
)

// MethodStats has the figures of one call that a server offers.
type MethodStats struct {
	Name      string        `json:"name"`
	Calls     uint64        `json:"calls"`     // handlers that have returned
	Errors    uint64        `json:"errors"`    // handlers that have returned with an error
	Running   int64         `json:"running"`   // handlers that run now
	Refused   uint64        `json:"refused"`   // requests refused because the pool had no room
	Overflows uint64        `json:"overflows"` // arguments and results that were larger than the limit: see WithOverflow
	P50       time.Duration `json:"p50"`       // median time from the request's arrival to the handler's return; of one call in eight if the handler is Inline
	P99       time.Duration `json:"p99"`
	Longest   time.Duration `json:"longest"`
	Total     time.Duration `json:"total"` // sum of the durations that Took counts
	Took      []Took        `json:"took"`  // the durations that P50 and P99 are made of, from short to long
}

// A Took counts the calls whose duration was at most Most and longer than the Most of any shorter
// Took. Its length is a quarter of an octave.
type Took struct {
	Most  time.Duration `json:"most"`
	Calls uint64        `json:"calls"` // at least 1
}

// methodStats has the counters of MethodStats.
type methodStats struct {
	begun     atomic.Uint64
	ran       atomic.Uint64
	errors    atomic.Uint64
	refused   atomic.Uint64
	overflows atomic.Uint64
	longest   atomic.Int64
	total     atomic.Int64
	took      [spans]atomic.Uint64
}

// spans is the number of spans of the histogram of durations. A span is a quarter of an octave of
// nanoseconds.
const spans = 4 * 64

func spanOf(d time.Duration) int {
	n := uint64(max(d, 4))
	octave := bits.Len64(n) - 1
	return 4*octave + int(n>>(octave-2)&3)
}

// most returns the longest duration of a span.
func most(span int) time.Duration {
	octave, quarter := span/4, uint64(span%4)
	return time.Duration((5+quarter)<<(octave-2) - 1)
}

// timeOne is how many calls of an Inline handler there are for each one that is timed. Two readings
// of the clock take as long as the other work of a short handler.
const timeOne = 8

// ended counts a call that arrived at the time came. The zero time means that the call is not
// timed.
func (s *methodStats) ended(came time.Time, err error) {
	s.ran.Add(1)
	if err != nil {
		s.errors.Add(1)
	}
	if came.IsZero() {
		return
	}
	d := time.Since(came)
	s.took[spanOf(d)].Add(1)
	s.total.Add(int64(d))
	for {
		l := s.longest.Load()
		if int64(d) <= l || s.longest.CompareAndSwap(l, int64(d)) {
			return
		}
	}
}

func (s *methodStats) stats(name string) MethodStats {
	out := MethodStats{Name: name, Calls: s.ran.Load(), Errors: s.errors.Load(), Refused: s.refused.Load(), Overflows: s.overflows.Load(), Longest: time.Duration(s.longest.Load()), Total: time.Duration(s.total.Load()), Took: []Took{}}
	out.Running = int64(s.begun.Load() - out.Calls)
	var timed uint64
	for i := range s.took {
		if n := s.took[i].Load(); n > 0 {
			out.Took = append(out.Took, Took{most(i), n})
			timed += n
		}
	}
	quantile := func(q float64) time.Duration {
		left := uint64(q * float64(timed))
		for _, t := range out.Took {
			if t.Calls > left {
				return min(t.Most, out.Longest)
			}
			left -= t.Calls
		}
		return out.Longest
	}
	out.P50, out.P99 = quantile(0.5), quantile(0.99)
	return out
}

// Stats returns the figures of the calls that the server offers, in the order of their names. The
// calls that every server offers (StatsOf, TypesOf) are left out.
func (s *Server) Stats() []MethodStats {
	var all []MethodStats
	for _, m := range *s.names.Load() {
		if !m.isOwn() {
			all = append(all, m.stats.stats(m.name))
		}
	}
	slices.SortFunc(all, func(a, b MethodStats) int { return cmp.Compare(a.Name, b.Name) })
	return all
}

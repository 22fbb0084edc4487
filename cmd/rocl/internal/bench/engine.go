// SPDX-License-Identifier: Apache-2.0

package bench

import (
	"context"
	"errors"
	"runtime"
	"slices"
	"time"

	"github.com/HdrHistogram/hdrhistogram-go"
)

// A loop is one side of a comparison. It moves n messages, or as many as it always moves, and adds
// to t what that took.
type loop func(n int, t *times)

// warmUp limits the messages of the first round, which does not count.
const warmUp = 500

// measure runs the loops in turn: a round of each, with count messages, then the next round of
// each. It returns the figures of each loop.
func measure(rounds, count int, loops ...loop) []*times {
	all := make([]*times, len(loops))
	where := look()
	for round := -1; round < rounds; round++ {
		n := count
		if round < 0 {
			n = min(n, warmUp)
		}
		for i, l := range loops {
			if round <= 0 {
				all[i] = newTimes()
			}
			before := mallocs()
			l(n, all[i])
			all[i].allocs = (mallocs() - before) / float64(n)
		}
		where = where.and(look())
	}
	for _, t := range all {
		t.place = where
	}
	return all
}

// mallocs returns the number of allocations of this process so far.
func mallocs() float64 {
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return float64(m.Mallocs)
}

// times has the figures of one loop.
type times struct {
	each   []float64               // the figure of each round: the median in microseconds, or a rate
	all    *hdrhistogram.Histogram // the single times of all rounds, in nanoseconds
	allocs float64                 // allocations of this process for each message of the last round
	place  place                   // of the processors during all rounds
}

func newTimes() *times { return &times{all: hdrhistogram.New(1, int64(time.Minute), 3)} }

// limit returns the figures of a loop that always takes v: a fixed limit to compare with.
func limit(v float64) *times {
	t := newTimes()
	t.each = []float64{v}
	return t
}

// mid returns the median of the rounds.
func (t *times) mid() float64 { return median(t.each) }

// quantile returns a quantile of the single times, in microseconds.
func (t *times) quantile(q float64) float64 { return float64(t.all.ValueAtQuantile(q)) / 1e3 }

// timed measures count calls of f, which returns how long size messages took.
func (t *times) timed(count, size int, f func() time.Duration) {
	h := newTimes().all
	for range count {
		_ = h.RecordValue(max((int64(f())+int64(size)/2)/int64(size), 1))
	}
	t.each = append(t.each, float64(h.ValueAtQuantile(50))/1e3)
	t.all.Merge(h)
}

// round measures count calls of f.
func (t *times) round(count int, f func()) {
	t.timed(count, 1, func() time.Duration {
		start := time.Now()
		f()
		return time.Since(start)
	})
}

// batch measures calls of f in groups of sixteen, because reading the clock would distort shorter
// times. It calls f count times, or fewer if ctx ends.
func (t *times) batch(ctx context.Context, count int, f func()) {
	size := min(count, 16)
	t.timed(count/size, size, func() time.Duration {
		proceed(ctx)
		start := time.Now()
		for range size {
			f()
		}
		return time.Since(start)
	})
	for range count % size {
		f()
	}
}

// rate adds how many units a second f moves, units in all.
func (t *times) rate(units int, f func()) {
	start := time.Now()
	f()
	t.each = append(t.each, float64(units)/time.Since(start).Seconds())
}

func median(v []float64) float64 {
	if len(v) == 0 {
		return 0
	}
	s := slices.Sorted(slices.Values(v))
	return (s[(len(s)-1)/2] + s[len(s)/2]) / 2
}

// A failure is an error that ends a bench. Nothing goes on after an error, so check panics with a
// failure, and attempt, below each goroutine, turns it into an error again.
type failure struct{ error }

// check fails with err, if that is not nil.
func check(err error) {
	if err != nil {
		panic(failure{err})
	}
}

// must returns v, or fails with err.
func must[T any](v T, err error) T {
	check(err)
	return v
}

// proceed fails if ctx has ended.
func proceed(ctx context.Context) {
	if ctx.Err() != nil {
		check(context.Cause(ctx))
	}
}

// attempt runs f, and returns the error with which f has failed.
func attempt(f func()) (err error) {
	defer func() {
		switch r := recover().(type) {
		case nil:
		case failure:
			err = r.error
		default:
			panic(r)
		}
	}()
	f()
	return nil
}

// concurrently runs f in n goroutines, and waits for all of them.
func concurrently(n int, f func(i int)) {
	failed := make(chan error, n)
	for i := range n {
		go func() { failed <- attempt(func() { f(i) }) }()
	}
	var errs []error
	for range n {
		errs = append(errs, <-failed)
	}
	check(errors.Join(errs...))
}

// share runs f n times, in some goroutines that share the calls.
func share(goroutines, n int, f func()) {
	concurrently(goroutines, func(i int) {
		for range (n + i) / goroutines { // the sum over all goroutines is n
			f()
		}
	})
}

// sleep waits for d, and fails if ctx ends.
func sleep(ctx context.Context, d time.Duration) {
	select {
	case <-time.After(d):
	case <-ctx.Done():
		check(context.Cause(ctx))
	}
}

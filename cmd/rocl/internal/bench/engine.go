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
type loop func(n int, t *times) error

// warmUp limits the messages of the first round, which does not count.
const warmUp = 500

// measure runs the loops in turn: a round of each, with count messages, then the next round of
// each. It returns the figures of each loop.
func measure(rounds, count int, loops ...loop) ([]*times, error) {
	all := make([]*times, len(loops))
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
			if err := l(n, all[i]); err != nil {
				return nil, err
			}
			all[i].allocs = (mallocs() - before) / float64(n)
		}
	}
	return all, nil
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
func (t *times) timed(count, size int, f func() (time.Duration, error)) error {
	h := newTimes().all
	for range count {
		d, err := f()
		if err != nil {
			return err
		}
		_ = h.RecordValue(max((int64(d)+int64(size)/2)/int64(size), 1))
	}
	t.each = append(t.each, float64(h.ValueAtQuantile(50))/1e3)
	t.all.Merge(h)
	return nil
}

// round measures count calls of f.
func (t *times) round(count int, f func() error) error {
	return t.timed(count, 1, clocked(f))
}

// batch measures calls of f in groups of sixteen, because reading the clock would distort shorter
// times. It calls f count times, or fewer if ctx ends.
func (t *times) batch(ctx context.Context, count int, f func() error) error {
	size := min(count, 16)
	err := t.timed(count/size, size, clocked(func() error {
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		for range size {
			if err := f(); err != nil {
				return err
			}
		}
		return nil
	}))
	for i := count / size * size; i < count && err == nil; i++ {
		err = f()
	}
	return err
}

// clocked returns a function that calls f and returns how long that took.
func clocked(f func() error) func() (time.Duration, error) {
	return func() (time.Duration, error) {
		start := time.Now()
		err := f()
		return time.Since(start), err
	}
}

// rate adds how many units a second f moves, units in all.
func (t *times) rate(units float64, f func() error) error {
	start := time.Now()
	err := f()
	t.each = append(t.each, units/time.Since(start).Seconds())
	return err
}

// batched returns a loop of calls of f that are measured in groups.
func batched(ctx context.Context, f func() error) loop {
	return func(n int, t *times) error { return t.batch(ctx, n, f) }
}

// concurrently runs f in n goroutines, and waits for all of them.
func concurrently(n int, f func(i int) error) error {
	failed := make(chan error, n)
	for i := range n {
		go func() { failed <- f(i) }()
	}
	var errs []error
	for range n {
		if err := <-failed; err != nil {
			errs = append(errs, err)
		}
	}
	return errors.Join(errs...)
}

// sleep waits for d, or until ctx ends.
func sleep(ctx context.Context, d time.Duration) error {
	select {
	case <-time.After(d):
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

func median(v []float64) float64 {
	if len(v) == 0 {
		return 0
	}
	s := slices.Sorted(slices.Values(v))
	return (s[(len(s)-1)/2] + s[len(s)/2]) / 2
}

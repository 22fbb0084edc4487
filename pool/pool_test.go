// SPDX-License-Identifier: Apache-2.0

package pool

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"runtime/metrics"
	"runtime/pprof"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"

	"github.com/rocl-go/rocl/internal/testkit/eventually"
	"github.com/rocl-go/rocl/internal/testkit/try"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// newSet returns a set that is closed at the end of the test.
func newSet(t testing.TB, c Config, opts ...Option) *Set {
	t.Helper()
	s := try.Get(NewSet(c, opts...))(t)
	t.Cleanup(func() { closeSet(t, s) })
	return s
}

func closeSet(t try.TB, s *Set) {
	ctx, cancel := context.WithTimeout(context.Background(), eventually.Timeout)
	defer cancel()
	try.Check(t, s.Close(ctx))
}

// onePool is a configuration with this pool.
func onePool(p PoolConfig) Config { return Config{Pools: []PoolConfig{p}} }

func submit(t testing.TB, p *Pool, run func(context.Context)) {
	t.Helper()
	try.Check(t, p.Submit(context.Background(), Unit{Run: run}))
}

// hold keeps a worker of the pool busy from now until release is called.
func hold(t testing.TB, p *Pool) (release func()) {
	t.Helper()
	started, end := make(chan struct{}), make(chan struct{})
	submit(t, p, func(context.Context) { close(started); <-end })
	<-started
	release = sync.OnceFunc(func() { close(end) })
	t.Cleanup(release)
	return release
}

// refused checks the kinds and the text of the error of a call.
func refused(results ...any) func(t testing.TB, text string, kinds ...error) {
	return func(t testing.TB, text string, kinds ...error) {
		t.Helper()
		err, _ := results[len(results)-1].(error)
		wantError(t, err, text, kinds...)
	}
}

// wantError checks an error's kinds and text.
func wantError(t testing.TB, err error, text string, kinds ...error) {
	t.Helper()
	if err == nil || err.Error() != text {
		t.Errorf("error %v, want %s", err, text)
	}
	for _, kind := range kinds {
		if !errors.Is(err, kind) {
			t.Errorf("error %v does not match %v", err, kind)
		}
	}
}

// Promise (Package pool): A bounded queue refuses units, or lets calls wait in order.
func TestReject(t *testing.T) {
	p := newSet(t, onePool(PoolConfig{Name: "small", Workers: 1, Queue: 2})).Default()
	release := hold(t, p)
	var ran atomic.Int32
	for range 2 {
		submit(t, p, func(context.Context) { ran.Add(1) })
	}
	u := Unit{Run: func(context.Context) { ran.Add(1) }}
	err := p.Submit(context.Background(), u)
	wantError(t, err, `pool: submit "small": the queue is full (limit 2)`, ErrFull)
	release()
	eventually.True(t, "room", func() bool { return p.Submit(context.Background(), u) == nil })
	eventually.True(t, "three units have run", func() bool { return ran.Load() == 3 })
}

func TestWait(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newSet(t, onePool(PoolConfig{Name: "small", Workers: 1, Queue: 1, WhenFull: WaitWhenFull}))
		p := s.Default()
		release := hold(t, p)
		var order []int
		for i := range 5 {
			go submit(t, p, func(context.Context) { order = append(order, i) })
			synctest.Wait() // so that the calls come in order
		}
		if n := p.Stats().Waiting; n != 4 {
			t.Errorf("%d calls wait, want 4", n)
		}
		ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
		defer cancel()
		begin := time.Now()
		err := p.Submit(ctx, Unit{Run: func(context.Context) { t.Error("ran") }})
		wantError(t, err, `pool: submit "small": the queue is full (limit 1): context deadline exceeded`, ErrFull, context.DeadlineExceeded)
		try.Equal(t, time.Since(begin), time.Minute, "gave up after")
		release()
		synctest.Wait() // Close would refuse the calls that wait
		closeSet(t, s)
		try.Equal(t, fmt.Sprint(order), "[0 1 2 3 4]", "order")
	})
}

// TestWaitClosed checks that Close ends calls of Submit that wait.
func TestWaitClosed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newSet(t, onePool(PoolConfig{Name: "small", Workers: 1, Queue: 1, WhenFull: WaitWhenFull}))
		release := hold(t, s.Default())
		submit(t, s.Default(), func(context.Context) {})
		ended := make(chan error)
		go func() {
			ended <- s.Default().Submit(context.Background(), Unit{Run: func(context.Context) { t.Error("ran") }})
		}()
		synctest.Wait()
		go closeSet(t, s)
		wantError(t, <-ended, `pool: submit "small": closed`, ErrClosed)
		release()
	})
}

func TestSubmitWithoutRun(t *testing.T) {
	wantError(t, newSet(t, Config{}).Default().Submit(context.Background(), Unit{}),
		`pool: submit "default": the unit has no function Run`)
}

// TestContext checks that a unit runs with the context of Submit, also where that has ended.
func TestContext(t *testing.T) {
	type key struct{}
	ctx, cancel := context.WithCancel(context.WithValue(context.Background(), key{}, "value"))
	cancel()
	for _, policy := range []Policy{FIFO, Inline} {
		got := make(chan any, 1)
		p := newSet(t, onePool(PoolConfig{Policy: policy})).Default()
		try.OK(t, p.Submit(ctx, Unit{Run: func(ctx context.Context) { got <- ctx.Value(key{}) }}))
		try.Equal(t, <-got, "value", "%s: in the unit's context", policy)
	}
}

// places are the ways to run a unit: by a worker, by streams with and without a thread, inline.
var places = map[string]Config{
	"worker": onePool(PoolConfig{Name: "p", Workers: 1}),
	"stream": {Pools: []PoolConfig{{Name: "p"}}, Streams: []StreamConfig{{Pools: []string{"p"}}}},
	"locked": {Pools: []PoolConfig{{Name: "p"}}, Streams: []StreamConfig{{Pools: []string{"p"}, LockThread: true}}},
	"keyed":  onePool(PoolConfig{Name: "p", Policy: Keyed, Workers: 1}),
	"inline": onePool(PoolConfig{Name: "p", Policy: Inline}),
}

// Promise (Package pool): A panic or `runtime.Goexit` ends that unit only. A faulty scheduler loses
// no unit. See also TestGoexit.
func TestPanic(t *testing.T) {
	for name, c := range places {
		t.Run(name, func(t *testing.T) {
			panics := make(chan Panic, 1)
			s := newSet(t, c, OnPanic(func(x Panic) { panics <- x; panic("in OnPanic, too") }))
			try.OK(t, s.Default().Submit(context.Background(), Unit{Key: 7, Run: func(context.Context) { panic("ouch") }}))
			x := <-panics
			if x.Pool != "p" || x.Value != "ouch" || x.Unit.Key != 7 || !strings.Contains(string(x.Stack), "TestPanic") {
				t.Errorf("reported %+v", x)
			}
			ran := make(chan struct{}, 1)
			try.OK(t, s.Default().Submit(context.Background(), Unit{Key: 7, Run: func(context.Context) { ran <- struct{}{} }}))
			<-ran
			closeSet(t, s)
			if f := s.Default().Stats(); f.Panicked != 1 || f.Done != 2 || f.Running != 0 {
				t.Errorf("figures %+v", f)
			}
		})
	}
}

// TestGoexit checks that a unit that ends its goroutine does not end the worker.
func TestGoexit(t *testing.T) {
	for name, c := range places {
		t.Run(name, func(t *testing.T) {
			s := newSet(t, c)
			for range 10 {
				ended := make(chan struct{})
				go func() { // which a unit that runs inline ends
					defer close(ended)
					submit(t, s.Default(), func(context.Context) { runtime.Goexit() })
				}()
				<-ended
			}
			ran := make(chan struct{}, 1)
			submit(t, s.Default(), func(context.Context) { ran <- struct{}{} })
			<-ran
			closeSet(t, s)
			if f := s.Default().Stats(); f.Done != 11 || f.Running != 0 || f.Panicked != 0 {
				t.Errorf("figures %+v", f)
			}
		})
	}
}

func TestInline(t *testing.T) {
	s := newSet(t, onePool(PoolConfig{Name: "p", Policy: Inline}))
	here := true
	submit(t, s.Default(), func(context.Context) {
		here = false
		submit(t, s.Default(), func(context.Context) { here = true }) // from within another
	})
	if !here {
		t.Error("Submit returned before the unit had run")
	}
	closeSet(t, s)
	if f := s.Default().Stats(); f.Done != 2 {
		t.Errorf("figures %+v", f)
	}
	wantError(t, s.Default().Submit(context.Background(), Unit{Run: func(context.Context) {}}), `pool: submit "p": closed`, ErrClosed)
}

// TestStats has the clock of a bubble, in which only sleeping takes time.
func TestStats(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newSet(t, onePool(PoolConfig{Name: "p", Workers: 1, Queue: 2}))
		for range 4 {
			_ = s.Default().Submit(context.Background(), Unit{Run: func(context.Context) { time.Sleep(time.Second) }})
		}
		time.Sleep(1500 * time.Millisecond)
		want := PoolStats{Name: "p", Queued: 1, MostQueued: 2, Running: 1, Done: 1, Rejected: 1, RunTime: time.Second}
		try.Equal(t, s.Default().Stats(), want, "figures")
		closeSet(t, s)
		want = PoolStats{Name: "p", MostQueued: 2, Done: 3, Rejected: 1,
			LongestWait: 2 * time.Second, WaitTime: 3 * time.Second, RunTime: 3 * time.Second}
		if f := s.Stats(); len(f) != 1 || f[0] != want {
			t.Errorf("figures %+v, want %+v", f, want)
		}
	})
}

// TestKeyed checks, while many goroutines submit and the pool changes its size, that units of a key
// run one after another, in order.
func TestKeyed(t *testing.T) {
	const submitters, each, keys = 8, 2000, 5
	s := newSet(t, Config{
		Pools:   []PoolConfig{{Name: "p", Policy: Keyed, Workers: 4}},
		Streams: []StreamConfig{{Pools: []string{"p"}}},
	})
	var last [submitters * keys]int // of a key; only its units touch it, which the race detector checks
	var all sync.WaitGroup
	for g := range submitters {
		all.Go(func() {
			for i := range each {
				key := g*keys + i%keys
				try.Check(t, s.Default().Submit(context.Background(), Unit{Key: uint64(key), Run: func(context.Context) {
					if i < last[key] {
						t.Errorf("key %d: unit %d after unit %d", key, i, last[key])
					}
					last[key] = i
					if i%100 == 0 {
						runtime.Gosched()
					}
				}}))
			}
		})
	}
	for n := range 50 {
		try.Check(t, s.Resize("p", Workers(1+n%7)))
		runtime.Gosched()
	}
	all.Wait()
	closeSet(t, s)
	try.Equal(t, s.Default().Stats().Done, submitters*each, "units have run")
	if q := s.Default().q.(*keyed); len(q.lines) != 0 {
		t.Errorf("%d keys are left behind", len(q.lines))
	}
}

// Where a pool has a goroutine for each unit, units that wait do so together.
func TestGrow(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newSet(t, onePool(PoolConfig{Workers: Unbounded}))
		begin := time.Now()
		for range 1000 {
			submit(t, s.Default(), func(context.Context) { time.Sleep(time.Second) })
		}
		closeSet(t, s)
		try.Equal(t, time.Since(begin), time.Second, "took")
	})
}

// While units block, and streams and pools have nothing to do, no goroutine polls: an hour passes,
// and the runtime schedules next to no goroutine.
//
// Promise (Package pool): Idle pools run no goroutine. See also TestNoGoroutines.
func TestIdle(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newSet(t, Config{
			Pools: []PoolConfig{{Name: "workers", Workers: 2}, {Name: "streams"}, {Name: "other"}},
			Streams: []StreamConfig{
				{Pools: []string{"streams", "other"}},
				{Pools: []string{"streams", "other"}, LockThread: true, Scheduler: ScheduleRoundRobin},
			},
		})
		streams, _ := s.Pool("streams")
		hold(t, s.Default())
		hold(t, streams)
		synctest.Wait()
		before := scheduled()
		time.Sleep(time.Hour)
		if n := scheduled() - before; n > 1000 {
			t.Errorf("goroutines were scheduled at least %d times in an idle hour", n)
		}
	})
}

// scheduled returns how often goroutines of the process have been scheduled, as far as the runtime
// has counted them: about one time in eight.
func scheduled() (n uint64) {
	sample := []metrics.Sample{{Name: "/sched/latencies:seconds"}}
	metrics.Read(sample)
	for _, c := range sample[0].Value.Float64Histogram().Counts {
		n += c
	}
	return n
}

// TestNoGoroutines checks that a pool without units has none.
func TestNoGoroutines(t *testing.T) {
	before := goleak.IgnoreCurrent()
	s := newSet(t, Config{})
	for range 100 {
		submit(t, s.Default(), func(context.Context) {})
	}
	eventually.True(t, "no goroutines", func() bool { return goleak.Find(before) == nil })
}

// TestLabels checks that profiles tell the pool of a unit.
func TestLabels(t *testing.T) {
	for _, name := range []string{"worker", "stream"} {
		c := places[name]
		c.Pools = []PoolConfig{{Name: "p"}}
		s := newSet(t, c)
		profile := make(chan string, 1)
		submit(t, s.Default(), func(context.Context) {
			var text strings.Builder
			_ = pprof.Lookup("goroutine").WriteTo(&text, 1)
			profile <- text.String()
		})
		if text := <-profile; !strings.Contains(text, `"pool":"p"`) {
			t.Errorf("%s: no label in\n%s", name, text)
		}
		closeSet(t, s)
	}
}

// TestAllocs checks that the pool allocates nothing for a unit.
//
// Promise (Package pool): Submitting and running a unit allocates nothing.
func TestAllocs(t *testing.T) {
	if raceDetector {
		t.Skip("the race detector allocates")
	}
	for name, c := range places {
		s := newSet(t, c)
		p, ctx, ran := s.Default(), context.Background(), make(chan struct{}, 1)
		u := Unit{Run: func(context.Context) { ran <- struct{}{} }}
		if n := testing.AllocsPerRun(1000, func() { _ = p.Submit(ctx, u); <-ran }); n > 0 {
			t.Errorf("%s: %v allocations for a unit", name, n)
		}
	}
}

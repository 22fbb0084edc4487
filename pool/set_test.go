// SPDX-License-Identifier: Apache-2.0

package pool

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"

	"go.uber.org/goleak"

	"github.com/rocl-go/rocl/internal/testkit/eventually"
	"github.com/rocl-go/rocl/internal/testkit/try"
)

// TestNew checks a set without configuration.
func TestNew(t *testing.T) {
	s := New()
	want := PoolConfig{Name: "default", Policy: FIFO, Workers: Workers(runtime.GOMAXPROCS(0))}
	if c := s.Config(); len(c.Pools) != 1 || c.Pools[0] != want || len(c.Streams) != 0 {
		t.Errorf("configuration %+v", c)
	}
	ran := make(chan struct{})
	submit(t, s.Default(), func(context.Context) { close(ran) })
	<-ran
	closeSet(t, s)
	closeSet(t, s) // again
}

// Pools with and without names, from a configuration and added later, are found. Names that exist
// and configurations that are wrong are refused.
func TestAddPool(t *testing.T) {
	s := newSet(t, Config{Pools: []PoolConfig{{Name: "a"}, {}, {Name: "c"}}})
	d := try.Get(s.AddPool(PoolConfig{Name: "d", Policy: Priority}))(t)
	try.Gives(s.Pool("d"))(t, d)
	try.Works(s.AddPool(PoolConfig{}))(t)
	var names []string
	for _, p := range s.Pools() {
		names = append(names, p.Name())
	}
	try.Equal(t, fmt.Sprint(names), "[a pool-1 c d pool-4]", "pools")
	refused(s.AddPool(PoolConfig{Name: "a"}))(t, `pool: add pool "a": pools[5].name: "a" is the name of pools[0]`, ErrExists, ErrConfig)
	refused(s.AddPool(PoolConfig{Name: "x", Queue: -1}))(t, `pool: add pool "x": pools[5].queue: must not be negative`, ErrConfig)
	refused(s.Pool("x"))(t, `pool: find pool "x": no such pool`, ErrNotFound)
	wantError(t, s.RemovePool("x"), `pool: remove pool "x": no such pool`, ErrNotFound)
	wantError(t, s.Resize("x", 1), `pool: resize pool "x": no such pool`, ErrNotFound)
	wantError(t, s.Resize("a", -7), `pool: resize pool "a": pools[0].workers: must not be negative`, ErrConfig)
	try.Equal(t, len(s.Pools()), 5, "pools")
}

// A pool that is used is not removed, and the error says by what. It is removed when nothing uses
// it.
//
// Promise (Package pool): A pool in use is not removed, and the error names its users.
func TestRemovePool(t *testing.T) {
	s := newSet(t, Config{
		Pools:   []PoolConfig{{Name: "primary"}, {Name: "streamed"}, {Name: "held"}, {Name: "busy", Workers: 1}, {Name: "free"}},
		Streams: []StreamConfig{{Name: "s0", Pools: []string{"streamed"}}},
	})
	removed := func(name string) {
		t.Helper()
		p, _ := s.Pool(name)
		try.Check(t, s.RemovePool(name))
		try.Fails(s.Pool(name))(t, ErrNotFound)                                                      // after removal
		try.Fails(p.Submit(context.Background(), Unit{Run: func(context.Context) {}}))(t, ErrClosed) // submit after removal
	}
	wantError(t, s.RemovePool("primary"), `pool: remove pool "primary": it is the default pool`, ErrInUse)

	wantError(t, s.RemovePool("streamed"), `pool: remove pool "streamed": stream "s0" serves it`, ErrInUse)
	try.Check(t, s.RemoveStream("s0"))
	removed("streamed")

	held, _ := s.Pool("held")
	release, again, other := held.Use("call sum"), held.Use("call sum"), held.Use("another")
	wantError(t, s.RemovePool("held"), `pool: remove pool "held": "another" uses it, "call sum" uses it`, ErrInUse)
	release()
	release() // does nothing
	other()
	wantError(t, s.RemovePool("held"), `pool: remove pool "held": "call sum" uses it`, ErrInUse)
	again()
	removed("held")

	busy, _ := s.Pool("busy")
	end := hold(t, busy)
	submit(t, busy, func(context.Context) {})
	wantError(t, s.RemovePool("busy"), `pool: remove pool "busy": it has units: 1 queued, 1 running`, ErrInUse)
	end()
	eventually.True(t, "the pool is empty", func() bool { return busy.Stats().Done == 2 })
	removed("busy")
	removed("free")
	try.Equal(t, len(s.Pools()), 1, "pools are left")
}

// Streams are added and removed, and a pool changes its size, while units run, and none is lost.
func TestStreams(t *testing.T) {
	const submitters, each = 4, 5000
	s := newSet(t, Config{
		Pools:   []PoolConfig{{Name: "a", Workers: 3, Queue: 16, WhenFull: WaitWhenFull}, {Name: "b", Policy: Keyed}},
		Streams: []StreamConfig{{Pools: []string{"a", "b"}}, {Pools: []string{"b", "a"}}},
	})
	a, b := s.Pools()[0], s.Pools()[1]
	var ran atomic.Int64
	var all sync.WaitGroup
	for range submitters {
		all.Go(func() {
			for i := range each {
				u := Unit{Key: uint64(i % 3), Run: func(context.Context) { ran.Add(1) }}
				for _, p := range []*Pool{a, b} {
					try.Check(t, p.Submit(context.Background(), u))
				}
				if i%16 == 0 {
					runtime.Gosched()
				}
			}
		})
	}
	for i := range 200 {
		name := fmt.Sprint("extra-", i%3)
		pools := [][]string{{"a"}, {"b", "a"}, {"b"}}[i%3]
		st := try.Get(s.AddStream(StreamConfig{Name: name, Pools: pools, Scheduler: ScheduleRoundRobin}))(t)
		st.SetScheduler([]Scheduler{InOrder(), RoundRobin(), WeightedRandom(3, 1)}[i%3])
		try.Check(t, s.Resize("a", []Workers{NoWorkers, 1, 7, Unbounded}[i%4]))
		runtime.Gosched()
		try.Check(t, s.RemoveStream(name))
	}
	all.Wait()
	closeSet(t, s)
	try.Equal(t, ran.Load(), 2*submitters*each, "units have run")
}

func TestStreamErrors(t *testing.T) {
	s := newSet(t, Config{
		Pools:   []PoolConfig{{Name: "a"}, {Name: "now", Policy: Inline}},
		Streams: []StreamConfig{{Name: "s0", Pools: []string{"a"}}, {Pools: []string{"a"}}},
	})
	refused(s.AddStream(StreamConfig{}))(t, `pool: add stream: streams[2].pools: must name at least one pool`, ErrConfig)
	refused(s.AddStream(StreamConfig{Name: "s0", Pools: []string{"a"}}))(t, `pool: add stream "s0": streams[2].name: "s0" is the name of streams[0]`, ErrExists)
	refused(s.AddStream(StreamConfig{Name: "x", Pools: []string{"a", "b"}}))(t, `pool: add stream "x": streams[2].pools[1]: no pool is named "b"`, ErrNotFound, ErrConfig)
	refused(s.AddStream(StreamConfig{Name: "x", Pools: []string{"now"}}))(t, `pool: add stream "x": streams[2].pools[0]: pool "now" has policy "inline", which no stream serves`, ErrConfig)
	wantError(t, s.RemoveStream("x"), `pool: remove stream "x": no such stream`, ErrNotFound)
	refused(s.Stream("x"))(t, `pool: find stream "x": no such stream`, ErrNotFound)
	if st, err := s.Stream("stream-1"); err != nil || st.Name() != "stream-1" || st.Pools()[0].Name() != "a" {
		t.Errorf("%v, %v", st, err)
	}
	try.Equal(t, len(s.Streams()), 2, "streams")
}

// TestRemoveLastStream checks that units wait for the next worker, and run at Close without one.
func TestRemoveLastStream(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newSet(t, Config{Pools: []PoolConfig{{Name: "a"}}, Streams: []StreamConfig{{Name: "s", Pools: []string{"a"}}}})
		p := s.Default()
		var ran int
		unit := func(context.Context) { ran++ }
		synctest.Wait() // the stream is parked
		try.OK(t, s.RemoveStream("s"))
		submit(t, p, unit)
		synctest.Wait()
		if ran != 0 {
			t.Fatal("a removed stream ran a unit")
		}
		if w, err := s.Config().Validate(); err != nil || len(w) != 1 || w[0].Kind != Unserved {
			t.Errorf("warnings %v, %v", w, err)
		}
		try.Get(s.AddStream(StreamConfig{Name: "s", Pools: []string{"a"}}))(t)
		synctest.Wait()
		try.Equal(t, ran, 1, "units have run")
		try.OK(t, s.RemoveStream("s"))
		submit(t, p, unit)
		closeSet(t, s)
		try.Equal(t, ran, 2, "units have run")
	})
}

// Pools that are saturated do not delay others with workers of their own.
// Units that never yield saturate the one pool until the other's have run.
//
// Promise (Package pool): Units of one key, or a saturated pool, do not keep units of another key
// or pool from running. See also TestPools.
func TestStarvation(t *testing.T) {
	s := newSet(t, Config{
		Pools:   []PoolConfig{{Name: "primary"}, {Name: "p1"}, {Name: "p2", Workers: 1}},
		Streams: []StreamConfig{{Pools: []string{"primary", "p1"}}},
	})
	p1, p2 := s.Pools()[1], s.Pools()[2]
	var served atomic.Bool
	for range 100 {
		submit(t, p1, func(context.Context) {
			for !served.Load() {
			}
		})
	}
	const n = 5
	var ran atomic.Int32
	for range n {
		submit(t, p2, func(context.Context) { served.Store(ran.Add(1) == n) })
	}
	eventually.True(t, "the units of the other pool have run", served.Load)
	t.Logf("longest wait beside a saturated pool: %v", p2.Stats().LongestWait)
}

// Promise (Package pool): `Close` waits until all units have run. Its error names the pools that
// have units left. See also TestCloseNames.
func TestClose(t *testing.T) {
	for _, n := range []int{32, 100_000} {
		for name, c := range map[string]Config{
			"workers": onePool(PoolConfig{Workers: 8}),
			"streams": {Pools: []PoolConfig{{Name: "p"}}, Streams: []StreamConfig{{Pools: []string{"p"}}, {Pools: []string{"p"}}}},
		} {
			s := newSet(t, c)
			release := hold(t, s.Default())
			var ran atomic.Int64
			for range n {
				submit(t, s.Default(), func(context.Context) { ran.Add(1) })
			}
			release()
			closeSet(t, s)
			try.Equal(t, ran.Load(), int64(n), "%s: units run", name)
		}
	}
}

// TestCloseNames checks that Close names what is left when its context ends, that nothing can be
// added meanwhile, and that the units run nevertheless.
func TestCloseNames(t *testing.T) {
	before := goleak.IgnoreCurrent()
	s := newSet(t, Config{
		Pools:   []PoolConfig{{Name: "a", Workers: 1}, {Name: "b"}, {Name: "idle"}},
		Streams: []StreamConfig{{Name: "s", Pools: []string{"b"}}},
	})
	a, b := s.Pools()[0], s.Pools()[1]
	endA, endB := hold(t, a), hold(t, b)
	ran := false
	submit(t, a, func(context.Context) { ran = true })
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	wantError(t, s.Close(ctx), `pool: close: pool "a" has 1 queued, 1 running; pool "b" has 0 queued, 1 running: context canceled`, context.Canceled)
	wantError(t, a.Submit(ctx, Unit{Run: func(context.Context) {}}), `pool: submit "a": closed`, ErrClosed)
	refused(s.AddPool(PoolConfig{Name: "x"}))(t, `pool: add pool "x": the set is closed`, ErrClosed)
	refused(s.AddStream(StreamConfig{Name: "x", Pools: []string{"a"}}))(t, `pool: add stream "x": the set is closed`, ErrClosed)
	for _, err := range []error{s.RemovePool("idle"), s.RemoveStream("s"), s.Resize("a", 1)} {
		try.Fails(err)(t, ErrClosed)
	}
	endA()
	endB()
	closeSet(t, s)
	if !ran {
		t.Error("a unit was lost")
	}
	try.Check(t, goleak.Find(before))
}

// TestResize changes the size of a pool with units, from one goroutine to many and to none.
func TestResize(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newSet(t, onePool(PoolConfig{Name: "p", Workers: 2}))
		p := s.Default()
		end := make(chan struct{})
		for range 100 {
			submit(t, p, func(context.Context) { <-end })
		}
		sized := func(n Workers, running int) {
			t.Helper()
			try.OK(t, s.Resize("p", n))
			synctest.Wait()
			if f := p.Stats(); f.Running != running || f.Running+f.Queued+int(f.Done) != 100 {
				t.Errorf("figures %+v, want %d running", f, running)
			}
		}
		sized(10, 10)
		sized(NoWorkers, 10)
		for range 4 {
			end <- struct{}{}
		}
		sized(8, 8)
		sized(Auto, 8)
		sized(Unbounded, 96)
		close(end)
		closeSet(t, s)
		if f := p.Stats(); f.Done != 100 {
			t.Errorf("figures %+v", f)
		}
	})
}

// TestCloseUnderLoad checks that a unit which Submit accepted runs, and one that it refused does
// not.
func TestCloseUnderLoad(t *testing.T) {
	for range 50 {
		s := newSet(t, Config{
			Pools:   []PoolConfig{{Name: "p", Workers: 2, Queue: 8, WhenFull: WaitWhenFull}},
			Streams: []StreamConfig{{Pools: []string{"p"}}},
		})
		var accepted, ran atomic.Int64
		var all sync.WaitGroup
		for range 4 {
			all.Go(func() {
				for {
					err := s.Default().Submit(context.Background(), Unit{Run: func(context.Context) { ran.Add(1) }})
					if err != nil {
						try.Fails(err)(t, ErrClosed)
						return
					}
					accepted.Add(1)
				}
			})
		}
		for ran.Load() < 100 {
			runtime.Gosched()
		}
		closeSet(t, s)
		all.Wait()
		try.Equal(t, accepted.Load(), ran.Load(), "units accepted, and run")
	}
}

// TestDumpOfRunning checks that a set that was changed while it ran is dumped with its changes.
func TestDumpOfRunning(t *testing.T) {
	s := newSet(t, Config{Pools: []PoolConfig{{Name: "a", Workers: 2}}})
	_, _ = s.AddPool(PoolConfig{Name: "b", Workers: NoWorkers, Policy: Keyed, Queue: 10, WhenFull: WaitWhenFull})
	st := try.Get(s.AddStream(StreamConfig{Name: "s", Pools: []string{"b", "a"}}))(t)
	st.SetScheduler(WeightedRandom(5))
	try.OK(t, s.Resize("a", Unbounded))
	want := `{"pools":[{"name":"a","policy":"fifo","workers":"unbounded"},{"name":"b","policy":"keyed","workers":"none","queue":10,"when_full":"wait"}],` +
		`"streams":[{"name":"s","pools":["b","a"],"scheduler":"weighted_random","weights":[5,1]}],"default_pool":"a"}`
	var got bytes.Buffer
	if err := json.Compact(&got, s.Dump()); err != nil || got.String() != want {
		t.Errorf("%v, dump:\n%s", err, &got)
	}
}

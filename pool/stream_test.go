// SPDX-License-Identifier: Apache-2.0

package pool

import (
	"context"
	"fmt"
	"math"
	"runtime"
	"testing"
	"testing/synctest"
	"time"

	"github.com/rocl-go/rocl/internal/testkit/eventually"
	"github.com/rocl-go/rocl/internal/testkit/try"
)

// twoPools returns a set with two pools and a stream, which is held. Each pool has n units, which
// call run with the name of their pool.
func twoPools(t *testing.T, c StreamConfig, n int, run func(pool string)) (s *Set, release func()) {
	c.Name, c.Pools = "s", []string{"a", "b"}
	s = newSet(t, Config{Pools: []PoolConfig{{Name: "a"}, {Name: "b"}}, Streams: []StreamConfig{c}})
	release = hold(t, s.Default())
	for _, p := range s.Pools() {
		for range n {
			submit(t, p, func(context.Context) { run(p.Name()) })
		}
	}
	return s, release
}

func TestSchedulers(t *testing.T) {
	for _, c := range []struct {
		scheduler string
		want      string
	}{
		{ScheduleInOrder, "aaaabbbb"},
		{"", "aaaabbbb"},
		{ScheduleRoundRobin, "babababa"}, // a was served last
	} {
		got := ""
		s, release := twoPools(t, StreamConfig{Scheduler: c.scheduler}, 4, func(pool string) { got += pool })
		release()
		closeSet(t, s)
		try.Equal(t, got, c.want, "%q: order", c.scheduler)
	}
}

// TestWeightedRandom checks that the share of a pool is its weight: within six standard deviations.
func TestWeightedRandom(t *testing.T) {
	const units, heavy = 8000, 3
	first := map[string]int{}
	s, release := twoPools(t, StreamConfig{Scheduler: ScheduleWeighted, Weights: []int{1, heavy}}, units, func(pool string) {
		if first["a"]+first["b"] < units {
			first[pool]++
		}
	})
	release()
	closeSet(t, s)
	want, sigma := float64(units)*heavy/(heavy+1), 38.7 // sqrt(8000 * 0.75 * 0.25)
	if got := float64(first["b"]); got < want-6*sigma || got > want+6*sigma {
		t.Errorf("the pool with weight 3 of 4 got %v of %d units", got, units)
	}
}

// TestSetScheduler replaces the scheduler of a stream that runs, also by one of the program's own.
func TestSetScheduler(t *testing.T) {
	got := ""
	var st *Stream
	s, release := twoPools(t, StreamConfig{}, 4, func(pool string) {
		got += pool
		if len(got) == 2 {
			st.SetScheduler(backwards{})
		}
	})
	st = s.Streams()[0]
	try.Equal(t, st.Scheduler(), InOrder(), "scheduler")
	release()
	closeSet(t, s)
	try.Equal(t, got, "aabbbbaa", "order")
	c := s.Config()
	try.Equal(t, c.Streams[0].Scheduler, ScheduleOther, "configuration %+v", c)
	try.Works(c.Validate())(t)
	refused(Load(s.Dump()))(t, `pool: configuration: streams[0].scheduler: "other" stands for a scheduler that only the program has: leave it out, and call SetScheduler`, ErrConfig)
}

type backwards struct{}

func (backwards) Next(pools []*Pool) int {
	for i := len(pools) - 1; i >= 0; i-- {
		if pools[i].Ready() > 0 {
			return i
		}
	}
	return -1
}

// TestBadSchedulers checks that schedulers which panic, end the goroutine or return nonsense lose
// nothing.
func TestBadSchedulers(t *testing.T) {
	for _, bad := range []Scheduler{
		schedulerFunc(func([]*Pool) int { panic("no idea") }),
		schedulerFunc(func([]*Pool) int { runtime.Goexit(); return 0 }),
		schedulerFunc(func([]*Pool) int { return 7 }),
		schedulerFunc(func([]*Pool) int { return math.MinInt }),
		schedulerFunc(func([]*Pool) int { return 1 }), // mostly without units
		schedulerFunc(func(pools []*Pool) int { clear(pools); return 0 }),
		WeightedRandom(math.MaxInt, math.MaxInt),
		WeightedRandom(0, -1),
		nil,
	} {
		panics := make(chan Panic, 100)
		s := newSet(t, Config{Pools: []PoolConfig{{Name: "a"}, {Name: "b"}}, Streams: []StreamConfig{{Name: "s", Pools: []string{"a", "b"}}}},
			OnPanic(func(x Panic) { panics <- x }))
		s.Streams()[0].SetScheduler(bad)
		ran := make(chan struct{})
		for range 3 {
			submit(t, s.Default(), func(context.Context) { ran <- struct{}{} })
			<-ran
		}
		closeSet(t, s)
		if len(panics) > 1 {
			t.Errorf("%d panics were reported", len(panics))
		}
		if len(panics) == 1 {
			if x := <-panics; x.Stream != "s" || x.Value != "no idea" && x.Value != ErrGoexit {
				t.Errorf("reported %+v", x)
			}
		}
	}
}

// TestLargeWeights checks that a set with weights that a configuration may not have can be changed
// and dumped.
func TestLargeWeights(t *testing.T) {
	weights := []int{math.MaxInt, 0, math.MinInt}
	s := newSet(t, Config{Pools: []PoolConfig{{Name: "a"}, {Name: "b"}}, Streams: []StreamConfig{{Pools: []string{"a", "b"}}}})
	s.Streams()[0].SetScheduler(WeightedRandom(weights...))
	weights[1] = 7 // of which the scheduler knows nothing
	try.Works(s.AddPool(PoolConfig{}))(t)
	again := try.Get(Load(s.Dump()))(t)
	try.Equal(t, fmt.Sprint(again.Config().Streams[0].Weights), "[1000000 1]", "weights")
	closeSet(t, again)
}

// TestSchedulerTakesTime checks that no unit has waited less than no time, whatever a scheduler
// does before it answers.
func TestSchedulerTakesTime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newSet(t, Config{Pools: []PoolConfig{{Name: "a"}}, Streams: []StreamConfig{{Pools: []string{"a"}}}})
		p := s.Default()
		release := hold(t, p)
		once := false
		s.Streams()[0].SetScheduler(schedulerFunc(func([]*Pool) int {
			if !once {
				once = true
				time.Sleep(time.Second)
				submit(t, p, func(context.Context) {})
			}
			return 0
		}))
		time.Sleep(time.Second)
		release()
		time.Sleep(time.Minute)
		if f := p.Stats(); f.Done != 2 || f.WaitTime != 0 || f.RunTime != time.Second {
			t.Errorf("figures %+v", f)
		}
	})
}

type schedulerFunc func([]*Pool) int

func (f schedulerFunc) Next(pools []*Pool) int { return f(pools) }

// TestParked checks that a unit goes to a parked stream, whichever pools the stream has served
// before. So no unit waits for a busy stream.
func TestParked(t *testing.T) {
	s := newSet(t, Config{
		Pools:   []PoolConfig{{Name: "a"}, {Name: "b"}},
		Streams: []StreamConfig{{Pools: []string{"a", "b"}}, {Pools: []string{"b", "a"}}},
	})
	for i := range 200 {
		first, second := s.Pools()[i%2], s.Pools()[i/2%2]
		both := make(chan string)
		for _, p := range []*Pool{first, second} {
			submit(t, p, func(context.Context) { // ends only when the other runs too
				select {
				case both <- p.Name():
				case <-both:
				}
			})
		}
		eventually.True(t, "both units have run", func() bool {
			return s.Stats()[0].Running+s.Stats()[1].Running+s.Stats()[0].Queued+s.Stats()[1].Queued == 0
		})
	}
}

// TestLockThread checks that all units of a stream run on one thread, which is no other stream's.
//
// Promise (Package pool): A stream with `lock_thread` keeps a thread, and one with `cores` keeps
// these cores. See also TestCores.
func TestLockThread(t *testing.T) {
	if runtime.GOOS != "linux" {
		t.Skip("threads are told apart on Linux only")
	}
	s := newSet(t, Config{
		Pools: []PoolConfig{{Name: "a"}, {Name: "b"}},
		Streams: []StreamConfig{
			{Pools: []string{"a"}, LockThread: true},
			{Pools: []string{"b"}, LockThread: true},
		},
	})
	threads := map[string]map[int]bool{"a": {}, "b": {}}
	got := make(chan int)
	for range 20 {
		for _, p := range s.Pools() {
			submit(t, p, func(context.Context) { got <- threadID() })
			threads[p.Name()][<-got] = true
		}
		runtime.Gosched()
	}
	if len(threads["a"]) != 1 || len(threads["b"]) != 1 || fmt.Sprint(threads["a"]) == fmt.Sprint(threads["b"]) {
		t.Errorf("threads %v", threads)
	}
}

// TestParkRace submits a unit just as the stream has ended the one before and is about to park.
func TestParkRace(t *testing.T) {
	s := newSet(t, Config{Pools: []PoolConfig{{Name: "a"}, {Name: "b"}}, Streams: []StreamConfig{{Pools: []string{"a", "b"}}}})
	a, b := s.Pools()[0], s.Pools()[1]
	ran := make(chan struct{}, 1)
	for i := range 100_000 {
		p := b
		if i > 50_000 && i%2 == 0 {
			p = a
		}
		submit(t, p, func(context.Context) { ran <- struct{}{} })
		select {
		case <-ran:
		case <-time.After(eventually.Timeout):
			t.Fatalf("unit %d does not run", i)
		}
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	if n := len(a.parked); n > 1 {
		t.Errorf("one stream is %d times in the list of the parked", n)
	}
}

// TestKeyedHandedOn checks that a unit whose key becomes free goes to a parked stream, where the
// stream that has freed the key goes on with another pool.
func TestKeyedHandedOn(t *testing.T) {
	s := newSet(t, Config{
		Pools:   []PoolConfig{{Name: "keyed", Policy: Keyed}, {Name: "first"}},
		Streams: []StreamConfig{{Pools: []string{"first", "keyed"}}},
	})
	keyed, first := s.Pools()[0], s.Pools()[1]
	release := hold(t, keyed)
	ran := make(chan struct{})
	submit(t, keyed, func(context.Context) { close(ran) })
	submit(t, first, func(context.Context) { <-ran })
	other := try.Get(s.AddStream(StreamConfig{Pools: []string{"keyed"}}))(t)
	eventually.True(t, "the other stream is parked", func() bool { return other.state.Load() == parked })
	release()
	select {
	case <-ran:
	case <-time.After(eventually.Timeout):
		t.Fatal("a parked stream did not get the unit")
	}
}

// TestRemoveParking removes streams that are about to park. Close waits for their goroutines.
func TestRemoveParking(t *testing.T) {
	s := newSet(t, Config{})
	for i := range 5000 {
		st := try.Get(s.AddStream(StreamConfig{Name: "s", Pools: []string{"default"}}))(t)
		for range i % 100 {
			st.Pools() // takes a little time
		}
		try.OK(t, s.RemoveStream("s"))
	}
}

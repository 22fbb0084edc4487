// SPDX-License-Identifier: Apache-2.0

package dataflow_test

import (
	"context"
	"errors"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	. "github.com/rocl-go/rocl/dataflow"
	"github.com/rocl-go/rocl/internal/testkit/try"
	"github.com/rocl-go/rocl/rocltest"
)

// A shift is a worker of the elastic farm F of graph "elastic" that runs in the background.
type shift struct {
	leave context.CancelFunc
	done  chan error
	items atomic.Int64 // that it has done
}

// crew starts workers on contexts of their own.
type crew struct {
	t       *testing.T
	cluster *rocltest.TestCluster
}

// work starts a worker that takes some time for an item.
func (c crew) work(d time.Duration, o ...Option) *shift { return c.workOn("elastic", d, o...) }

func (c crew) workOn(graph string, d time.Duration, o ...Option) *shift {
	s := &shift{done: make(chan error, 1)}
	ctx, cancel := context.WithCancel(c.t.Context())
	s.leave = cancel
	rc := c.cluster.Open(0)
	ended := make(chan struct{})
	c.t.Cleanup(func() { <-ended })
	go func() {
		defer close(ended)
		s.done <- Work(ctx, rc, WorkFor{Graph: graph, Farm: "F"}, Func[int, int](func(_ context.Context, in Item[int], out Out[int]) error {
			time.Sleep(d) // in a bubble: the work
			s.items.Add(1)
			return out.Send(ctx, in.Value)
		}), o...)
	}()
	return s
}

// elasticGraph is a pipe with an elastic farm.
func elasticGraph(t *testing.T, n int, k *collector[int], o ...Option) *Graph {
	return try.Get(New("elastic", Pipeline3(count(n), Elastic[int, int]("F", o...), k.sink("K"))))(t)
}

// Workers of an elastic farm share the items by their speed.
func TestElasticShares(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := crew{t, rocltest.Cluster(t, 1)}
		var k collector[int]
		var shifts []*shift
		for i := range 3 {
			shifts = append(shifts, c.work(time.Duration(i+1)*10*time.Millisecond))
		}
		synctest.Wait()
		began := time.Now()
		g := elasticGraph(t, 60, &k, Policy(OnDemand(1)))
		try.OK(t, g.Run(t.Context(), Using(c.cluster.Open(0), Config{})))
		checkNumbers(t, k.values("K"), 60)
		for i, want := range []int64{33, 16, 11} {
			if n := shifts[i].items.Load(); n < want-2 || n > want+2 {
				t.Errorf("worker %d has done %d items, want about %d", i, n, want)
			}
			try.OK(t, <-shifts[i].done)
		}
		if d := time.Since(began); d > 380*time.Millisecond { // in the bubble's time; ideal is 330 ms
			t.Errorf("the run took %v", d)
		}
	})
}

// Promise (Dataflow): A worker may begin while the farm runs, and leave without losing or doubling
// an item.
func TestElasticComeAndGo(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := crew{t, rocltest.Cluster(t, 1)}
		var k collector[int]
		done := make(chan error)
		rc := c.cluster.Open(0)
		go func() { done <- elasticGraph(t, 300, &k, Batch(2, 0, 0)).Run(t.Context(), Using(rc, Config{})) }()
		time.Sleep(time.Second)
		try.Equal(t, len(k.values("K")), 0, "without a worker")
		a := c.work(10 * time.Millisecond)
		time.Sleep(205 * time.Millisecond)
		b := c.work(10 * time.Millisecond)
		time.Sleep(205 * time.Millisecond)
		a.leave()
		try.OK(t, <-a.done)
		held := a.items.Load()
		time.Sleep(205 * time.Millisecond)
		d := c.work(10 * time.Millisecond)
		try.OK(t, <-done)
		try.OK(t, <-b.done)
		try.OK(t, <-d.done)
		checkNumbers(t, k.values("K"), 300)
		try.Equal(t, a.items.Load(), held)
		try.Equal(t, a.items.Load()+b.items.Load()+d.items.Load(), int64(300))
		for i, s := range []*shift{a, b, d} {
			if s.items.Load() < 20 {
				t.Errorf("worker %d has done %d items", i, s.items.Load())
			}
		}
	})
}

// An ordered elastic farm keeps the order of its inputs.
func TestElasticOrdered(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := crew{t, rocltest.Cluster(t, 1)}
		var k collector[int]
		for i := range 3 {
			c.work(time.Duration(1+i*i*7)*time.Millisecond, Codec[int](decimal{}))
		}
		g := elasticGraph(t, 200, &k, Ordered(20), Codec[int](decimal{}))
		try.OK(t, g.Run(t.Context(), Using(c.cluster.Open(0), Config{})))
		got := k.values("K")
		if !slices.IsSorted(got) {
			t.Errorf("the order is %v", got)
		}
		checkNumbers(t, got, 200)
	})
}

// Promise (Dataflow): What a lost worker had is done again, or is told exactly and skipped, or ends
// the run.
func TestElasticLoss(t *testing.T) {
	broken := errors.New("broken")
	for _, answer := range []error{Again, nil, broken} {
		synctest.Test(t, func(t *testing.T) {
			c := crew{t, rocltest.Cluster(t, 1)}
			var k collector[int]
			var mu sync.Mutex
			var told []int
			lost := c.cluster.Open(0)
			stuck, release := make(chan struct{}), make(chan struct{})
			workerDone := make(chan error)
			go func() {
				workerDone <- Work(t.Context(), lost, WorkFor{Graph: "elastic", Farm: "F"}, Func[int, int](func(ctx context.Context, in Item[int], out Out[int]) error {
					if in.Value >= 20 {
						stuck <- struct{}{}
						<-release
					}
					return out.Send(ctx, in.Value)
				}))
			}()
			g := elasticGraph(t, 100, &k, OnLoss(func(v int, err error) error {
				mu.Lock()
				defer mu.Unlock()
				told = append(told, v)
				try.Fails(err)(t, ErrLost)
				return answer
			}))
			done := make(chan error)
			rc := c.cluster.Open(0)
			go func() { done <- g.Run(t.Context(), Using(rc, Config{})) }()
			<-stuck
			synctest.Wait()
			try.OK(t, lost.Close())
			c.work(time.Millisecond)
			err := <-done
			close(release)
			try.Rejects(<-workerDone)(t)
			synctest.Wait()
			slices.Sort(told)
			switch answer {
			case broken:
				try.Fails(err)(t, broken)
				return
			case nil:
				try.OK(t, err)
				checkNumbers(t, append(k.values("K"), told...), 100)
			default:
				try.OK(t, err)
				checkNumbers(t, k.values("K"), 100)
			}
			try.Equal(t, len(told), 2, "the items at the worker: %v", told)
		})
	}
}

// An error or a panic of an elastic farm's worker ends the run, and the other
// workers are told.
func TestElasticFailure(t *testing.T) {
	for _, fail := range []func() error{func() error { return errors.New("oops") }, func() error { panic("oops") }} {
		synctest.Test(t, func(t *testing.T) {
			c := crew{t, rocltest.Cluster(t, 1)}
			var k collector[int]
			other := c.work(5 * time.Millisecond)
			bad, rc := c.cluster.Open(0), c.cluster.Open(0)
			badDone := make(chan error)
			go func() {
				badDone <- Work(t.Context(), bad, WorkFor{Graph: "elastic", Farm: "F"}, Func[int, int](func(_ context.Context, in Item[int], _ Out[int]) error {
					time.Sleep(time.Millisecond)
					return fail()
				}))
			}()
			err := elasticGraph(t, 1000, &k).Run(t.Context(), Using(rc, Config{}))
			var re *RunError
			if !errors.As(err, &re) || re.Stage != "F" {
				t.Errorf("the error is %v", err)
			}
			for _, e := range []error{<-other.done, <-badDone} {
				if !errors.As(e, &re) || re.Stage != "F" {
					t.Errorf("the worker's error is %v", e)
				}
			}
		})
	}
}

// A worker works for the run of its farm only, and an elastic farm needs a
// context.
func TestElasticRuns(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := crew{t, rocltest.Cluster(t, 1)}
		var k collector[int]
		other, mine := c.workOn("other", 0), c.work(0)
		g := elasticGraph(t, 10, &k)
		try.Fails(g.Run(t.Context()))(t, ErrGraph)
		try.OK(t, g.Run(t.Context(), Using(c.cluster.Open(0), Config{})))
		try.OK(t, <-mine.done)
		other.leave()
		try.OK(t, <-other.done)
		try.Equal(t, other.items.Load(), int64(0))
	})
}

// The workers of an elastic farm are told when its run is cancelled.
func TestElasticCancel(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := crew{t, rocltest.Cluster(t, 1)}
		var k collector[int]
		worker := c.work(10 * time.Millisecond)
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		err := elasticGraph(t, 1<<30, &k).Run(ctx, Using(c.cluster.Open(0), Config{}))
		try.Fails(err)(t, context.DeadlineExceeded)
		var re *RunError
		if err := <-worker.done; !errors.As(err, &re) {
			t.Errorf("the worker's error is %v", err)
		}
	})
}

// SPDX-License-Identifier: Apache-2.0

package work_test

import (
	"context"
	"flag"
	"fmt"
	"runtime/debug"
	"sync/atomic"
	"testing"
	"time"

	"github.com/rocl-go/rocl"
	"github.com/rocl-go/rocl/rocltest"
	"github.com/rocl-go/rocl/work"
)

var long = flag.Bool("long", false, "run the long form of the test with simulated faults")

// Promise (Package work): While links break, networks are cut, machines stand still or crash, and
// workers are killed on other nodes, each task of a queue ends once, in the order asked for.
func TestSimulated(t *testing.T) {
	defer debug.SetGCPercent(debug.SetGCPercent(400))
	var figures figures
	seeds := uint64(12)
	if *long {
		seeds = 2000
	}
	t.Run("seeds", func(t *testing.T) {
		for seed := range seeds {
			t.Run(fmt.Sprint(seed), func(t *testing.T) {
				t.Parallel()
				rocltest.Simulate(t, seed, func(w *rocltest.World) { simulate(w, &figures) })
			})
		}
	})
	t.Logf("%d queues ended, %d were killed; %d attempts were lost, %d tasks given back, %d dead letters", figures.ended.Load(),
		figures.killed.Load(), figures.lost.Load(), figures.returned.Load(), figures.dead.Load())
	if figures.ended.Load() == 0 || figures.lost.Load() == 0 {
		t.Error("the faults are too many or too few")
	}
}

// figures are what the queues of all seeds have seen.
type figures struct{ ended, killed, lost, returned, dead atomic.Int64 }

// simulate runs a queue and its workers in a world with faults.
func simulate(w *rocltest.World, f *figures) {
	const tasks = 200
	nodes := 1 + w.Rand().IntN(3)
	w.AddNodes(nodes)
	pace := time.Duration(10+w.Rand().IntN(200)) * time.Millisecond
	handlers := 1 + w.Rand().IntN(3)
	opts := []work.Option{work.PerWorker(1 + w.Rand().IntN(20)), work.Backlog(1 + w.Rand().IntN(100)), work.Silence(20 * time.Second),
		work.Attempts([]int{1, 3, 100}[w.Rand().IntN(3)])}
	isOrdered := w.Rand().IntN(2) == 0
	if isOrdered {
		opts = append(opts, work.Ordered())
	}
	for i := range 3 {
		w.Start(w.Rand().IntN(nodes), fmt.Sprint("worker", i), func(p *rocltest.Process) {
			ctx, leave := context.WithCancel(p.Context())
			defer leave()
			if i == 2 {
				time.AfterFunc(time.Second, leave) // a worker that takes leave
			}
			err := work.Serve(ctx, p.Rocl(), rocl.Attrs{"job": "test"}, takes(pace), work.Handlers(handlers), work.Grace(time.Second))
			w.Log(p.Name(), " has ended: ", err)
		})
	}
	var isOver atomic.Bool
	w.Start(0, "queue", func(p *rocltest.Process) {
		isOver.Store(false)
		q, err := work.Open[int, int](p.Context(), p.Rocl(), rocl.Match{"job": "test"}, opts...)
		if err != nil {
			return // killed
		}
		defer q.Close()
		seen := make([]bool, tasks)
		n := 0
		for r, err := range q.Do(p.Context(), numbers(tasks)) {
			if err != nil {
				w.Log("the queue has ended: ", err)
				if p.Context().Err() == nil {
					w.Errorf("the queue has failed: %v", err)
				}
				f.killed.Add(1)
				return
			}
			isRight := r.Err == nil && r.Out == r.Task*r.Task || r.Err != nil && isDead(r)
			if !isRight || seen[r.Task] || isOrdered && r.Task != n {
				w.Errorf("result %d is %+v, seen before: %v", n, r, seen[r.Task])
			}
			seen[r.Task] = true
			n++
		}
		if n != tasks {
			w.Errorf("%d results of %d tasks", n, tasks)
		}
		s := q.Stats()
		if s.Done+s.Dead != tasks || s.Waiting+s.Working+s.Ready != 0 {
			w.Errorf("%+v", s)
		}
		f.ended.Add(1)
		f.lost.Add(int64(s.Lost))
		f.returned.Add(int64(s.Returned))
		f.dead.Add(int64(s.Dead))
		isOver.Store(true)
	})
	w.Run(6 * time.Second)
	for range 300 {
		if isOver.Load() {
			return
		}
		time.Sleep(time.Second) // in the bubble
	}
	w.Errorf("the queue has not ended")
}

func isDead(r work.Result[int, int]) bool {
	_, ok := r.Err.(*work.DeadLetter)
	return ok
}

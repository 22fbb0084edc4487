// SPDX-License-Identifier: Apache-2.0

package work_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"iter"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/rocl-go/rocl"
	"github.com/rocl-go/rocl/internal/testkit/try"
	"github.com/rocl-go/rocl/rocltest"
	"github.com/rocl-go/rocl/work"
)

// handler is a handler of numbers.
type handler func(ctx context.Context, n int) (int, error)

// A bench has workers and queues of numbers on the node of a cluster in memory.
type bench struct {
	*testing.T
	cluster *rocltest.TestCluster
}

// A shift is one worker, on a context of its own.
type shift struct {
	*rocl.Context
	leave context.CancelFunc
	done  chan error
	began atomic.Int64 // handlers
}

// inBubble runs f in virtual time.
func inBubble(t *testing.T, f func(b bench)) {
	synctest.Test(t, func(t *testing.T) { f(bench{t, rocltest.Cluster(t, 1)}) })
}

// work starts a worker.
func (b bench) work(f handler, o ...work.Option) *shift {
	ctx, leave := context.WithCancel(b.Context())
	s := &shift{Context: b.cluster.Open(0), leave: leave, done: make(chan error, 1)}
	ended := make(chan struct{})
	b.Cleanup(func() { <-ended })
	go func() {
		defer close(ended)
		s.done <- work.Serve(ctx, s.Context, rocl.Attrs{"job": "test"}, func(ctx context.Context, n int) (int, error) {
			s.began.Add(1)
			return f(ctx, n)
		}, o...)
	}()
	return s
}

// takes is a handler that takes some time and returns the square.
func takes(d time.Duration) handler {
	return func(_ context.Context, n int) (int, error) {
		time.Sleep(d) // in a bubble: the work
		return n * n, nil
	}
}

// open opens a queue for the workers.
func (b bench) open(o ...work.Option) *work.Queue[int, int] {
	b.Helper()
	q := try.Get(work.Open[int, int](b.Context(), b.cluster.Open(0), rocl.Match{"job": "test"}, o...))(b.T)
	b.Cleanup(func() { q.Close() })
	return q
}

// numbers yields 0 to n-1.
func numbers(n int) iter.Seq[int] {
	return func(yield func(int) bool) {
		for i := 0; i < n && yield(i); i++ {
		}
	}
}

// collect returns the results of n tasks, by the tasks, after it has checked that each came once.
func (b bench) collect(results iter.Seq2[work.Result[int, int], error], n int) []work.Result[int, int] {
	b.Helper()
	all := make([]work.Result[int, int], n)
	seen := map[int]bool{}
	for r, err := range results {
		try.OK(b.T, err)
		if seen[r.Task] || r.Number != uint64(r.Task) {
			b.Fatalf("task %d came twice, or has the number %d", r.Task, r.Number)
		}
		if r.Err == nil && r.Out != r.Task*r.Task {
			b.Fatalf("the result of task %d is %d", r.Task, r.Out)
		}
		seen[r.Task], all[r.Task] = true, r
	}
	try.Equal(b.T, len(seen), n)
	return all
}

// good checks that all results are no errors.
func (b bench) good(rs []work.Result[int, int]) {
	b.Helper()
	for _, r := range rs {
		if r.Err != nil {
			b.Fatalf("task %d: %v", r.Task, r.Err)
		}
	}
}

// Promise (Package work): Workers share the tasks by their speed, and a worker that comes later
// takes its share at once, also of tasks that others have at hand.
func TestShares(t *testing.T) {
	inBubble(t, func(b bench) {
		var crew []*shift
		for i := range 3 {
			crew = append(crew, b.work(takes(time.Duration(i+1)*10*time.Second)))
		}
		q := b.open()
		synctest.Wait()
		began := time.Now()
		b.good(b.collect(q.Do(b.Context(), numbers(60)), 60))
		if d := time.Since(began).Round(time.Second); d > 360*time.Second { // in the bubble's time; 330 s if the last tasks ended together
			b.Errorf("60 tasks took %v", d)
		}
		for i, want := range []int64{33, 16, 11} {
			if n := crew[i].began.Load(); n < want-2 || n > want+2 {
				b.Errorf("worker %d has done %d tasks, want about %d", i, n, want)
			}
		}
		for _, s := range crew[1:] {
			s.leave()
			try.OK(t, <-s.done)
		}
		began = time.Now()
		q = b.open()
		late := time.AfterFunc(100*time.Second, func() { b.work(takes(10 * time.Second)) })
		defer late.Stop()
		b.good(b.collect(q.Do(b.Context(), numbers(20)), 20)) // the first worker alone takes 200 s
		if d := time.Since(began).Round(time.Second); d > 160*time.Second {
			b.Errorf("with a late worker 20 tasks took %v", d)
		}
	})
}

// Tasks that were quick and become slow go from the worker that has them to one that has nothing to
// do.
func TestRecall(t *testing.T) {
	inBubble(t, func(b bench) {
		slow := func(_ context.Context, n int) (int, error) {
			if n >= 1000 {
				time.Sleep(10 * time.Second) // in a bubble: the work
			}
			return n * n, nil
		}
		b.work(slow)
		q := b.open()
		defer time.AfterFunc(10*time.Second, func() { b.work(slow) }).Stop() // when the first has all
		began := time.Now()
		b.good(b.collect(q.Do(b.Context(), numbers(1020)), 1020))
		if d := time.Since(began).Round(time.Second); d > 120*time.Second { // alone 200 s, ideal is 105 s
			b.Errorf("the tasks took %v", d)
		}
		if s := q.Stats(); s.Returned == 0 || s.Lost != 0 || s.Done != 1020 {
			b.Errorf("%+v", s)
		}
	})
}

// Promise (Package work): A worker that takes leave finishes what it has begun and gives back the
// rest. No task is lost or done twice.
func TestLeave(t *testing.T) {
	inBubble(t, func(b bench) {
		first := b.work(takes(time.Millisecond), work.Handlers(2))
		q := b.open()
		stay := make(chan *shift, 1)
		time.AfterFunc(50*time.Millisecond, func() { stay <- b.work(takes(time.Millisecond)); first.leave() })
		rs := b.collect(q.Do(b.Context(), numbers(1000)), 1000)
		b.good(rs)
		try.OK(t, <-first.done)
		for _, r := range rs {
			try.Equal(t, r.Runs, 1)
		}
		try.Equal(t, first.began.Load()+(<-stay).began.Load(), 1000)
		if s := q.Stats(); s.Lost != 0 || s.Returned == 0 || s.Workers != 1 || first.began.Load() < 90 {
			b.Errorf("%+v, %d by the first", s, first.began.Load())
		}
	})
}

// Promise (Package work): Serve ends the contexts of handlers that need longer than Grace says, and
// their tasks are done by others.
func TestGrace(t *testing.T) {
	inBubble(t, func(b bench) {
		cause := make(chan error, 1)
		first := b.work(func(ctx context.Context, n int) (int, error) {
			<-ctx.Done()
			cause <- context.Cause(ctx)
			return 0, ctx.Err()
		}, work.Grace(time.Minute))
		q := b.open()
		time.AfterFunc(time.Second, func() { b.work(takes(0)); first.leave() })
		rs := b.collect(q.Do(b.Context(), numbers(10)), 10)
		b.good(rs)
		try.Fails(<-first.done)(t, work.ErrGrace)
		try.Fails(<-cause)(t, work.ErrGrace)
		try.Equal(t, q.Stats().Lost, 1)
	})
}

// Promise (Package work): The tasks of a worker that has ended are done by others, and each result
// comes once. A task that ends its worker each time is a dead letter with its reasons, and takes no
// other task with it.
func TestLost(t *testing.T) {
	inBubble(t, func(b bench) {
		const poison = 40
		var crash func() *shift
		crash = func() *shift {
			var s *shift
			ready := make(chan struct{})
			s = b.work(func(ctx context.Context, n int) (int, error) {
				if n == poison {
					<-ready
					go func() { s.Close(); crash() }() // for the queue it is as if the process were killed
					<-ctx.Done()
				}
				return n * n, nil
			}, work.Grace(0))
			close(ready)
			return s
		}
		crash()
		q := b.open()
		rs := b.collect(q.Do(b.Context(), numbers(100)), 100)
		var dead *work.DeadLetter
		if !errors.As(rs[poison].Err, &dead) || len(dead.Reasons) != 3 || !errors.Is(dead, work.ErrLost) || !errors.Is(dead, rocl.ErrGone) {
			b.Errorf("the poison's result is %+v", rs[poison])
		}
		b.good(slices.Delete(rs, poison, poison+1))
		s := q.Stats()
		if s.Dead != 1 || s.Done != 99 || s.Lost < 3 || rs[poison-1].Runs > 3 {
			b.Errorf("%+v", s)
		}
	})
}

// With Attempts(1) no handler gets a task a second time.
func TestAtMostOnce(t *testing.T) {
	inBubble(t, func(b bench) {
		runs := [100]atomic.Int64{}
		f := func(_ context.Context, n int) (int, error) {
			runs[n].Add(1)
			time.Sleep(10 * time.Millisecond) // in a bubble: the work
			return n * n, nil
		}
		first := b.work(f)
		q := b.open(work.Attempts(1))
		time.AfterFunc(205*time.Millisecond, func() { first.Close(); b.work(f) })
		dead := 0
		for _, r := range b.collect(q.Do(b.Context(), numbers(100)), 100) {
			if r.Err != nil {
				try.Fails(r.Err)(t, work.ErrLost)
				dead++
			} else {
				try.Equal(t, runs[r.Task].Load(), 1)
			}
			if n := runs[r.Task].Load(); n > 1 {
				b.Errorf("task %d has run %d times", r.Task, n)
			}
		}
		if dead == 0 || dead > 15 {
			b.Errorf("%d dead letters", dead)
		}
	})
}

// Promise (Package work): An error and a panic of a handler are the result of the task. Again has
// the task done again, up to the limit.
func TestHandlerErrors(t *testing.T) {
	inBubble(t, func(b bench) {
		var runs [8]atomic.Int64
		b.work(func(ctx context.Context, n int) (int, error) {
			switch run := runs[n].Add(1); n {
			case 0:
				return 0, errors.New("no such thing")
			case 1:
				panic("oops")
			case 2:
				runtime.Goexit()
			case 3:
				if run < 3 {
					return 0, fmt.Errorf("the disk is full: %w", work.Again)
				}
			case 4:
				return 0, work.Again
			case 5:
				return 0, context.DeadlineExceeded
			case 6:
				var e *work.TaskError
				return 0, e // the method Error panics
			}
			return n * n, nil
		})
		q := b.open()
		rs := b.collect(q.Do(b.Context(), numbers(8)), 8)
		for n, want := range map[int]struct {
			is   error
			text string
			runs int64
		}{
			0: {nil, "no such thing", 1}, 1: {work.ErrPanic, "oops", 1}, 2: {work.ErrPanic, "panicked", 1},
			4: {work.Again, "dead letter after 3 attempts", 3}, 5: {context.DeadlineExceeded, "deadline", 1}, 6: {nil, "panicked", 1},
		} {
			if err := rs[n].Err; err == nil || !strings.Contains(err.Error(), want.text) || want.is != nil && !errors.Is(err, want.is) || runs[n].Load() != want.runs {
				b.Errorf("task %d: %v, %d runs", n, err, runs[n].Load())
			}
		}
		b.good([]work.Result[int, int]{rs[3], rs[7]})
		try.Equal(t, rs[3].Runs, 3)
		var e *work.TaskError
		if !errors.As(rs[0].Err, &e) || e.Worker != rs[0].Worker || e.Worker.IsZero() {
			b.Errorf("%+v", rs[0])
		}
		if s := q.Stats(); s.Failed != 5 || s.Dead != 1 || s.Again != 5 || s.Done != 2 {
			b.Errorf("%+v", s)
		}
	})
}

// Promise (Package work): An ordered queue yields in the order of Put, whatever the order of the
// results, and after losses.
func TestOrdered(t *testing.T) {
	inBubble(t, func(b bench) {
		var crew []*shift
		for i := range 3 {
			crew = append(crew, b.work(takes(time.Duration(1+i*i*7)*time.Millisecond)))
		}
		q := b.open(work.Ordered(), work.Backlog(50))
		time.AfterFunc(50*time.Millisecond, func() { crew[0].Close() })
		next := 0
		for r, err := range q.Do(b.Context(), numbers(500)) {
			try.OK(t, err)
			try.OK(t, r.Err)
			try.Equal(t, r.Task, next)
			next++
		}
		try.Equal(t, next, 500)
	})
}

// Promise (Package work): A slow loop over Results slows the source, and the tasks in the queue
// stay within Backlog.
func TestBackPressure(t *testing.T) {
	for _, o := range [][]work.Option{{work.Backlog(100)}, {work.Backlog(100), work.Ordered()}} {
		inBubble(t, func(b bench) {
			b.work(takes(0))
			b.work(takes(time.Millisecond))
			q := b.open(o...)
			var put atomic.Int64
			taken := int64(0)
			for _, err := range q.Do(b.Context(), func(yield func(int) bool) {
				for i := 0; i < 2000 && yield(i); i++ {
					put.Add(1)
				}
			}) {
				try.OK(t, err)
				taken++
				time.Sleep(10 * time.Millisecond) // in a bubble: slower than the workers
				if n := put.Load() - taken; n > 100+64+1 {
					b.Fatalf("the source is %d tasks ahead", n)
				}
			}
			try.Equal(t, taken, 2000)
		})
	}
}

// Without a worker, Put and Results wait until their contexts end, and say
// why. Stats shows it.
func TestNoWorker(t *testing.T) {
	inBubble(t, func(b bench) {
		q := b.open(work.Backlog(3))
		ctx, cancel := context.WithTimeout(b.Context(), time.Hour)
		defer cancel()
		for i := range 3 {
			try.OK(t, q.Put(ctx, i))
		}
		err := q.Put(ctx, 3)
		try.Fails(err)(t, context.DeadlineExceeded)
		for _, err = range q.Results(ctx) {
			try.Fails(err)(t, context.DeadlineExceeded)
		}
		if !strings.Contains(err.Error(), "there is no worker") {
			b.Error(err)
		}
		if s := q.Stats(); s.Workers != 0 || s.Waiting != 3 || s.Put != 3 {
			b.Errorf("%+v", s)
		}
		go work.Serve(b.Context(), b.cluster.Open(0), rocl.Attrs{"job": "test"}, func(context.Context, string) (int, error) { return 0, nil })
		synctest.Wait()
		if s := q.Stats(); s.Workers != 0 || s.Refused != 1 || !errors.Is(s.Refusal, work.ErrTypes) || !strings.Contains(s.Refusal.Error(), "tasks string") {
			b.Errorf("%+v", s)
		}
		b.work(takes(0))
		q.Finish()
		try.Fails(q.Put(b.Context(), 4))(t, work.ErrFinished)
		b.good(b.collect(q.Results(b.Context()), 3))
	})
}

// A loop over Results that is left early loses nothing.
func TestBreak(t *testing.T) {
	for _, o := range [][]work.Option{nil, {work.Ordered()}} {
		inBubble(t, func(b bench) {
			b.work(takes(0))
			q := b.open(o...)
			for i := range 100 {
				try.OK(t, q.Put(b.Context(), i))
			}
			q.Finish()
			b.good(b.collect(func(yield func(work.Result[int, int], error) bool) {
				for isOver := false; !isOver; {
					isOver = true
					for r, err := range q.Results(b.Context()) {
						if isOver = !yield(r, err); isOver || r.Task%7 == 0 {
							break
						}
					}
				}
			}, 100))
			for range q.Do(b.Context(), numbers(1<<30)) { // finished: Put fails, and the loop ends
				b.Error("a further result")
			}
		})
		inBubble(t, func(b bench) { // the source of Do is stopped too
			b.work(takes(time.Millisecond))
			q := b.open(o...)
			for r, err := range q.Do(b.Context(), numbers(1<<30)) {
				try.OK(t, err)
				if r.Task == 50 {
					break
				}
			}
		})
	}
}

// Promise (Package work): The end of a queue, or of its process, ends the contexts of its handlers,
// Put and Results. The worker goes on for other queues.
func TestQueueEnds(t *testing.T) {
	for _, kill := range []bool{false, true} {
		inBubble(t, func(b bench) {
			causes := make(chan error, 1)
			s := b.work(func(ctx context.Context, n int) (int, error) {
				if n < 0 {
					<-ctx.Done()
					causes <- context.Cause(ctx)
				}
				return n * n, nil
			})
			rc := b.cluster.Open(0)
			q := try.Get(work.Open[int, int](b.Context(), rc, rocl.Match{"job": "test"}, work.Backlog(3)))(t)
			defer q.Close()
			for range 3 {
				try.OK(t, q.Put(b.Context(), -1))
			}
			waits := make(chan error, 2)
			go func() { waits <- q.Put(b.Context(), 1) }()
			go func() {
				for _, err := range q.Results(b.Context()) {
					waits <- err
				}
			}()
			other := b.open()
			synctest.Wait()
			kind := work.ErrClosed
			if kill {
				kind = rocl.ErrClosed
				try.OK(t, rc.Close())
			} else {
				try.OK(t, q.Close())
			}
			try.Fails(<-waits)(t, kind)
			try.Fails(<-waits)(t, kind)
			try.Fails(q.Put(b.Context(), 1))(t, kind)
			try.Fails(<-causes)(t, work.ErrLost)
			b.good(b.collect(other.Do(b.Context(), numbers(10)), 10))
			try.Equal(t, s.began.Load(), 11)
			select {
			case err := <-s.done:
				b.Errorf("the worker has ended: %v", err)
			default:
			}
		})
	}
}

// Queues share workers: a worker does their tasks in turn.
func TestTwoQueues(t *testing.T) {
	inBubble(t, func(b bench) {
		b.work(takes(10 * time.Millisecond))
		b.work(takes(10 * time.Millisecond))
		var wg sync.WaitGroup
		var ends [2]time.Duration
		began := time.Now()
		for i := range ends {
			q := b.open()
			wg.Go(func() {
				b.good(b.collect(q.Do(b.Context(), numbers(100+900*i)), 100+900*i))
				ends[i] = time.Since(began)
			})
		}
		wg.Wait()
		if ends[0] > 1500*time.Millisecond { // alone 500 ms, beside an equal queue 1 s
			b.Errorf("the short queue took %v, the long one %v", ends[0], ends[1])
		}
	})
}

// A lying codec encodes what does not fit, or panics.
type lyingCodec struct{ panics bool }

func (c lyingCodec) Append(p []byte, n int) ([]byte, error) {
	if c.panics && n > 1000 {
		panic("lie")
	}
	return fmt.Appendf(p, "%d", n), nil
}

func (c lyingCodec) Decode(p []byte) (n int, err error) {
	_, err = fmt.Sscan(string(p), &n)
	return n, err
}

// A codec that does not fit, fails or panics gives errors of tasks that
// match rocl.ErrValue. A program's own codec encodes tasks and results.
func TestCodecs(t *testing.T) {
	inBubble(t, func(b bench) {
		b.work(takes(0), work.Codec[int](lyingCodec{panics: true}))
		q := b.open(work.Codec[int](lyingCodec{}))
		for _, r := range b.collect(q.Do(b.Context(), numbers(50)), 50) {
			if isLate := r.Task*r.Task > 1000; isLate != errors.Is(r.Err, rocl.ErrValue) || !isLate && r.Err != nil {
				b.Errorf("%+v", r)
			}
		}
		other := b.open()
		synctest.Wait()
		try.Fails(other.Stats().Refusal)(t, work.ErrTypes, "without the codec")
		mine := b.open(work.Codec[int](lyingCodec{panics: true}))
		for r, err := range mine.Do(b.Context(), func(yield func(int) bool) { yield(2000) }) {
			try.OK(t, err)
			try.Fails(r.Err)(t, rocl.ErrValue)
			try.Equal(t, r.Runs, 1)
		}
	})
}

// Tasks and results of any size that the memory of both sides allows
// arrive. Larger ones are errors that match rocl.ErrTooLarge.
func TestLarge(t *testing.T) {
	ctx := t.Context()
	c := rocltest.Cluster(t, 1)
	ctx, cancel := context.WithCancel(ctx)
	done := make(chan error)
	worker := c.Open(0, rocltest.TCP(), rocl.WithMemory(2<<20))
	go func() {
		done <- work.Serve(ctx, worker, rocl.Attrs{"job": "large"}, func(_ context.Context, p []byte) ([]byte, error) {
			if len(p) == 5 {
				return make([]byte, 1700<<10), nil
			}
			return p, nil
		})
	}()
	q := try.Get(work.Open[[]byte, []byte](ctx, c.Open(0, rocltest.TCP(), rocl.WithMemory(2<<20)), rocl.Match{"job": "large"}))(t)
	sizes := []int{0, 5, 100, 32 << 10, 600 << 10, 1 << 10, 1700 << 10, 1 << 20}
	for r, err := range q.Do(ctx, func(yield func([]byte) bool) {
		for i, n := range sizes {
			if !yield(bytes.Repeat([]byte{byte(i)}, n)) {
				return
			}
		}
	}) {
		try.OK(t, err)
		switch n := len(r.Task); n {
		case 5, 1700 << 10:
			try.Fails(r.Err)(t, rocl.ErrTooLarge)
		default:
			try.OK(t, r.Err, n)
			if !bytes.Equal(r.Out, r.Task) {
				t.Errorf("the result of %d bytes differs", n)
			}
		}
	}
	try.OK(t, q.Close())
	cancel()
	try.OK(t, <-done)
}

// Options that are invalid, or belong to the other side, are refused.
func TestOptions(t *testing.T) {
	c := rocltest.Cluster(t, 1).Open(0)
	for _, o := range []work.Option{work.PerWorker(-1), work.Backlog(-1), work.Attempts(-1), work.Silence(-1), work.Handlers(1), work.Grace(1)} {
		try.Fails(work.Open[int, int](t.Context(), c, nil, o))(t, work.ErrOption)
	}
	for _, o := range []work.Option{work.Handlers(-1), work.Grace(-1), work.PerWorker(1), work.Ordered()} {
		try.Fails(work.Serve(t.Context(), c, nil, takes(0), o))(t, work.ErrOption)
	}
	try.Rejects(work.Serve[int, int](t.Context(), c, nil, nil))(t)
	try.Rejects(work.Open[int, int](t.Context(), nil, nil))(t)
	try.Rejects(work.Serve(t.Context(), nil, nil, takes(0)))(t)
}

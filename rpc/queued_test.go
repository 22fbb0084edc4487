// SPDX-License-Identifier: Apache-2.0

package rpc_test

import (
	"context"
	"errors"
	"iter"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/rocl-go/rocl"
	"github.com/rocl-go/rocl/internal/testkit/eventually"
	"github.com/rocl-go/rocl/internal/testkit/try"
	"github.com/rocl-go/rocl/pool"
	"github.com/rocl-go/rocl/rocltest"
	"github.com/rocl-go/rocl/rpc"
)

// Requests whose caller has cancelled, has ended, or whose deadline is over leave the queue of a
// pool while its worker is busy, and make room for others.
//
// A request leaves its queue at once when its caller cancels or ends. See
// also TestCancelledCallMakesRoom.
func TestEndedCallsLeaveQueue(t *testing.T) {
	for _, full := range []string{"reject", "wait"} {
		t.Run(full, func(t *testing.T) {
			s, c := pair(t)
			p := load(t, s, `{"pools": [{"workers": 1, "queue": 2, "when_full": "`+full+`"}]}`).Default()
			var ran atomic.Int64
			try.OK(t,
				errors.Join(rpc.Register(s, "run", func(context.Context, int64) (int64, error) { return ran.Add(1), nil }, rpc.InPool(p)),
					rpc.RegisterStream(s, "stream", func(ctx context.Context, n int64) iter.Seq2[int64, error] { ran.Add(1); return count(ctx, n) }, rpc.InPool(p)),
				))
			release := occupy(t, p)
			defer release()
			has := func(n int) {
				t.Helper()
				eventually.True(t, "the queue has the expected length", func() bool { return p.Stats().Queued == n })
			}
			fills := func(call func()) { // the queue, which is empty
				t.Helper()
				for n := range 2 {
					call()
					has(n + 1)
				}
			}
			run := func(ctx context.Context, c *rpc.Client) *rpc.Future[int64] {
				return rpc.Go[int64, int64](ctx, c, s.ID(), "run", 0)
			}

			cancelled, cancel := context.WithCancel(deadline(t))
			fills(func() { run(cancelled, c) })
			cancel()
			has(0)

			before := p.Stats().Cancelled
			eventually.True(t, "a request whose deadline is over has left", func() bool {
				ctx, end := context.WithTimeout(deadline(t), 50*time.Millisecond)
				defer end()
				try.Fails(run(ctx, c).Wait(deadline(t)))(t, context.DeadlineExceeded)
				return p.Stats().Cancelled > before
			})
			has(0)

			other := try.Get(rpc.NewClient(deadline(t), contextOf(s)))(t)
			fills(func() { run(context.Background(), other) }) // calls without a number
			try.Check(t, other.Close())
			has(0)

			streamed, cancel := context.WithCancel(deadline(t))
			ended := make(chan error, 2)
			fills(func() {
				go func() {
					_, err := all(rpc.Stream[int64, int64](streamed, c, s.ID(), "stream", 1))
					ended <- err
				}()
			})
			cancel()
			for range 2 {
				try.Fails(<-ended)(t, context.Canceled)
			}
			has(0)

			if f := p.Stats(); f.Cancelled < 7 || f.Rejected != 0 || ran.Load() != 0 {
				t.Errorf("%d handlers ran, figures %+v", ran.Load(), f)
			}
			last := run(deadline(t), c)
			has(1)
			release()
			try.Gives(last.Wait(deadline(t)))(t, 1)
		})
	}
}

// A request that waits for room in a queue gets that of a cancelled one.
func TestCancelledCallMakesRoom(t *testing.T) {
	s, c := pair(t)
	p := load(t, s, waiting).Default()
	try.OK(t, rpc.Register(s, "add", add, rpc.InPool(p)))
	release := occupy(t, p)
	defer release()
	ctx, cancel := context.WithCancel(deadline(t))
	first := rpc.Go[addends, int64](ctx, c, s.ID(), "add", addends{})
	eventually.True(t, "the queue is full", func() bool { return p.Stats().Queued == 1 })
	second := rpc.Go[addends, int64](deadline(t), c, s.ID(), "add", addends{1, 2})
	eventually.True(t, "a request waits for room", func() bool { return p.Stats().Waiting == 1 })
	cancel()
	eventually.True(t, "the request has the room", func() bool { return p.Stats().Waiting == 0 })
	try.Fails(first.Wait(deadline(t)))(t, context.Canceled)
	release()
	try.Gives(second.Wait(deadline(t)))(t, 3)
}

// When Close of a server gives up waiting, its queued requests leave their pool.
func TestClosedServerLeavesQueue(t *testing.T) {
	s, c := pair(t)
	p := load(t, s, `{"pools": [{"workers": 1}]}`).Default()
	try.OK(t, rpc.Register(s, "add", add, rpc.InPool(p)))
	release := occupy(t, p)
	defer release()
	f := rpc.Go[addends, int64](context.Background(), c, s.ID(), "add", addends{})
	eventually.True(t, "the request is queued", func() bool { return p.Stats().Queued == 1 })
	ended, end := context.WithCancel(context.Background())
	end()
	try.Fails(s.Close(ended))(t, context.Canceled)
	eventually.True(t, "the request has left", func() bool { return p.Stats().Queued == 0 })
	try.Rejects(f.Wait(deadline(t)))(t, "the call was answered")
}

// occupy makes the only worker of a pool busy until release is called.
func occupy(t *testing.T, p *pool.Pool) (release func()) {
	t.Helper()
	began, end := make(chan struct{}), make(chan struct{})
	try.OK(t, p.Submit(context.Background(), pool.Unit{Run: func(context.Context) { close(began); <-end }}))
	<-began
	return sync.OnceFunc(func() { close(end) })
}

// Calls that are given up while the server starts no handler, because an Inline one runs, never run
// theirs. Their requests leave the server's mailbox at once, and no goroutine is left for them.
func TestAbandonedCallsNeverRun(t *testing.T) {
	for name, tr := range map[string][]rocl.Option{"inproc": nil, "tcp": {rocltest.TCP()}} {
		t.Run(name, func(t *testing.T) {
			cl := rocltest.Cluster(t, 1)
			s := serve(t, cl.Open(0, tr...))
			c := client(t, cl.Open(0, tr...))
			entered, leave := make(chan struct{}), make(chan struct{})
			var runs atomic.Int64
			try.OK(t,
				errors.Join(rpc.Register(s, "hold", func(context.Context, struct{}) (struct{}, error) {
					close(entered)
					<-leave
					return struct{}{}, nil
				}, rpc.Inline()),
					rpc.Register(s, "work", func(context.Context, int) (int64, error) { return runs.Add(1), nil }),
				))
			held := rpc.Go[struct{}, struct{}](context.Background(), c, s.ID(), "hold", struct{}{})
			<-entered
			ctx, cancel := context.WithCancel(deadline(t))
			const n = 500
			var calls []*rpc.Future[int64]
			for i := range n {
				calls = append(calls, rpc.Go[int, int64](ctx, c, s.ID(), "work", i))
			}
			waiting := func() int { n, _ := s.Resource().Waiting(); return n }
			eventually.True(t, "the requests wait", func() bool { return waiting() == n })
			before := runtime.NumGoroutine()
			cancel()
			for _, f := range calls {
				try.Fails(f.Wait(deadline(t)))(t, context.Canceled)
			}
			eventually.True(t, "the requests leave", func() bool { return waiting() == 0 })
			eventually.True(t, "no goroutine is left", func() bool { return runtime.NumGoroutine() <= before+10 })
			close(leave)
			try.Get(held.Wait(deadline(t)))(t)
			try.Gives(rpc.Call[int, int64](deadline(t), c, s.ID(), "work", 0))(t, 1, "handlers that have run")
		})
	}
}

// The time that a request waits in the server's mailbox counts for its deadline: the handler of a
// call whose deadline is over by then does not run, though its caller cannot say so.
//
// Promise (Package rpc): A deadline counts all time since the call began, or from another machine
// the time in the mailbox. A call whose deadline is over runs no handler. See also
// TestDeadlineInThePast.
func TestDeadlineCountsWaiting(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		cl := rocltest.Cluster(t, 1)
		s := try.Get(rpc.NewServer(context.Background(), cl.Open(0), nil))(t)
		at := cl.Open(0)
		r := try.Get(at.Register(context.Background(), rocl.Attrs{"caller": "bare"}))(t)
		leave := make(chan struct{})
		var runs atomic.Int64
		try.OK(t,
			errors.Join(rpc.Register(s, "hold", func(context.Context, struct{}) (struct{}, error) { <-leave; return struct{}{}, nil }, rpc.Inline()),
				rpc.Register(s, "work", func(context.Context, struct{}) (int64, error) { return runs.Add(1), nil }),
			))
		request := func(name string, left time.Duration) rocl.Pending {
			return try.Get(r.StartCallBytes(context.Background(), s.ID(), rpc.CallID(name), rpc.BareRequest(left)))(t)
		}
		hold := request("hold", 0)
		synctest.Wait()
		short, long := request("work", time.Second), request("work", time.Minute)
		time.Sleep(2 * time.Second) // virtual: the first request's time is over
		close(leave)
		for _, p := range []rocl.Pending{hold, short, long} {
			try.Get(p.Wait(context.Background()))(t).Release()
		}
		try.Equal(t, runs.Load(), 1, "handlers run of 2, of which one call's deadline was over")
		try.Check(t, s.Close(context.Background()))
	})
}

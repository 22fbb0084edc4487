// SPDX-License-Identifier: Apache-2.0

package rpc_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"iter"
	"sync/atomic"
	"testing"
	"time"

	"github.com/rocl-go/rocl"
	"github.com/rocl-go/rocl/internal/testkit/eventually"
	"github.com/rocl-go/rocl/internal/testkit/try"
	"github.com/rocl-go/rocl/rpc"
)

// A handler is the function of a call.
type handler = func(context.Context, int64) (int64, error)

// sums returns a handler that adds n to the result of a nested call with n-1, down to 0.
func sums(call func(context.Context, int64) (int64, error)) handler {
	return func(ctx context.Context, n int64) (int64, error) {
		if n == 0 {
			return 0, nil
		}
		sum, err := call(ctx, n-1)
		return sum + n, err
	}
}

// A pool of one worker whose handler calls its own server never hangs, whatever the policy, the
// queue and the form of the call.
//
// Promise (Package rpc): A handler may call a server of its own process while all workers are busy,
// and keeps its worker meanwhile. See also TestNestedKeepsWorker.
func TestNestedInOneWorker(t *testing.T) {
	const depth = 64
	for _, config := range []string{
		`"workers": 1`,
		`"workers": 1, "policy": "priority"`,
		`"workers": 1, "policy": "earliest_first"`,
		`"policy": "keyed"`,
		`"workers": 1, "queue": 1`,
		`"workers": 1, "queue": 1, "when_full": "wait"`,
	} {
		t.Run(config, func(t *testing.T) {
			s, c := pair(t)
			p := load(t, s, `{"pools": [{`+config+`}]}`).Default()
			own := clientOf(t, s)
			for name, f := range map[string]handler{
				"call": func(ctx context.Context, n int64) (int64, error) {
					return rpc.Call[int64, int64](ctx, own, s.ID(), "call", n)
				},
				"any": func(ctx context.Context, n int64) (int64, error) {
					a, err := rpc.CallAny[int64, int64](ctx, own, rocl.Match{"type": "test"}, "any", n)
					return a.Value, err
				},
				"all": func(ctx context.Context, n int64) (sum int64, err error) {
					got, err := all(rpc.CallAll[int64, int64](ctx, own, rocl.Match{"type": "test"}, "all", n))
					for _, a := range got {
						sum += a.Value
					}
					return sum, err
				},
				"wait": func(ctx context.Context, n int64) (int64, error) {
					return rpc.Go[int64, int64](ctx, own, s.ID(), "wait", n).Wait(ctx)
				},
				"without cancel": func(ctx context.Context, n int64) (int64, error) {
					return rpc.Go[int64, int64](context.WithoutCancel(ctx), own, s.ID(), "without cancel", n).Wait(ctx)
				},
				"done": func(ctx context.Context, n int64) (int64, error) {
					f := rpc.Go[int64, int64](ctx, own, s.ID(), "done", n)
					<-f.Done()
					return f.Wait(ctx)
				},
				"wait any": func(ctx context.Context, n int64) (int64, error) {
					f := rpc.Go[int64, int64](ctx, own, s.ID(), "wait any", n)
					if _, err := rpc.WaitAny(ctx, f); err != nil {
						return 0, err
					}
					return f.Wait(ctx)
				},
			} {
				try.OK(t, rpc.Register(s, name, sums(f), rpc.InPool(p)))
				try.Gives(rpc.Call[int64, int64](deadline(t), c, s.ID(), name, depth))(t, depth*(depth+1)/2, "%s", name)
			}
			try.OK(t, rpc.RegisterStream(s, "stream", func(ctx context.Context, n int64) iter.Seq2[int64, error] {
				return func(yield func(int64, error) bool) {
					if n == 0 {
						return
					}
					for sum, err := range rpc.Stream[int64, int64](ctx, own, s.ID(), "stream", n-1) {
						if !yield(sum, err) {
							return
						}
					}
					yield(n, nil)
				}
			}, rpc.InPool(p)))
			got, err := all(rpc.Stream[int64, int64](deadline(t), c, s.ID(), "stream", depth))
			if err != nil || len(got) != depth || got[0] != 1 || got[depth-1] != depth {
				t.Errorf("streams: %v, %v", got, err)
			}
		})
	}
}

// clientOf returns a client in the context of a server.
func clientOf(t *testing.T, s *rpc.Server) *rpc.Client {
	t.Helper()
	return client(t, contextOf(s))
}

// besides returns another server in the context of a server.
func besides(t *testing.T, s *rpc.Server) *rpc.Server {
	t.Helper()
	other := try.Get(rpc.NewServer(deadline(t), contextOf(s), rocl.Attrs{"type": "other"}))(t)
	t.Cleanup(func() { try.Check(t, other.Close(deadline(t))) })
	return other
}

// A handler that waits for a nested call keeps its worker: no other request runs meanwhile. Nested
// calls that it does not wait for yet have no worker either.
func TestNestedKeepsWorker(t *testing.T) {
	s, c := pair(t)
	p := load(t, s, `{"pools": [{"workers": 1}]}`).Default()
	own := clientOf(t, s)
	var outside atomic.Int64
	began, release := make(chan struct{}), make(chan struct{})
	try.OK(t,
		errors.Join(rpc.Register(s, "outside", func(context.Context, int64) (int64, error) { return outside.Add(1), nil }, rpc.InPool(p)),
			rpc.Register(s, "inner", func(_ context.Context, n int64) (int64, error) {
				if n == 0 {
					close(began)
					<-release
				}
				return outside.Load(), nil
			}, rpc.InPool(p)),
			rpc.Register(s, "outer", func(ctx context.Context, n int64) (int64, error) {
				var waits []*rpc.Future[int64]
				for range 10 {
					waits = append(waits, rpc.Go[int64, int64](ctx, own, s.ID(), "inner", 1))
				}
				eventually.True(t, "the nested calls are queued", func() bool { return p.Stats().Queued == 10 })
				ran, err := rpc.Call[int64, int64](ctx, own, s.ID(), "inner", 0)
				for _, f := range waits {
					n, e := f.Wait(ctx)
					ran, err = ran+n, errors.Join(err, e)
				}
				return ran, err
			}, rpc.InPool(p)),
		))
	outer := rpc.Go[int64, int64](deadline(t), c, s.ID(), "outer", 0)
	<-began
	other := rpc.Go[int64, int64](deadline(t), c, s.ID(), "outside", 0)
	eventually.True(t, "the other call is queued", func() bool { return p.Stats().Queued == 11 })
	close(release)
	try.Gives(outer.Wait(deadline(t)))(t, 0, "other handlers run")
	try.Works(other.Wait(deadline(t)))(t)
	eventually.True(t, "two units have ended, and ten have left", func() bool { f := p.Stats(); return f.Cancelled == 10 && f.Done == 2 })
}

// An Inline handler calls its own server, also by way of another one, whatever the place there.
func TestNestedInline(t *testing.T) {
	s, c := pair(t)
	b := besides(t, s)
	own, other := clientOf(t, s), clientOf(t, b)
	for name, at := range map[string]*rpc.Server{"self": s, "other": b, "inline": b} {
		try.OK(t, rpc.Register(s, name, sums(func(ctx context.Context, n int64) (int64, error) {
			return rpc.Go[int64, int64](ctx, own, at.ID(), name, n).Wait(ctx)
		}), rpc.Inline()))
	}
	for name, place := range map[string]rpc.Option{"other": rpc.InGoroutine(), "inline": rpc.Inline()} {
		try.OK(t, rpc.Register(b, name, sums(func(ctx context.Context, n int64) (int64, error) {
			return rpc.Call[int64, int64](ctx, other, s.ID(), name, n)
		}), place))
	}
	for _, name := range []string{"self", "other", "inline"} {
		try.Gives(rpc.Call[int64, int64](deadline(t), c, s.ID(), name, 20))(t, 210, "%s", name)
	}
}

// A nested call of an Inline handler waits while another Inline handler of the server runs, until
// the deadline of the call.
func TestNestedWaitsForInline(t *testing.T) {
	s, c := pair(t)
	b := besides(t, s)
	own := clientOf(t, b)
	ran := 0 // the race detector sees handlers that run at once
	began, release := make(chan struct{}), make(chan struct{})
	try.OK(t,
		errors.Join(rpc.Register(s, "count", func(_ context.Context, waits bool) (int, error) {
			if ran++; waits {
				close(began)
				<-release
			}
			ran++
			return ran, nil
		}, rpc.Inline()),
			rpc.Register(b, "outer", func(ctx context.Context, left time.Duration) (int, error) {
				ctx, end := context.WithTimeout(ctx, left)
				defer end()
				return rpc.Call[bool, int](ctx, own, s.ID(), "count", false)
			}, inOne(t, b, `{"pools": [{"name": "one", "workers": 2}]}`)),
		))
	outer := func(left time.Duration) *rpc.Future[int] {
		return rpc.Go[time.Duration, int](deadline(t), c, b.ID(), "outer", left)
	}
	first := rpc.Go[bool, int](deadline(t), c, s.ID(), "count", true)
	<-began
	long := outer(time.Hour)
	try.Fails(outer(time.Millisecond).Wait(deadline(t)))(t, context.DeadlineExceeded)
	close(release)
	for n, f := range []*rpc.Future[int]{first, long} {
		try.Gives(f.Wait(deadline(t)))(t, 2*n+2, "call %d", n)
	}
}

// A nested call that is cancelled before it runs leaves the queue.
func TestNestedCancelled(t *testing.T) {
	s, c := pair(t)
	p := load(t, s, `{"pools": [{"workers": 1}]}`).Default()
	own := clientOf(t, s)
	try.OK(t,
		errors.Join(rpc.Register(s, "add", add, rpc.InPool(p)),
			rpc.Register(s, "outer", func(ctx context.Context, n int64) (int64, error) {
				ctx, cancel := context.WithCancel(ctx)
				f := rpc.Go[addends, int64](ctx, own, s.ID(), "add", addends{1, 2})
				eventually.True(t, "the nested call is queued", func() bool { return p.Stats().Queued == 1 })
				cancel()
				eventually.True(t, "the nested call has left", func() bool { return p.Stats().Queued == 0 })
				if _, err := f.Wait(deadline(t)); !errors.Is(err, context.Canceled) {
					return 0, fmt.Errorf("the nested call: %w", err)
				}
				return n, nil
			}, rpc.InPool(p)),
		))
	try.Works(rpc.Call[int64, int64](deadline(t), c, s.ID(), "outer", 0))(t)
}

// While a request waits for room in a pool, the pool's handler calls its own server, whatever the
// place of the nested call.
func TestNestedWhilePoolWaits(t *testing.T) {
	for name, place := range map[string]func(t *testing.T, s *rpc.Server) rpc.Option{
		"goroutine":    func(*testing.T, *rpc.Server) rpc.Option { return rpc.InGoroutine() },
		"inline":       func(*testing.T, *rpc.Server) rpc.Option { return rpc.Inline() },
		"another pool": func(t *testing.T, s *rpc.Server) rpc.Option { return inOne(t, s, waiting) },
	} {
		t.Run(name, func(t *testing.T) {
			s, c := pair(t)
			p := load(t, s, waiting).Default()
			own := clientOf(t, s)
			try.OK(t,
				errors.Join(rpc.Register(s, "add", add, place(t, s)),
					rpc.Register(s, "outer", func(ctx context.Context, isFirst bool) (int64, error) {
						if isFirst {
							eventually.True(t, "a request waits for room", func() bool { return p.Stats().Waiting == 1 })
						}
						return rpc.Call[addends, int64](ctx, own, s.ID(), "add", addends{1, 2})
					}, rpc.InPool(p)),
				))
			var calls []*rpc.Future[int64]
			for i := range 3 {
				calls = append(calls, rpc.Go[bool, int64](deadline(t), c, s.ID(), "outer", i == 0))
			}
			for _, f := range calls {
				try.Gives(f.Wait(deadline(t)))(t, 3)
			}
		})
	}
}

// A handler sends large arguments to its own server, whose other handlers have the same place. It
// does not wait for itself.
func TestSendLargeToOwnServer(t *testing.T) {
	for _, name := range []string{"pool", "inline"} {
		for _, how := range []func(context.Context) context.Context{func(ctx context.Context) context.Context { return ctx }, context.WithoutCancel} {
			t.Run(name, func(t *testing.T) {
				s, c := pair(t)
				place := rpc.Inline()
				if name == "pool" {
					place = inOne(t, s, `{"pools": [{"name": "one", "workers": 1}]}`)
				}
				own := client(t, contextOf(s), rpc.CallOverflow(limit))
				var running atomic.Int64
				got := make(chan []byte, 1)
				try.OK(t,
					errors.Join(rpc.Register(s, "take", func(_ context.Context, p []byte) (struct{}, error) {
						try.Equal(t, running.Load(), 0, "two handlers run in one worker")
						got <- bytes.Clone(p)
						return struct{}{}, nil
					}, place),
						rpc.Register(s, "outer", func(ctx context.Context, _ struct{}) (struct{}, error) {
							running.Add(1)
							defer running.Add(-1)
							return struct{}{}, rpc.Send(how(ctx), own, s.ID(), "take", random(2*limit))
						}, place),
					))
				try.Get(rpc.Call[struct{}, struct{}](deadline(t), c, s.ID(), "outer", struct{}{}))(t)
				if !bytes.Equal(<-got, random(2*limit)) {
					t.Error("other arguments")
				}
			})
		}
	}
}

// A Future of a nested call waits for room in a pool that is removed, because the call was moved.
func TestNestedMoved(t *testing.T) {
	for name, place := range map[string]rpc.Option{"goroutine": rpc.InGoroutine(), "inline": rpc.Inline()} {
		t.Run(name, func(t *testing.T) {
			s, c := pair(t)
			set := load(t, s, `{"pools": [{"name": "main", "workers": 1}, {"name": "old", "workers": 1, "queue": 1, "when_full": "wait"}]}`)
			old, _ := set.Pool("old")
			release := occupy(t, old)
			defer release()
			own := clientOf(t, s)
			try.OK(t,
				errors.Join(rpc.Register(s, "inner", add, rpc.InPool(old)),
					rpc.Register(s, "outer", func(ctx context.Context, in addends) (int64, error) {
						first := rpc.Go[addends, int64](ctx, own, s.ID(), "inner", in)
						second := rpc.Go[addends, int64](ctx, own, s.ID(), "inner", in)
						eventually.True(t, "a call waits for room", func() bool { return old.Stats().Waiting == 1 })
						if err := errors.Join(s.Place("inner", place), set.ReplacePool("old", "main")); err != nil {
							return 0, err
						}
						a, err := second.Wait(ctx)
						b, e := first.Wait(ctx)
						return a + b, errors.Join(err, e)
					}, rpc.InPool(set.Default())),
				))
			try.Gives(rpc.Call[addends, int64](deadline(t), c, s.ID(), "outer", addends{1, 2}))(t, 6)
		})
	}
}

// A stream of a nested call ends with the loop that takes its results, and with the context of its
// call.
func TestNestedStreamLeft(t *testing.T) {
	s, c := pair(t)
	own := clientOf(t, s)
	one := inOne(t, s, waiting)
	ended := make(chan error, 2)
	try.OK(t,
		errors.Join(rpc.RegisterStream(s, "count", func(ctx context.Context, n int64) iter.Seq2[int64, error] {
			return func(yield func(int64, error) bool) {
				defer func() { <-ctx.Done(); ended <- ctx.Err() }()
				for range n {
					if !yield(n, nil) {
						return
					}
				}
			}
		}, one),
			rpc.Register(s, "outer", func(ctx context.Context, n int64) (int64, error) {
				ctx, cancel := context.WithCancel(ctx)
				defer cancel()
				for m, err := range rpc.Stream[int64, int64](ctx, own, s.ID(), "count", n) {
					if n > 1 || err != nil {
						return m, err
					}
					cancel()
				}
				return 0, nil
			}, one),
		))
	try.Gives(rpc.Call[int64, int64](deadline(t), c, s.ID(), "outer", 2))(t, 2)
	try.Fails(rpc.Call[int64, int64](deadline(t), c, s.ID(), "outer", 1))(t, context.Canceled)
	for range 2 {
		try.Fails(<-ended)(t, context.Canceled)
	}
}

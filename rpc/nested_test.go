// SPDX-License-Identifier: Apache-2.0

package rpc_test

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/rocl-go/rocl"
	"github.com/rocl-go/rocl/internal/testkit/try"
	"github.com/rocl-go/rocl/rpc"
)

// Handlers call other servers, and their own, before they reply: a chain that comes back to each
// server many times ends.
func TestNestedCalls(t *testing.T) {
	const depth = 64
	a, ca := pair(t)
	b, cb := pair(t)
	other := try.Get(rpc.NewServer(deadline(t), contextOf(b), rocl.Attrs{"type": "own"}))(t)
	defer other.Close(deadline(t))
	down := func(c *rpc.Client, to *rpc.Server) func(context.Context, int64) (int64, error) {
		return func(ctx context.Context, n int64) (int64, error) {
			if n == 0 {
				return 0, nil
			}
			sum, err := rpc.Call[int64, int64](ctx, c, to.ID(), "down", n-1)
			return sum + n, err
		}
	}
	own := try.Get(rpc.NewClient(deadline(t), contextOf(b)))(t)
	defer own.Close()
	for s, f := range map[*rpc.Server]func(context.Context, int64) (int64, error){
		a: down(ca, a), b: down(own, other), other: down(own, b),
	} {
		try.OK(t, rpc.Register(s, "down", f))
	}
	for name, to := range map[string]struct {
		c *rpc.Client
		s *rpc.Server
	}{"a server that calls itself": {ca, a}, "two servers of one context by turns": {cb, b}} {
		sum, err := rpc.Call[int64, int64](deadline(t), to.c, to.s.ID(), "down", depth)
		if err != nil || sum != depth*(depth+1)/2 {
			t.Errorf("%s: %d, %v", name, sum, err)
		}
	}
}

// contextOf returns the context of a server.
func contextOf(s *rpc.Server) *rocl.Context { return s.Resource().Context() }

// Calls that a server has begun to handle are answered after their name was withdrawn, also by the
// handler that withdraws it. Later calls are refused.
//
// Promise (Package rpc): A withdrawn name refuses later calls. Calls already begun are answered.
func TestDeregisterDuringCalls(t *testing.T) {
	const calls, withdraws = 64, 17
	s, c := pair(t)
	var came atomic.Int32
	all, withdrawn := make(chan struct{}), make(chan struct{})
	try.OK(t, rpc.Register(s, "n", func(_ context.Context, n int64) (int64, error) {
		if came.Add(1) == calls {
			close(all)
		}
		<-all
		if n == withdraws {
			if !s.Deregister("n") {
				t.Error("the name was not registered")
			}
			close(withdrawn)
		}
		<-withdrawn
		return n, nil
	}))
	var futures []*rpc.Future[int64]
	for n := range int64(calls) {
		futures = append(futures, rpc.Go[int64, int64](deadline(t), c, s.ID(), "n", n))
	}
	for n, f := range futures {
		if got, err := f.Wait(deadline(t)); err != nil || got != int64(n) {
			t.Errorf("call %d: %d, %v", n, got, err)
		}
	}
	if _, err := rpc.Call[int64, int64](deadline(t), c, s.ID(), "n", 1); !errors.Is(err, rpc.ErrUnknownCall) {
		t.Errorf("after the name was withdrawn: %v", err)
	}
}

// Promise (Package rpc): Any number of calls may be in flight over one link. See also
// TestManyGoroutinesInFlight.
func TestManyInFlight(t *testing.T) {
	s, c := pair(t)
	for _, calls := range []int{32, 1024, 10_000} {
		if testing.Short() && calls > 1024 {
			continue
		}
		var came atomic.Int32
		all := make(chan struct{})
		try.OK(t, rpc.Register(s, "n", func(_ context.Context, n int64) (int64, error) {
			if came.Add(1) == int32(calls) {
				close(all)
			}
			<-all // all calls are in flight
			return -n, nil
		}))
		futures := make([]*rpc.Future[int64], calls)
		for n := range futures {
			futures[n] = rpc.Go[int64, int64](deadline(t), c, s.ID(), "n", int64(n))
		}
		for n, f := range futures {
			if got, err := f.Wait(deadline(t)); err != nil || got != -int64(n) {
				t.Fatalf("call %d of %d: %d, %v", n, calls, got, err)
			}
		}
		s.Deregister("n")
	}
}

// Goroutines that each have many calls in flight share one client.
func TestManyGoroutinesInFlight(t *testing.T) {
	s, c := pair(t)
	try.OK(t, rpc.Register(s, "add", add))
	var callers sync.WaitGroup
	for g := range int64(64) {
		callers.Go(func() {
			futures := make([]*rpc.Future[int64], 128)
			for n := range futures {
				futures[n] = rpc.Go[addends, int64](deadline(t), c, s.ID(), "add", addends{g, int64(n)})
			}
			for n, f := range futures {
				if got, err := f.Wait(deadline(t)); err != nil || got != g+int64(n) {
					t.Errorf("%d + %d: %d, %v", g, n, got, err)
				}
			}
		})
	}
	callers.Wait()
}

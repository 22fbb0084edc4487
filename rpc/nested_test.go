// SPDX-License-Identifier: Apache-2.0

package rpc_test

import (
	"context"
	"errors"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/rocl-go/rocl"
	"github.com/rocl-go/rocl/internal/testkit/short"
	"github.com/rocl-go/rocl/internal/testkit/try"
	"github.com/rocl-go/rocl/rpc"
)

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
			if !s.Deregister("n") || s.Deregister("n") {
				t.Error("the name was not registered once")
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
		try.Gives(f.Wait(deadline(t)))(t, int64(n), "call %d", n)
	}
	if _, err := rpc.Call[int64, int64](deadline(t), c, s.ID(), "n", 1); !errors.Is(err, rpc.ErrUnknownCall) || !strings.Contains(err.Error(), `"n"`) {
		t.Errorf("after the name was withdrawn: %v", err)
	}
}

// Any number of calls may be in flight over one link.
func TestManyInFlight(t *testing.T) {
	s, c := pair(t)
	for _, calls := range []int{32, 1024, 10_000} {
		if short.Form(t) && calls > 1024 {
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

// SPDX-License-Identifier: Apache-2.0

package rpc_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/rocl-go/rocl"
	"github.com/rocl-go/rocl/internal/testkit/try"
	"github.com/rocl-go/rocl/rocltest"
	"github.com/rocl-go/rocl/rpc"
)

// bubble runs f in a bubble of virtual time, with a context for servers and one for clients.
func bubble(t *testing.T, f func(t *testing.T, home, other *rocl.Context)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		cl := rocltest.Cluster(t, 2)
		f(t, cl.Open(0), cl.Open(1))
	})
}

// hold returns an option with the call "hold", whose handler waits until release is closed. began
// gets a value when a handler has begun.
func hold() (o rpc.ServerOption, began, release chan struct{}) {
	began, release = make(chan struct{}, 100), make(chan struct{})
	return rpc.WithCall("hold", func(ctx context.Context, n int) (int, error) {
		began <- struct{}{}
		select {
		case <-release:
			return n, nil
		case <-ctx.Done():
			return 0, context.Cause(ctx)
		}
	}), began, release
}

// Promise (Package rpc): A server that drains is no longer found by calls. It refuses requests with
// an error for which MayRetry is true, answers those that it has begun to handle, and says
// state=draining.
func TestDrain(t *testing.T) {
	bubble(t, func(t *testing.T, home, other *rocl.Context) {
		o, began, release := hold()
		s := try.Get(rpc.NewServer(t.Context(), home, rocl.Attrs{"type": "test"}, o))(t)
		c := client(t, other)
		running := rpc.Go[int, int](t.Context(), c, s.ID(), "hold", 42)
		<-began
		drained := make(chan error, 1)
		go func() { drained <- s.Drain(t.Context()) }()
		synctest.Wait()
		_, err := rpc.Call[int, int](t.Context(), c, s.ID(), "hold", 1)
		if !errors.Is(err, rpc.ErrClosed) || !rpc.MayRetry(err) {
			t.Errorf("while draining: %v", err)
		}
		try.Get(other.Find(t.Context(), rocl.Match{"type": "test", "state": "draining"}))(t)
		_, err = rpc.CallAny[int, int](t.Context(), c, rocl.Match{"type": "test"}, "hold", 1)
		if !errors.Is(err, rocl.ErrNotFound) || !rpc.MayRetry(err) {
			t.Errorf("CallAny: %v", err)
		}
		select {
		case err := <-drained:
			t.Fatalf("drained beside a running handler: %v", err)
		default:
		}
		close(release)
		try.Gives(running.Wait(t.Context()))(t, 42)
		try.OK(t, <-drained)
		try.OK(t, s.Drain(t.Context())) // again
		try.OK(t, s.Close(t.Context()))
		_, err = rpc.Call[int, int](t.Context(), c, s.ID(), "hold", 1)
		if !errors.Is(err, rocl.ErrGone) || !rpc.MayRetry(err) {
			t.Errorf("after the end: %v", err)
		}
	})
}

// Promise (Package rpc): MayRetry is false if the handler may have run.
func TestMayRetry(t *testing.T) {
	bubble(t, func(t *testing.T, home, other *rocl.Context) {
		o, began, _ := hold()
		refused := errors.New("on purpose")
		s := try.Get(rpc.NewServer(t.Context(), home, nil, o, rpc.WithCall("fail", func(context.Context, int) (int, error) {
			return 0, fmt.Errorf("%w: %w", rpc.ErrBusy, refused) // as a nested call that was refused
		})))(t)
		c := client(t, other)
		call := func(name string) error { _, err := rpc.Call[int, int](t.Context(), c, s.ID(), name, 1); return err }
		lost := rpc.Go[int, int](t.Context(), c, s.ID(), "hold", 1)
		<-began
		for _, x := range []struct {
			err  error
			kind error
			may  bool
		}{
			{call("none"), rpc.ErrUnknownCall, true},
			{call("fail"), rpc.ErrBusy, false},
			{nil, nil, false},
			{fmt.Errorf("wrapped: %w", call("none")), rpc.ErrUnknownCall, true},
			{errors.New("other"), nil, false},
		} {
			if rpc.MayRetry(x.err) != x.may || x.kind != nil && !errors.Is(x.err, x.kind) {
				t.Errorf("%v, want %v, which may be retried: %v", x.err, x.kind, x.may)
			}
		}
		try.OK(t, home.Close())
		if _, err := lost.Wait(t.Context()); err == nil || rpc.MayRetry(err) {
			t.Errorf("%v: the handler has run", err)
		}
		ended, end := context.WithCancel(t.Context())
		end()
		_ = s.Close(ended) // ends the handler
	})
}

// Promise (Package rpc): Serve drains when its context ends, and then ends the handlers that run
// for too long.
func TestServe(t *testing.T) {
	for _, isPatient := range []bool{true, false} {
		bubble(t, func(t *testing.T, home, other *rocl.Context) {
			o, began, release := hold()
			ctx, end := context.WithCancel(t.Context())
			served := make(chan error, 1)
			go func() { served <- rpc.Serve(ctx, home, rocl.Attrs{"type": "test"}, o, rpc.DrainWithin(time.Minute)) }()
			synctest.Wait()
			c := client(t, other)
			id := try.Get(other.Find(t.Context(), rocl.Match{"type": "test"}))(t).ID
			running := rpc.Go[int, int](t.Context(), c, id, "hold", 42)
			<-began
			end()
			time.Sleep(59 * time.Second) // virtual: the server drains
			if isPatient {
				close(release)
				try.Gives(running.Wait(t.Context()))(t, 42)
				try.OK(t, <-served)
				return
			}
			time.Sleep(2 * time.Second) // virtual: the server waits no longer
			if err := <-served; !errors.Is(err, context.DeadlineExceeded) || !strings.Contains(err.Error(), "1 calls run") {
				t.Errorf("served: %v", err)
			}
			try.Rejects(running.Wait(t.Context()))(t, "answered")
		})
	}
}

// Serve returns when its context for communication is closed, and when it cannot begin.
func TestServeFails(t *testing.T) {
	bubble(t, func(t *testing.T, home, other *rocl.Context) {
		served := make(chan error, 1)
		one := rpc.WithRegister(rocl.Unique("type"))
		go func() { served <- rpc.Serve(t.Context(), home, rocl.Attrs{"type": "test"}, one) }()
		synctest.Wait()
		try.Fails(rpc.Serve(t.Context(), other, rocl.Attrs{"type": "test"}, one))(t, rocl.ErrExists)
		try.OK(t, home.Close())
		try.Fails(<-served)(t, rocl.ErrClosed)
	})
}

// Promise (Package rpc): PublishLoad publishes each change of the load within 100 ms, and nothing
// while the load stays.
func TestPublishLoad(t *testing.T) {
	bubble(t, func(t *testing.T, home, other *rocl.Context) {
		o, began, release := hold()
		var depth atomic.Int64
		depth.Store(7)
		s := try.Get(rpc.NewServer(t.Context(), home, nil, o, rpc.PublishLoad("load"), rpc.PublishLoadOf("depth", depth.Load)))(t)
		c := client(t, other)
		attrs := func() string {
			f := try.Get(other.Lookup(t.Context(), s.ID()))(t)
			return f.Attrs.GetString("load") + " " + f.Attrs.GetString("depth")
		}
		try.Equal(t, attrs(), "0 7")
		var calls []*rpc.Future[int]
		for range 5 {
			calls = append(calls, rpc.Go[int, int](t.Context(), c, s.ID(), "hold", 1))
			<-began
		}
		time.Sleep(250 * time.Millisecond) // virtual
		try.Equal(t, attrs(), "5 7")
		before := s.Resource().Revision()
		time.Sleep(time.Minute) // virtual: nothing changes
		try.Equal(t, s.Resource().Revision(), before)
		depth.Store(9)
		close(release)
		done(t, calls...)
		time.Sleep(250 * time.Millisecond) // virtual
		try.Equal(t, attrs(), "0 9")
		if n := s.Resource().Revision() - before; n > 2 {
			t.Errorf("%d updates", n)
		}
		try.OK(t, s.Close(t.Context()))
	})
}

// A refusal by a server that drains is an end. The handler's own rocl.ErrGone is none.
func TestErrorIsEnd(t *testing.T) {
	bubble(t, func(t *testing.T, home, other *rocl.Context) {
		s := try.Get(rpc.NewServer(t.Context(), home, nil, rpc.WithCall("gone", func(context.Context, int) (int, error) { return 0, rocl.ErrGone })))(t)
		c := client(t, other)
		call := func() error { _, err := rpc.Call[int, int](t.Context(), c, s.ID(), "gone", 1); return err }
		if err := call(); !errors.Is(err, rocl.ErrGone) || rocl.IsEnd(err) {
			t.Error(err)
		}
		try.OK(t, s.Drain(t.Context()))
		if err := call(); !errors.Is(err, rpc.ErrClosed) || !rocl.IsEnd(err) {
			t.Error(err)
		}
		try.OK(t, s.Close(t.Context()))
	})
}

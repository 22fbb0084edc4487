// SPDX-License-Identifier: Apache-2.0

package rpc_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"iter"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/rocl-go/rocl"
	"github.com/rocl-go/rocl/internal/testkit/eventually"
	"github.com/rocl-go/rocl/internal/testkit/freeaddr"
	"github.com/rocl-go/rocl/internal/testkit/logged"
	"github.com/rocl-go/rocl/internal/testkit/posix"
	"github.com/rocl-go/rocl/internal/testkit/try"
	"github.com/rocl-go/rocl/pool"
	"github.com/rocl-go/rocl/rocltest"
	"github.com/rocl-go/rocl/rpc"
)

// A text has an encoding whose length is not known in advance.
type text struct {
	Name string
	Tags []string
}

// liar is a codec that does not append to its argument.
type liar struct{}

func (liar) Append(_ []byte, v []byte) ([]byte, error) { return bytes.Clone(v), nil }
func (liar) Decode(p []byte) ([]byte, error)           { return bytes.Clone(p), nil }

func TestLyingCodec(t *testing.T) {
	s, c := pair(t)
	try.OK(t, rpc.Register(s, "lie", echo, rpc.WithCodecs[[]byte, []byte](nil, liar{})))
	try.Fails(rpc.Call[[]byte, []byte](deadline(t), c, s.ID(), "lie", random(100)))(t, rocl.ErrValue)
	try.Fails(rpc.Call[[]byte, []byte](deadline(t), c, s.ID(), "lie", nil, rpc.WithCodecs[[]byte, []byte](liar{}, nil)))(t, rocl.ErrValue)
}

// A broken codec panics.
type broken struct{ appends, decodes bool }

func (b broken) Append(p []byte, v []byte) ([]byte, error) {
	if b.appends {
		panic("append on purpose")
	}
	return append(p, v...), nil
}

func (b broken) Decode(p []byte) ([]byte, error) {
	if b.decodes {
		panic("decode on purpose")
	}
	return bytes.Clone(p), nil
}

// A codec of the server that panics ends one call, also if the values are above the limit.
//
// Promise (Package rpc): A codec that panics ends one call. See also TestLyingCodec.
func TestPanickingCodec(t *testing.T) {
	for _, n := range []int{10, 10 * limit} {
		s, c := pair(t, rpc.WithOverflow(limit))
		try.OK(t,
			errors.Join(rpc.Register(s, "arguments", echo, rpc.WithCodecs[[]byte, []byte](broken{decodes: true}, nil)),
				rpc.Register(s, "result", echo, rpc.WithCodecs[[]byte, []byte](nil, broken{appends: true})),
				rpc.Register(s, "echo", echo),
			))
		for _, name := range []string{"arguments", "result"} {
			try.Fails(rpc.Call[[]byte, []byte](deadline(t), c, s.ID(), name, random(n)))(t, rpc.ErrPanic, "%s of %d bytes", name, n)
		}
		if got, err := rpc.Call[[]byte, []byte](deadline(t), c, s.ID(), "echo", random(n)); err != nil || !bytes.Equal(got, random(n)) {
			t.Error(len(got), err)
		}
	}
}

// A handler that panics, or ends its goroutine, ends its call and no other, in every place. Only
// the server's log has the stack, with the handler's name.
func TestHandlerPanics(t *testing.T) {
	var log logged.Log
	s, c := pair(t, rpc.WithLogger(log.Logger()))
	one := inOne(t, s, `{"pools": [{"name": "one", "workers": 1}]}`)
	for name, place := range map[string]rpc.Option{"in a goroutine": rpc.InGoroutine(), "inline": rpc.Inline(), "in a pool": one} {
		try.OK(t,
			errors.Join(rpc.Register(s, name, func(context.Context, int64) (int64, error) { panic("on purpose " + name) }, place),
				rpc.Register(s, "exit "+name, func(context.Context, int64) (int64, error) { runtime.Goexit(); return 0, nil }, place),
				rpc.Register(s, "add "+name, add, place),
			))
		var e *rpc.Error
		if _, err := rpc.Call[int64, int64](deadline(t), c, s.ID(), "exit "+name, 1); !errors.Is(err, rpc.ErrPanic) || !errors.As(err, &e) || !e.Ran {
			t.Errorf("exit %s: %+v", name, err)
		}
		_, err := rpc.Call[int64, int64](deadline(t), c, s.ID(), name, 1)
		if !errors.Is(err, rpc.ErrPanic) || !strings.Contains(err.Error(), strconv.Quote(name)) || strings.Contains(err.Error(), "on purpose") || strings.Contains(err.Error(), "goroutine 1") {
			t.Errorf("%s: %v", name, err)
		}
		try.Check(t, rpc.Send(deadline(t), c, s.ID(), name, int64(1)))
		try.Gives(rpc.Call[addends, int64](deadline(t), c, s.ID(), "add "+name, addends{1, 2}))(t, 3)
		if text := log.String(); !strings.Contains(text, "on purpose "+name) || !strings.Contains(text, "call=\""+name) && !strings.Contains(text, "call="+name) || !strings.Contains(text, "TestHandlerPanics") {
			t.Errorf("%s: the log has %s", name, text)
		}
	}
}

// A call whose deadline is over, or whose context has been cancelled, fails at once, with the
// cause, and no handler runs.
func TestDeadlineInThePast(t *testing.T) {
	s, c := pair(t)
	var ran atomic.Int64
	try.OK(t,
		errors.Join(rpc.Register(s, "run", func(context.Context, []byte) (int64, error) { return ran.Add(1), nil }),
			rpc.RegisterStream(s, "stream", func(ctx context.Context, n int64) iter.Seq2[int64, error] { ran.Add(1); return count(ctx, n) }),
		))
	past, end := context.WithDeadline(context.Background(), time.Now().Add(-time.Hour))
	defer end()
	own := errors.New("cancelled on purpose")
	cancelled, cancel := context.WithCancelCause(context.Background())
	cancel(own)
	for ctx, want := range map[context.Context]error{past: context.DeadlineExceeded, cancelled: own} {
		for _, n := range []int{1, 2 << 20} {
			try.Fails(rpc.Call[[]byte, int64](ctx, c, s.ID(), "run", random(n)))(t, want)
			try.Fails(rpc.Send(ctx, c, s.ID(), "run", random(n)))(t, want)
		}
		try.Fails(all(rpc.Stream[int64, int64](ctx, c, s.ID(), "stream", 5)))(t, want)
		try.Fails(all(rpc.CallAll[[]byte, int64](ctx, c, rocl.Match{"type": "test"}, "run", nil)))(t, want)
	}
	if _, err := rpc.Call[[]byte, int64](deadline(t), c, s.ID(), "run", nil); err != nil || ran.Load() != 1 {
		t.Errorf("%d handlers ran, %v", ran.Load(), err)
	}
}

// An error whose methods panic ends one call.
type nilError struct{ text string }

func (e *nilError) Error() string { return e.text }

func TestTypedNilError(t *testing.T) {
	s, c := pair(t)
	try.OK(t, rpc.Register(s, "nil", func(context.Context, struct{}) (struct{}, error) { var e *nilError; return struct{}{}, e }))
	for range 2 {
		try.Fails(rpc.Call[struct{}, struct{}](deadline(t), c, s.ID(), "nil", struct{}{}))(t, rpc.ErrPanic)
	}
}

// The error tells whether the handler has run, also if the handler fails with an error of this
// package.
//
// Promise (Package rpc): An error tells whether the handler has run.
func TestRan(t *testing.T) {
	s, c := pair(t)
	try.OK(t, rpc.Register(s, "outer", func(context.Context, struct{}) (struct{}, error) { return struct{}{}, rpc.ErrUnknownCall }))
	for name, ran := range map[string]bool{"outer": true, "nothing": false} {
		_, err := rpc.Call[struct{}, struct{}](deadline(t), c, s.ID(), name, struct{}{})
		var e *rpc.Error
		if !errors.Is(err, rpc.ErrUnknownCall) || !errors.As(err, &e) || e.Ran != ran {
			t.Errorf("%s: %+v", name, err)
		}
	}
}

// The error tells that a stream for which a pool has no room has not run.
func TestStreamRefused(t *testing.T) {
	s, c := pair(t)
	p := load(t, s, `{"pools": [{"workers": 1, "queue": 1}]}`).Default()
	defer occupy(t, p)()
	try.OK(t, errors.Join(p.Submit(deadline(t), pool.Unit{Run: func(context.Context) {}}), rpc.RegisterStream(s, "count", count, rpc.InPool(p))))
	_, last := all(rpc.Stream[int64, int64](deadline(t), c, s.ID(), "count", 1))
	var e *rpc.Error
	if !errors.Is(last, rpc.ErrBusy) || !errors.As(last, &e) || e.Ran {
		t.Errorf("%+v", last)
	}
}

// A stopped process, which does not take the replies to its calls, does not stop a server with an
// Inline handler. The server's context keeps these replies.
//
// A caller that takes no replies does not stop a server.
func TestStalledCaller(t *testing.T) {
	sock := freeaddr.Socket(t)
	sc := open(t, sock)
	s := serve(t, sc)
	var ran atomic.Int64
	try.OK(t,
		errors.Join(rpc.Register(s, "zeros", func(_ context.Context, n int64) ([]byte, error) { ran.Add(1); return make([]byte, n), nil }, rpc.Inline()),
			rpc.Register(s, "add", add),
		))
	c := client(t, open(t, sock))
	cmd, _ := other(t, "many", sock)
	const untaken = 100 // buffers, of 20,000 bytes each
	eventually.True(t, "a stopped process does not take replies", func() bool {
		before := ran.Load()
		eventually.True(t, "fifty calls have run", func() bool { return ran.Load() >= before+50 })
		try.OK(t, posix.Signal(cmd.Process, posix.SIGSTOP))
		for range 100 {
			try.Get(rpc.Call[addends, int64](deadline(t), c, s.ID(), "add", addends{}))(t)
		}
		if sc.Stats().Buffers.InUse >= untaken {
			return true
		}
		try.OK(t, posix.Signal(cmd.Process, posix.SIGCONT)) // it was stopped with replies that it had taken, before its next calls
		return false
	})
	try.OK(t, cmd.Process.Kill())
	try.Check(t, s.Close(deadline(t)))
}

// waiting configures one worker, and a queue of one unit that waits when it is full.
const waiting = `{"pools": [{"name": "one", "workers": 1, "queue": 1, "when_full": "wait"}]}`

// inOne returns an option that places handlers in a pool of that configuration.
func inOne(t *testing.T, s *rpc.Server, config string) rpc.Option {
	t.Helper()
	p := try.Get(load(t, s, config).Pool("one"))(t)
	return rpc.InPool(p)
}

// Streams in a pool that waits when it is full continue, and all requests are handled.
func TestStreamsInPool(t *testing.T) {
	s, c := pair(t)
	try.OK(t, rpc.RegisterStream(s, "count", count, inOne(t, s, waiting)))
	try.Fails(rpc.RegisterStream(s, "inline", count, rpc.Inline()))(t, errors.ErrUnsupported)
	try.Fails(rpc.RegisterStream(s, "inline", count, inOne(t, s, `{"pools": [{"name": "one", "policy": "inline"}]}`)))(t, errors.ErrUnsupported)
	try.Fails(s.Place("count", rpc.Inline()))(t, errors.ErrUnsupported)
	var streams sync.WaitGroup
	for range 8 {
		streams.Go(func() {
			if got, err := all(rpc.Stream[int64, int64](deadline(t), c, s.ID(), "count", 2000)); err != nil || len(got) != 2000 {
				t.Errorf("%d results, %v", len(got), err)
			}
		})
	}
	streams.Wait()
}

// A call that is cancelled while it waits for a worker does not run. A running call can be
// cancelled while other calls wait.
func TestCancelledInPool(t *testing.T) {
	for _, config := range []string{`{"pools": [{"name": "one", "workers": 1}]}`, waiting} {
		s, c := pair(t)
		began, ended := waits(t, s, inOne(t, s, config))
		first, endFirst := context.WithCancel(deadline(t))
		others, endOthers := context.WithCancel(deadline(t))
		running := rpc.Go[struct{}, struct{}](first, c, s.ID(), "wait", struct{}{})
		<-began
		var queued []*rpc.Future[struct{}]
		for range 5 {
			queued = append(queued, rpc.Go[struct{}, struct{}](others, c, s.ID(), "wait", struct{}{}))
		}
		endOthers()
		for _, f := range queued {
			try.Fails(f.Wait(deadline(t)))(t, context.Canceled)
		}
		endFirst()
		try.Fails(running.Wait(deadline(t)))(t, context.Canceled)
		try.Check(t, s.Close(deadline(t))) // all requests have ended
		if n := len(ended); n > 3 {        // the first call, and those that a worker took before their cancellation
			t.Errorf("%d handlers ran", n)
		}
	}
}

// The context of a handler ends with its caller, also if the call cannot be cancelled.
func TestClientCloses(t *testing.T) {
	s, c := pair(t)
	began, ended := waits(t, s)
	f := rpc.Go[struct{}, struct{}](context.Background(), c, s.ID(), "wait", struct{}{})
	<-began
	try.Check(t, c.Close())
	try.Fails(<-ended)(t, rocl.ErrGone)
	try.Fails(f.Wait(deadline(t)))(t, rocl.ErrClosed)
}

// Calls may be cancelled while their client closes.
func TestCancelWhileClosing(t *testing.T) {
	s, _ := pair(t)
	waits(t, s)
	home := open(t, freeaddr.Socket(t))
	for range 50 {
		c := try.Get(rpc.NewClient(deadline(t), home))(t)
		var calls sync.WaitGroup
		for range 8 {
			ctx, cancel := context.WithCancel(deadline(t))
			calls.Go(func() { _, _ = rpc.Call[struct{}, struct{}](ctx, c, s.ID(), "wait", struct{}{}) })
			calls.Go(cancel)
		}
		calls.Go(func() { try.Check(t, c.Close()) })
		calls.Wait()
	}
}

// A handler of a stream that panics or ends its goroutine ends the stream with an error, after its
// results, whenever the caller asks.
func TestStreamEndsLate(t *testing.T) {
	s, c := pair(t)
	for name, end := range map[string]func(){"panic": func() { panic("on purpose") }, "exit": runtime.Goexit} {
		try.OK(t, rpc.RegisterStream(s, name, func(context.Context, struct{}) iter.Seq2[int64, error] {
			return func(yield func(int64, error) bool) { yield(1, nil); end() }
		}))
		for range 100 {
			if got, err := all(rpc.Stream[struct{}, int64](deadline(t), c, s.ID(), name, struct{}{})); len(got) != 1 || !errors.Is(err, rpc.ErrPanic) {
				t.Fatalf("%s: %d results, then %v", name, len(got), err)
			}
		}
	}
}

// A result whose length does not fit into its head ends the stream.
func TestStreamItemTooLarge(t *testing.T) {
	defer rpc.SetMostItem(10)()
	s, c := pair(t)
	try.OK(t, rpc.RegisterStream(s, "grow", func(context.Context, struct{}) iter.Seq2[[]byte, error] {
		return func(yield func([]byte, error) bool) {
			for n := 9; yield(make([]byte, n), nil); n++ {
			}
		}
	}))
	got, err := all(rpc.Stream[struct{}, []byte](deadline(t), c, s.ID(), "grow", struct{}{}))
	if len(got) != 2 || len(got[1]) != 10 || !errors.Is(err, rpc.ErrTooLarge) {
		t.Errorf("%d results, then %v", len(got), err)
	}
}

// A stream whose deadline passes ends with that cause for its handler.
func TestStreamDeadline(t *testing.T) {
	s, c := pair(t)
	const streams = 20
	causes := make(chan error, streams)
	try.OK(t, rpc.RegisterStream(s, "wait", func(ctx context.Context, _ struct{}) iter.Seq2[int64, error] {
		return func(func(int64, error) bool) {
			<-ctx.Done()
			causes <- context.Cause(ctx)
		}
	}))
	for range streams {
		ctx, end := context.WithTimeout(deadline(t), 5*time.Millisecond)                                // may end before the handler begins
		if _, err := all(rpc.Stream[struct{}, int64](ctx, c, s.ID(), "wait", struct{}{})); err != nil { // nil: the handler was first
			try.Fails(err)(t, context.DeadlineExceeded)
		}
		end()
	}
	try.Check(t, s.Close(deadline(t)))
	close(causes)
	for err := range causes {
		try.Fails(err)(t, context.DeadlineExceeded) // of the handler
	}
}

// While no memory is free for the results of Inline handlers, the server goes on to receive. The
// results come when memory is free, as they were when the handler returned them.
func TestInlineWithoutMemory(t *testing.T) {
	sock := freeaddr.Socket(t)
	small := open(t, sock, rocl.WithMemory(1<<20))
	s := serve(t, small, rpc.WithOverflow(64<<10))
	shared, large := bytes.Repeat([]byte{1}, 4000), bytes.Repeat([]byte{1}, 100_000)
	ran := make(chan string, 1)
	try.OK(t,
		errors.Join(rpc.Register(s, "shared", func(context.Context, struct{}) ([]byte, error) { return shared, nil }, rpc.Inline()),
			rpc.Register(s, "large", func(context.Context, struct{}) ([]byte, error) { return large, nil }, rpc.Inline()),
			rpc.Register(s, "fail", func(context.Context, struct{}) ([]byte, error) { return nil, errors.New("it failed") }, rpc.Inline()),
			rpc.Register(s, "ran", func(_ context.Context, name string) (struct{}, error) {
				clear(shared) // which the results do not show
				clear(large)
				ran <- name
				return struct{}{}, nil
			}, rpc.Inline()),
		))
	c := client(t, open(t, sock))
	if err := rpc.Send(deadline(t), c, s.ID(), "ran", "links"); err != nil || <-ran != "links" {
		t.Fatal(err)
	}
	copy(shared, bytes.Repeat([]byte{1}, len(shared)))
	copy(large, bytes.Repeat([]byte{1}, len(large)))

	release := takeMemory(small)
	var calls []*rpc.Future[[]byte]
	for _, name := range []string{"shared", "large", "fail"} {
		calls = append(calls, rpc.Go[struct{}, []byte](deadline(t), c, s.ID(), name, struct{}{}))
	}
	if err := rpc.Send(deadline(t), c, s.ID(), "ran", "behind"); err != nil || <-ran != "behind" {
		t.Fatal(err)
	}
	release()
	for i, want := range [][]byte{bytes.Repeat([]byte{1}, len(shared)), bytes.Repeat([]byte{1}, len(large)), nil} {
		got, err := calls[i].Wait(deadline(t))
		if !bytes.Equal(got, want) || (err == nil) != (want != nil) {
			t.Errorf("%d bytes, %v", len(got), err)
		}
	}
}

// takeMemory takes all memory of a context, which has at most 1 MiB, until release is called.
func takeMemory(c *rocl.Context) (release func()) {
	var all []*rocl.Buffer
	for n := 1 << 20; n > 0; {
		if b, err := c.Buffer(n); err == nil {
			all = append(all, b)
		} else {
			n /= 2
		}
	}
	return func() {
		for _, b := range all {
			b.Release()
		}
	}
}

// A result that cannot be sent ends the stream and its handler.
func TestStreamTooLarge(t *testing.T) {
	sock := freeaddr.Socket(t)
	s := serve(t, open(t, sock, rocltest.TCP(), rocl.WithMemory(1<<20)), rpc.WithOverflow(-1))
	left := make(chan struct{})
	try.OK(t, rpc.RegisterStream(s, "large", func(context.Context, struct{}) iter.Seq2[[]byte, error] {
		return func(yield func([]byte, error) bool) {
			defer close(left)
			for yield(make([]byte, 2<<20), nil) {
			}
		}
	}))
	c := client(t, open(t, sock, rocltest.TCP(), rocl.WithMemory(1<<20)))
	if got, err := all(rpc.Stream[struct{}, []byte](deadline(t), c, s.ID(), "large", struct{}{})); len(got) > 0 || err == nil {
		t.Error("a result of 2 MiB came into 1 MiB")
	}
	<-left
}

// Interceptors of a client also apply to streams and to one-way calls.
func TestInterceptAll(t *testing.T) {
	home := open(t, freeaddr.Socket(t))
	s := serve(t, home)
	who := make(chan string, 2)
	try.OK(t,
		errors.Join(rpc.Register(s, "tell", func(ctx context.Context, _ struct{}) (struct{}, error) {
			who <- rpc.InfoFrom(ctx).Metadata["who"]
			return struct{}{}, nil
		}),
			rpc.RegisterStream(s, "list", func(ctx context.Context, _ struct{}) iter.Seq2[string, error] {
				who <- rpc.InfoFrom(ctx).Metadata["who"]
				return func(func(string, error) bool) {}
			}),
		))
	c := client(t, home, rpc.CallInterceptors(func(ctx context.Context, i *rpc.Invocation, next func(context.Context) error) error {
		if i.Out != nil {
			t.Error("there is a result")
		}
		i.Metadata = rpc.Metadata{"who": i.Name}
		return next(ctx)
	}))
	try.Check(t, rpc.Send(deadline(t), c, s.ID(), "tell", struct{}{}))
	try.Equal(t, <-who, "tell")
	try.Works(all(rpc.Stream[struct{}, string](deadline(t), c, s.ID(), "list", struct{}{})))(t)
	try.Equal(t, <-who, "list")
}

// An interceptor that fails, or makes the call again, after the loop over a stream was left has no
// effect on the loop.
func TestInterceptLeftStream(t *testing.T) {
	s, _ := pair(t)
	c := client(t, contextOf(s), rpc.CallInterceptors(func(ctx context.Context, _ *rpc.Invocation, next func(context.Context) error) error {
		return errors.Join(next(ctx), next(ctx), errors.New("on purpose"))
	}))
	try.OK(t, rpc.RegisterStream(s, "count", count))
	n := 0
	for _, err := range rpc.Stream[int64, int64](deadline(t), c, s.ID(), "count", 100) {
		if n++; err != nil || n > 3 {
			t.Fatal(n, err)
		}
		if n == 3 {
			break
		}
	}
}

// Promise (Package rpc): A `Future` has what `Call` would have returned. The end of its context
// ends the call and the handler's context. See also TestFutureCancelled.
func TestFutures(t *testing.T) {
	s, c := pair(t)
	release := make(chan struct{})
	try.OK(t,
		errors.Join(rpc.Register(s, "wait", func(context.Context, struct{}) (string, error) { <-release; return "waited", nil }),
			rpc.Register(s, "now", func(context.Context, struct{}) (string, error) { return "now", nil }),
		))
	slow := rpc.Go[struct{}, string](deadline(t), c, s.ID(), "wait", struct{}{})
	quick := rpc.Go[struct{}, string](deadline(t), c, s.ID(), "now", struct{}{})
	try.Gives(rpc.WaitAny(deadline(t), slow, quick))(t, 1)
	ended, end := context.WithCancel(context.Background())
	end()
	for range 50 { // a future that has ended has its result, whatever ctx says
		try.Gives(quick.Wait(ended))(t, "now")
	}
	if i, err := rpc.WaitAny(ended, slow); i != -1 || !errors.Is(err, context.Canceled) {
		t.Error(i, err)
	}
	close(release)
	try.Gives(slow.Wait(deadline(t)))(t, "waited")
}

// The end of the call's context ends the handler's context and the call, whether or not a goroutine
// waits for the result. The end of a waiting goroutine's own context ends only its wait.
func TestFutureCancelled(t *testing.T) {
	s, c := pair(t)
	began, ended := waits(t, s)
	cause := errors.New("given up")
	for _, waits := range []bool{false, true} {
		ctx, cancel := context.WithCancelCause(context.Background())
		f := rpc.Go[struct{}, struct{}](ctx, c, s.ID(), "wait", struct{}{})
		<-began
		failed, waiting := make(chan error), 0
		if waits {
			for _, ctx := range []context.Context{context.Background(), ctx, deadline(t)} {
				waiting++
				go func() {
					_, err := f.Wait(ctx)
					failed <- err
				}()
			}
			own, end := context.WithCancel(context.Background())
			end()
			try.Fails(f.Wait(own))(t, context.Canceled)
		}
		cancel(cause)
		try.Fails(<-ended)(t, context.Canceled)
		for range waiting {
			try.Fails(<-failed)(t, cause)
		}
		try.Fails(f.Wait(deadline(t)))(t, cause)
	}
}

// Futures of calls that have not begun, and of calls through interceptors, behave like others.
func TestFutureEnds(t *testing.T) {
	sock := freeaddr.Socket(t)
	s, c, calls := serve(t, open(t, sock)), client(t, open(t, sock)), 0
	around := client(t, open(t, sock), rpc.CallInterceptors(func(ctx context.Context, _ *rpc.Invocation, next func(context.Context) error) error {
		calls++
		return next(ctx)
	}))
	try.OK(t, rpc.Register(s, "now", func(context.Context, struct{}) (string, error) { return "now", nil }))
	ended, end := context.WithCancelCause(context.Background())
	cause := errors.New("over")
	end(cause)
	try.Fails(rpc.Go[struct{}, string](ended, c, s.ID(), "now", struct{}{}).Wait(deadline(t)))(t, cause)
	f := rpc.Go[struct{}, string](deadline(t), around, s.ID(), "now", struct{}{})
	<-f.Done()
	if v, err := f.Wait(ended); v != "now" || err != nil || calls != 1 {
		t.Error(v, err, calls)
	}
}

// The error of a call names the provider once, also if the cause of the context's end names it.
func TestErrorNamesProviderOnce(t *testing.T) {
	s, c := pair(t)
	waits(t, s)
	_, err := rpc.Call[struct{}, struct{}](deadline(t), c, c.ID().WithSerial(12345), "x", struct{}{})
	because := fmt.Errorf("%v is not needed, since %w", s.ID(), err)
	past, cancel := context.WithCancelCause(deadline(t))
	cancel(because)
	before := fmt.Sprintf("rpc: call \"wait\" of %v: %v", s.ID(), because)
	during := fmt.Sprintf("rpc: call \"wait\": rocl: call %v: ", s.ID())
	expect := func(what, want string, err error) {
		if err == nil || !strings.HasPrefix(err.Error(), want) {
			t.Errorf("%s: %v, want %s", what, err, want)
		}
	}
	_, err = rpc.Call[struct{}, struct{}](past, c, s.ID(), "wait", struct{}{})
	expect("call", before, err)
	_, err = rpc.Go[struct{}, struct{}](past, c, s.ID(), "wait", struct{}{}).Wait(deadline(t))
	expect("future", before, err)
	expect("send", before, rpc.Send(past, c, s.ID(), "wait", struct{}{}))
	_, err = all(rpc.Stream[struct{}, struct{}](past, c, s.ID(), "wait", struct{}{}))
	expect("stream", before, err)
	ctx, cancel := context.WithCancelCause(deadline(t))
	f := rpc.Go[struct{}, struct{}](ctx, c, s.ID(), "wait", struct{}{})
	cancel(because)
	_, err = f.Wait(deadline(t))
	expect("future that has begun", during, err)
	_, err = rpc.Call[struct{}, struct{}](deadline(t), c, s.ID().WithSerial(12345), "wait", struct{}{})
	expect("call of no resource", fmt.Sprintf("rpc: call \"wait\": rocl: call %v: ", s.ID().WithSerial(12345)), err)
}

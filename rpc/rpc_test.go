// SPDX-License-Identifier: Apache-2.0

package rpc_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"iter"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/rocl-go/rocl"
	"github.com/rocl-go/rocl/internal/testkit/eventually"
	"github.com/rocl-go/rocl/internal/testkit/freeaddr"
	"github.com/rocl-go/rocl/internal/testkit/try"
	"github.com/rocl-go/rocl/pool"
	"github.com/rocl-go/rocl/rpc"
)

// deadline returns a context that ends when a test takes too long.
func deadline(t testing.TB) context.Context { return eventually.Context(t) }

// open opens a context of the node at a socket.
func open(t testing.TB, sock string, opts ...rocl.Option) *rocl.Context {
	t.Helper()
	c := try.Get(rocl.Open(deadline(t), append(opts, rocl.WithSocket(sock))...))(t)
	t.Cleanup(func() { try.Check(t, c.Close()) })
	return c
}

// serve returns a server of a context.
func serve(t testing.TB, c *rocl.Context, opts ...rpc.ServerOption) *rpc.Server {
	t.Helper()
	s := try.Get(rpc.NewServer(deadline(t), c, rocl.Attrs{"type": "test"}, opts...))(t)
	t.Cleanup(func() { try.Check(t, s.Close(deadline(t))) })
	return s
}

// client returns a client of a context.
func client(t testing.TB, c *rocl.Context, opts ...rpc.ClientOption) *rpc.Client {
	t.Helper()
	cl := try.Get(rpc.NewClient(deadline(t), c, opts...))(t)
	t.Cleanup(func() { try.Check(t, cl.Close()) })
	return cl
}

// pair returns a server, and a client in another context of the process.
func pair(t testing.TB, opts ...rpc.ServerOption) (*rpc.Server, *rpc.Client) {
	t.Helper()
	sock := freeaddr.Socket(t)
	return serve(t, open(t, sock), opts...), client(t, open(t, sock))
}

// waits registers the call "wait", whose handler waits until its context ends. began gets a value
// when a handler has begun, and ended the cause for which its context has ended.
func waits(t testing.TB, s *rpc.Server, opts ...rpc.Option) (began chan struct{}, ended chan error) {
	t.Helper()
	began, ended = make(chan struct{}, 1000), make(chan error, 1000)
	try.OK(t, rpc.Register(s, "wait", func(ctx context.Context, _ struct{}) (struct{}, error) {
		began <- struct{}{}
		<-ctx.Done()
		ended <- context.Cause(ctx)
		return struct{}{}, context.Cause(ctx)
	}, opts...))
	return began, ended
}

// all returns what a stream yields before its first error.
func all[T any](stream iter.Seq2[T, error]) (got []T, err error) {
	for v, err := range stream {
		if err != nil {
			return got, err
		}
		got = append(got, v)
	}
	return got, nil
}

// done waits for calls that do not fail.
func done[T any](t testing.TB, calls ...*rpc.Future[T]) {
	t.Helper()
	for _, f := range calls {
		try.Works(f.Wait(deadline(t)))(t)
	}
}

type addends struct{ A, B int64 }

func add(_ context.Context, in addends) (int64, error) { return in.A + in.B, nil }

// Promise (Package rpc): A call returns what the handler returned, for values of any size and many
// goroutines. See also TestOverflowMany.
func TestCall(t *testing.T) {
	s, c := pair(t)
	try.OK(t, rpc.Register(s, "add", func(ctx context.Context, in addends) (int64, error) {
		for begun := time.Now(); time.Since(begun) == 0; { // until a coarse clock moves
		}
		return add(ctx, in)
	}))
	for range 100 {
		try.Gives(rpc.Call[addends, int64](deadline(t), c, s.ID(), "add", addends{42, 58}))(t, 100)
	}
	if st := s.Stats(); len(st) != 1 || st[0].Name != "add" || st[0].Calls != 100 || st[0].Errors != 0 || st[0].P50 <= 0 || st[0].P99 > st[0].Longest {
		t.Errorf("%+v", st)
	} else {
		var calls uint64
		var most time.Duration
		for _, took := range st[0].Took {
			if took.Most <= most || took.Calls == 0 {
				t.Errorf("%v", st[0].Took)
			}
			calls, most = calls+took.Calls, took.Most
		}
		if calls != 100 || most < st[0].Longest || st[0].Total < st[0].Longest || st[0].Total > 100*st[0].Longest {
			t.Errorf("%+v", st)
		}
	}
}

// A server is not found while the function of WithCalls runs, nor after that has failed.
func TestWithCalls(t *testing.T) {
	sock := freeaddr.Socket(t)
	own, other := open(t, sock), open(t, sock)
	tests := rocl.Match{"type": "test"}
	nobody := func() {
		t.Helper()
		if f, err := other.Find(deadline(t), tests); !errors.Is(err, rocl.ErrNotFound) {
			t.Errorf("found %v, %v", f, err)
		}
	}
	set := pool.New()
	defer func() { try.Check(t, set.Close(deadline(t))) }()
	p := try.Get(set.AddPool(pool.PoolConfig{Name: "p"}))(t)
	failure := errors.New("on purpose")
	try.Fails(rpc.NewServer(deadline(t), own, rocl.Attrs{"type": "test"}, rpc.WithCalls(func(s *rpc.Server) error {
		return errors.Join(rpc.Register(s, "add", add, rpc.InPool(p)), failure)
	}), rpc.WithCalls(func(*rpc.Server) error {
		t.Error("a function runs after one that has failed")
		return nil
	})))(t, failure)
	nobody()
	try.Check(t, set.RemovePool("p")) // it is in use no more
	serve(t, own, rpc.WithCalls(func(s *rpc.Server) error {
		nobody()
		if s.ID() != (rocl.GID{}) || s.Resource() != nil {
			t.Errorf("the server has the resource %v, which can be found", s.ID())
		}
		try.Fails(s.Close(deadline(t)))(t, errors.ErrUnsupported)
		return rpc.Register(s, "add", add)
	}), rpc.WithCalls(func(s *rpc.Server) error { return rpc.Register(s, "sub", add) }))
	c := client(t, other)
	for _, name := range []string{"add", "sub"} {
		try.Equal(t, try.Get(rpc.CallAny[addends, int64](deadline(t), c, tests, name, addends{40, 2}))(t).Value, 42, "%s", name)
	}
}

// Promise (Package rpc): An error keeps its text and known kinds. A panic ends one call. See also
// TestErrorKinds.
func TestErrors(t *testing.T) {
	s, c := pair(t)
	errs := map[string]error{}
	try.OK(t, rpc.Register(s, "fail", func(_ context.Context, kind string) (string, error) {
		if kind == "panic" {
			panic("on purpose")
		}
		return "", fmt.Errorf("reading %s: %w", kind, errs[kind])
	}))
	errs["not-exist"], errs["gone"], errs["other"] = fs.ErrNotExist, rocl.ErrGone, errors.New("something else")
	for kind, want := range errs {
		_, err := rpc.Call[string, string](deadline(t), c, s.ID(), "fail", kind)
		var e *rpc.Error
		if !errors.As(err, &e) || e.Text != "reading "+kind+": "+want.Error() || e.Call != "fail" || e.Provider != s.ID() {
			t.Errorf("%s: %v", kind, err)
		}
		if kind != "other" && !errors.Is(err, want) || kind == "other" && errors.Is(err, rocl.ErrGone) {
			t.Errorf("%s: the kind is lost: %v", kind, err)
		}
	}
	if _, err := rpc.Call[string, string](deadline(t), c, s.ID(), "fail", "panic"); !errors.Is(err, rpc.ErrPanic) || strings.Contains(err.Error(), "on purpose") {
		t.Error(err)
	}
	try.OK(t, rpc.Register(s, "add", add))
	try.Fails(rpc.Call[int32, int64](deadline(t), c, s.ID(), "add", 3))(t, rocl.ErrValue)
	try.Works(rpc.Call[addends, string](deadline(t), c, s.ID(), "add", addends{1, 2}))(t) // a string is any bytes
	try.Fails(rpc.Call[addends, int32](deadline(t), c, s.ID(), "add", addends{1, 2}))(t, rocl.ErrValue)
}

// Promise (Package rpc): The handler has the caller's deadline and cancellation. A call that is
// cancelled before its handler began does not run, once the server has heard of it. See also
// TestCancelledInPool.
func TestCancel(t *testing.T) {
	s, c := pair(t)
	began, ended := waits(t, s)
	ctx, cancel := context.WithCancel(deadline(t))
	f := rpc.Go[struct{}, struct{}](ctx, c, s.ID(), "wait", struct{}{})
	<-began
	cancel()
	try.Fails(f.Wait(deadline(t)))(t, context.Canceled)
	try.Fails(<-ended)(t, context.Canceled)
	for timeout, hasBegun := 20*time.Millisecond, false; !hasBegun; timeout *= 2 { // until a call begins in time
		ctx, cancel := context.WithTimeout(deadline(t), timeout)
		try.Fails(rpc.Call[struct{}, struct{}](ctx, c, s.ID(), "wait", struct{}{}))(t, context.DeadlineExceeded)
		cancel()
		select {
		case <-began:
			hasBegun = true
		default:
		}
	}
	try.Fails(<-ended)(t, context.DeadlineExceeded)
}

// count yields the numbers from 0 to n, and fails after them where n is odd.
func count(ctx context.Context, n int64) iter.Seq2[int64, error] {
	return func(yield func(int64, error) bool) {
		for i := range n {
			if !yield(i, nil) {
				return
			}
		}
		if n%2 != 0 {
			yield(0, fs.ErrNotExist)
		}
	}
}

// Promise (Package rpc): Streams yield all results in order, then the error. Leaving the loop ends
// the handler's context. See also TestStreamLeft.
func TestStream(t *testing.T) {
	s, c := pair(t)
	try.OK(t, rpc.RegisterStream(s, "count", count))
	for _, n := range []int64{0, 1, 2, 255, 256, 100_000, 100_001} {
		got, err := all(rpc.Stream[int64, int64](deadline(t), c, s.ID(), "count", n))
		for i, v := range got {
			if v != int64(i) {
				t.Fatalf("%d of %d is %d", i, n, v)
			}
		}
		if int64(len(got)) != n || errors.Is(err, fs.ErrNotExist) != (n%2 != 0) || n%2 == 0 && err != nil {
			t.Errorf("%d of %d results, then %v", len(got), n, err)
		}
	}
}

// A handler whose caller leaves the loop is told so, also if the results have no end.
func TestStreamLeft(t *testing.T) {
	s, c := pair(t)
	left := make(chan error, 1)
	try.OK(t, rpc.RegisterStream(s, "forever", func(ctx context.Context, _ int64) iter.Seq2[int64, error] {
		return func(yield func(int64, error) bool) {
			for i := int64(0); yield(i, nil); i++ {
			}
			left <- context.Cause(ctx)
		}
	}))
	for v, err := range rpc.Stream[int64, int64](deadline(t), c, s.ID(), "forever", 0) {
		try.OK(t, err)
		if v == 5000 {
			break
		}
	}
	try.Fails(<-left)(t, context.Canceled)
}

// Errors of a stream without results arrive like those of any call.
func TestStreamFails(t *testing.T) {
	s, c := pair(t)
	try.OK(t,
		errors.Join(rpc.RegisterStream(s, "panic", func(context.Context, addends) iter.Seq2[int64, error] { panic("on purpose") }),
			rpc.Register(s, "add", add),
		))
	for name, want := range map[string]error{"panic": rpc.ErrPanic, "add": rpc.ErrUnknownCall, "nothing": rpc.ErrUnknownCall} {
		try.Fails(all(rpc.Stream[addends, int64](deadline(t), c, s.ID(), name, addends{})))(t, want)
	}
	try.Fails(rpc.Call[addends, int64](deadline(t), c, s.ID(), "panic", addends{}))(t, rpc.ErrStream)
	try.Fails(all(rpc.Stream[int32, int64](deadline(t), c, s.ID(), "panic", 1)))(t, rocl.ErrValue)
}

// Several providers of one name in a process are distinguished by their attributes.
//
// Promise (Package rpc): Several servers of a process may offer the same name, told apart by
// attributes. See also examples: TestExamples.
func TestProviders(t *testing.T) {
	sock := freeaddr.Socket(t)
	home := open(t, sock)
	ids := map[rocl.GID]string{}
	for i, on := range []*rocl.Context{home, home, open(t, sock)} {
		name := fmt.Sprint("kv", i)
		s := try.Get(rpc.NewServer(deadline(t), on, rocl.Attrs{"type": "kv", "provider": name}))(t)
		defer s.Close(deadline(t))
		ids[s.ID()] = name
		try.OK(t, rpc.Register(s, "name", func(context.Context, struct{}) (string, error) {
			if name == "kv1" {
				return "", rocl.ErrFull
			}
			return name, nil
		}))
	}
	c := client(t, home)
	for id, name := range ids {
		a, err := rpc.CallAny[struct{}, string](deadline(t), c, rocl.Match{"provider": name}, "name", struct{}{})
		if a.Provider != id || name == "kv1" && !errors.Is(err, rocl.ErrFull) || name != "kv1" && (err != nil || a.Value != name) {
			t.Errorf("%s: %v, %v", name, a, err)
		}
	}
	got := map[rocl.GID]bool{}
	for a, err := range rpc.CallAll[struct{}, string](deadline(t), c, rocl.Match{"type": "kv"}, "name", struct{}{}) {
		if name := ids[a.Provider]; name == "" || got[a.Provider] || (err == nil) != (a.Value == name) {
			t.Errorf("%v, %v", a, err)
		}
		got[a.Provider] = true
	}
	try.Equal(t, len(got), 3, "answers")
	for range rpc.CallAll[struct{}, string](deadline(t), c, rocl.Match{"type": "kv"}, "name", struct{}{}) {
		break
	}
	for range 20 {
		a, err := rpc.CallAny[struct{}, string](deadline(t), c, rocl.Match{"type": "kv"}, "name", struct{}{}, rpc.Nearest())
		if a.Provider.Context() != home.ID() {
			t.Fatalf("%v of another process, %v", a, err)
		}
	}
	try.Fails(rpc.CallAny[struct{}, string](deadline(t), c, rocl.Match{"type": "none"}, "name", struct{}{}))(t, rocl.ErrNotFound)
}

func TestJSON(t *testing.T) {
	s, c := pair(t)
	try.OK(t, errors.Join(rpc.Register(s, "add", add), rpc.RegisterStream(s, "count", count)))
	try.Equal(t, string(try.Get(rpc.CallJSON(deadline(t), c, s.ID(), "add", []byte(`{"A": 1, "B": 2}`)))(t)), "3")
	for _, bad := range []string{`{"C": 1}`, `{"A": "x"}`, `{} {}`, `[`} {
		try.Fails(rpc.CallJSON(deadline(t), c, s.ID(), "add", []byte(bad)))(t, rocl.ErrValue, "%v", bad)
	}
	try.Fails(rpc.CallJSON(deadline(t), c, s.ID(), "nothing", nil))(t, rpc.ErrUnknownCall)
	try.Fails(rpc.CallJSON(deadline(t), c, s.ID(), "count", []byte("2")))(t, rpc.ErrStream)
	got, err := all(rpc.StreamJSON(deadline(t), c, s.ID(), "count", []byte(" 3 ")))
	if string(bytes.Join(got, []byte(" "))) != "0 1 2" || !errors.Is(err, fs.ErrNotExist) { // the error of an odd count
		t.Errorf("%q, %v", got, err)
	}
	try.Fails(all(rpc.StreamJSON(deadline(t), c, s.ID(), "add", nil)))(t, rpc.ErrUnknownCall)
	st, err := rpc.StatsOf(deadline(t), c, s.ID())
	if i := slices.IndexFunc(st, func(m rpc.MethodStats) bool { return m.Name == "add" }); i > 0 {
		st[0] = st[i]
	}
	if err != nil || len(st) != 2 || st[0].Name != "add" || st[0].Calls != 5 || st[0].Errors != 4 || st[0].Running != 0 {
		t.Errorf("%+v, %v", st, err)
	}
}

// A server whose only worker is busy refuses calls for which its pool's queue has no room, and
// continues.
//
// Promise (Package rpc): A busy server refuses calls for which its pool has no room.
func TestBusy(t *testing.T) {
	s, c := pair(t)
	one := load(t, s, `{"pools": [{"name": "one", "workers": 1, "queue": 1}]}`).Default()
	began, release := make(chan struct{}, 10), make(chan struct{})
	try.OK(t, errors.Join(rpc.Register(s, "wait", func(ctx context.Context, _ struct{}) (struct{}, error) {
		began <- struct{}{}
		<-release
		return struct{}{}, nil
	}, rpc.InPool(one)), rpc.Register(s, "add", add)))
	call := func() *rpc.Future[struct{}] {
		return rpc.Go[struct{}, struct{}](deadline(t), c, s.ID(), "wait", struct{}{})
	}
	runs := call()
	<-began
	queued := call()
	eventually.True(t, "a call is queued", func() bool { return one.Stats().Queued > 0 })
	try.Fails(rpc.Call[struct{}, struct{}](deadline(t), c, s.ID(), "wait", struct{}{}))(t, rpc.ErrBusy)
	try.Gives(rpc.Call[addends, int64](deadline(t), c, s.ID(), "add", addends{1, 2}))(t, 3)
	try.OK(t, s.Place("wait", rpc.InGoroutine()))
	moved := call()
	<-began
	close(release)
	done(t, runs, queued, moved)
	try.Fails(s.Place("nothing", rpc.Inline()))(t, rpc.ErrUnknownCall)
}

func TestOneWay(t *testing.T) {
	s, c := pair(t)
	got := make(chan string, 1)
	try.OK(t, rpc.Register(s, "tell", func(ctx context.Context, what string) (string, error) {
		got <- what + " " + rpc.InfoFrom(ctx).Metadata["who"]
		return "no caller gets this", nil
	}))
	try.OK(t, rpc.Send(deadline(t), c, s.ID(), "tell", "hello", rpc.WithMetadata(rpc.Metadata{"who": "me"}), rpc.WithChecksum()))
	try.Equal(t, <-got, "hello me")
}

func TestInterceptors(t *testing.T) {
	var log []string
	note := func(at string) rpc.Interceptor {
		return func(ctx context.Context, i *rpc.Invocation, next func(context.Context) error) error {
			in := i.In.(*addends)
			in.A++
			log = append(log, at+" "+i.Name)
			err := next(ctx)
			*i.Out.(*int64) *= 10
			log = append(log, at+" done")
			return err
		}
	}
	sock := freeaddr.Socket(t)
	s := serve(t, open(t, sock), rpc.WithInterceptors(note("outer"), note("inner")))
	c := client(t, open(t, sock), rpc.CallInterceptors(note("client")))
	try.OK(t, rpc.Register(s, "add", add, rpc.Inline()))
	try.Gives(rpc.Call[addends, int64](deadline(t), c, s.ID(), "add", addends{1, 2}))(t, 6000)
	if want := []string{"client add", "outer add", "inner add", "inner done", "outer done", "client done"}; !slices.Equal(log, want) {
		t.Errorf("%q", log)
	}
}

// A call of raw values whose context cannot end allocates only its future.
func TestCallAllocates(t *testing.T) {
	if isWatched {
		t.Skip("the race detector makes pools forget, a rocldebug build remembers places")
	}
	s, c := pair(t)
	try.OK(t, rpc.Register(s, "add", func(_ context.Context, in addends) (int64, error) { return in.A + in.B, nil }, rpc.Inline()))
	ctx := context.Background()
	most := map[string]float64{"Call": 0, "Go": 1}
	for name, one := range map[string]func() (int64, error){
		"Call": func() (int64, error) { return rpc.Call[addends, int64](ctx, c, s.ID(), "add", addends{1, 2}) },
		"Go":   func() (int64, error) { return rpc.Go[addends, int64](ctx, c, s.ID(), "add", addends{1, 2}).Wait(ctx) },
	} {
		do := func() {
			try.Gives(one())(t, 3)
		}
		for range 200 {
			do()
		}
		if n := testing.AllocsPerRun(2000, do); n > most[name] {
			t.Errorf("%s: %v allocations a call, want %v", name, n, most[name])
		}
	}
}

// A handler may run before NewServer has returned. It and the server's interceptors get the server.
//
// A handler gets its server, also before `NewServer` has returned.
func TestHandlerHasServer(t *testing.T) {
	c := open(t, freeaddr.Socket(t))
	caller := client(t, c)
	var given, around *rpc.Server
	called := make(chan error, 1)
	s := try.Get(rpc.NewServer(t.Context(), c, rocl.Attrs{"name": "early"},
		rpc.WithInterceptors(func(ctx context.Context, i *rpc.Invocation, next func(context.Context) error) error {
			around = i.Server
			return next(ctx)
		}),
		rpc.WithCalls(func(s *rpc.Server) error {
			given = s
			go func() { // calls as soon as the server can be found
				if _, err := c.Await(t.Context(), rocl.Match{"name": "early"}, 1); err != nil {
					called <- err
					return
				}
				a, err := rpc.CallAny[struct{}, string](t.Context(), caller, rocl.Match{"name": "early"}, "who", struct{}{})
				if err == nil && a.Value != a.Provider.String() {
					err = fmt.Errorf("the server %v of %v", a.Value, a.Provider)
				}
				called <- err
			}()
			return rpc.Register(s, "who", func(ctx context.Context, _ struct{}) (string, error) {
				return rpc.InfoFrom(ctx).Server.ID().String(), nil
			})
		})))(t)
	defer s.Close(t.Context())
	try.Check(t, <-called)
	if given != s || around != s {
		t.Errorf("the function of WithCalls got %p, an interceptor %p, the program %p", given, around, s)
	}
}

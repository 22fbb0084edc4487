// SPDX-License-Identifier: Apache-2.0

package rpc_test

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"iter"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/rocl-go/rocl"
	"github.com/rocl-go/rocl/internal/testkit/eventually"
	"github.com/rocl-go/rocl/internal/testkit/try"
	"github.com/rocl-go/rocl/pool"
	"github.com/rocl-go/rocl/rpc"
)

// deadline returns a context that ends when a test takes too long.
func deadline(t testing.TB) context.Context { return eventually.Context(t) }

// open opens a context of the node at a socket.
func open(t testing.TB, sock string) *rocl.Context {
	t.Helper()
	c := try.Get(rocl.Open(deadline(t), rocl.WithSocket(sock)))(t)
	t.Cleanup(func() { try.Check(t, c.Close()) })
	return c
}

// pair returns a server, and a client in another context of the process.
func pair(t testing.TB, opts ...rpc.ServerOption) (*rpc.Server, *rpc.Client) {
	t.Helper()
	sock := filepath.Join(t.TempDir(), "s")
	s := try.Get(rpc.NewServer(deadline(t), open(t, sock), rocl.Attrs{"type": "test"}, opts...))(t)
	t.Cleanup(func() { try.Check(t, s.Close(deadline(t))) })
	c := try.Get(rpc.NewClient(deadline(t), open(t, sock)))(t)
	t.Cleanup(func() { try.Check(t, c.Close()) })
	return s, c
}

type addends struct{ A, B int64 }

func add(_ context.Context, in addends) (int64, error) { return in.A + in.B, nil }

// Promise (Package rpc): A call returns what the handler returned, for values of any size and many
// goroutines. See also TestSizes.
func TestCall(t *testing.T) {
	s, c := pair(t)
	try.OK(t, rpc.Register(s, "add", add))
	for range 100 {
		sum, err := rpc.Call[addends, int64](deadline(t), c, s.ID(), "add", addends{42, 58})
		if err != nil || sum != 100 {
			t.Fatalf("%d, %v", sum, err)
		}
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

func TestUnknown(t *testing.T) {
	s, c := pair(t)
	try.OK(t, rpc.Register(s, "add", add))
	if !s.Deregister("add") || s.Deregister("add") {
		t.Error("add was not registered once")
	}
	_, err := rpc.Call[addends, int64](deadline(t), c, s.ID(), "add", addends{1, 2})
	if !errors.Is(err, rpc.ErrUnknownCall) || !strings.Contains(err.Error(), `"add"`) {
		t.Error(err)
	}
}

// A server is not found while the function of WithCalls runs, nor after that has failed.
func TestWithCalls(t *testing.T) {
	sock := filepath.Join(t.TempDir(), "s")
	own, other := open(t, sock), open(t, sock)
	tests := rocl.Match{"type": "test"}
	nobody := func() {
		t.Helper()
		if f, err := other.Find(deadline(t), tests); !errors.Is(err, rocl.ErrNotFound) {
			t.Errorf("found %v, %v", f, err)
		}
	}
	set := pool.New()
	defer func() {
		try.Check(t, set.Close(deadline(t)))
	}()
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
	s := try.Get(rpc.NewServer(deadline(t), own, rocl.Attrs{"type": "test"}, rpc.WithCalls(func(s *rpc.Server) error {
		nobody()
		if s.ID() != (rocl.GID{}) || s.Resource() != nil {
			t.Errorf("the server has the resource %v, which can be found", s.ID())
		}
		try.Fails(s.Close(deadline(t)))(t, errors.ErrUnsupported)
		return rpc.Register(s, "add", add)
	}), rpc.WithCalls(func(s *rpc.Server) error { return rpc.Register(s, "sub", add) })))(t)
	defer s.Close(deadline(t))
	c := try.Get(rpc.NewClient(deadline(t), other))(t)
	defer c.Close()
	for _, name := range []string{"add", "sub"} {
		if sum, err := rpc.CallAny[addends, int64](deadline(t), c, tests, name, addends{40, 2}); err != nil || sum.Value != 42 {
			t.Errorf("%s: %+v, %v", name, sum, err)
		}
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
	ended := make(chan error, 100)
	began := make(chan struct{}, 100)
	try.OK(t, rpc.Register(s, "wait", func(ctx context.Context, _ struct{}) (struct{}, error) {
		began <- struct{}{}
		<-ctx.Done()
		ended <- context.Cause(ctx)
		return struct{}{}, ctx.Err()
	}))
	ctx, cancel := context.WithCancel(deadline(t))
	f := rpc.Go[struct{}, struct{}](ctx, c, s.ID(), "wait", struct{}{})
	<-began
	cancel()
	try.Fails(f.Wait(deadline(t)))(t, context.Canceled)
	if err := <-ended; !errors.Is(err, context.Canceled) {
		t.Errorf("the handler's context ended with %v", err)
	}
	for patience, hasBegun := 20*time.Millisecond, false; !hasBegun; patience *= 2 { // until a call begins in time
		ctx, cancel := context.WithTimeout(deadline(t), patience)
		try.Fails(rpc.Call[struct{}, struct{}](ctx, c, s.ID(), "wait", struct{}{}))(t, context.DeadlineExceeded)
		cancel()
		select {
		case <-began:
			hasBegun = true
		default:
		}
	}
	if err := <-ended; !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("the handler's context ended with %v", err)
	}
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
		var got int64
		var err error
		for v, e := range rpc.Stream[int64, int64](deadline(t), c, s.ID(), "count", n) {
			if e != nil {
				err = e
				break
			}
			if v != got {
				t.Fatalf("%d of %d is %d", got, n, v)
			}
			got++
		}
		if got != n || errors.Is(err, fs.ErrNotExist) != (n%2 != 0) || n%2 == 0 && err != nil {
			t.Errorf("%d of %d results, then %v", got, n, err)
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
		if err != nil {
			t.Fatal(err)
		}
		if v == 5000 {
			break
		}
	}
	try.Fails(<-left)(t, context.Canceled)
}

// Errors of a stream without results arrive like those of any call.
func TestStreamFails(t *testing.T) {
	s, c := pair(t)
	try.OK(t, rpc.RegisterStream(s, "panic", func(context.Context, addends) iter.Seq2[int64, error] { panic("on purpose") }))
	try.OK(t, rpc.Register(s, "add", add))
	first := func(name string) error {
		for _, err := range rpc.Stream[addends, int64](deadline(t), c, s.ID(), name, addends{}) {
			return err
		}
		return nil
	}
	try.Fails(first("panic"))(t, rpc.ErrPanic)
	for _, name := range []string{"add", "nothing"} {
		if err := first(name); !errors.Is(err, rpc.ErrUnknownCall) {
			t.Error(name, err)
		}
	}
	try.Fails(rpc.Call[addends, int64](deadline(t), c, s.ID(), "panic", addends{}))(t, rpc.ErrStream)
	for _, err := range rpc.Stream[int32, int64](deadline(t), c, s.ID(), "panic", 1) {
		if !errors.Is(err, rocl.ErrValue) {
			t.Error(err)
		}
	}
}

// Several providers of one name in a process are distinguished by their attributes.
//
// Promise (Package rpc): Several servers of a process may offer the same name, told apart by
// attributes. See also examples: TestExamples.
func TestProviders(t *testing.T) {
	sock := filepath.Join(t.TempDir(), "s")
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
	c := try.Get(rpc.NewClient(deadline(t), home))(t)
	defer c.Close()
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
	if len(got) != 3 {
		t.Errorf("%d answers", len(got))
	}
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
	try.OK(t, rpc.Register(s, "add", add), rpc.RegisterStream(s, "count", count))
	out, err := rpc.CallJSON(deadline(t), c, s.ID(), "add", []byte(`{"A": 1, "B": 2}`))
	if err != nil || string(out) != "3" {
		t.Errorf("%s, %v", out, err)
	}
	for _, bad := range []string{`{"C": 1}`, `{"A": "x"}`, `{} {}`, `[`} {
		if _, err := rpc.CallJSON(deadline(t), c, s.ID(), "add", []byte(bad)); !errors.Is(err, rocl.ErrValue) {
			t.Error(bad, err)
		}
	}
	try.Fails(rpc.CallJSON(deadline(t), c, s.ID(), "nothing", nil))(t, rpc.ErrUnknownCall)
	try.Fails(rpc.CallJSON(deadline(t), c, s.ID(), "count", []byte("2")))(t, rpc.ErrStream)
	var got []string
	for v, err := range rpc.StreamJSON(deadline(t), c, s.ID(), "count", []byte(" 3 ")) {
		if got = append(got, string(v)); err != nil && !errors.Is(err, fs.ErrNotExist) {
			t.Error(err)
		}
	}
	if !slices.Equal(got, []string{"0", "1", "2", ""}) { // the last is the error of an odd count
		t.Errorf("%q", got)
	}
	for _, err := range rpc.StreamJSON(deadline(t), c, s.ID(), "add", nil) {
		if !errors.Is(err, rpc.ErrUnknownCall) {
			t.Error(err)
		}
	}
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
	set := try.Get(pool.Load([]byte(`{"pools": [{"name": "one", "workers": 1, "queue": 1}]}`)))(t)
	defer set.Close(deadline(t))
	defer s.Close(deadline(t))
	one := try.Get(set.Pool("one"))(t)
	began, release := make(chan struct{}, 10), make(chan struct{})
	try.OK(t, rpc.Register(s, "wait", func(ctx context.Context, _ struct{}) (struct{}, error) {
		began <- struct{}{}
		<-release
		return struct{}{}, nil
	}, rpc.InPool(one)))
	try.OK(t, rpc.Register(s, "add", add))
	var running []*rpc.Future[struct{}]
	running = append(running, rpc.Go[struct{}, struct{}](deadline(t), c, s.ID(), "wait", struct{}{}))
	<-began
	running = append(running, rpc.Go[struct{}, struct{}](deadline(t), c, s.ID(), "wait", struct{}{}))
	eventually.True(t, "a call is queued", func() bool { return one.Stats().Queued > 0 })
	try.Fails(rpc.Call[struct{}, struct{}](deadline(t), c, s.ID(), "wait", struct{}{}))(t, rpc.ErrBusy)
	try.Gives(rpc.Call[addends, int64](deadline(t), c, s.ID(), "add", addends{1, 2}))(t, 3)
	try.OK(t, s.Place("wait", rpc.InGoroutine()))
	running = append(running, rpc.Go[struct{}, struct{}](deadline(t), c, s.ID(), "wait", struct{}{}))
	<-began
	close(release)
	for _, f := range running {
		try.Works(f.Wait(deadline(t)))(t)
	}
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
	if s := <-got; s != "hello me" {
		t.Error(s)
	}
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
	sock := filepath.Join(t.TempDir(), "s")
	s := try.Get(rpc.NewServer(deadline(t), open(t, sock), nil, rpc.WithInterceptors(note("outer"), note("inner"))))(t)
	defer s.Close(deadline(t))
	c := try.Get(rpc.NewClient(deadline(t), open(t, sock), rpc.CallInterceptors(note("client"))))(t)
	defer c.Close()
	try.OK(t, rpc.Register(s, "add", add, rpc.Inline()))
	sum, err := rpc.Call[addends, int64](deadline(t), c, s.ID(), "add", addends{1, 2})
	if err != nil || sum != 6000 {
		t.Errorf("%d, %v", sum, err)
	}
	if want := []string{"client add", "outer add", "inner add", "inner done", "outer done", "client done"}; !slices.Equal(log, want) {
		t.Errorf("%q", log)
	}
}

func BenchmarkCall(b *testing.B) {
	s, c := pair(b)
	try.OK(b, rpc.Register(s, "add", add, rpc.Inline()))
	ctx := context.Background()
	b.ReportAllocs()
	for b.Loop() {
		if _, err := rpc.Call[addends, int64](ctx, c, s.ID(), "add", addends{42, 58}); err != nil {
			b.Fatal(err)
		}
	}
}

// Promise (Package rpc): A call of raw values whose context cannot end allocates only its future.
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
// Promise (Package rpc): A handler gets its server, also before `NewServer` has returned.
func TestHandlerHasServer(t *testing.T) {
	c := open(t, filepath.Join(t.TempDir(), "s"))
	caller := try.Get(rpc.NewClient(t.Context(), c))(t)
	defer caller.Close()
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

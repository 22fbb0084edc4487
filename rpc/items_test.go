// SPDX-License-Identifier: Apache-2.0

package rpc_test

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/rocl-go/rocl"
	"github.com/rocl-go/rocl/internal/testkit/eventually"
	"github.com/rocl-go/rocl/internal/testkit/try"
	"github.com/rocl-go/rocl/rocltest"
	"github.com/rocl-go/rocl/rpc"
)

// sum returns the sum of a stream, and fails as the stream does.
func sum(_ context.Context, in iter.Seq2[int, error]) (sum int, err error) {
	for v, err := range in {
		if err != nil {
			return sum, err
		}
		sum += v
	}
	return sum, nil
}

// runningSums yields the sums of the first numbers of a stream.
func runningSums(_ context.Context, in iter.Seq2[int, error]) iter.Seq2[int, error] {
	return func(yield func(int, error) bool) {
		sum := 0
		for v, err := range in {
			if sum += v; !yield(sum, err) || err != nil {
				return
			}
		}
	}
}

// upTo returns the iterator of the numbers from 1 to n.
func upTo(n int) func(context.Context) iter.Seq2[int, error] {
	return func(context.Context) iter.Seq2[int, error] {
		return func(yield func(int, error) bool) {
			for i := 1; i <= n && yield(i, nil); i++ {
			}
		}
	}
}

// endless yields numbers without end, says how many were yielded, and tells ended why it ended.
func endless(yielded *atomic.Int64, ended chan error) func(context.Context) iter.Seq2[int, error] {
	return func(ctx context.Context) iter.Seq2[int, error] {
		return func(yield func(int, error) bool) {
			for yield(1, nil) {
				yielded.Add(1)
			}
			ended <- ctx.Err()
		}
	}
}

// Promise (Package rpc): A client stream carries all arguments in order, of any size. A two-way
// stream does so in both directions, while both go on.
func TestClientStreams(t *testing.T) {
	for name, opts := range map[string][]rpc.Option{"": nil, "checksum": {rpc.WithChecksum()}} {
		s, c := pair(t)
		pool := inOne(t, s, `{"pools": [{"name": "one", "workers": 1}]}`)
		try.OK(t, errors.Join(rpc.RegisterClientStream(s, "sum", sum, pool), rpc.RegisterTwoWay(s, "sums", runningSums)))
		for _, n := range []int{0, 1, 2, 255, 256, 257, 10_000} {
			got := try.Get(rpc.ClientStream[int, int](deadline(t), c, s.ID(), "sum", upTo(n), opts...))(t, name, n)
			try.Equal(t, got, n*(n+1)/2, name)
			last, results := 0, 0
			for v, err := range rpc.TwoWay[int, int](deadline(t), c, s.ID(), "sums", upTo(n), opts...) {
				if results++; err != nil || v != last+results {
					t.Fatal(name, n, results, v, err)
				}
				last = v
			}
			try.Equal(t, results, n, name)
		}
		large := func(context.Context) iter.Seq2[[]byte, error] {
			return func(yield func([]byte, error) bool) {
				for _, n := range []int{10, 3 * limit, 100 * limit, 0, limit} {
					if !yield(random(n), nil) {
						return
					}
				}
			}
		}
		try.OK(t, rpc.RegisterTwoWay(s, "echo", func(_ context.Context, in iter.Seq2[[]byte, error]) iter.Seq2[[]byte, error] { return in }))
		limited := client(t, contextOf(s), rpc.CallOverflow(limit))
		i, want := 0, []int{10, 3 * limit, 100 * limit, 0, limit}
		for p, err := range rpc.TwoWay[[]byte, []byte](deadline(t), limited, s.ID(), "echo", large, opts...) {
			if err != nil || string(p) != string(random(want[i])) {
				t.Fatal(name, i, len(p), err)
			}
			i++
		}
		try.Equal(t, i, len(want), name)
	}
}

// Each result of a two-way stream comes before the next argument is made: no argument waits for
// others.
func TestTwoWayTurns(t *testing.T) {
	s, c := pair(t)
	try.OK(t, rpc.RegisterTwoWay(s, "sums", runningSums))
	next := make(chan int, 1)
	next <- 1
	in := func(ctx context.Context) iter.Seq2[int, error] {
		return func(yield func(int, error) bool) {
			for {
				select {
				case v, ok := <-next:
					if !ok || !yield(v, nil) {
						return
					}
				case <-ctx.Done():
					return
				}
			}
		}
	}
	n := 0
	for v, err := range rpc.TwoWay[int, int](deadline(t), c, s.ID(), "sums", in) {
		if n++; err != nil || v != n {
			t.Fatal(n, v, err)
		}
		if n < 1000 {
			next <- 1
		} else if n == 1000 {
			close(next)
		}
	}
	try.Equal(t, n, 1000)
}

// A caller's stream of arguments is ahead of a handler that does not read by at most three batches
// of 256.
func TestClientStreamCredit(t *testing.T) {
	bubble(t, func(t *testing.T, home, other *rocl.Context) {
		reads, release := make(chan struct{}), make(chan struct{})
		s := try.Get(rpc.NewServer(t.Context(), home, nil))(t)
		defer s.Close(context.Background())
		try.OK(t, rpc.RegisterClientStream(s, "slow", func(_ context.Context, in iter.Seq2[int, error]) (n int, err error) {
			<-reads
			for range in {
				if n++; n == 1 {
					<-release
				}
				if n == 10_000 {
					break
				}
			}
			return n, nil
		}))
		c := client(t, other)
		var yielded atomic.Int64
		ended := make(chan error, 1)
		result := make(chan int, 1)
		go func() {
			result <- try.Get(rpc.ClientStream[int, int](t.Context(), c, s.ID(), "slow", endless(&yielded, ended)))(t)
		}()
		synctest.Wait()
		if n := yielded.Load(); n > 2*256+1 {
			t.Errorf("%d arguments ahead of a handler that has read nothing", n)
		}
		close(reads)
		synctest.Wait()
		if n := yielded.Load(); n > 3*256+1 {
			t.Errorf("%d arguments ahead of a handler that has read one", n)
		}
		close(release)
		try.Equal(t, <-result, 10_000)
		try.Fails(<-ended)(t, context.Canceled) // the handler has returned before it has read all
	})
}

// Promise (Package rpc): When a side of a client stream or two-way stream ends, fails or is
// cancelled, both sides end, with its reason.
func TestClientStreamEnds(t *testing.T) {
	type ends struct {
		server []error // what the handler yields, one of these; nil: anything
		client []error // what the call fails with, one of these
		act    func(s *rpc.Server, home, other *rocl.Context, cancel func())
		in     func(context.Context) iter.Seq2[int, error]
	}
	call := map[string]func(context.Context, *rpc.Client, rocl.GID, func(context.Context) iter.Seq2[int, error]) error{
		"client": func(ctx context.Context, c *rpc.Client, id rocl.GID, in func(context.Context) iter.Seq2[int, error]) error {
			_, err := rpc.ClientStream[int, int](ctx, c, id, "sum", in)
			return err
		},
		"two-way": func(ctx context.Context, c *rpc.Client, id rocl.GID, in func(context.Context) iter.Seq2[int, error]) error {
			_, err := all(rpc.TwoWay[int, int](ctx, c, id, "sums", in))
			return err
		},
	}
	waits := func(ctx context.Context) iter.Seq2[int, error] { // yields one argument, and waits
		return func(yield func(int, error) bool) {
			if yield(1, nil) {
				<-ctx.Done()
			}
		}
	}
	own := errors.New("own")
	for name, x := range map[string]ends{
		"cancel":       {server: []error{context.Canceled}, client: []error{context.Canceled}, act: func(_ *rpc.Server, _, _ *rocl.Context, cancel func()) { cancel() }},
		"caller ends":  {server: []error{rocl.ErrGone, context.Canceled}, client: []error{rocl.ErrClosed}, act: func(_ *rpc.Server, _, other *rocl.Context, _ func()) { other.Close() }},
		"server ends":  {client: []error{rocl.ErrGone}, act: func(_ *rpc.Server, home, _ *rocl.Context, _ func()) { home.Close() }},
		"server close": {server: []error{rpc.ErrClosed}, client: []error{rpc.ErrClosed, rocl.ErrGone, rocl.ErrNoReply}, act: func(s *rpc.Server, _, _ *rocl.Context, _ func()) { closeNow(s) }},
		"deadline":     {server: []error{context.DeadlineExceeded}, client: []error{context.DeadlineExceeded}, act: func(*rpc.Server, *rocl.Context, *rocl.Context, func()) { time.Sleep(time.Hour) }}, // virtual: until the deadline
		"iterator": {server: []error{context.Canceled}, client: []error{own}, in: func(context.Context) iter.Seq2[int, error] {
			return func(yield func(int, error) bool) {
				yield(1, nil)
				time.Sleep(time.Second) // virtual: the handler waits for more
				yield(0, own)
			}
		}},
		"panic": {server: []error{context.Canceled}, client: []error{rpc.ErrPanic}, in: func(context.Context) iter.Seq2[int, error] {
			return func(yield func(int, error) bool) {
				yield(1, nil)
				time.Sleep(time.Second) // virtual: the handler waits for more
				panic("on purpose")
			}
		}},
	} {
		for form, call := range call {
			t.Run(name+" "+form, func(t *testing.T) {
				bubble(t, func(t *testing.T, home, other *rocl.Context) {
					got := make(chan error, 1)
					note := func(in iter.Seq2[int, error]) iter.Seq2[int, error] {
						return func(yield func(int, error) bool) {
							for v, err := range in {
								if err != nil {
									got <- err
								}
								if !yield(v, err) {
									return
								}
							}
						}
					}
					s := try.Get(rpc.NewServer(t.Context(), home, nil))(t)
					defer closeNow(s)
					try.OK(t, rpc.RegisterClientStream(s, "sum", func(ctx context.Context, in iter.Seq2[int, error]) (int, error) { return sum(ctx, note(in)) }))
					try.OK(t, rpc.RegisterTwoWay(s, "sums", func(ctx context.Context, in iter.Seq2[int, error]) iter.Seq2[int, error] {
						return runningSums(ctx, note(in))
					}))
					c := try.Get(rpc.NewClient(t.Context(), other))(t)
					defer c.Close()
					ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
					defer cancel()
					ended := make(chan error, 1)
					in := x.in
					if in == nil {
						in = waits
					}
					go func() { ended <- call(ctx, c, s.ID(), in) }()
					synctest.Wait()
					if x.act != nil {
						x.act(s, home, other, cancel)
					}
					is := func(side string, err error, kinds []error) {
						if !slices.ContainsFunc(kinds, func(kind error) bool { return errors.Is(err, kind) }) {
							t.Errorf("%s: %v, want %v", side, err, kinds)
						}
					}
					is("the call", <-ended, x.client)
					if x.server != nil {
						is("the handler", <-got, x.server)
					}
				})
			})
		}
	}
}

// closeNow closes a server without waiting for its handlers.
func closeNow(s *rpc.Server) {
	ctx, end := context.WithCancel(context.Background())
	end()
	_ = s.Close(ctx)
}

// Connections that break during streams of both directions are resumed.
//
// Promise (Package rpc): When connections break, streams of arguments lose nothing.
func TestClientStreamCut(t *testing.T) {
	f := newBreakable()
	cl := rocltest.Cluster(t, 1)
	s := serve(t, cl.Open(0, rocl.WithTransports(f)), rpc.WithOverflow(limit))
	c := client(t, cl.Open(0, rocl.WithTransports(f)), rpc.CallOverflow(limit))
	try.OK(t, errors.Join(rpc.RegisterClientStream(s, "sum", sum), rpc.RegisterTwoWay(s, "sums", runningSums)))
	const n = 20_000
	for range 3 {
		cuts := func(ctx context.Context) iter.Seq2[int, error] {
			return func(yield func(int, error) bool) {
				for i := 1; i <= n && yield(i, nil); i++ {
					if i%2000 == 0 {
						f.cut()
					}
				}
			}
		}
		try.Gives(rpc.ClientStream[int, int](deadline(t), c, s.ID(), "sum", cuts))(t, n*(n+1)/2)
		got := try.Get(all(rpc.TwoWay[int, int](deadline(t), c, s.ID(), "sums", cuts)))(t)
		if len(got) != n || got[n-1] != n*(n+1)/2 {
			t.Errorf("%d results", len(got))
		}
	}
}

// A handler in a pool of one worker makes streams of calls of its own server: the called handlers
// have goroutines of their own.
func TestNestedClientStream(t *testing.T) {
	s, c := pair(t)
	one := inOne(t, s, `{"pools": [{"name": "one", "workers": 1}]}`)
	try.OK(t, errors.Join(
		rpc.RegisterClientStream(s, "sum", sum, one),
		rpc.RegisterTwoWay(s, "sums", runningSums, one),
		rpc.Register(s, "outer", func(ctx context.Context, n int) (string, error) {
			inner := try.Get(rpc.NewClient(ctx, contextOf(s)))(t)
			defer inner.Close()
			a, err := rpc.ClientStream[int, int](ctx, inner, s.ID(), "sum", upTo(n))
			got, err2 := all(rpc.TwoWay[int, int](ctx, inner, s.ID(), "sums", upTo(n)))
			_, err3 := rpc.ClientStream[int, int](ctx, inner, s.ID(), "sum", func(context.Context) iter.Seq2[int, error] {
				return func(yield func(int, error) bool) { yield(0, errDo) }
			})
			return fmt.Sprint(a, len(got), errors.Is(err3, errDo)), errors.Join(err, err2)
		}, one)))
	try.Gives(rpc.Call[int, string](deadline(t), c, s.ID(), "outer", 1000))(t, "500500 1000 true")
}

// A batch for a stream that has ended, and one without credit, are refused.
func TestClientStreamRefused(t *testing.T) {
	s, c := pair(t)
	try.OK(t, errors.Join(rpc.RegisterClientStream(s, "sum", sum), rpc.Register(s, "add", add), rpc.RegisterStream(s, "count", count)))
	for _, err := range []error{
		second(rpc.ClientStream[int, int](deadline(t), c, s.ID(), "add", upTo(1000))),
		second(rpc.Call[int, int](deadline(t), c, s.ID(), "sum", 1)),
		second(all(rpc.Stream[int, int](deadline(t), c, s.ID(), "sum", 1))),
		second(all(rpc.TwoWay[int, int](deadline(t), c, s.ID(), "count", upTo(1000)))),
	} {
		if !errors.Is(err, rpc.ErrUnknownCall) || !rpc.MayRetry(err) || !strings.Contains(err.Error(), "it is a") {
			t.Error(err)
		}
	}
	try.Fails(rpc.ClientStream[string, int](deadline(t), c, s.ID(), "sum", func(context.Context) iter.Seq2[string, error] {
		return func(yield func(string, error) bool) { yield("text", nil) }
	}))(t, rocl.ErrValue)
	eventually.True(t, "nothing runs", func() bool { return s.Stats()[2].Running == 0 })
}

func second[T any](_ T, err error) error { return err }

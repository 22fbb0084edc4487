// SPDX-License-Identifier: Apache-2.0

package rpc_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"iter"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/rocl-go/rocl"
	"github.com/rocl-go/rocl/internal/testkit/eventually"
	"github.com/rocl-go/rocl/internal/testkit/freeaddr"
	"github.com/rocl-go/rocl/internal/testkit/sharedmem"
	"github.com/rocl-go/rocl/internal/testkit/try"
	"github.com/rocl-go/rocl/pool"
	"github.com/rocl-go/rocl/rocltest"
	"github.com/rocl-go/rocl/rpc"
	"github.com/rocl-go/rocl/subsys/shm"
)

// limit is the size above which package bulk moves the values of these tests.
const limit = 1000

// overEach runs f with a server and a client whose limit is limit, over each transport.
func overEach(t *testing.T, f func(t *testing.T, s *rpc.Server, c *rpc.Client)) {
	for name, opts := range map[string][]rocl.Option{"self": nil, "inproc": nil, "tcp": {rocltest.TCP()}, "shm": {rocl.WithTransports(shm.New())}} {
		t.Run(name, func(t *testing.T) {
			if name == "shm" {
				sharedmem.Need(t)
			}
			n := rocltest.Cluster(t, 1)
			at := n.Open(0, opts...)
			from := at
			if name != "self" {
				from = n.Open(0, opts...)
			}
			f(t, serve(t, at, rpc.WithOverflow(limit)), client(t, from, rpc.CallOverflow(limit)))
		})
	}
}

func echo(_ context.Context, p []byte) ([]byte, error) { return p, nil }

// random returns n bytes.
func random(n int) []byte {
	p := make([]byte, n)
	_, _ = rand.NewChaCha8([32]byte{byte(n)}).Read(p)
	return p
}

// Arguments and results above the limit arrive unchanged, with and without a checksum, and in every
// place. The figures count only those above the limit.
//
// Promise (Package rpc): Arguments and results above the limit arrive as they were. A handler has
// all of them or does not run. See also TestOverflowMany.
func TestOverflow(t *testing.T) {
	set := try.Get(pool.Load([]byte(`{"pools": [{"name": "workers", "workers": 2}, {"name": "inline", "policy": "inline"}]}`)))(t)
	defer set.Close(deadline(t))
	workers, e1 := set.Pool("workers")
	inline, e2 := set.Pool("inline")
	try.OK(t, errors.Join(e1, e2))
	places := map[string]rpc.Option{"goroutine": rpc.InGoroutine(), "inline": rpc.Inline(), "workers": rpc.InPool(workers), "inline pool": rpc.InPool(inline)}
	overEach(t, func(t *testing.T, s *rpc.Server, c *rpc.Client) {
		for name, place := range places {
			try.OK(t, rpc.Register(s, name, echo, place))
			for _, n := range []int{0, 1, limit - 1, limit, limit + 1, 2 * limit, 3 << 20} {
				for _, opts := range [][]rpc.Option{nil, {rpc.WithChecksum()}} {
					p := random(n)
					ctx := context.Background()
					if n%2 == 0 {
						ctx = deadline(t)
					}
					if got, err := rpc.Call[[]byte, []byte](ctx, c, s.ID(), name, p, opts...); err != nil || !bytes.Equal(got, p) {
						t.Errorf("%s, %d bytes: %d bytes, %v", name, n, len(got), err)
					}
				}
			}
		}
		for _, m := range s.Stats() {
			if m.Calls != 14 || m.Errors != 0 || m.Overflows != 12 {
				t.Errorf("%+v", m)
			}
		}
	})
}

// A Future moves large values as Call does, and a cancelled one releases the memory of its
// arguments.
func TestOverflowFuture(t *testing.T) {
	overEach(t, func(t *testing.T, s *rpc.Server, c *rpc.Client) {
		came := make(chan struct{})
		wait := func(ctx context.Context, _ []byte) ([]byte, error) {
			close(came)
			<-ctx.Done()
			return nil, context.Cause(ctx)
		}
		try.OK(t, errors.Join(rpc.Register(s, "echo", echo), rpc.Register(s, "wait", wait)))
		var futures []*rpc.Future[[]byte]
		sizes := []int{1, limit, limit + 1, 2 << 20}
		for _, n := range sizes {
			ctx := context.Background()
			if n%2 == 0 {
				ctx = deadline(t)
			}
			futures = append(futures, rpc.Go[[]byte, []byte](ctx, c, s.ID(), "echo", random(n)))
		}
		for i, f := range futures {
			if got, err := f.Wait(deadline(t)); err != nil || !bytes.Equal(got, random(sizes[i])) {
				t.Errorf("%d bytes: %d bytes, %v", sizes[i], len(got), err)
			}
		}
		ctx, cancel := context.WithCancel(deadline(t))
		f := rpc.Go[[]byte, []byte](ctx, c, s.ID(), "wait", random(2*limit))
		<-came
		cancel()
		eventually.True(t, "nothing is exposed", func() bool { return s.Moves().Regions == 0 && c.Moves().Regions == 0 })
		try.Fails(f.Wait(deadline(t)))(t, context.Canceled)
	})
}

// Many calls run at once, with sizes around the limit, and with values whose length is not known
// before they are encoded.
func TestOverflowMany(t *testing.T) {
	overEach(t, func(t *testing.T, s *rpc.Server, c *rpc.Client) {
		try.OK(t, rpc.Register(s, "echo", func(_ context.Context, d text) (text, error) { return d, nil }))
		var calls sync.WaitGroup
		for g := range 8 {
			calls.Go(func() {
				for range 50 {
					d := text{string(random(rand.IntN(3 * limit))), []string{fmt.Sprint(g)}}
					if got, err := rpc.Call[text, text](deadline(t), c, s.ID(), "echo", d); err != nil || got.Name != d.Name || got.Tags[0] != d.Tags[0] {
						t.Errorf("goroutine %d: %d bytes of %d, %v", g, len(got.Name), len(d.Name), err)
						return
					}
				}
			})
		}
		calls.Wait()
	})
}

// Inline handlers run one after another, including those whose arguments are pulled first.
func TestOverflowInline(t *testing.T) {
	overEach(t, func(t *testing.T, s *rpc.Server, c *rpc.Client) {
		ran := 0 // the race detector sees handlers that run elsewhere
		try.OK(t, rpc.Register(s, "count", func(context.Context, []byte) (int, error) { ran++; return ran, nil }, rpc.Inline()))
		var calls sync.WaitGroup
		for g := range 8 {
			calls.Go(func() {
				for range 25 {
					try.Works(rpc.Call[[]byte, int](deadline(t), c, s.ID(), "count", make([]byte, g%2*2*limit)))(t)
				}
			})
		}
		calls.Wait()
		try.Gives(rpc.Call[[]byte, int](deadline(t), c, s.ID(), "count", nil))(t, 8*25+1, "handlers ran")
	})
}

// Send returns after its arguments were pulled, so the program may use their memory again.
func TestOverflowOneWay(t *testing.T) {
	overEach(t, func(t *testing.T, s *rpc.Server, c *rpc.Client) {
		got := make(chan []byte, 1)
		try.OK(t, rpc.Register(s, "tell", func(_ context.Context, p []byte) ([]byte, error) {
			got <- p
			return p, nil // not sent
		}))
		p := random(5 * limit)
		try.OK(t, rpc.Send(deadline(t), c, s.ID(), "tell", p))
		clear(p)
		if !bytes.Equal(<-got, random(5*limit)) {
			t.Error("the handler has other bytes")
		}
		try.Fails(rpc.Send(deadline(t), c, s.ID(), "nothing", p))(t, rpc.ErrUnknownCall)
	})
}

// Streams can have arguments and results above the limit.
func TestOverflowStream(t *testing.T) {
	overEach(t, func(t *testing.T, s *rpc.Server, c *rpc.Client) {
		try.OK(t, rpc.RegisterStream(s, "repeat", func(_ context.Context, p []byte) iter.Seq2[[]byte, error] {
			return func(yield func([]byte, error) bool) {
				for i := range 50 {
					if !yield(p[:len(p)*i/50], nil) {
						return
					}
				}
				yield(nil, rocl.ErrFull)
			}
		}))
		p := random(20 * limit)
		for _, opts := range [][]rpc.Option{nil, {rpc.WithChecksum()}} {
			got, err := all(rpc.Stream[[]byte, []byte](deadline(t), c, s.ID(), "repeat", p, opts...))
			if len(got) != 50 || !errors.Is(err, rocl.ErrFull) {
				t.Errorf("%d results, then %v", len(got), err)
			}
			for n, got := range got {
				if !bytes.Equal(got, p[:len(p)*n/50]) {
					t.Errorf("result %d: %d bytes", n, len(got))
				}
			}
		}
		try.Equal(t, s.Moves().Regions, 0, "regions are left of a stream that has ended")
		for got, err := range rpc.Stream[[]byte, []byte](deadline(t), c, s.ID(), "repeat", p) {
			try.OK(t, err)
			if len(got) > 2*limit {
				break
			}
		}
		eventually.True(t, "nothing is exposed", func() bool { return s.Moves().Regions == 0 && c.Moves().Regions == 0 })
	})
}

// The arguments of a call stay with the caller until the handler's turn has come. A call that is
// cancelled before does not run.
func TestOverflowWaitsItsTurn(t *testing.T) {
	overEach(t, func(t *testing.T, s *rpc.Server, c *rpc.Client) {
		began, release := make(chan struct{}, 1), make(chan struct{})
		var ran atomic.Int64
		try.OK(t, rpc.Register(s, "wait", func(context.Context, []byte) (int64, error) {
			began <- struct{}{}
			<-release
			return ran.Add(1), nil
		}, inOne(t, s, `{"pools": [{"name": "one", "workers": 1}]}`)))
		first := rpc.Go[[]byte, int64](deadline(t), c, s.ID(), "wait", random(2*limit))
		<-began
		reads := c.Moves().Reads
		ctx, cancel := context.WithCancel(deadline(t))
		second := rpc.Go[[]byte, int64](ctx, c, s.ID(), "wait", random(2*limit))
		third := rpc.Go[[]byte, int64](deadline(t), c, s.ID(), "wait", random(2*limit))
		eventually.True(t, "the arguments of three calls are exposed", func() bool { return c.Moves().Regions == 3 }) // also those of a running call
		cancel()
		try.Fails(second.Wait(deadline(t)))(t, context.Canceled)
		if got := c.Moves().Reads; got != reads {
			t.Errorf("%d transfers before the handler's turn", got-reads)
		}
		close(release)
		done(t, first, third)
		try.Equal(t, ran.Load(), 2, "handlers ran")
		if n := c.Moves().Regions; n != 0 {
			t.Errorf("%d regions are left", n)
		}
	})
}

// A server holds a result until the caller has it, has cancelled, is closed or has died, or until
// the deadline, and no longer.
func TestOverflowResultHeld(t *testing.T) {
	overEach(t, func(t *testing.T, s *rpc.Server, c *rpc.Client) {
		returned := make(chan struct{}, 1)
		try.OK(t, rpc.Register(s, "make", func(_ context.Context, n int) ([]byte, error) {
			returned <- struct{}{}
			return make([]byte, n), nil
		}))
		for range 20 {
			ctx, cancel := context.WithCancel(deadline(t))
			f := rpc.Go[int, []byte](ctx, c, s.ID(), "make", 3<<20)
			<-returned
			cancel()
			if p, err := f.Wait(deadline(t)); err != nil && !errors.Is(err, context.Canceled) || err == nil && len(p) != 3<<20 {
				t.Error(len(p), err)
			}
		}
		eventually.True(t, "nothing is exposed", func() bool { return s.Moves().Regions == 0 })
		try.Works(rpc.Call[int, []byte](context.Background(), c, s.ID(), "make", 3<<20))(t)
		eventually.True(t, "nothing is exposed", func() bool { return s.Moves().Regions == 0 })
	})
}

// A value that is too large for a buffer is pulled in growing pieces. A value that the codec makes
// too large for any buffer of the context is sent from the memory of the program.
func TestOverflowBeyondBuffers(t *testing.T) {
	cl := rocltest.Cluster(t, 1)
	s := serve(t, cl.Open(0, rocltest.TCP()))
	s.SetMost(1 << 20)
	try.OK(t, rpc.Register(s, "echo", echo))
	small := cl.Open(0, rocltest.TCP(), rocl.WithMemory(8<<20))
	c := client(t, small)
	try.OK(t, rpc.Register(s, "len", func(_ context.Context, p []byte) (bool, error) { return bytes.Equal(p, random(20<<20)), nil }))
	try.Gives(rpc.Call[[]byte, bool](deadline(t), c, s.ID(), "len", random(20<<20)))(t, true)
	try.Fails(rpc.Call[[]byte, []byte](deadline(t), c, s.ID(), "echo", random(20<<20)))(t, rocl.ErrTooLarge) // a result beyond the memory of the context
	never := client(t, small, rpc.CallOverflow(-1))
	try.Fails(rpc.Call[[]byte, []byte](deadline(t), never, s.ID(), "echo", random(20<<20)))(t, rocl.ErrTooLarge) // without overflow
}

// A server releases what it holds for a caller whose process is killed. Its handlers got all their
// arguments or did not run.
func TestOverflowCallerKilled(t *testing.T) {
	sock := freeaddr.Socket(t)
	s := serve(t, open(t, sock))
	var ran atomic.Int64
	want := random(3 << 20)
	try.OK(t, rpc.Register(s, "echo", func(_ context.Context, p []byte) ([]byte, error) {
		if !bytes.Equal(p, want) {
			t.Errorf("a handler ran with %d bytes", len(p))
		}
		ran.Add(1)
		return p, nil
	}))
	for range 3 {
		ran.Store(0)
		cmd, _ := other(t, "large", sock)
		eventually.True(t, "more than ten calls have run", func() bool { return ran.Load() > 10 })
		try.OK(t, cmd.Process.Kill())
		eventually.True(t, "no handler runs, and nothing is exposed", func() bool { return s.Stats()[0].Running == 0 && s.Moves().Regions == 0 })
	}
}

// Calls whose server is killed end with rocl.ErrGone, and leave no memory exposed.
//
// If either side is killed during a transfer of a call, transfer and call
// end with `rocl.ErrGone`. See also TestOverflowCallerKilled.
func TestOverflowServerKilled(t *testing.T) {
	sock := freeaddr.Socket(t)
	c := client(t, open(t, sock))
	cmd, id := other(t, "server", sock)
	var calls sync.WaitGroup
	var done atomic.Int64
	for range 4 {
		calls.Go(func() {
			for {
				if _, err := rpc.Call[[]byte, []byte](deadline(t), c, id, "echo", random(3<<20)); err != nil {
					try.Fails(err)(t, rocl.ErrGone)
					return
				}
				done.Add(1)
			}
		})
	}
	eventually.True(t, "more than ten calls have run", func() bool { return done.Load() > 10 })
	try.OK(t, cmd.Process.Kill())
	calls.Wait()
	if n := c.Moves().Regions; n != 0 {
		t.Errorf("%d regions are left", n)
	}
}

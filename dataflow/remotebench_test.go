// SPDX-License-Identifier: Apache-2.0

package dataflow_test

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/rocl-go/rocl"
	. "github.com/rocl-go/rocl/dataflow"
	"github.com/rocl-go/rocl/internal/testkit/try"
	"github.com/rocl-go/rocl/rocltest"
	"github.com/rocl-go/rocl/subsys/shm"
)

// transports are what the benchmarks compare.
var transports = map[string]func() rocl.Option{
	"shm": func() rocl.Option { return rocl.WithTransports(shm.New()) },
	"tcp": rocltest.TCP,
}

// eachTransport runs f for each transport, with two contexts that reach each other only by it.
func eachTransport(b *testing.B, name string, f func(b *testing.B, c1, c2 *rocl.Context)) {
	for _, transport := range []string{"shm", "tcp"} {
		b.Run(name+"/"+transport, func(b *testing.B) {
			cluster := rocltest.Cluster(b, 1)
			c1, c2 := cluster.Open(0, transports[transport]()), cluster.Open(0, transports[transport]())
			_, before := usage(b)
			f(b, c1, c2)
			_, after := usage(b)
			b.ReportMetric(float64(after-before)/float64(b.N), "cpu-ns/op") // of both ends, and of all threads
		})
	}
}

// bytesItems is a source of n items of size bytes.
func bytesItems(n, size int, o ...Option) Part[None, []byte] {
	p := make([]byte, size)
	return From(func(ctx context.Context, out Out[[]byte]) error {
		for range n {
			if err := out.Send(ctx, p); err != nil {
				return err
			}
		}
		return nil
	}, o...)
}

// runPipe runs the graph S, K in two groups.
func runPipe[T any](b *testing.B, c1, c2 *rocl.Context, src Part[None, T], k Part[T, None]) {
	g := try.Get(New("bench", Pipeline(src, k)))(b)
	try.OK(b, g.Group("G1", src))
	try.OK(b, g.Group("G2", k))
	err1, err2 := runBoth(b.Context(), g, g, c1, c2, Config{})
	try.OK(b, errors.Join(err1, err2))
}

// BenchmarkGroups moves items from one group to another. "messages" are as many messages of rocl
// with the payload of one item each.
func BenchmarkGroups(b *testing.B) {
	for _, batch := range []int{1, 32, 512} {
		eachTransport(b, fmt.Sprintf("8B/batch=%d", batch), func(b *testing.B, c1, c2 *rocl.Context) {
			b.ReportAllocs()
			got := 0
			k := To(func(context.Context, Item[int]) error {
				got++
				return nil
			})
			runPipe(b, c1, c2, count(b.N, Batch(batch, 0, 0), Window(16*1024)), k)
			try.Equal(b, got, b.N)
		})
	}
	eachTransport(b, "8B/messages", func(b *testing.B, c1, c2 *rocl.Context) { messages(b, c1, c2, 8) })
	eachTransport(b, "64KiB/bytes", func(b *testing.B, c1, c2 *rocl.Context) {
		b.SetBytes(64 << 10)
		runPipe(b, c1, c2, bytesItems(b.N, 64<<10, Window(64)), To(ignore[[]byte]))
	})
	eachTransport(b, "64KiB/buffers", func(b *testing.B, c1, c2 *rocl.Context) {
		b.SetBytes(64 << 10)
		src := From(func(ctx context.Context, out Out[*rocl.Buffer]) error {
			for range b.N {
				p, err := c1.BufferWait(ctx, 64<<10)
				if err == nil {
					err = out.Send(ctx, p)
				}
				if err != nil {
					return err
				}
			}
			return nil
		}, Window(64))
		runPipe(b, c1, c2, src, To(func(_ context.Context, in Item[*rocl.Buffer]) error {
			in.Value.Release()
			return nil
		}))
	})
	eachTransport(b, "64KiB/messages", func(b *testing.B, c1, c2 *rocl.Context) { messages(b, c1, c2, 64<<10) })
}

// messages sends b.N messages of rocl, of size bytes.
func messages(b *testing.B, c1, c2 *rocl.Context, size int) {
	if size > 8 {
		b.SetBytes(int64(size))
	}
	from, to := try.Get(c1.Register(b.Context(), nil))(b), try.Get(c2.Register(b.Context(), nil))(b)
	var wg sync.WaitGroup
	wg.Go(func() {
		for range b.N {
			m, err := to.Recv(b.Context())
			if err != nil {
				b.Error(err)
				return
			}
			m.Release()
		}
	})
	p := make([]byte, size)
	for range b.N {
		if size > 2048 {
			buf := try.Get(c1.BufferWait(b.Context(), size))(b)
			try.OK(b, from.Send(b.Context(), to.ID(), 1, buf))
		} else {
			try.OK(b, from.SendBytes(b.Context(), to.ID(), 1, p))
		}
	}
	wg.Wait()
}

// BenchmarkRoundTrip sends one item round a loop of two groups. "messages" is the round trip of a
// message of rocl.
func BenchmarkRoundTrip(b *testing.B) {
	eachTransport(b, "loop", func(b *testing.B, c1, c2 *rocl.Context) {
		turns := 0
		there := Do(&beginning{Func[int, int](func(ctx context.Context, in Item[int], out Out[int]) error {
			if turns++; turns == b.N {
				return Done
			}
			return out.Send(ctx, in.Value)
		})})
		back := Do(Func[int, int](func(ctx context.Context, in Item[int], out Out[int]) error { return out.SendBack(ctx, 0, in.Value) }))
		g := try.Get(New("bench", Ring(Pipeline(there, back))))(b)
		try.OK(b, g.Group("G1", there))
		try.OK(b, g.Group("G2", back))
		err1, err2 := runBoth(b.Context(), g, g, c1, c2, Config{})
		try.OK(b, errors.Join(err1, err2))
	})
	eachTransport(b, "messages", func(b *testing.B, c1, c2 *rocl.Context) {
		from, to := try.Get(c1.Register(b.Context(), nil))(b), try.Get(c2.Register(b.Context(), nil))(b)
		var wg sync.WaitGroup
		wg.Go(func() {
			for range b.N {
				m, err := to.Recv(b.Context())
				if err != nil {
					b.Error(err)
					return
				}
				try.Check(b, to.SendBytes(b.Context(), m.From(), 1, m.Bytes()))
				m.Release()
			}
		})
		for range b.N {
			try.OK(b, from.SendBytes(b.Context(), to.ID(), 1, []byte("12345678")))
			m := try.Get(from.Recv(b.Context()))(b)
			m.Release()
		}
		wg.Wait()
	})
}

// beginning sends the first item of a ring.
type beginning struct{ Func[int, int] }

func (*beginning) Start(ctx context.Context, out Out[int]) error { return out.Send(ctx, 0) }

// BenchmarkIdle reports how often an idle graph of two groups wakes a thread in a second.
func BenchmarkIdle(b *testing.B) {
	eachTransport(b, "idle", func(b *testing.B, c1, c2 *rocl.Context) {
		ctx, cancel := context.WithCancel(b.Context())
		src := From(func(ctx context.Context, out Out[int]) error {
			if err := out.Send(ctx, 1); err != nil {
				return err
			}
			<-ctx.Done()
			return ctx.Err()
		})
		k := To(ignore[int])
		g := try.Get(New("bench", Pipeline(src, k)))(b)
		try.OK(b, g.Group("G1", src))
		try.OK(b, g.Group("G2", k))
		var wg sync.WaitGroup
		wg.Go(func() { _, _ = runBoth(ctx, g, g, c1, c2, Config{}) })
		time.Sleep(time.Second) // until both groups sleep
		sleeps, cpu := usage(b)
		const quiet = 2 * time.Second
		time.Sleep(quiet) // nothing is to do meanwhile
		sleeps2, cpu2 := usage(b)
		b.ReportMetric(float64(sleeps2-sleeps)/quiet.Seconds(), "sleeps/s")
		b.ReportMetric(float64(cpu2-cpu)/float64(quiet), "cpu")
		cancel()
		wg.Wait()
	})
}

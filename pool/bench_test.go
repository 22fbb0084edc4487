// SPDX-License-Identifier: Apache-2.0

package pool

import (
	"context"
	"testing"

	"github.com/rocl-go/rocl/internal/testkit/try"
)

// The benchmarks compare a pool with a worker goroutine behind a buffered channel.

func BenchmarkHandOver(b *testing.B) {
	b.Run("channel", func(b *testing.B) {
		work, ran := make(chan Unit, 16), make(chan struct{})
		go func() {
			for u := range work {
				u.Run(b.Context())
			}
		}()
		defer close(work)
		handOver(b, ran, func(u Unit) { work <- u })
	})
	for name, c := range map[string]Config{
		"workers": {},
		"grow":    {Pools: []PoolConfig{{Workers: Unbounded}}},
		"stream":  {Pools: []PoolConfig{{Name: "a"}}, Streams: []StreamConfig{{Pools: []string{"a"}}}},
		"streams": {Pools: []PoolConfig{{Name: "a"}, {Name: "b"}}, Streams: []StreamConfig{{Pools: []string{"a", "b"}}, {Pools: []string{"b", "a"}}}},
		"keyed":   {Pools: []PoolConfig{{Policy: Keyed}}},
		"locked":  {Pools: []PoolConfig{{Name: "a"}}, Streams: []StreamConfig{{Pools: []string{"a"}, LockThread: true}}},
	} {
		b.Run(name, func(b *testing.B) {
			s := newSet(b, c)
			p, ctx := s.Default(), b.Context()
			handOver(b, make(chan struct{}), func(u Unit) {
				try.OK(b, p.Submit(ctx, u))
			})
		})
	}
	b.Run("inline", func(b *testing.B) {
		p := newSet(b, Config{Pools: []PoolConfig{{Policy: Inline}}}).Default()
		u, ctx := Unit{Run: func(context.Context) {}}, b.Context()
		b.ReportAllocs()
		for b.Loop() {
			_ = p.Submit(ctx, u)
		}
	})
}

// handOver submits a unit to an idle worker, and waits until it has run.
func handOver(b *testing.B, ran chan struct{}, submit func(Unit)) {
	u := Unit{Run: func(context.Context) { ran <- struct{}{} }}
	b.ReportAllocs()
	for b.Loop() {
		submit(u)
		<-ran
	}
}

func BenchmarkThroughput(b *testing.B) {
	run := func(b *testing.B, submit func(Unit)) {
		n := 0
		end := make(chan struct{})
		u := Unit{Run: func(context.Context) {
			if n++; n == b.N {
				close(end)
			}
		}}
		b.ReportAllocs()
		for range b.N {
			submit(u)
		}
		<-end
	}
	b.Run("channel", func(b *testing.B) {
		work := make(chan Unit, 1024)
		go func() {
			for u := range work {
				u.Run(b.Context())
			}
		}()
		defer close(work)
		run(b, func(u Unit) { work <- u })
	})
	b.Run("pool", func(b *testing.B) {
		p := newSet(b, Config{Pools: []PoolConfig{{Workers: 1, Queue: 1024, WhenFull: WaitWhenFull}}}).Default()
		ctx := b.Context()
		run(b, func(u Unit) { _ = p.Submit(ctx, u) })
	})
	b.Run("unbounded", func(b *testing.B) {
		p := newSet(b, Config{Pools: []PoolConfig{{Workers: 1}}}).Default()
		ctx := b.Context()
		run(b, func(u Unit) { _ = p.Submit(ctx, u) })
	})
}

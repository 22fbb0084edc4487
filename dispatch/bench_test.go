// SPDX-License-Identifier: Apache-2.0

package dispatch

import (
	"context"
	"testing"

	"github.com/rocl-go/rocl/buffers"
	"github.com/rocl-go/rocl/subsys/tcp"
)

// A round trip of 64 bytes between two contexts of one process. rocl bench measures the same beside
// a bare loop.
func BenchmarkRoundTrip(b *testing.B) {
	for _, tr := range []string{"inproc", "tcp", "shm"} {
		b.Run(tr, func(b *testing.B) {
			w := newWorld()
			t := transports()[tr]
			x, y := w.node(b, 1, t), w.node(b, 2, t)
			mx, my := box(b, x, 1, 0), box(b, y, 1, 0)
			ctx := context.Background()
			go func() {
				back := flow(b, y, mx)
				for echo(ctx, my, back, y.cfg.Pool) == nil {
				}
			}()
			to := flow(b, x, my)
			b.ReportAllocs()
			for b.Loop() {
				p, err := x.cfg.Pool.Get(64)
				must(b, err)
				must(b, to.Send(ctx, 1, 0, p))
				m, err := mx.Recv(ctx)
				must(b, err)
				m.Release()
			}
			my.Close()
		})
	}
}

// A call of 64 bytes between two contexts of one process. The server replies in its loop. The
// difference to BenchmarkRoundTrip is what calls cost beyond messages. rocl bench call measures
// both between two processes.
func BenchmarkCall(b *testing.B) {
	for _, tr := range []string{"inproc", "tcp", "shm"} {
		b.Run(tr, func(b *testing.B) {
			w := newWorld()
			t := transports()[tr]
			x, y := w.node(b, 1, t), w.node(b, 2, t)
			mx, my := box(b, x, 1, 0), box(b, y, 1, 0)
			ctx := context.Background()
			go func() {
				for {
					m, err := my.Recv(ctx)
					if err != nil {
						return
					}
					p, err := y.cfg.Pool.Get(64)
					if err == nil {
						err = my.Reply(ctx, m, p)
					}
					m.Release()
					if err != nil {
						return
					}
				}
			}()
			to := flow(b, x, my)
			b.ReportAllocs()
			for b.Loop() {
				p, err := x.cfg.Pool.Get(64)
				must(b, err)
				c, err := mx.Request(ctx, to, 0, p)
				must(b, err)
				m, err := c.Wait(ctx)
				must(b, err)
				m.Release()
				p.Release()
			}
			my.Close()
		})
	}
}

func echo(ctx context.Context, from *Mailbox, back *Flow, pool *buffers.Pool) error {
	m, err := from.Recv(ctx)
	if err != nil {
		return err
	}
	m.Release()
	p, err := pool.Get(64)
	if err != nil {
		return err
	}
	return back.Send(ctx, 1, 0, p)
}

// The cost of a round trip over shared memory for both sides. One goroutine is both sides, so no
// goroutine waits.
func BenchmarkPath(b *testing.B) {
	for name, size := range map[string]int{"small": 64, "lent": 1 << 20, "large": 64 << 20} {
		b.Run(name, func(b *testing.B) {
			w := newWorld()
			t := transports()["shm"]
			x, y := w.node(b, 1, t), w.node(b, 2, t)
			mx, my := box(b, x, 1, 1<<30), box(b, y, 1, 1<<30)
			to, back := flow(b, x, my), flow(b, y, mx)
			ctx := context.Background()
			one := func(f *Flow, m *Mailbox, pool *buffers.Pool) {
				p, err := pool.Get(size)
				if err == nil {
					err = f.Send(ctx, 1, 0, p)
				}
				must(b, err)
				msg, err := m.Recv(ctx)
				must(b, err)
				msg.Release()
			}
			b.ReportAllocs()
			for b.Loop() {
				one(to, my, x.cfg.Pool)
				one(back, mx, y.cfg.Pool)
			}
		})
	}
}

// Messages in one direction, as fast as possible.
func BenchmarkStream(b *testing.B) {
	w := newWorld()
	x, y := w.node(b, 1, tcp.New()), w.node(b, 2, tcp.New())
	my := box(b, y, 1, 0)
	ctx := b.Context()
	go func() {
		for {
			m, err := my.Recv(ctx)
			if err != nil {
				return
			}
			m.Release()
		}
	}()
	to := flow(b, x, my)
	var p [64]byte
	b.ReportAllocs()
	for b.Loop() {
		must(b, to.SendBytes(ctx, 1, 0, p[:]))
	}
}

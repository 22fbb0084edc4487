// SPDX-License-Identifier: Apache-2.0

package dispatch

import (
	"context"
	"testing"

	"github.com/rocl-go/rocl/buffers"
	"github.com/rocl-go/rocl/internal/testkit/try"
)

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
				try.OK(b, err)
				msg, err := m.Recv(ctx)
				try.OK(b, err)
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

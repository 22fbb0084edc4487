// SPDX-License-Identifier: Apache-2.0

package pool

import (
	"context"
	"testing"
)

// BenchmarkHandOver submits a unit to an idle worker and waits until it has run, in each place, and
// with a goroutine behind a buffered channel in place of a pool.
func BenchmarkHandOver(b *testing.B) {
	handOver := func(b *testing.B, submit func(Unit)) {
		ran := make(chan struct{}, 1)
		u := Unit{Run: func(context.Context) { ran <- struct{}{} }}
		b.ReportAllocs()
		for b.Loop() {
			submit(u)
			<-ran
		}
	}
	b.Run("channel", func(b *testing.B) {
		work := make(chan Unit, 16)
		go func() {
			for u := range work {
				u.Run(b.Context())
			}
		}()
		defer close(work)
		handOver(b, func(u Unit) { work <- u })
	})
	for name, c := range places {
		b.Run(name, func(b *testing.B) {
			p, ctx := newSet(b, c).Default(), b.Context()
			handOver(b, func(u Unit) { _ = p.Submit(ctx, u) })
		})
	}
}

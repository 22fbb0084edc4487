// SPDX-License-Identifier: Apache-2.0

package tpvm_test

import (
	"sync"
	"testing"

	"github.com/rocl-go/rocl/tpvm"
)

// BenchmarkGroupStencil measures a stencil of 8 goroutines with a barrier in each step, beside a
// stencil whose goroutines exchange the borders over channels.
func BenchmarkGroupStencil(b *testing.B) {
	const threads, cells = 8, 1 << 14
	step := func(to, from []float64, left, right float64) {
		for i := range to {
			l, r := left, right
			if i > 0 {
				l = from[i-1]
			}
			if i < len(from)-1 {
				r = from[i+1]
			}
			to[i] = (l + from[i] + r) / 3
		}
	}
	b.Run("Channels", func(b *testing.B) {
		var right, left [threads + 1]chan float64 // to the right and to the left, between i-1 and i
		for i := range right {
			right[i], left[i] = make(chan float64, 1), make(chan float64, 1)
		}
		var wg sync.WaitGroup
		b.ResetTimer()
		for i := range threads {
			wg.Go(func() {
				to, from := make([]float64, cells), make([]float64, cells)
				for range b.N {
					var l, r float64
					if i > 0 {
						left[i] <- from[0]
					}
					if i < threads-1 {
						right[i+1] <- from[cells-1]
						r = <-left[i+1]
					}
					if i > 0 {
						l = <-right[i]
					}
					step(to, from, l, r)
					to, from = from, to
				}
			})
		}
		wg.Wait()
	})
	b.Run("Barrier", func(b *testing.B) {
		ctx := deadline(b)
		ts := &team{t: b, tasks: []*tpvm.Task{enrol(b, alone(b))}}
		gs, _ := ts.group("stencil", threads)
		a, z := make([]float64, threads*cells+2), make([]float64, threads*cells+2)
		b.ResetTimer()
		errs := each(gs, func(i int, g *tpvm.Group) error {
			to, from := a, z
			for range b.N {
				lo, hi := 1+i*cells, 1+(i+1)*cells
				step(to[lo:hi], from[lo:hi], from[lo-1], from[hi])
				if err := g.Barrier(ctx, threads); err != nil {
					return err
				}
				to, from = from, to
			}
			return nil
		})
		noErrors(b, errs)
	})
}

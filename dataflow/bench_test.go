// SPDX-License-Identifier: Apache-2.0

package dataflow_test

import (
	"context"
	"fmt"
	"sync"
	"testing"

	. "github.com/rocl-go/rocl/dataflow"
	"github.com/rocl-go/rocl/internal/testkit/try"
)

// BenchmarkPipe moves numbers through a pipe of three nodes. "channels" does the same with three
// goroutines and Go channels of 1,024.
func BenchmarkPipe(b *testing.B) {
	b.Run("channels", func(b *testing.B) {
		b.ReportAllocs()
		x, y := make(chan int, 1024), make(chan int, 1024)
		var wg sync.WaitGroup
		wg.Go(func() {
			for i := range b.N {
				x <- i
			}
			close(x)
		})
		wg.Go(func() {
			for v := range x {
				y <- v
			}
			close(y)
		})
		sum := 0
		wg.Go(func() {
			for v := range y {
				sum += v
			}
		})
		wg.Wait()
		try.Equal(b, sum, b.N*(b.N-1)/2)
	})
	for _, n := range []int{1, 64, 512} {
		b.Run(fmt.Sprintf("batch=%d", n), func(b *testing.B) {
			b.ReportAllocs()
			sum := 0
			k := To(func(_ context.Context, in Item[int]) error {
				sum += in.Value
				return nil
			})
			g := try.Get(New("bench", Pipeline3(count(b.N, Batch(n, 0, 0)), pass[int]("P", Batch(n, 0, 0)), k)))(b)
			try.OK(b, g.Run(b.Context()))
			try.Equal(b, sum, b.N*(b.N-1)/2)
		})
	}
}

// SPDX-License-Identifier: Apache-2.0

package work_test

import (
	"context"
	"testing"
	"testing/synctest"

	"github.com/rocl-go/rocl"
	"github.com/rocl-go/rocl/internal/testkit/try"
	"github.com/rocl-go/rocl/rocltest"
	"github.com/rocl-go/rocl/work"
)

func TestSquares(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := rocltest.Cluster(t, 1)
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error)
		for range 3 {
			rc := c.Open(0)
			go func() {
				done <- work.Serve(ctx, rc, rocl.Attrs{"job": "square"}, func(ctx context.Context, n int) (int, error) { return n * n, nil })
			}()
		}
		q := try.Get(work.Open[int, int](ctx, c.Open(0), rocl.Match{"job": "square"}))(t)
		got := map[int]int{}
		for r, err := range q.Do(ctx, func(yield func(int) bool) {
			for i := range 10000 {
				if !yield(i) {
					return
				}
			}
		}) {
			try.OK(t, err)
			try.OK(t, r.Err)
			if r.Out != r.Task*r.Task {
				t.Fatalf("%+v", r)
			}
			got[r.Task]++
		}
		try.Equal(t, len(got), 10000)
		t.Logf("%+v", q.Stats())
		cancel()
		for range 3 {
			try.OK(t, <-done)
		}
		try.OK(t, q.Close())
	})
}

package work_test

import (
	"context"
	"testing"
	"time"

	"github.com/rocl-go/rocl"
	"github.com/rocl-go/rocl/internal/testkit/try"
	"github.com/rocl-go/rocl/rocltest"
	"github.com/rocl-go/rocl/work"
)

func BenchmarkQueue(b *testing.B) {
	c := rocltest.Cluster(b, 1)
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error)
	for range 1 {
		rc := c.Open(0)
		go func() {
			done <- work.Serve(ctx, rc, rocl.Attrs{"job": "square"}, func(ctx context.Context, n []byte) ([]byte, error) { return n, nil })
		}()
	}
	q := try.Get(work.Open[[]byte, []byte](ctx, c.Open(0), rocl.Match{"job": "square"}))(b)
	for q.Stats().Workers < 1 {
		time.Sleep(time.Millisecond)
	}
	p := make([]byte, 64)
	b.ReportAllocs()
	b.ResetTimer()
	n := 0
	for r, err := range q.Do(ctx, func(yield func([]byte) bool) {
		for range b.N {
			if !yield(p) {
				return
			}
		}
	}) {
		if err != nil || r.Err != nil {
			b.Fatal(err)
		}
		n++
	}
	if n != b.N {
		b.Fatal(n)
	}
	b.StopTimer()
	cancel()
	try.OK(b, <-done)
	try.OK(b, q.Close())
}

// SPDX-License-Identifier: Apache-2.0

package live_test

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"testing"

	"github.com/rocl-go/rocl"
	"github.com/rocl-go/rocl/internal/testkit/eventually"
	"github.com/rocl-go/rocl/internal/testkit/try"
	"github.com/rocl-go/rocl/live"
	"github.com/rocl-go/rocl/rocltest"
)

var workers = rocl.Match{"type": "worker"}

// worker registers a worker with the given load.
func worker(t testing.TB, c *rocl.Context, load int) *rocl.Resource {
	return try.Get(c.Register(t.Context(), rocl.Attrs{"type": "worker", "load": strconv.Itoa(load)}))(t)
}

// follow follows the workers until the test ends.
func follow(t testing.TB, c *rocl.Context, opts ...rocl.FindOption) *live.Set {
	s := try.Get(live.Follow(t.Context(), c, workers, opts...))(t)
	t.Cleanup(func() { s.Close() })
	return s
}

// Promise (Package live): With `Least`, requests in flight count: eight requests at once over four
// equal members go 2, 2, 2, 2.
func TestLeastSpreads(t *testing.T) {
	c := rocltest.Cluster(t, 1).Open(0)
	for range 4 {
		worker(t, c, 3)
	}
	s := follow(t, c)
	n := map[rocl.GID]int{}
	for range 8 {
		n[try.Get(s.Pick(live.Least("load")))(t).ID]++
	}
	try.Equal(t, fmt.Sprint(slices.Collect(maps.Values(n))), "[2 2 2 2]")
}

// BenchmarkPick measures a pick among 1,000 members, with its Done.
func BenchmarkPick(b *testing.B) {
	c := rocltest.Cluster(b, 1).Open(0)
	for i := range 1000 {
		worker(b, c, i%10)
	}
	s := follow(b, c)
	for range 200_000 {
		_, _ = s.Pick(live.Hash(strconv.Itoa(b.N)))
	}
	keys := make([]string, 1<<16)
	for i := range keys {
		keys[i] = fmt.Sprint("user:", i)
		try.Get(s.Pick(live.Hash(keys[i])))(b).Done(nil)
	}
	for _, how := range []struct {
		name string
		by   func(i int) live.By
	}{
		{"hash", func(i int) live.By { return live.Hash(keys[i%len(keys)]) }},
		{"turn", func(int) live.By { return live.Turn() }},
		{"random", func(int) live.By { return live.Random() }},
		{"nearest", func(int) live.By { return live.Nearest() }},
		{"least", func(int) live.By { return live.Least("load") }},
	} {
		b.Run(how.name, func(b *testing.B) {
			b.ReportAllocs()
			i := 0
			for b.Loop() {
				m, err := s.Pick(how.by(i))
				if err != nil {
					b.Fatal(err)
				}
				m.Done(nil)
				i++
			}
		})
	}
}

var _ = eventually.Timeout
var _ = context.Background

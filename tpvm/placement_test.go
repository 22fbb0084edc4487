// SPDX-License-Identifier: Apache-2.0

package tpvm

import (
	"testing"

	"github.com/rocl-go/rocl"
	"github.com/rocl-go/rocl/internal/testkit/try"
)

// Places get shares in proportion to their weights, over one call or many.
func TestSpread(t *testing.T) {
	c := make([]hostEntry, 3)
	for i, w := range []int{4, 2, 1} {
		id := try.Get(rocl.ParseGID([]string{"000000000001-1-1", "000000000001-1-2", "000000000001-1-3"}[i]))(t)
		c[i] = hostEntry{pod: id, weight: w}
	}
	for _, step := range []int{1, 2, 3, 7, 70, 700} {
		p := &pod{turns: map[TID]int{}}
		got := map[TID]int{}
		for range 700 / step {
			sum := 0
			for _, s := range p.spread(c, step) {
				if s.first != sum {
					t.Fatalf("a share begins at %d, not %d", s.first, sum)
				}
				got[s.pod] += s.count
				sum += s.count
			}
			if sum != step {
				t.Fatalf("%d dealt, not %d", sum, step)
			}
		}
		rest := 700 % step
		for i, want := range []int{400, 200, 100} {
			if n := got[c[i].pod]; n > want || n < want-rest {
				t.Errorf("in steps of %d: place %d got %d, not %d", step, i, n, want)
			}
		}
	}
}

// SPDX-License-Identifier: Apache-2.0

package histogram

import (
	"math"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// Each size is counted below exactly the bounds that it does not exceed.
func TestBounds(t *testing.T) {
	for _, make := range []func() *Histogram{Durations, func() *Histogram { return new(Histogram) }} {
		bounds := make().Snapshot().Bounds
		sizes := []uint64{0, 1, 2, 3, math.MaxUint64}
		for _, b := range bounds {
			sizes = append(sizes, b-1, b, b+1)
		}
		for _, size := range sizes {
			h := make()
			h.Observe(size)
			s := h.Snapshot()
			if s.Count != 1 || s.Sum != size {
				t.Errorf("of %d: %d counted, sum %d", size, s.Count, s.Sum)
			}
			for i, b := range s.Bounds {
				if want := size <= b; (s.Below[i] == 1) != want {
					t.Errorf("%d is counted as not larger than %d: %v", size, b, !want)
				}
			}
		}
	}
	if b := Durations().Snapshot().Bounds; time.Duration(b[0]) != 1024*time.Nanosecond || time.Duration(b[len(b)-1]) < 4*time.Second {
		t.Errorf("durations are told apart from %d to %d ns", b[0], b[len(b)-1])
	}
}

func TestConcurrent(t *testing.T) {
	h := Durations()
	var wg sync.WaitGroup
	for range 4 {
		wg.Go(func() {
			for i := range uint64(1000) {
				h.Observe(i * 1000)
				h.Snapshot()
			}
		})
	}
	wg.Wait()
	if s := h.Snapshot(); s.Count != 4000 || s.Sum != 4*1000*999*1000/2 {
		t.Errorf("%d counted, sum %d", s.Count, s.Sum)
	}
}

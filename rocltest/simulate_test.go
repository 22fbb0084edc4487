// SPDX-License-Identifier: Apache-2.0

package rocltest_test

import (
	"flag"
	"fmt"
	"slices"
	"sync/atomic"
	"testing"

	"github.com/rocl-go/rocl/rocltest"
)

var (
	seeds = flag.Int("seeds", 0, "the number of seeds of TestPromises; 0: 1000, or 20 with -short")
	first = flag.Uint64("seed", 0, "the first seed of TestPromises")
)

// The promises of the library hold in a world with faults.
func TestPromises(t *testing.T) {
	n := *seeds
	if n == 0 {
		n = 1000
		if testing.Short() {
			n = 20
		}
	}
	var failed atomic.Bool
	for i := range n {
		t.Run(fmt.Sprint(*first+uint64(i)), func(t *testing.T) {
			t.Parallel()
			if failed.Load() {
				t.Skip("another seed has failed")
			}
			rocltest.Simulate(t, *first+uint64(i), rocltest.Promises)
			if t.Failed() {
				failed.Store(true)
			}
		})
	}
}

// A schedule of which one part breaks a promise is shrunk to that part.
func TestShrink(t *testing.T) {
	var all []rocltest.Fault
	for i := range 13 {
		all = append(all, rocltest.Fault{A: i})
	}
	for _, want := range [][]int{{}, {0}, {12}, {3, 4}, {0, 7, 12}} {
		fails := func(part []rocltest.Fault) bool {
			left := 0
			for _, f := range part {
				if slices.Contains(want, f.A) {
					left++
				}
			}
			return left == len(want)
		}
		var got []int
		for _, f := range rocltest.Shrink(all, fails) {
			got = append(got, f.A)
		}
		if !slices.Equal(got, want) {
			t.Errorf("shrunk to %v, want %v", got, want)
		}
	}
}

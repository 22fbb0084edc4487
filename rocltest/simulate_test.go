// SPDX-License-Identifier: Apache-2.0

package rocltest_test

import (
	"flag"
	"fmt"
	"sync/atomic"
	"testing"

	"github.com/rocl-go/rocl/rocltest"
)

var (
	seeds = flag.Int("seeds", 0, "the number of seeds of TestPromises; 0: 1000, or 100 with -short")
	first = flag.Uint64("seed", 0, "the first seed of TestPromises")
)

// The promises of the library hold in a world with faults.
func TestPromises(t *testing.T) {
	n := *seeds
	if n == 0 {
		n = 1000
		if testing.Short() {
			n = 100
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

// SPDX-License-Identifier: Apache-2.0

//go:build roclbugs

package rocltest_test

import (
	"testing"

	"github.com/rocl-go/rocl/rocltest"
)

// TestBroken finds the first seed that shows the planted defect ROCL_BUG, among 10,000. TestPlanted
// runs it.
func TestBroken(t *testing.T) {
	for seed := range uint64(10_000) {
		if wrong := rocltest.Broken(t, seed, rocltest.Promises); len(wrong) > 0 {
			t.Logf("found by seed %d: %s", seed, wrong[0])
			return
		}
	}
	t.Error("not found")
}

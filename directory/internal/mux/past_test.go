// SPDX-License-Identifier: Apache-2.0

package mux

import (
	"testing"

	"github.com/rocl-go/rocl/resource"
)

// A life that is met again accepts only counters above those that were heard of it before.
func TestPastLives(t *testing.T) {
	past := pastLives{}
	var heard replay
	heard.first(3)
	heard.first(7)
	past.keep(life{1, 1}, &heard)
	past.keep(life{2, 1}, new(replay)) // nothing was heard of it
	if len(past) != 1 {
		t.Errorf("%d lives are remembered", len(past))
	}
	var other, again, later replay
	past.restore(life{1, 2}, &other)
	if !other.first(1) {
		t.Error("another life of the member may not begin")
	}
	past.restore(life{1, 1}, &again)
	for n, want := range map[uint64]bool{1: false, 3: false, 5: false, 7: false, 8: true} {
		if again.first(n) != want {
			t.Errorf("counter %d of the same life: accepted is %t, want %t", n, !want, want)
		}
	}
	if past.restore(life{1, 1}, &later); len(past) != 0 || !later.first(1) {
		t.Errorf("the life is still remembered after it was met again: %v", past)
	}

	// The number of lives is limited, and the newest is never the one that is dropped.
	for n := range resource.NodeID(mostPast + 10) {
		past.keep(life{n, 1}, &heard)
		if _, kept := past[life{n, 1}]; !kept {
			t.Fatalf("life %d is dropped at once", n)
		}
	}
	if len(past) != mostPast {
		t.Errorf("%d lives are remembered, want %d", len(past), mostPast)
	}
}

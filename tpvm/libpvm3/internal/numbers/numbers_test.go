// SPDX-License-Identifier: Apache-2.0

package numbers_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/rocl-go/rocl"
	"github.com/rocl-go/rocl/rocltest"
	"github.com/rocl-go/rocl/tpvm/libpvm3/internal/numbers"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// All processes compute the same number for a task. The numbers look like PVM's, and the task can
// be found by its number.
func TestNumbers(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	cluster := rocltest.Cluster(t, 2)
	var cs []*rocl.Context
	var ns []*numbers.Numbers
	var ids []rocl.GID
	for i := range 6 {
		c := cluster.Open(i % 2)
		n := numbers.New(c, "vm")
		if err := n.Claim(ctx); err != nil {
			t.Fatal(err)
		}
		r, err := c.Register(ctx, rocl.Attrs{"type": "task", "vm": "vm"})
		if err != nil {
			t.Fatal(err)
		}
		cs, ns, ids = append(cs, c), append(ns, n), append(ids, r.ID())
	}
	seen := map[int]bool{}
	for _, id := range ids {
		first, err := ns[0].Number(ctx, id)
		if err != nil {
			t.Fatal(err)
		}
		if !numbers.Valid(first) || first>>18 < 1 || first>>18 > 2 || seen[first] {
			t.Errorf("%v has the number %#x", id, first)
		}
		seen[first] = true
		fresh := numbers.New(cs[1], "vm") // a process that has not learned any numbers
		for _, n := range append(ns, fresh) {
			if i, err := n.Number(ctx, id); err != nil || i != first {
				t.Errorf("%v has the number %#x, and %#x for another process: %v", id, first, i, err)
			}
		}
		if got, err := numbers.New(cs[1], "vm").Task(ctx, first); err != nil || got != id {
			t.Errorf("%#x is %v, not %v: %v", first, got, id, err)
		}
	}
	if _, err := ns[0].Task(ctx, 1<<18|1<<17+12345); !errors.Is(err, rocl.ErrNotFound) {
		t.Errorf("a number that no task has: %v", err)
	}
	// A second claim of the same number fails.
	if err := numbers.New(cs[0], "vm").Claim(ctx); !errors.Is(err, rocl.ErrExists) {
		t.Errorf("a number that is claimed: %v", err)
	}
}

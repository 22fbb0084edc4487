// SPDX-License-Identifier: Apache-2.0

package spin

import (
	"testing"
	"time"
)

// A Machine decides how long to poll.
func TestSpin(t *testing.T) {
	a := New(Adaptive, 0, 0, 4)
	if a.Next() != DefaultBudget || a.limit != 3 {
		t.Errorf("at first %v, beside %d", a.Next(), a.limit)
	}
	for range 3 {
		a.InVain()
	}
	if a.Next() != leastSpin {
		t.Errorf("after polling in vain %v", a.Next())
	}
	for range missMost {
		if a.Next() != leastSpin {
			t.Fatalf("it polls for %v", a.Next())
		}
		a.InVain()
	}
	for range missSkip {
		if d := a.Next(); d != 0 {
			t.Fatalf("where it is in vain it polls for %v", d)
		}
	}
	if a.Next() != leastSpin {
		t.Error("it does not try again")
	}
	a.Paid()
	if a.Next() != 2*leastSpin {
		t.Errorf("after it has paid %v", a.Next())
	}
	for range 10 {
		a.Paid()
	}
	if a.Next() != DefaultBudget {
		t.Errorf("where it pays %v", a.Next())
	}
	for _, skipped := range []int{8, 16, 32, 64, 128, 256, 512, 1024, 1024} {
		a.Crowded()
		for i := range skipped {
			if a.Next() != 0 {
				t.Fatalf("crowded: %d waits of %d did not poll", i, skipped)
			}
		}
		if a.Next() == 0 {
			t.Fatalf("crowded: more than %d waits do not poll", skipped)
		}
	}
	a.Paid()
	a.Crowded()
	if a.skip != skipLeast {
		t.Errorf("when polling has paid again, %d waits are skipped", a.skip)
	}

	for _, c := range []struct {
		policy      Policy
		budget      time.Duration
		most, procs int
		next        time.Duration
		limit       int32
	}{
		{Adaptive, 0, 0, 1, 0, 1},
		{Adaptive, 0, 0, 2, DefaultBudget, 1},
		{Adaptive, time.Millisecond, 7, 2, time.Millisecond, 7},
		{Never, 0, 7, 8, 0, 7},
		{Always, 0, 0, 1, 1, 0},
		{Always, 0, 2, 1, 1, 2},
	} {
		a := New(c.policy, c.budget, c.most, c.procs)
		if a.Next() != c.next || a.limit != c.limit {
			t.Errorf("%+v: %v, beside %d", c, a.Next(), a.limit)
		}
	}
}

// No more goroutines poll than the limit allows, over all machines.
func TestPollers(t *testing.T) {
	a := Machine{limit: pollers.Load() + 2}
	first, second, third := a.Enter(), a.Enter(), a.Enter()
	if !first || !second || third {
		t.Error("not two may poll")
	}
	b := Machine{}
	if !b.Enter() {
		t.Error("a machine without a limit may not poll")
	}
	b.Leave()
	a.Leave()
	if !a.Enter() {
		t.Error("a goroutine that has left counts")
	}
	a.Leave()
	a.Leave()
}

// If sleeps are short, the whole budget is tried now and then.
func TestExplore(t *testing.T) {
	a := New(Adaptive, 0, 0, 4)
	lower := func() {
		for a.Next() > leastSpin {
			a.InVain()
		}
	}
	lower()
	for range 10 * regretFirst {
		a.Slept(shortSleep*DefaultBudget + 1) // polling would not have paid
	}
	if a.Next() != leastSpin {
		t.Error("sleeps that are long let it explore")
	}
	for _, regret := range []int{regretFirst, 2 * regretFirst, 4 * regretFirst} {
		for i := range regret {
			if a.Next() != leastSpin {
				t.Fatalf("it explores after %d short sleeps of %d", i, regret)
			}
			a.Slept(DefaultBudget)
		}
		for i := range exploreWaits {
			if a.Next() != DefaultBudget {
				t.Fatalf("an exploration ends after %d waits in vain", i)
			}
			a.InVain()
		}
	}
	for range 8 * regretFirst {
		a.Slept(DefaultBudget)
	}
	for range explorePaid {
		a.InVain()
		a.Paid()
	}
	if a.Next() != DefaultBudget || a.explore != 0 || a.regret != regretFirst {
		t.Errorf("an exploration that paid: %+v", a)
	}
	lower()
	a.Crowded()
	for range regretFirst {
		a.Slept(DefaultBudget)
	}
	if a.explore != 0 {
		t.Error("it explores though others want the processor")
	}
	for a.Next() == 0 { // the waits that do not poll
	}
	for range regretFirst {
		a.Slept(DefaultBudget)
	}
	if a.explore == 0 {
		t.Error("it explores no more after others have wanted the processor")
	}
	for range 20 {
		for range regretFirst {
			a.Slept(DefaultBudget)
		}
		for range explorePaid {
			a.Paid()
		}
	}
	if a.regret != regretLeast {
		t.Errorf("where explorations pay there are %d sleeps before the next one", a.regret)
	}

	n := New(Never, 0, 0, 4)
	for range 10 * regretFirst {
		n.Slept(0)
	}
	if n.Next() != 0 {
		t.Error("Never explores")
	}
}

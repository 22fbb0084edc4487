// SPDX-License-Identifier: Apache-2.0

package dispatch

import (
	"math"
	"testing"

	"github.com/rocl-go/rocl/internal/lock"
)

// A small message takes four locks from Send to Recv if no goroutine contends, and two within a
// process. The keeper's ticks add some now and then. Each message is answered: messages in one
// direction, less than two microseconds apart, make their link paced, and the flusher takes locks
// too.
func TestLocksOfMessage(t *testing.T) {
	if !lock.IsWatched {
		t.Skip("locks are counted in a build with the tag rocldebug")
	}
	for name, tr := range transports() {
		t.Run(name, func(t *testing.T) {
			w := newWorld()
			a, b := w.node(t, 1, tr), w.node(t, 2, tr)
			here, there := box(t, a, 1, 0), box(t, b, 1, 0)
			to, back := flow(t, a, there), flow(t, b, here)
			send := func(f *Flow, m *Mailbox) {
				if err := f.SendBytes(t.Context(), 1, 2, []byte("hello")); err != nil {
					t.Fatal(err)
				}
				take(t, m)
			}
			two := func() {
				send(to, there)
				send(back, here)
			}
			most := 4.1 // a batch may take a millisecond, which is a tick
			if name == "inproc" {
				most = 2.1
			}
			leastLocks(t, two, 2*most)
		})
	}
}

// leastLocks fails the test if one call of one takes more than most locks.
func leastLocks(t *testing.T, one func(), most float64) {
	t.Helper()
	for range 100 {
		one()
	}
	// The least of many batches counts: the keeper's ticks, and goroutines that begin, add locks to
	// some. A batch is short, so that a tick does not fall into each of them.
	const times = 10
	least, what := math.Inf(1), map[string]float64{}
	for range 200 {
		before := lock.Taken()
		for range times {
			one()
		}
		after, all := lock.Taken(), 0.0
		by := map[string]float64{}
		for level, n := range after {
			by[level] = float64(n-before[level]) / times
			all += by[level]
		}
		if all < least {
			least, what = all, by
		}
	}
	t.Logf("%.2f locks: %v", least, what)
	if least > most {
		t.Errorf("%.2f locks, at most %.1f", least, most)
	}
}

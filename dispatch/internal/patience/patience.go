// SPDX-License-Identifier: Apache-2.0

// Package patience says for how long a waiter polls before it sleeps. A [Machine] adapts
// that to whether polling has paid, and to whether other goroutines have wanted the
// processor meanwhile. It has no clock and no lock: the goroutine that polls, of which there
// is one at a time in a context, asks it first and tells it what came of it.
//
//	             paid: twice as long, up to the budget
//	          ┌────┐
//	          ▼    │    crowded: 8, 16, … 1024
//	  ┌───► polling ──────────────────────────────────► skipping so many waits
//	  │       │  ▲    2 µs in vain, 4096 times: 4096      │
//	  └───────┘  └────────────────────────────────────────┘
//	in vain: a quarter,
//	down to 2 µs
//
// What all contexts of the process share is the number of goroutines that poll: like its
// processors they are not any context's.
package patience

import (
	"sync/atomic"
	"time"
)

// A Policy says whether waiters poll.
type Policy uint8

const (
	Adaptive Policy = iota // for as long as it has lately paid to, up to the budget
	Never                  // not at all
	Always                 // until the message is there
)

// DefaultBudget is the longest that Adaptive polls if nothing else is said.
const DefaultBudget = 50 * time.Microsecond

const (
	leastSpin = 2 * time.Microsecond // what Adaptive polls where it has not paid lately
	skipLeast = 8                    // waits that do not poll after others have wanted the processor,
	skipMost  = 1024                 // and if that is so again and again

	// Of two processes on one processor the one that polls keeps the other from
	// answering, a round trip takes two and a half times as long. So where even the
	// least is in vain again and again, as many waits do without. Not more: the kernel
	// takes some 10 ms to move one of two that are awake, and it is polling that keeps
	// them apart then.
	missMost = 4096
	missSkip = 4096
)

// pollers is how many goroutines of this process poll.
var pollers atomic.Int32

// A Machine says for how long the waiters of one context poll.
type Machine struct {
	policy  Policy
	limit   int32 // of pollers; 0: none
	budget  time.Duration
	now     time.Duration // what the next polls
	skip    int           // waits that are not to poll,
	skipped int           // and how many they were last, for others' sake
	missed  int           // how often the least was in vain, one after another
}

// New returns a machine for a number of processors. budget is the longest that Adaptive
// polls; 0: DefaultBudget. most is how many goroutines of the process may poll; 0: as many
// as leave a processor to others with Adaptive, at least one, and any number otherwise. On
// one processor Adaptive is Never.
func New(policy Policy, budget time.Duration, most, procs int) Machine {
	m := Machine{policy: policy, limit: int32(min(most, 1<<30)), budget: budget}
	if m.budget == 0 {
		m.budget = DefaultBudget
	}
	m.now = m.budget
	if m.policy == Adaptive {
		if procs < 2 {
			m.policy = Never
		}
		if m.limit == 0 {
			m.limit = int32(max(1, procs-1))
		}
	}
	return m
}

// Next returns how long the next waiter polls; 0: not at all. With Always it is not 0, and
// says nothing else.
func (m *Machine) Next() time.Duration {
	switch m.policy {
	case Adaptive:
		if m.skip > 0 {
			m.skip--
			return 0
		}
		return m.now
	case Always:
		return 1
	}
	return 0
}

// IsEndless reports whether a waiter that polls does so until the message is there.
func (m *Machine) IsEndless() bool { return m.policy == Always }

// IsCrowded reports whether others wanted the processor since polling last paid.
func (m *Machine) IsCrowded() bool { return m.skipped > 0 }

// Spin returns how long a waiter polls that is not skipped.
func (m *Machine) Spin() time.Duration { return m.now }

// Paid says that polling ended in what was waited for.
func (m *Machine) Paid() {
	m.skipped, m.missed = 0, 0
	if m.now < m.budget {
		m.now = min(m.budget, 2*m.now)
	}
}

// InVain says that it did not.
func (m *Machine) InVain() {
	if m.now > leastSpin {
		m.now = max(leastSpin, m.now/4)
	} else if m.missed++; m.missed == missMost {
		m.missed, m.skip = 0, missSkip
	}
}

// Crowded says that others wanted the processor.
func (m *Machine) Crowded() {
	m.skipped = min(max(skipLeast, 2*m.skipped), skipMost)
	m.skip = m.skipped
}

// Enter counts one more goroutine that polls. It reports false, and has counted nothing, if
// there are enough.
func (m *Machine) Enter() bool {
	if n := pollers.Add(1); m.limit > 0 && n > m.limit {
		pollers.Add(-1)
		return false
	}
	return true
}

// Leave ends what Enter began.
func (m *Machine) Leave() { pollers.Add(-1) }

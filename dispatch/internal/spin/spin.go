// SPDX-License-Identifier: Apache-2.0

// Package spin decides how long a waiter polls before it sleeps. A [Machine] adapts that time
// to whether polling has paid, and to whether other goroutines have wanted the processor meanwhile.
// It has no clock and no lock. One goroutine of a context polls at a time: it asks the Machine
// first, and then tells it the outcome.
//
//	             paid: twice as long, up to the budget
//	          ┌────┐
//	          ▼    │    crowded: 8, 16, … 1024
//	  ┌───► polling ──────────────────────────────────► skipping so many waits
//	  │       │  ▲    2 µs for nothing, 4096 times: 4096  │
//	  └───────┘  └────────────────────────────────────────┘
//	for nothing: a quarter,
//	down to 2 µs
//
//	slept shortly, 64 times (twice as often after an exploration that failed, half as often after one
//	that paid)
//	  ┌───────────────────────────────────┐
//	  │                                   ▼
//	polling ◄── 16 waits paid ── exploring: the whole budget
//	  ▲                                   │
//	  └────────── 256 did not ────────────┘
//
// All contexts of the process share one number: how many goroutines poll. The processors are shared
// too.
package spin

import (
	"sync/atomic"
	"time"
)

// A Policy says whether waiters poll.
type Policy uint8

const (
	Adaptive Policy = iota // for as long as it has paid lately, up to the budget
	Never                  // not at all
	Always                 // until the message is there
)

// DefaultBudget is the longest time that Adaptive polls if no budget is given.
const DefaultBudget = 50 * time.Microsecond

const (
	leastSpin = 2 * time.Microsecond // the least that Adaptive polls, when polling has not paid lately
	skipLeast = 8                    // waits that do not poll after other goroutines have wanted the processor
	skipMost  = 1024                 // the most such waits, after that has happened again and again

	// If two processes share one processor, the one that polls keeps the other from answering. A
	// round trip then takes two and a half times as long. So after missMost waits in a row that
	// have polled for leastSpin and found nothing, missSkip waits do not poll. missSkip is not
	// larger, because the kernel takes some 10 ms to move one of two processes that are awake to
	// another processor, and only polling keeps them apart then.
	missMost = 4096
	missSkip = 4096

	// If polling finds nothing because both sides sleep, that does not change by itself: two
	// processes that sleep wake each other on one processor, and no answer comes within leastSpin.
	// So after some short sleeps the next waits explore: they poll for the whole budget. That is
	// long enough for the kernel to move one of the two to another processor. If an exploration
	// fails, twice as many sleeps pass before the next one. If it has paid, half as many do, and at
	// most as many as before the first one.
	shortSleep   = 4  // the longest short sleep, in budgets
	regretFirst  = 64 // short sleeps before the first exploration
	regretLeast  = 8  // the least such sleeps, where explorations have paid
	regretMost   = 1 << 16
	exploreWaits = 256 // waits that find nothing, after which an exploration ends
	explorePaid  = 16  // waits that must have paid for an exploration to succeed
)

// pollers counts the goroutines of this process that poll.
var pollers atomic.Int32

// A Machine decides how long the waiters of one context poll.
type Machine struct {
	policy  Policy
	limit   int32 // the most pollers; 0: no limit
	budget  time.Duration
	now     time.Duration // how long the next waiter polls
	skip    int           // waits that are not to poll
	skipped int           // how many waits were skipped last because other goroutines wanted the processor
	missed  int           // how often in a row a waiter has polled for leastSpin and found nothing

	regrets int // short sleeps since polling last paid or was explored
	regret  int // short sleeps before the next exploration
	explore int // waits that may still find nothing; 0: no exploration
	paid    int // waits of the exploration that have paid
}

// New returns a machine for a number of processors. budget is the longest time that Adaptive polls;
// 0 means DefaultBudget. most limits how many goroutines of the process may poll. With 0, Adaptive
// leaves one processor to other goroutines, but allows at least one poller; other policies have no
// limit. On one processor Adaptive is Never.
func New(policy Policy, budget time.Duration, most, procs int) Machine {
	m := Machine{policy: policy, limit: int32(min(most, 1<<30)), budget: budget}
	if m.budget == 0 {
		m.budget = DefaultBudget
	}
	m.now, m.regret = m.budget, regretFirst
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

// Next returns how long the next waiter polls; 0 means not at all. With Always the result is not 0,
// and only that counts.
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

// IsCrowded reports whether other goroutines wanted the processor since polling last paid.
func (m *Machine) IsCrowded() bool { return m.skipped > 0 }

// Spin returns how long a waiter polls that is not skipped.
func (m *Machine) Spin() time.Duration { return m.now }

// Paid notes that what was waited for came while the waiter polled.
func (m *Machine) Paid() {
	m.skipped, m.missed, m.regrets = 0, 0, 0
	if m.explore > 0 {
		if m.paid++; m.paid == explorePaid {
			m.explore, m.regret = 0, max(regretLeast, min(regretFirst, m.regret/2))
		}
	}
	if m.now < m.budget {
		m.now = min(m.budget, 2*m.now)
	}
}

// InVain notes that a waiter has polled for its whole time and found nothing.
func (m *Machine) InVain() {
	if m.explore > 0 {
		if m.explore--; m.explore == 0 {
			m.now, m.regret = leastSpin, min(2*m.regret, regretMost)
		}
		return
	}
	if m.now > leastSpin {
		m.now = max(leastSpin, m.now/4)
	} else if m.missed++; m.missed == missMost {
		m.missed, m.skip = 0, missSkip
	}
}

// Slept notes that a waiter has slept for d before what it waited for came. Waits that were not to
// poll do not count.
func (m *Machine) Slept(d time.Duration) {
	if m.policy != Adaptive || m.explore > 0 || m.skip > 0 || d > shortSleep*m.budget {
		return
	}
	if m.regrets++; m.regrets >= m.regret {
		m.regrets, m.explore, m.paid = 0, exploreWaits, 0
		m.now, m.skip, m.missed = m.budget, 0, 0
	}
}

// Adapts reports whether the policy is Adaptive. Only then is Slept of use.
func (m *Machine) Adapts() bool { return m.policy == Adaptive }

// Crowded notes that other goroutines wanted the processor.
func (m *Machine) Crowded() {
	m.skipped = min(max(skipLeast, 2*m.skipped), skipMost)
	m.skip = m.skipped
}

// Enter counts one more goroutine that polls. If as many as allowed poll already, it reports false
// and counts nothing.
func (m *Machine) Enter() bool {
	if n := pollers.Add(1); m.limit > 0 && n > m.limit {
		pollers.Add(-1)
		return false
	}
	return true
}

// Leave counts one goroutine less that polls. It undoes Enter.
func (m *Machine) Leave() { pollers.Add(-1) }

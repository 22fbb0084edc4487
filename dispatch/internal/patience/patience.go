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
//	slept shortly, 64 times (128, 256, … after an exploration in vain)
//	  ┌───────────────────────────────────┐
//	  │                                   ▼
//	polling ◄── 16 waits paid ── exploring: the whole budget
//	  ▲                                   │
//	  └────────── 256 in vain ────────────┘
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

	// Where polling is in vain because both sides sleep, it stays so: two that sleep wake
	// each other on one processor, and no answer comes within the least. So after some sleeps
	// that were short the next waits explore: they poll for the whole budget, for long enough
	// for the kernel to move one of the two to another processor. Where that is in vain, twice
	// as many sleeps go before the next exploration.
	shortSleep   = 4  // budgets that a short sleep takes at most
	regretLeast  = 64 // short sleeps before the first exploration,
	regretMost   = 1 << 16
	exploreWaits = 256 // waits of an exploration that are in vain at most,
	explorePaid  = 16  // and those that must have paid for it to have succeeded
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

	regrets int // short sleeps since polling last paid or was explored
	regret  int // short sleeps before the next exploration
	explore int // waits that may still be in vain; 0: this is no exploration
	paid    int // waits of the exploration that have paid
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
	m.now, m.regret = m.budget, regretLeast
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
	m.skipped, m.missed, m.regrets = 0, 0, 0
	if m.explore > 0 {
		if m.paid++; m.paid == explorePaid {
			m.explore, m.regret = 0, regretLeast
		}
	}
	if m.now < m.budget {
		m.now = min(m.budget, 2*m.now)
	}
}

// InVain says that it did not.
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

// Slept says that a waiter has slept for d before what it waited for came.
func (m *Machine) Slept(d time.Duration) {
	if m.policy != Adaptive || m.explore > 0 || m.skipped > 0 || d > shortSleep*m.budget {
		return
	}
	if m.regrets++; m.regrets >= m.regret {
		m.regrets, m.explore, m.paid = 0, exploreWaits, 0
		m.now, m.skip, m.missed = m.budget, 0, 0
	}
}

// Adapts reports whether the policy is Adaptive: then Slept is of use.
func (m *Machine) Adapts() bool { return m.policy == Adaptive }

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

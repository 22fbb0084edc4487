// SPDX-License-Identifier: Apache-2.0

package dispatch

import (
	"errors"
	"fmt"
	"runtime"
	"sync/atomic"
	"time"
)

// PollPolicy says whether those who wait poll before they sleep.
type PollPolicy uint8

const (
	// PollAdaptive polls for as long as it has lately paid to, up to the budget;
	// not on one processor, and not while other goroutines want the processor. The
	// default.
	PollAdaptive PollPolicy = iota
	// PollNever sleeps at once.
	PollNever
	// PollAlways polls until the message is there: the shortest round trip,
	// for a processor to each waiter.
	PollAlways
)

func (p PollPolicy) String() string {
	switch p {
	case PollAdaptive:
		return "adaptive"
	case PollNever:
		return "never"
	case PollAlways:
		return "always"
	}
	return fmt.Sprintf("PollPolicy(%d)", uint8(p))
}

// Polling is what those who wait do before they sleep. The zero value is the
// default.
type Polling struct {
	Policy PollPolicy
	// Budget is the longest that PollAdaptive polls before it sleeps; 0: 50 µs.
	// At most MaxBudget.
	Budget time.Duration
	// Pollers is how many of this process may be polling for one more to begin, that
	// is how many there may be if all contexts say the same; who is one too many
	// sleeps. 0: GOMAXPROCS less one, at least one, with PollAdaptive; any number
	// with PollAlways. In one context at most one polls, for all who wait.
	Pollers int
}

// MaxBudget is the longest Polling.Budget.
const MaxBudget = time.Second

// ErrPolling says that a Polling makes no sense.
var ErrPolling = errors.New("rocl: no such way to poll")

// Check says whether p makes sense.
func (p *Polling) Check() error {
	switch {
	case p.Policy > PollAlways:
		return fmt.Errorf("%w: a policy numbered %d", ErrPolling, p.Policy)
	case p.Budget < 0 || p.Budget > MaxBudget:
		return fmt.Errorf("%w: a budget of %v, which is not from 0 to %v", ErrPolling, p.Budget, MaxBudget)
	case p.Pollers < 0:
		return fmt.Errorf("%w: %d pollers", ErrPolling, p.Pollers)
	}
	return nil
}

const (
	defaultBudget = 50 * time.Microsecond
	leastSpin     = 2 * time.Microsecond // what PollAdaptive polls where it has not paid lately

	// Who polls lets other goroutines run now and then. If they have the processor
	// for long there was no other for them, and the next waiters sleep at once: first
	// a few, then more each time that it is so again. (The runtime's metrics can be
	// asked how many goroutines are runnable, in 60 ns on two processors to a Gosched's
	// 94, under the scheduler's lock; but that counts those too for whom a processor is
	// just being woken, and lets nobody run.)
	yieldAfter  = 5 * time.Microsecond
	yieldPolls  = 512 // of PollAlways, which asks no clock
	fewPolls    = 8   // that found nothing are over before a clock, or a count, is worth its price
	crowdedFrom = 20 * time.Microsecond
	skipLeast   = 8
	skipMost    = 1024

	// Of two processes on one processor the one that polls keeps the other from
	// answering, a round trip takes two and a half times as long. So where even the
	// least is in vain again and again, as many waits do without. Not more: the kernel
	// takes some 10 ms to move one of two that are awake, and it is polling that keeps
	// them apart then.
	missMost = 4096
	missSkip = 4096
)

// pollers is how many goroutines of this process poll. Like its processors they are
// not any context's.
var pollers atomic.Int32

// A patience says for how long a waiter polls. It is a machine without a clock; who
// holds the token drives it.
//
//	             paid: twice as long, up to the budget
//	          ┌────┐
//	          ▼    │    crowded: 8, 16, … 1024
//	  ┌───► polling ──────────────────────────────────► skipping so many waits
//	  │       │  ▲    2 µs in vain, 4096 times: 4096      │
//	  └───────┘  └────────────────────────────────────────┘
//	in vain: a quarter,
//	down to 2 µs
type patience struct {
	policy  PollPolicy
	limit   int32 // of pollers; 0: none
	budget  time.Duration
	now     time.Duration // what the next polls
	skip    int           // waits that are not to poll,
	skipped int           // and how many they were last, for others' sake
	missed  int           // how often the least was in vain, one after another
}

// newPatience is p's on so many processors.
func newPatience(p Polling, procs int) patience {
	a := patience{policy: p.Policy, limit: int32(min(p.Pollers, 1<<30)), budget: p.Budget}
	if a.budget == 0 {
		a.budget = defaultBudget
	}
	a.now = a.budget
	if a.policy == PollAdaptive {
		if procs < 2 {
			a.policy = PollNever
		}
		if a.limit == 0 {
			a.limit = int32(max(1, procs-1))
		}
	}
	return a
}

// next is how long the next waiter polls; 0: not at all.
func (a *patience) next() time.Duration {
	switch a.policy {
	case PollAdaptive:
		if a.skip > 0 {
			a.skip--
			return 0
		}
		return a.now
	case PollAlways:
		return 1
	}
	return 0
}

// paid says that polling ended in what was waited for.
func (a *patience) paid() {
	a.skipped, a.missed = 0, 0
	if a.now < a.budget {
		a.now = min(a.budget, 2*a.now)
	}
}

// vain says that it did not.
func (a *patience) vain() {
	if a.now > leastSpin {
		a.now = max(leastSpin, a.now/4)
	} else if a.missed++; a.missed == missMost {
		a.missed, a.skip = 0, missSkip
	}
}

// crowded says that others wanted the processor.
func (a *patience) crowded() {
	a.skipped = min(max(skipLeast, 2*a.skipped), skipMost)
	a.skip = a.skipped
}

// enter counts one more who polls, unless there are enough.
func (a *patience) enter() bool {
	if n := pollers.Add(1); a.limit > 0 && n > a.limit {
		pollers.Add(-1)
		return false
	}
	return true
}

func (a *patience) leave() { pollers.Add(-1) }

// yield lets other goroutines run, and says whether they did for long.
func yield() (crowded bool) {
	start := time.Now()
	runtime.Gosched()
	return time.Since(start) > crowdedFrom
}

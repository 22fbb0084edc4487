// SPDX-License-Identifier: Apache-2.0

package dispatch

import (
	"errors"
	"fmt"
	"runtime"
	"time"

	"github.com/rocl-go/rocl/dispatch/internal/patience"
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

// A waiter that polls lets other goroutines run now and then. If they have the processor for
// long there was no other for them, and the next waiters sleep at once: first a few, then
// more each time that it is so again. (The runtime's metrics can be asked how many
// goroutines are runnable, in 60 ns on two processors to a Gosched's 94, under the
// scheduler's lock; but that counts those too for whom a processor is just being woken, and
// lets nobody run.)
const (
	yieldAfter  = 5 * time.Microsecond
	yieldPolls  = 512 // of PollAlways, which asks no clock
	fewPolls    = 8   // that found nothing are over before a clock, or a count, is worth its price
	crowdedFrom = 20 * time.Microsecond
)

// patience returns the machine that says for how long waiters poll, on so many processors.
func (p *Polling) patience(procs int) patience.Machine {
	policy := patience.Never
	switch p.Policy {
	case PollAdaptive:
		policy = patience.Adaptive
	case PollAlways:
		policy = patience.Always
	}
	return patience.New(policy, p.Budget, p.Pollers, procs)
}

// yield lets other goroutines run, and says whether they did for long.
func yield() (crowded bool) {
	start := time.Now()
	runtime.Gosched()
	return time.Since(start) > crowdedFrom
}

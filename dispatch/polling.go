// SPDX-License-Identifier: Apache-2.0

package dispatch

import (
	"errors"
	"fmt"
	"time"

	"github.com/rocl-go/rocl/dispatch/internal/spin"
)

// PollPolicy says whether a waiting goroutine polls before it sleeps.
type PollPolicy uint8

const (
	// PollAdaptive polls for as long as that has paid lately, up to the budget. It does not poll on
	// one processor, nor while other goroutines want the processor. It is the default.
	PollAdaptive PollPolicy = iota
	// PollNever sleeps at once.
	PollNever
	// PollAlways polls until the message is there. That gives the shortest round trip, and costs a
	// processor for each poller.
	PollAlways
)

// String returns the name of the policy.
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

// Polling says what a waiting goroutine does before it sleeps. The zero value is the default.
type Polling struct {
	Policy PollPolicy // whether a waiting goroutine polls
	// Budget is the longest time that PollAdaptive polls before it sleeps, at most MaxBudget; 0
	// means 50 µs.
	Budget time.Duration
	// Pollers limits how many goroutines of this process may poll at once, if all contexts have the
	// same limit: a goroutine begins to poll only if fewer do. A waiter over the limit sleeps
	// instead. In one context at most one goroutine polls, for all that wait. 0 means GOMAXPROCS
	// less one, and at least one, with PollAdaptive; with PollAlways it means no limit.
	Pollers int
}

// MaxBudget is the longest Polling.Budget.
const MaxBudget = time.Second

// ErrPolling is returned by Check for a Polling with invalid values.
//
// Cause: `WithPoll`: unknown policy, or a number out of range. Remedy: see
// [polling](TRANSPORTS.md#polling).
var ErrPolling = errors.New("rocl: invalid polling options")

// Check returns an error that matches ErrPolling if a value of p is invalid.
func (p *Polling) Check() error {
	switch {
	case p.Policy > PollAlways:
		return fmt.Errorf("%w: policy %d is not known", ErrPolling, p.Policy)
	case p.Budget < 0 || p.Budget > MaxBudget:
		return fmt.Errorf("%w: budget %v is not from 0 to %v", ErrPolling, p.Budget, MaxBudget)
	case p.Pollers < 0:
		return fmt.Errorf("%w: %d pollers are fewer than 0", ErrPolling, p.Pollers)
	}
	return nil
}

// machine returns the machine that says how long waiters poll, on so many processors.
func (p *Polling) machine(procs int) spin.Machine {
	policy := spin.Never
	switch p.Policy {
	case PollAdaptive:
		policy = spin.Adaptive
	case PollAlways:
		policy = spin.Always
	}
	return spin.New(policy, p.Budget, p.Pollers, procs)
}

// longestSpin is a little more than the time in which a peer on this machine reads or fills the
// buffer of a socket.
const longestSpin = 200 * time.Microsecond

// spin returns how long a connection may wait busily for its peer in the middle of a large payload,
// on so many processors. On one processor the peer could not run meanwhile.
func (p *Polling) spin(procs int) time.Duration {
	if p.Policy == PollNever || procs == 1 {
		return 0
	}
	return longestSpin
}

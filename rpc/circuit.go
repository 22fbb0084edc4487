// SPDX-License-Identifier: Apache-2.0

package rpc

import (
	"cmp"
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"time"

	"github.com/rocl-go/rocl"
)

// circuits has what a client knows of providers that have failed. The circuit of a provider is
//
//	closed ──Failures in a row──► open ──Rest is over──► half open ──the trial succeeds──► closed
//	                               ▲                         │
//	                               └────the trial fails──────┘
//
// While it is open no call with a policy goes to the provider. While it is half open one call does,
// the trial. A closed circuit without failures has no entry.
type circuits struct {
	n  atomic.Int32 // entries of all: while it is 0, calls do not lock mu
	mu sync.Mutex
	of map[rocl.GID]*circuit
}

type circuit struct {
	failures int       // in a row, while the circuit is closed
	until    time.Time // when it becomes half open; zero: it is closed
	isTried  bool      // a trial is in progress
	last     time.Time // when the provider failed last
}

const (
	circuitsMost = 1024             // entries from which old ones are dropped
	circuitsOld  = 10 * time.Minute // after the last failure
)

// enter reports whether a call may go to a provider, and whether it is the trial of a circuit that
// is half open. leave must be called when the call has ended.
func (c *circuits) enter(id rocl.GID) (may, isTrial bool) {
	if c.n.Load() == 0 {
		return true, false
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	e := c.of[id]
	switch {
	case e == nil || e.until.IsZero():
		return true, false
	case e.isTried || time.Now().Before(e.until):
		return false, false
	}
	e.isTried = true
	return true, true
}

// leave records how a call has ended that had entered with p.
func (c *circuits) leave(id rocl.GID, p *Circuit, isTrial bool, how outcome) {
	if how != outcomeFailed && c.n.Load() == 0 {
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	e := c.of[id]
	if e == nil {
		if how != outcomeFailed {
			return
		}
		e = c.addLocked(id)
	}
	if isTrial {
		e.isTried = false
	}
	isOpen := !e.until.IsZero()
	switch {
	case isOpen && !isTrial: // the call began before the circuit opened
	case how == outcomeWorked:
		delete(c.of, id)
		c.n.Store(int32(len(c.of)))
	case how == outcomeFailed:
		e.last = time.Now()
		if e.failures++; isTrial || e.failures >= p.Failures {
			e.failures, e.until = 0, e.last.Add(cmp.Or(p.Rest, time.Second))
		}
	}
}

// addLocked adds an entry. mu must be held.
func (c *circuits) addLocked(id rocl.GID) *circuit {
	if c.of == nil {
		c.of = map[rocl.GID]*circuit{}
	}
	if len(c.of) >= circuitsMost {
		for id, e := range c.of {
			if !e.isTried && time.Since(e.last) > circuitsOld {
				delete(c.of, id)
			}
		}
	}
	e := new(circuit)
	c.of[id] = e
	c.n.Store(int32(len(c.of)))
	return e
}

// An outcome says what the end of a call tells about its provider.
type outcome uint8

const (
	outcomeNone   outcome = iota // nothing: the caller ended the call, or it was not made
	outcomeWorked                // the provider works: it has answered, perhaps with an error of the handler
	outcomeFailed                // the provider has ended, is out of reach, silent, full, or drains
)

// outcomeOf returns the outcome of a call that ended with err. ctx is the context of the program.
func outcomeOf(ctx context.Context, err error) outcome {
	isAny := func(kinds ...error) bool {
		for _, k := range kinds {
			if errors.Is(err, k) {
				return true
			}
		}
		return false
	}
	e := (*Error)(nil)
	switch hasAnswered := errors.As(err, &e); {
	case err == nil:
		return outcomeWorked
	case hasEnded(ctx):
		return outcomeNone
	case isAny(context.DeadlineExceeded): // of the handler too, which may notice it before the caller
		return outcomeFailed
	case hasAnswered && (e.Ran || !isAny(ErrBusy, ErrClosed)):
		return outcomeWorked
	case hasAnswered || isAny(rocl.ErrGone, rocl.ErrUnreachable, rocl.ErrNoReply):
		return outcomeFailed
	}
	return outcomeNone
}

// hasEnded reports whether ctx has ended, or is about to: a handler may notice that a little before
// its caller.
func hasEnded(ctx context.Context) bool {
	end, ok := ctx.Deadline()
	return ctx.Err() != nil || ok && time.Until(end) < 5*time.Millisecond
}

// SPDX-License-Identifier: Apache-2.0

package progress

import (
	"runtime"
	"sync"
	"time"

	"github.com/rocl-go/rocl/dispatch/internal/spin"
	"github.com/rocl-go/rocl/subsys"
)

// This file has what the token holder does: it polls, then sleeps.

const (
	sleepSlice = time.Millisecond      // how long a sleeping thread does not check its context.Context
	sleepMost  = 10 * time.Millisecond // a waiter that has slept for so long without news gives its thread back
	lookPolls  = 16                    // polls between two checks whether the caller has given up
	yieldPolls = 512                   // polls of spin.Always between two yields: it reads no clock
	fewPolls   = 8                     // empty polls before a clock is worth its price, and between two checks for woken goroutines and calls
)

// A waiter that polls yields to other goroutines now and then. If they have the processor for long,
// no other processor was free for them. Then the next waiters sleep at once: first a few, then more
// each time that this happens again. (The runtime's metrics also tell how many goroutines are
// runnable. Reading them takes 60 ns on two processors, under the scheduler's lock; a Gosched takes
// 94 ns. But the metrics count goroutines for which a processor is just being woken, and reading
// them lets no goroutine run.)
const (
	yieldAfter  = 5 * time.Microsecond
	crowdedFrom = 20 * time.Microsecond
)

// leastCheck is less than a check of the clock takes. In a bubble of testing/synctest the clock
// stands still while a goroutine polls, so the number of checks ends the polling.
const leastCheck = 10 * time.Nanosecond

// A nextStep is what a goroutine that has made progress does next.
type nextStep uint8

const (
	retries       nextStep = iota // the goroutine checks again, and may make progress again
	pollingEnded                  // the goroutine sleeps with the token, then parks, and the keeper makes progress
	parksForWoken                 // the goroutine parks until the goroutines that it has woken have run
)

// driveAndPark makes progress, gives up the token, and then parks if drive says so. The token must
// be held.
func (e *Engine) driveAndPark(done <-chan struct{}, w *Waiter, p *subsys.Poller) {
	switch e.drive(done, w, p) {
	case parksForWoken:
		e.token.Unlock()
		e.parkForWoken(done, w)
	case retries:
		e.Unlock()
		if e.IsWanted() {
			runtime.Gosched() // with one processor, the goroutine in Lock needs it
		}
	case pollingEnded:
		e.Unlock()
		e.park(done, w, false)
	}
}

// drive makes progress until w is fired, done closes, another goroutine wants the token, woken
// goroutines wait for a processor, or the Machine says so. The token must be held.
func (e *Engine) drive(done <-chan struct{}, w *Waiter, p *subsys.Poller) (then nextStep) {
	e.driven.Add(1)
	if e.parking.pollerParked.Load() {
		e.parking.pollerParked.Store(false)
	}
	if k := &e.keeper; !k.isParked.Load() {
		k.alone = 0
	} else if k.alone++; k.alone%aloneMost == 0 {
		p.Wake() // another goroutine may have polled the previous wake
	}
	if e.parking.woken() > 0 {
		e.yieldToWoken()
	} else {
		e.flush()
	}
	then = e.poll(done, w, p)
	if then == pollingEnded {
		if e.oneP {
			e.CallKeeper()
		} else if !e.sleep(done, w, p) {
			then = retries
		}
	}
	e.handToKeeper(p)
	return then
}

// mayLeave reports whether w waits no longer, or another goroutine wants the token.
func (e *Engine) mayLeave(done <-chan struct{}, w *Waiter) bool {
	return w.isFired() || e.IsWanted() || isDone(done)
}

// isDone reports whether done is closed. A nil channel is not.
func isDone(done <-chan struct{}) bool {
	if done == nil {
		return false
	}
	select {
	case <-done:
		return true
	default:
		return false
	}
}

// poll looks for news without sleeping, at least once, for as long as there are some and then as
// long as e.spin says. It returns retries if w waits no longer, or another goroutine wants the
// token; parksForWoken if woken goroutines have not run; pollingEnded if that time is over.
func (e *Engine) poll(done <-chan struct{}, w *Waiter, p *subsys.Poller) nextStep {
	t := turn{spin: &e.spin, most: e.spin.Next(), isEndless: e.spin.IsEndless()}
	empty := 0 // polls that have found nothing since the last news
	for i := 1; ; i++ {
		n := p.Poll()
		if i%yieldPolls == 0 && e.acksDue.Load() && e.keeper.isParked.Load() {
			p.Wake() // the keeper acknowledges: that does not wait until this goroutine leaves
		}
		if w.isFired() || e.IsWanted() || i%lookPolls == 0 && e.mayLeave(done, w) {
			t.end((t.entered || empty > 0) && w.isFired())
			return retries
		}
		if n > 0 {
			t.start, t.yielded, t.checks, empty = time.Time{}, 0, 0, 0
			if e.parking.woken() > 0 {
				e.yieldToWoken()
			}
			continue
		}
		if t.most == 0 {
			return pollingEnded
		}
		if empty++; empty < fewPolls {
			continue
		}
		if empty%fewPolls == 0 {
			if e.Paced.Load() > 0 {
				e.work.FlushCalls()
			}
			if e.parking.woken() > 0 {
				t.end(false)
				return parksForWoken
			}
		}
		if !t.enter() || !t.goesOn(i%yieldPolls == 0) {
			t.end(false)
			return pollingEnded
		}
	}
}

// A turn is one time that a goroutine polls. It measures for how long the polls have found nothing.
type turn struct {
	spin    *spin.Machine
	most    time.Duration // how long the goroutine may poll without news; 0: not at all
	entered bool          // spin.Enter has counted the goroutine

	isEndless bool          // the goroutine polls until there is news
	start     time.Time     // the first check without news since the last news
	yielded   time.Duration // after so long the goroutine has yielded last
	checks    time.Duration // how many checks there were since start
}

// enter counts the goroutine as one that polls. It reports false if as many as allowed poll
// already.
func (t *turn) enter() bool {
	if !t.entered {
		t.entered = t.spin.Enter()
	}
	return t.entered
}

// goesOn reports whether the goroutine, whose last polls have found nothing, polls on. Now and then
// it yields to other goroutines: without a clock, if it may poll endlessly, when yields is true.
func (t *turn) goesOn(yields bool) bool {
	if t.isEndless {
		if yields {
			runtime.Gosched()
		}
		return true
	}
	if t.start.IsZero() {
		t.start = time.Now()
		return true
	}
	polled := time.Since(t.start)
	t.checks++
	if polled > t.most || t.checks > t.most/leastCheck {
		t.spin.InVain()
		return false
	}
	if polled-t.yielded > yieldAfter {
		t.yielded = polled
		before := time.Now()
		runtime.Gosched()
		if time.Since(before) > crowdedFrom { // other goroutines want the processor
			t.spin.Crowded()
			return false
		}
	}
	return true
}

// end ends the turn. hasPaid says that what the goroutine waits for has come while it polled.
func (t *turn) end(hasPaid bool) {
	if t.entered {
		t.spin.Leave()
	}
	if hasPaid {
		t.spin.Paid()
	}
}

// yieldToWoken yields to woken goroutines. Then it writes the requests that they queued, in one
// batch for each link. The token must be held.
func (e *Engine) yieldToWoken() {
	e.yields.Store(true)
	runtime.Gosched()
	e.yields.Store(false) // before the work is done: from now on woken goroutines write themselves
	e.work.FlushDeferred()
	e.flush()
}

// sleep holds its thread until w waits no longer or another goroutine wants the token. It returns
// true when nothing has come for so long that the keeper is to take over.
func (e *Engine) sleep(done <-chan struct{}, w *Waiter, p *subsys.Poller) (parks bool) {
	var begun, end time.Time
	if e.spin.Adapts() {
		begun = time.Now()
	}
	for {
		n := 0
		if p.Naps() {
			n = p.Nap(e.longestNap(), &w.state)
		} else {
			n = p.Sleep(sleepSlice, &w.state)
		}
		if e.mayLeave(done, w) {
			if !begun.IsZero() && w.isFired() {
				e.spin.Slept(time.Since(begun))
			}
			return false
		}
		e.acknowledge()
		switch {
		case n > 0:
			end = time.Time{}
		case end.IsZero():
			end = time.Now().Add(sleepMost)
		case time.Now().After(end):
			e.CallKeeper()
			return true
		}
	}
}

// longestNap returns how long a nap may last that the keeper does not end, because the keeper has
// not noticed yet that a waiter makes progress. It returns 0 if the keeper ends naps.
func (e *Engine) longestNap() time.Duration {
	if e.keeper.isParked.Load() { // the wake of the keeper may have been polled by another goroutine
		return sleepSlice
	}
	return 0
}

// local says how long goroutines poll for what comes from within the process, if there is no
// connection to poll.
type local struct {
	mu   sync.Mutex // held by the goroutine that polls: one at a time
	spin spin.Machine
}

// localMost is how long PollAlways polls for what comes from within the process, before it parks:
// in virtual time the sender may wait for that.
const localMost = 10 * time.Millisecond

// A LocalTurn is one time that a goroutine polls for what comes from within the process.
type LocalTurn struct {
	e *Engine
	turn
}

// BeginLocal begins to poll for what comes from within the process, and reports whether it did. The
// caller ends the turn with End.
func (e *Engine) BeginLocal() (t LocalTurn, begins bool) {
	if e.oneP || e.pollable() != nil || e.Paced.Load() > 0 || !e.local.mu.TryLock() {
		return t, false
	}
	t = LocalTurn{e, turn{spin: &e.local.spin, most: e.local.spin.Next()}}
	if e.local.spin.IsEndless() {
		t.most = localMost
	}
	if t.most == 0 || !t.enter() {
		e.local.mu.Unlock()
		return t, false
	}
	return t, true
}

// GoesOn reports whether the goroutine, whose last polls have found nothing, polls on.
func (t *LocalTurn) GoesOn(done <-chan struct{}) bool {
	return !isDone(done) && t.e.pollable() == nil && t.goesOn(true)
}

// End ends the turn. hasPaid says that there was news.
func (t *LocalTurn) End(hasPaid bool) {
	t.end(hasPaid)
	t.e.local.mu.Unlock()
}

// SPDX-License-Identifier: Apache-2.0

package progress

import (
	"sync/atomic"

	"github.com/rocl-go/rocl/dispatch/internal/list"
	"github.com/rocl-go/rocl/internal/lock"
)

// This file has how a waiting goroutine parks while another one makes progress, and how the
// progress token comes to a parked goroutine.

// parking has the parked waiters, and the goroutines that were woken and have not run yet.
type parking struct {
	wants        atomic.Int32  // parked waiters that would make progress
	fired        atomic.Uint64 // goroutines that were fired while parked
	ran          atomic.Uint64 // goroutines that were fired while parked and have run since
	nudged       atomic.Uint64 // goroutines that were nudged while parked and have run
	pollerParked atomic.Bool   // the goroutine that polled has parked until all woken goroutines have run

	mu      lock.Mutex[levelParked]
	waiters list.List[Waiter] // guarded by mu
}

// Woken returns how many times parked goroutines have been woken.
func (e *Engine) Woken() uint64 { return e.parking.ran.Load() + e.parking.nudged.Load() }

// woken returns how many goroutines were fired while parked and have not run yet. It may be
// negative for a moment: a goroutine may run before it is counted as fired.
func (p *parking) woken() int64 { return int64(p.fired.Load() - p.ran.Load()) }

// park parks w until it is woken or done closes. drives says that w would make progress when the
// token becomes free.
func (e *Engine) park(done <-chan struct{}, w *Waiter, drives bool) {
	if !w.state.CompareAndSwap(awake, parked) {
		return // w has been fired
	}
	if drives {
		e.parking.list(w)
		// The token holder may have left between the caller's TryLock and now.
		if e.token.TryLock() {
			e.token.Unlock()
			e.parking.unlist(w)
			e.endPark(w)
			return
		}
	}
	e.awaitWake(done, w)
	if drives {
		e.parking.unlist(w)
	}
}

// awaitWake blocks until w is woken or done closes. w must be parked.
func (e *Engine) awaitWake(done <-chan struct{}, w *Waiter) {
	if done == nil { // a third of what a select costs
		<-w.ch
	} else {
		select {
		case <-w.ch:
		case <-done:
			if !e.endPark(w) {
				e.count.Sleeps.Add(1)
			}
			return
		}
	}
	if !e.endPark(w) {
		e.parking.nudged.Add(1)
	}
}

// endPark makes w awake again, and reports whether it has been fired. If w is the last woken
// goroutine and a goroutine has parked for woken ones, endPark offers the token.
func (e *Engine) endPark(w *Waiter) (isFired bool) {
	if w.state.Load() != fired && w.state.CompareAndSwap(parked, awake) {
		return false // nudged, or done has closed
	}
	p := &e.parking
	if p.ran.Add(1) == p.fired.Load() && p.pollerParked.Load() {
		p.pollerParked.Store(false)
		p.offerToken()
	}
	return true
}

// parkForWoken parks a goroutine whose polls found nothing while woken goroutines have not run. Its
// processor becomes idle, and steals them from a thread that the kernel does not run. The last
// woken goroutine, the next waiter or the keeper makes progress. The token is free, and is not
// offered to another waiter: that would take this processor.
func (e *Engine) parkForWoken(done <-chan struct{}, w *Waiter) {
	p := &e.parking
	if w.state.CompareAndSwap(awake, parked) {
		p.list(w)
		p.pollerParked.Store(true)
		if p.woken() <= 0 { // all of them ran before pollerParked was set: none offers the token
			e.endPark(w)
		} else {
			e.awaitWake(done, w)
		}
		p.unlist(w)
	}
	if e.mayLeave(done, w) {
		p.offerToken()
	}
}

// list puts w among the parked waiters that would make progress.
func (p *parking) list(w *Waiter) {
	p.mu.Lock()
	p.waiters.PushFront(w, &w.place)
	p.mu.Unlock()
	p.wants.Add(1)
}

// unlist takes w off the parked waiters that would make progress.
func (p *parking) unlist(w *Waiter) {
	p.mu.Lock()
	p.unlistLocked(w)
	p.mu.Unlock()
}

// unlistLocked is unlist with mu held.
func (p *parking) unlistLocked(w *Waiter) {
	if w.place.IsListed() {
		p.wants.Add(-1)
		p.waiters.Remove(&w.place)
	}
}

// offerToken offers the token, just unlocked, to a parked waiter. A waiter that has been fired
// needs no token, and a waiter that is awake tries to take it.
func (p *parking) offerToken() {
	if p.wants.Load() == 0 {
		return
	}
	p.mu.Lock()
	w, state := p.waiters.First(), uint32(fired)
	for ; w != nil; w = p.waiters.First() {
		p.unlistLocked(w)
		if state = w.state.Load(); state != fired {
			break
		}
	}
	p.mu.Unlock()
	if state == parked {
		w.nudge()
	}
}

// SPDX-License-Identifier: Apache-2.0

package dispatch

// This file has how a waiting goroutine parks while another one makes progress, and how the
// progress token comes to a parked goroutine.

// park parks w until it is woken or done closes. drives says that w would make progress when the
// token becomes free.
func (d *Dispatcher) park(done <-chan struct{}, w *waiter, drives bool) {
	if !w.state.CompareAndSwap(awake, parked) {
		return // w has been fired
	}
	if drives {
		d.listParked(w)
		// The token holder may have left between the caller's TryLock and now.
		if d.token.TryLock() {
			d.token.Unlock()
			d.unlistParked(w)
			d.endPark(w)
			return
		}
	}
	d.awaitWake(done, w)
	if drives {
		d.unlistParked(w)
	}
}

// awaitWake blocks until w is woken or done closes. w must be parked.
func (d *Dispatcher) awaitWake(done <-chan struct{}, w *waiter) {
	if done == nil { // a third of what a select costs
		<-w.ch
	} else {
		select {
		case <-w.ch:
		case <-done:
			if !d.endPark(w) {
				d.count.Sleeps.Add(1)
			}
			return
		}
	}
	if !d.endPark(w) {
		d.nudged.Add(1)
	}
}

// endPark makes w awake again, and reports whether it has been fired. If w is the last woken
// goroutine and a goroutine has parked for woken ones, endPark offers the token.
func (d *Dispatcher) endPark(w *waiter) (isFired bool) {
	if w.state.Load() != fired && w.state.CompareAndSwap(parked, awake) {
		return false // nudged, or done has closed
	}
	if d.ran.Add(1) == d.fired.Load() && d.pollerParked.Load() {
		d.pollerParked.Store(false)
		d.offerToken()
	}
	return true
}

// woken returns how many goroutines were fired while parked and have not run yet. It may be
// negative for a moment: a goroutine may run before it is counted as fired.
func (d *Dispatcher) woken() int64 { return int64(d.fired.Load() - d.ran.Load()) }

// parkForWoken parks a goroutine whose polls found nothing while woken goroutines have not run. Its
// processor becomes idle, and steals them from a thread that the kernel does not run. The last
// woken goroutine, the next waiter or the keeper makes progress. The token is free, and is not
// offered to another waiter: that would take this processor.
func (d *Dispatcher) parkForWoken(done <-chan struct{}, w *waiter) {
	if w.state.CompareAndSwap(awake, parked) {
		d.listParked(w)
		d.pollerParked.Store(true)
		if d.woken() <= 0 { // all of them ran before pollerParked was set: none offers the token
			d.endPark(w)
		} else {
			d.awaitWake(done, w)
		}
		d.unlistParked(w)
	}
	if d.mayLeave(done, w) {
		d.offerToken()
	}
}

// listParked puts w among the parked waiters that would make progress.
func (d *Dispatcher) listParked(w *waiter) {
	d.parkedMu.Lock()
	d.parkedWaiters.PushFront(w, &w.parkedPlace)
	d.parkedMu.Unlock()
	d.wants.Add(1)
}

// unlistParked takes w off the parked waiters that would make progress.
func (d *Dispatcher) unlistParked(w *waiter) {
	d.parkedMu.Lock()
	d.unlistParkedLocked(w)
	d.parkedMu.Unlock()
}

// unlistParkedLocked is unlistParked with parkedMu held.
func (d *Dispatcher) unlistParkedLocked(w *waiter) {
	if w.parkedPlace.IsListed() {
		d.wants.Add(-1)
		d.parkedWaiters.Remove(&w.parkedPlace)
	}
}

// offerToken offers the token, just unlocked, to a parked waiter. A waiter that has been fired
// needs no token, and a waiter that is awake tries to take it.
func (d *Dispatcher) offerToken() {
	if d.wants.Load() == 0 {
		return
	}
	d.parkedMu.Lock()
	w, state := d.parkedWaiters.First(), uint32(fired)
	for ; w != nil; w = d.parkedWaiters.First() {
		d.unlistParkedLocked(w)
		if state = w.state.Load(); state != fired {
			break
		}
	}
	d.parkedMu.Unlock()
	if state == parked {
		w.nudge()
	}
}

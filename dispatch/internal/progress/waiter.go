// SPDX-License-Identifier: Apache-2.0

package progress

import (
	"sync/atomic"

	"github.com/rocl-go/rocl/dispatch/internal/list"
)

// A Waiter stands for one goroutine that waits for one event. The program's goroutine calls
// [Engine.Wait], and the goroutine that causes the event calls Fire.
//
//	            token free                 10 ms
//	waiting ─────────────► polling, sleeping ───► parked ──► (fired) done
//	   │                         │ fired             ▲
//	   └──── token taken ────────┼───────────────────┘
//	                             └► done; the token passes to a parked waiter
type Waiter struct {
	state atomic.Uint32
	ch    chan struct{}
	e     *Engine
	place list.Place[Waiter] // place among the parked waiters, guarded by parking.mu
}

// States of a Waiter.
const (
	awake  = iota
	parked // to be woken through ch
	fired
)

// Init makes w a Waiter of e, for one event.
func (w *Waiter) Init(e *Engine) { w.e, w.ch = e, make(chan struct{}, 1) }

// Reset makes w ready for another event. No goroutine waits, and Fire is not called any more. A
// nudge may still come: it makes the next Wait only check again.
func (w *Waiter) Reset() {
	w.state.Store(awake)
	if len(w.ch) > 0 { // no other goroutine receives from ch
		<-w.ch
	}
}

// isFired reports whether Fire has been called.
func (w *Waiter) isFired() bool { return w.state.Load() == fired }

// Fire tells w that its event has happened. It is called once, with any locks held.
func (w *Waiter) Fire() {
	was := w.state.Swap(fired)
	if was == parked {
		w.e.parking.fired.Add(1)
	}
	w.wake(was)
}

// nudge makes w check again what it waits for.
func (w *Waiter) nudge() { w.wake(w.state.Load()) }

// wake wakes the goroutine of w, whose state was was: through its channel if it is parked, else
// through the poller if the poller sleeps.
func (w *Waiter) wake(was uint32) {
	if was == parked {
		select {
		case w.ch <- struct{}{}: // the goroutine that wakes counts this in ran or nudged
		default:
		}
		return
	}
	if p := w.e.poller.Load(); p != nil && p.Asleep() {
		p.Wake()
	}
}

// SPDX-License-Identifier: Apache-2.0

package dispatch

import (
	"context"
	"runtime"
	"sync/atomic"
	"time"

	"github.com/rocl-go/rocl/dispatch/internal/list"
	"github.com/rocl-go/rocl/dispatch/internal/spin"
	"github.com/rocl-go/rocl/internal/lock"
	"github.com/rocl-go/rocl/subsys"
)

const (
	sleepSlice = time.Millisecond      // how long a sleeping thread does not check its context.Context
	sleepMost  = 10 * time.Millisecond // a waiter that has slept for so long without news gives its thread back
	aloneMost  = 16                    // takes of the token while the keeper is parked, after which it is woken to check the poller
)

// progress is the part of a Dispatcher that makes progress.
type progress struct {
	poller       atomic.Pointer[subsys.Poller]
	token        lock.Mutex[levelToken] // held by the goroutine that drives the poller
	driven       atomic.Uint64          // how often the token was taken; the keeper compares it
	tokenWaiters atomic.Int32           // goroutines in takeToken
	wants        atomic.Int32           // parked waiters that would make progress
	keeperParked atomic.Bool            // the keeper is parked on the armed gate
	keeperCall   chan struct{}          // tells the keeper to check at once
	spin         spin.Machine           // how long waiters poll; the token guards it
	localSpin    localSpin
	drivesAlone  int           // how often the token was taken while the keeper was parked; the token guards it
	acksDue      atomic.Bool   // a link owes an acknowledgement
	isAckTimed   atomic.Bool   // a timer of ackSoon runs
	held         atomic.Int32  // messages that were received and not released, except those of batches
	fired        atomic.Uint64 // goroutines that were fired while parked
	ran          atomic.Uint64 // goroutines that were fired while parked and have run since
	nudged       atomic.Uint64 // goroutines that were nudged while parked and have run
	pollerParked atomic.Bool   // the goroutine that polled has parked until all woken goroutines have run
	yields       atomic.Bool   // the token holder yields to woken goroutines, and writes the requests that they queue

	parkedMu      lock.Mutex[levelParked]
	parkedWaiters list.List[waiter]
}

// tryToken takes the token to drive p, and reports whether it did. It does not wait for the token,
// and fails if the poller was closed after the caller had loaded it.
func (d *Dispatcher) tryToken(p *subsys.Poller) bool {
	if !d.token.TryLock() {
		return false
	}
	if d.poller.Load() == p {
		return true
	}
	d.token.Unlock()
	return false
}

// pollable returns the poller if it has anything to poll, else nil.
func (d *Dispatcher) pollable() *subsys.Poller {
	if p := d.poller.Load(); p != nil && p.Len() > 0 {
		return p
	}
	return nil
}

// takeToken takes the token to work on what belongs to its holder, such as the inbound part of a
// link. A goroutine that polls or sleeps with the token gives it up soon. The caller holds no lock
// and works on no frame of a peer: that work is done with the token held.
func (d *Dispatcher) takeToken() {
	if d.token.TryLock() {
		return
	}
	d.tokenWaiters.Add(1)
	if p := d.poller.Load(); p != nil {
		p.Wake()
	}
	d.token.Lock()
	d.tokenWaiters.Add(-1)
}

// exclusive is the token as a sync.Locker, for ports.
type exclusive struct{ d *Dispatcher }

func (e exclusive) Lock() { e.d.takeToken() }
func (e exclusive) Unlock() {
	e.d.giveToken()
	e.d.ackSoon()
}

// ackSoon arranges that what is owed is acknowledged after a tick. A port without a poller delivers
// frames with the token as a sync.Locker, and has no keeper.
func (d *Dispatcher) ackSoon() {
	if d.acksDue.Load() && d.isAckTimed.CompareAndSwap(false, true) {
		time.AfterFunc(tick, func() {
			d.isAckTimed.Store(false)
			d.flushAcks()
			d.ackSoon()
		})
	}
}

// giveToken gives up the token that takeToken took, and offers it to a parked waiter.
func (d *Dispatcher) giveToken() {
	d.token.Unlock()
	d.offerToken()
}

// wait returns nil when w has been fired, or the cause when ctx ends first. The goroutine makes
// progress meanwhile.
func (d *Dispatcher) wait(ctx context.Context, w *waiter) error {
	if w.ready() { // queued frames are written by the next goroutine that really waits
		return nil
	}
	done := ctx.Done()
	// With no connection to flush or to poll, w parks. This is park with fewer calls: the processor
	// mispredicts each return after the goroutine has been switched.
	if done == nil && d.paced.count.Load() == 0 && d.held.Load() == 0 && d.pollable() == nil && w.state.CompareAndSwap(awake, parked) {
		<-w.ch
		if d.endPark(w) {
			return nil
		}
		d.nudged.Add(1)
	}
	isFlushed := !d.yields.Load() && d.woken() <= 0
	if isFlushed {
		d.flushAll(false)
	} // otherwise the token holder flushes; this goroutine may become the holder
	if d.held.Load() > 0 {
		runtime.Gosched() // another goroutine may have been given the message: it goes first
	}
	for {
		hasEnded := isDone(done)
		if w.ready() || hasEnded {
			if !isFlushed {
				d.flushAll(false)
			}
			if w.ready() {
				return nil
			}
			return context.Cause(ctx)
		}
		switch p := d.pollable(); {
		case p == nil:
			d.park(done, w, false)
		case d.tryToken(p):
			isFlushed = true // drive flushes
			d.driveAndPark(done, w, p)
		default: // another goroutine makes progress
			if !isFlushed && !d.yields.Load() {
				d.flushAll(false)
			}
			isFlushed = true
			d.park(done, w, true)
		}
	}
}

// driveAndPark makes progress, gives up the token, and then parks if drive says so. The token must
// be held.
func (d *Dispatcher) driveAndPark(done <-chan struct{}, w *waiter, p *subsys.Poller) {
	switch d.drive(done, w, p) {
	case parksForWoken:
		d.token.Unlock()
		d.parkForWoken(done, w)
	case retries:
		d.giveToken()
		if d.tokenWaiters.Load() > 0 {
			runtime.Gosched() // with one processor, the goroutine in takeToken needs it
		}
	case pollingEnded:
		d.giveToken()
		d.park(done, w, false)
	}
}

// drive makes progress until w is fired, done closes, another goroutine wants the token, woken
// goroutines wait for a processor, or the Machine says so. The token must be held.
func (d *Dispatcher) drive(done <-chan struct{}, w *waiter, p *subsys.Poller) (then nextStep) {
	d.driven.Add(1)
	if d.pollerParked.Load() {
		d.pollerParked.Store(false)
	}
	if !d.keeperParked.Load() {
		d.drivesAlone = 0
	} else if d.drivesAlone++; d.drivesAlone%aloneMost == 0 {
		p.Wake() // another goroutine may have polled the previous wake
	}
	if d.woken() > 0 {
		d.yieldToWoken()
	} else {
		d.flushAll(false)
	}
	then = d.poll(done, w, p)
	if then == pollingEnded {
		if d.oneP {
			d.wakeKeeper()
		} else if !d.sleep(done, w, p) {
			then = retries
		}
	}
	d.handToKeeper(p)
	return then
}

// mayLeave reports whether w waits no longer, or another goroutine wants the token.
func (d *Dispatcher) mayLeave(done <-chan struct{}, w *waiter) bool {
	if w.ready() || d.tokenWaiters.Load() > 0 {
		return true
	}
	return isDone(done)
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

// A nextStep is what a goroutine that has made progress does next.
type nextStep uint8

const (
	retries       nextStep = iota // the goroutine checks again, and may make progress again
	pollingEnded                  // the goroutine sleeps with the token, then parks, and the keeper makes progress
	parksForWoken                 // the goroutine parks until the goroutines that it has woken have run
)

const (
	lookPolls = 16 // polls between two checks whether the caller has given up

	wokenPolls = 8 // empty polls between two checks whether woken goroutines have run
)

// poll looks for news without sleeping, at least once, for as long as there are some and then as
// long as d.spin says. It returns retries if w waits no longer, or another goroutine wants the
// token; parksForWoken if woken goroutines have not run; pollingEnded if that time is over.
func (d *Dispatcher) poll(done <-chan struct{}, w *waiter, p *subsys.Poller) nextStep {
	t := pollTurn{most: d.spin.Next()}
	for i := 1; ; i++ {
		n := p.Poll()
		if i%yieldPolls == 0 && d.acksDue.Load() && d.keeperParked.Load() {
			p.Wake() // the keeper acknowledges: that does not wait until this goroutine leaves
		}
		if w.ready() || d.tokenWaiters.Load() > 0 || i%lookPolls == 0 && d.mayLeave(done, w) {
			d.endPolling(w, t.entered, t.empty)
			return retries
		}
		if n > 0 {
			t.vain, t.empty = vainPolling{}, 0
			if d.woken() > 0 {
				d.yieldToWoken()
			}
			continue
		}
		if t.most == 0 {
			return pollingEnded
		}
		if t.empty++; t.empty < fewPolls {
			continue
		}
		if then, ends := d.afterEmptyPoll(&t, i); ends {
			return then
		}
	}
}

// A pollTurn is the state of one call of poll.
type pollTurn struct {
	most    time.Duration // how long the goroutine may poll without news; 0: not at all
	entered bool          // spin.Enter has counted the goroutine
	empty   int           // polls that have found nothing since the last news
	vain    vainPolling
}

// afterEmptyPoll decides whether the goroutine polls on after poll number i, which has found
// nothing. If ends is true, it does not, and then is the result of poll.
func (d *Dispatcher) afterEmptyPoll(t *pollTurn, i int) (then nextStep, ends bool) {
	if t.empty%callPolls == 0 {
		d.flushCalls()
	}
	if t.empty%wokenPolls == 0 && d.woken() > 0 {
		if t.entered {
			d.spin.Leave()
		}
		return parksForWoken, true
	}
	if !t.entered {
		if !d.spin.Enter() {
			return pollingEnded, true
		}
		t.entered = true
	}
	if d.spin.IsEndless() {
		if i%yieldPolls == 0 {
			runtime.Gosched()
		}
		return retries, false
	}
	switch t.vain.check(t.most) {
	case hasFailed:
		d.spin.InVain()
	case isCrowded:
		d.spin.Crowded()
	default:
		return retries, false
	}
	d.spin.Leave()
	return pollingEnded, true
}

// endPolling tells d.spin that the goroutine of w stops polling, because w waits no longer or
// another goroutine wants the token. entered says that Enter was called, empty how many polls have
// found nothing since the last news.
func (d *Dispatcher) endPolling(w *waiter, entered bool, empty int) {
	if entered {
		d.spin.Leave()
	}
	if (entered || empty > 0) && w.ready() {
		d.spin.Paid()
	}
}

// A vainPolling measures for how long polls have found nothing. The zero value begins at the first
// check.
type vainPolling struct {
	start   time.Time
	yielded time.Duration // after so long the goroutine has yielded last
	checks  int
}

// standsFrom is the number of checks in which any clock moves, except one of virtual time: that
// waits until each goroutine of its bubble waits (testing/synctest).
const standsFrom = 1024

// A vainResult is the result of vainPolling.check.
type vainResult uint8

const (
	goesOn    vainResult = iota // the goroutine polls on
	hasFailed                   // the polls have taken longer than d.spin allows
	isCrowded                   // other goroutines want the processor
)

// check says whether a goroutine that polls without news for at most most goes on. Now and then it
// yields to other goroutines.
func (v *vainPolling) check(most time.Duration) vainResult {
	if v.start.IsZero() {
		v.start = time.Now()
		return goesOn
	}
	polled := time.Since(v.start)
	if v.checks++; polled > most || polled == 0 && v.checks > standsFrom {
		return hasFailed
	}
	if polled-v.yielded > yieldAfter {
		v.yielded = polled
		if yield() {
			return isCrowded
		}
	}
	return goesOn
}

// yieldToWoken yields to woken goroutines. Then it writes the requests that they queued, in one
// batch for each link. The token must be held.
func (d *Dispatcher) yieldToWoken() {
	d.yields.Store(true)
	runtime.Gosched()
	d.yields.Store(false) // before the links are checked: from now on woken goroutines write themselves
	d.flushDeferred()
	d.flushAll(false)
}

// sleep holds its thread until w waits no longer or another goroutine wants the token. It returns
// true when nothing has come for so long that the keeper is to take over.
func (d *Dispatcher) sleep(done <-chan struct{}, w *waiter, p *subsys.Poller) (parks bool) {
	var begun, end time.Time
	if d.spin.Adapts() {
		begun = time.Now()
	}
	for {
		n := 0
		if p.Naps() {
			n = p.Nap(d.longestNap(), &w.state)
		} else {
			n = p.Sleep(sleepSlice, &w.state)
		}
		if d.mayLeave(done, w) {
			if !begun.IsZero() && w.ready() {
				d.spin.Slept(time.Since(begun))
			}
			return false
		}
		d.flushAcks()
		switch {
		case n > 0:
			end = time.Time{}
		case end.IsZero():
			end = time.Now().Add(sleepMost)
		case time.Now().After(end):
			d.wakeKeeper()
			return true
		}
	}
}

// longestNap returns how long a nap may last that the keeper does not end, because the keeper has
// not noticed yet that a waiter makes progress. It returns 0 if the keeper ends naps.
func (d *Dispatcher) longestNap() time.Duration {
	if d.keeperParked.Load() { // the wake of the keeper may have been polled by another goroutine
		return sleepSlice
	}
	return 0
}

// Poll makes progress once, without waiting. It reports whether something has arrived, or another
// goroutine makes progress.
func (d *Dispatcher) Poll() (arrived bool) {
	d.flushAll(false)
	p := d.poller.Load()
	if p == nil {
		return false
	}
	if !d.tryToken(p) {
		return true
	}
	d.driven.Add(1)
	arrived = p.Poll() > 0
	d.handToKeeper(p)
	d.token.Unlock()
	d.offerToken()
	return arrived
}

// pollOnce makes progress once, without waiting, if no other goroutine does.
func (d *Dispatcher) pollOnce() {
	d.flushAll(false)
	if p := d.poller.Load(); p != nil && d.tryToken(p) {
		d.driven.Add(1)
		if p.Poll() == 0 {
			p.PollAll()
		}
		d.handToKeeper(p)
		d.token.Unlock()
		d.offerToken()
	}
}

// SPDX-License-Identifier: Apache-2.0

package dispatch

import (
	"context"
	"math/bits"
	"runtime"
	"sync/atomic"
	"time"

	"github.com/rocl-go/rocl/dispatch/internal/patience"
	"github.com/rocl-go/rocl/internal/lock"
	"github.com/rocl-go/rocl/subsys"
)

const (
	sleepSlice = time.Millisecond      // how long a sleeping thread does not check its context.Context
	sleepMost  = 10 * time.Millisecond // a waiter that has slept for so long without news gives its thread back
	tick       = time.Millisecond      // how often the keeper checks whether other goroutines make progress
	longTick   = 4 * tick              // the same, while other goroutines make progress often and do not sleep
	busyDrives = 32                    // takes of the token in a tick that count as often
	aloneMost  = 16                    // takes of the token while the keeper is parked, after which it is woken to check the poller
)

// A waiter is one goroutine that waits for one event: a message, credit or room.
//
// A waiting goroutine makes progress. Of all waiters, one holds the progress token, reads the
// connections, and delivers to the other waiters too. It polls first, then sleeps in the kernel on
// all connections at once, and only after that parks like the other waiters. The holder must not
// let another goroutine be woken for a message that the holder is about to read itself.
//
//	            token free                 10 ms
//	waiting ─────────────► polling, sleeping ───► parked ──► (fired) done
//	   │                         │ fired             ▲
//	   └──── token taken ────────┼───────────────────┘
//	                             └► done; the token passes to a parked waiter
type waiter struct {
	sel     Select
	msg     *Message     // the message handed to a receiver, or sent by a sender within the process
	grantee *inflow      // the account whose sender a receiver tells of new credit
	grant   uint64       // the new credit of that sender
	passage *passageEnd  // the end that counts msg; nil: msg goes to the sender's own context
	charge  uint64       // the credit that a sender over a link needs
	cause   error        // why a receiver gets no message, or a caller no reply; nil: the mailbox was closed
	origins *originWatch // the watch for a receiver that has waited for long
	isOld   bool         // the receiver was in the mailbox when checkOrigins looked last
	seen    bool         // the receiver waited already when checkStuck looked last
	state   atomic.Uint32
	ch      chan struct{}
	d       *Dispatcher

	// Place in a waitlist; the lock of the list's owner guards it.
	next, prev *waiter
	listed     bool
	queuePos   queuePos       // the position of a receiver in the chains of the mailbox
	group      *receiverGroup // the group of a receiver of RecvAny; nil: none

	// Place among the parked waiters, guarded by Dispatcher.parkedMu.
	pnext, pprev *waiter
	inParked     bool
}

// States of a waiter.
const (
	awake  = iota
	parked // to be woken through ch
	fired
)

// ready reports whether w has been fired.
func (w *waiter) ready() bool { return w.state.Load() == fired }

// fire tells w that its event has happened. It is called once.
func (w *waiter) fire() {
	was := w.state.Swap(fired)
	if was == parked {
		w.d.fired.Add(1)
	}
	w.wake(was)
}

// nudge makes w check again what it waits for.
func (w *waiter) nudge() { w.wake(w.state.Load()) }

// wake wakes the goroutine of w, whose state was was: through its channel if it is parked, else
// through the poller if the poller sleeps.
func (w *waiter) wake(was uint32) {
	if was == parked {
		select {
		case w.ch <- struct{}{}: // the goroutine that wakes counts this in ran or nudged
		default:
		}
		return
	}
	if p := w.d.poller.Load(); p != nil && p.Asleep() {
		p.Wake()
	}
}

// A waitlist is an intrusive list of waiters, first come first served.
type waitlist struct{ first, last *waiter }

// push appends w to the list.
func (l *waitlist) push(w *waiter) {
	w.listed, w.next, w.prev = true, nil, l.last
	if l.last != nil {
		l.last.next = w
	} else {
		l.first = w
	}
	l.last = w
}

// remove takes w, which is in the list, out of it.
func (l *waitlist) remove(w *waiter) {
	if w.prev != nil {
		w.prev.next = w.next
	} else {
		l.first = w.next
	}
	if w.next != nil {
		w.next.prev = w.prev
	} else {
		l.last = w.prev
	}
	w.next, w.prev, w.listed = nil, nil, false
}

// fireAll removes all waiters and fires them.
func (l *waitlist) fireAll() {
	for l.first != nil {
		w := l.first
		l.remove(w)
		w.fire()
	}
}

// progress is the part of a Dispatcher that makes progress.
type progress struct {
	poller        atomic.Pointer[subsys.Poller]
	token         lock.Mutex[levelToken] // held by the goroutine that drives the poller
	driven        atomic.Uint64          // how often the token was taken; the keeper compares it
	asked         atomic.Int32           // goroutines in takeToken
	wants         atomic.Int32           // parked waiters that would make progress
	keeperParked  atomic.Bool            // the keeper is parked on the armed gate
	call          chan struct{}          // tells the keeper to check at once
	patience      patience.Machine       // how long waiters poll; the token guards it
	alone         int                    // how often the token was taken while the keeper rested; the token guards it
	acksDue       atomic.Bool            // a link owes an acknowledgement
	held          atomic.Int32           // messages that were received and not released, except those of batches
	fired         atomic.Uint64          // goroutines that were fired while parked
	ran           atomic.Uint64          // goroutines that were fired while parked and have run since
	nudged        atomic.Uint64          // goroutines that were nudged while parked and have run
	pollerYielded atomic.Bool            // the goroutine that polled has parked until all woken goroutines have run
	yields        atomic.Bool            // the token holder yields to woken goroutines, and writes the requests that they queue

	parkedMu    lock.Mutex[levelParked]
	parkedFirst *waiter
}

// waiter returns an unused waiter. doneWaiting gives it back.
func (d *Dispatcher) waiter() *waiter {
	return d.waiters.Get().(*waiter)
}

// doneWaiting gives w back for reuse. w must be in no list. A nudge may still come: it makes the
// next user of w only check again.
func (d *Dispatcher) doneWaiting(w *waiter) {
	w.msg, w.grantee, w.grant, w.passage, w.sel = nil, nil, 0, nil, Select{}
	w.cause, w.origins, w.isOld, w.seen = nil, nil, false, false
	w.state.Store(awake)
	if len(w.ch) > 0 { // no other goroutine receives from ch
		<-w.ch
	}
	d.waiters.Put(w)
}

// woken returns how many goroutines were fired while parked and have not run yet. It may be
// negative for a moment: a goroutine may run before it is counted as fired.
func (d *Dispatcher) woken() int64 { return int64(d.fired.Load() - d.ran.Load()) }

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
	d.asked.Add(1)
	if p := d.poller.Load(); p != nil {
		p.Wake()
	}
	d.token.Lock()
	d.asked.Add(-1)
}

// exclusive is the token as a sync.Locker, for ports.
type exclusive struct{ d *Dispatcher }

func (e exclusive) Lock()   { e.d.takeToken() }
func (e exclusive) Unlock() { e.d.giveToken() }

// giveToken gives up the token that takeToken took, and offers it to a parked waiter.
func (d *Dispatcher) giveToken() {
	d.token.Unlock()
	d.pass()
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
	if done == nil && d.streams.count.Load() == 0 && d.held.Load() == 0 && d.pollable() == nil && w.state.CompareAndSwap(awake, parked) {
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
		hasEnded := false
		if done != nil {
			select {
			case <-done:
				hasEnded = true
			default:
			}
		}
		if w.ready() || hasEnded {
			if !isFlushed {
				d.flushAll(false)
			}
			if w.ready() {
				return nil
			}
			return context.Cause(ctx)
		}
		drives := false
		if p := d.pollable(); p != nil {
			if d.tryToken(p) {
				isFlushed = true // drive flushes
				switch then := d.drive(done, w, p); then {
				case yieldsNext:
					d.token.Unlock()
					d.parkForWoken(done, w)
					continue
				case retries:
					d.giveToken()
					if d.asked.Load() > 0 {
						runtime.Gosched() // with one processor, the goroutine in takeToken needs it
					}
					continue
				default:
					d.giveToken()
				}
			} else {
				drives = true
				if !isFlushed && !d.yields.Load() {
					d.flushAll(false)
				}
				isFlushed = true
			}
		}
		d.park(done, w, drives)
	}
}

// park parks w until it is woken or done closes. drives says that w would make progress when the
// token becomes free.
func (d *Dispatcher) park(done <-chan struct{}, w *waiter, drives bool) {
	if !w.state.CompareAndSwap(awake, parked) {
		return // w has been fired
	}
	if drives {
		d.list(w)
		// The token holder may have left between the caller's TryLock and now.
		if d.token.TryLock() {
			d.token.Unlock()
			d.unpark(w)
			d.endPark(w)
			return
		}
	}
	d.awaitWake(done, w)
	if drives {
		d.unpark(w)
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
	if d.ran.Add(1) == d.fired.Load() && d.pollerYielded.Load() {
		d.pollerYielded.Store(false)
		d.pass()
	}
	return true
}

// parkForWoken parks a goroutine that polled in vain while woken goroutines have not run. Its
// processor becomes idle, and steals them from a thread that the kernel does not run. The last
// woken goroutine, the next waiter or the keeper makes progress. The token is free, and is not
// offered to another waiter: that would take this processor.
func (d *Dispatcher) parkForWoken(done <-chan struct{}, w *waiter) {
	if w.state.CompareAndSwap(awake, parked) {
		d.list(w)
		d.pollerYielded.Store(true)
		if d.woken() <= 0 { // all of them ran before pollerYielded was set: none offers the token
			d.endPark(w)
		} else {
			d.awaitWake(done, w)
		}
		d.unpark(w)
	}
	if d.mayLeave(done, w) {
		d.pass()
	}
}

// list puts w among the parked waiters that would make progress.
func (d *Dispatcher) list(w *waiter) {
	d.parkedMu.Lock()
	w.pnext, w.pprev = d.parkedFirst, nil
	if d.parkedFirst != nil {
		d.parkedFirst.pprev = w
	}
	d.parkedFirst, w.inParked = w, true
	d.parkedMu.Unlock()
	d.wants.Add(1)
}

// unpark takes w off the parked waiters that would make progress.
func (d *Dispatcher) unpark(w *waiter) {
	d.parkedMu.Lock()
	d.unparkLocked(w)
	d.parkedMu.Unlock()
}

// unparkLocked is unpark with parkedMu held.
func (d *Dispatcher) unparkLocked(w *waiter) {
	if !w.inParked {
		return
	}
	w.inParked = false
	d.wants.Add(-1)
	if w.pprev != nil {
		w.pprev.pnext = w.pnext
	} else {
		d.parkedFirst = w.pnext
	}
	if w.pnext != nil {
		w.pnext.pprev = w.pprev
	}
	w.pnext, w.pprev = nil, nil
}

// pass offers the token, just unlocked, to a parked waiter. A waiter that has been fired needs no
// token, and a waiter that is awake tries to take it.
func (d *Dispatcher) pass() {
	if d.wants.Load() == 0 {
		return
	}
	d.parkedMu.Lock()
	w, state := d.parkedFirst, uint32(fired)
	for ; w != nil; w = d.parkedFirst {
		d.unparkLocked(w)
		if state = w.state.Load(); state != fired {
			break
		}
	}
	d.parkedMu.Unlock()
	if state == parked {
		w.nudge()
	}
}

// drive makes progress until w is fired, done closes, another goroutine wants the token, woken
// goroutines wait for a processor, or patience ends. The token must be held.
func (d *Dispatcher) drive(done <-chan struct{}, w *waiter, p *subsys.Poller) (then nextStep) {
	d.driven.Add(1)
	if d.pollerYielded.Load() {
		d.pollerYielded.Store(false)
	}
	if !d.keeperParked.Load() {
		d.alone = 0
	} else if d.alone++; d.alone%aloneMost == 0 {
		p.Wake() // another goroutine may have polled the previous wake
	}
	if d.woken() > 0 {
		d.letWoken()
	} else {
		d.flushAll(false)
	}
	then = d.poll(done, w, p)
	if then == parksNext {
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
	if w.ready() || d.asked.Load() > 0 {
		return true
	}
	if done != nil {
		select {
		case <-done:
			return true
		default:
		}
	}
	return false
}

// A nextStep is what a goroutine that has made progress does next.
type nextStep uint8

const (
	retries    nextStep = iota // the goroutine checks again, and may make progress again
	parksNext                  // the goroutine parks, and the keeper makes progress
	yieldsNext                 // the goroutine parks until the goroutines that it has woken have run
)

const (
	lookPolls = 16 // polls between two checks whether the caller has given up

	wokenPolls = 8 // empty polls between two checks whether woken goroutines have run
)

// poll looks for news without sleeping, at least once, for as long as there are some and then as
// long as patience says. It returns retries if w waits no longer, or another goroutine wants the
// token; yieldsNext if woken goroutines have not run; parksNext if patience has ended.
func (d *Dispatcher) poll(done <-chan struct{}, w *waiter, p *subsys.Poller) nextStep {
	most := d.patience.Next()
	entered, empty := false, 0
	var start time.Time // when polls began to find nothing
	var yielded time.Duration
	for i := 1; ; i++ {
		n := p.Poll()
		if i%yieldPolls == 0 && d.acksDue.Load() && d.keeperParked.Load() {
			p.Wake() // the keeper acknowledges: that does not wait until this goroutine leaves
		}
		if w.ready() || d.asked.Load() > 0 || i%lookPolls == 0 && d.mayLeave(done, w) {
			if entered {
				d.patience.Leave()
			}
			if (entered || empty > 0) && w.ready() {
				d.patience.Paid()
			}
			return retries
		}
		if n > 0 {
			start, empty = time.Time{}, 0
			if d.woken() > 0 {
				d.letWoken()
			}
			continue
		}
		if most == 0 {
			return parksNext
		}
		if empty++; empty < fewPolls {
			continue
		}
		if empty%fewPolls == 0 {
			d.flushCalls()
		}
		if empty%wokenPolls == 0 && d.woken() > 0 {
			if entered {
				d.patience.Leave()
			}
			return yieldsNext
		}
		if !entered {
			if !d.patience.Enter() {
				return parksNext
			}
			entered = true
		}
		if d.patience.IsEndless() {
			if i%yieldPolls == 0 {
				runtime.Gosched()
			}
			continue
		}
		if start.IsZero() {
			start, yielded = time.Now(), 0
			continue
		}
		polled := time.Since(start)
		if polled > most {
			d.patience.InVain()
			break
		}
		if polled-yielded > yieldAfter {
			yielded = polled
			if yield() {
				d.patience.Crowded()
				break
			}
		}
	}
	d.patience.Leave()
	return parksNext
}

// letWoken yields to woken goroutines. Then it writes the requests that they queued, in one batch
// for each link. The token must be held.
func (d *Dispatcher) letWoken() {
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
	if d.patience.Adapts() {
		begun = time.Now()
	}
	for {
		n := 0
		if p.Naps() {
			n = p.Nap(d.unkept(), &w.state)
		} else {
			n = p.Sleep(sleepSlice, &w.state)
		}
		if d.mayLeave(done, w) {
			if !begun.IsZero() && w.ready() {
				d.patience.Slept(time.Since(begun))
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

// unkept returns how long a nap may last that the keeper does not end, because the keeper has not
// noticed yet that a waiter makes progress. It returns 0 if the keeper ends naps.
func (d *Dispatcher) unkept() time.Duration {
	if d.keeperParked.Load() { // the wake of the keeper may have been polled by another goroutine
		return sleepSlice
	}
	return 0
}

// handToKeeper leaves the remaining work to the keeper. The caller holds the token and is about to
// give it up: it may have polled the event that the keeper is parked for, even the wake.
func (d *Dispatcher) handToKeeper(p *subsys.Poller) {
	if d.keeperParked.Load() && (p.Idle() || d.acksDue.Load() || p.More()) {
		p.Wake()
	}
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
		d.pass()
	}
}

// wakeKeeper asks the keeper to take over.
func (d *Dispatcher) wakeKeeper() {
	select {
	case d.call <- struct{}{}:
	default:
	}
}

// keep is the keeper's goroutine, which makes progress while no waiter does. While waiters make
// progress, it only checks each tick whether they still do. Otherwise it parks on the poller's
// gate, holding no thread.
func (d *Dispatcher) keep(p *subsys.Poller) {
	defer d.running.Done()
	timer := time.NewTimer(tick)
	defer timer.Stop()
	seen := d.driven.Load()
	var busy uint16 // a bit for each of the last ticks, set if waiters made progress often
	for {
		asked := false
		// Each tick takes a processor from another goroutine or process for some
		// microseconds, in which a message waits.
		if bits.OnesCount16(busy) >= 8 && !p.Asleep() {
			timer.Reset(longTick)
		} else {
			timer.Reset(tick)
		}
		select {
		case <-timer.C:
		case <-d.call:
			asked = true
		case <-d.stop:
			return
		}
		d.flushDeferred() // in case the token holder that is to do that waits for a processor
		d.flushAcks()
		p.EndNap()
		now := d.driven.Load()
		if busy <<= 1; now-seen >= busyDrives {
			busy |= 1
		}
		if now != seen && !asked && !d.pollerYielded.Load() {
			seen = now
			continue
		}
		for woken := false; d.token.TryLock(); {
			if woken {
				woken = false
				arrived := p.Poll() > 0
				others := d.driven.Load() != seen
				if arrived || others {
					d.token.Unlock()
					d.pass()
					if arrived {
						runtime.Gosched() // a goroutine that has waited long for the message goes first
					}
					if others {
						break // waiters have made progress meanwhile, and may again
					}
					continue
				}
			}
			// The gate fires once, for what comes after it was armed or has come already. So
			// nothing is missed between Drain and Park.
			more := p.Drain()
			d.flushAcks()
			owing := d.acksDue.Load() // another goroutine writes, or the peer does not read: check again soon
			if owing {
				p.Idle() // the next check covers everything
			}
			if !more && !owing {
				d.keeperParked.Store(true)
				p.Arm()
			}
			seen = d.driven.Load()
			d.token.Unlock()
			d.pass()
			if owing {
				break
			}
			if more {
				continue
			}
			if !p.Park() {
				return
			}
			d.keeperParked.Store(false)
			woken = true
		}
	}
}

// SPDX-License-Identifier: Apache-2.0

package dispatch

import (
	"math/bits"
	"runtime"
	"time"

	"github.com/rocl-go/rocl/subsys"
)

// This file has the keeper, the goroutine that makes progress while no waiter does.

const (
	tick       = time.Millisecond // how often the keeper checks whether other goroutines make progress
	longTick   = 4 * tick         // the same, while other goroutines make progress often and do not sleep
	busyDrives = 32               // takes of the token in a tick that count as often
)

// A keeper makes progress while no waiter does. While waiters make progress, it only checks each
// tick whether they still do. Otherwise it parks on the poller's gate, holding no thread.
type keeper struct {
	d     *Dispatcher
	p     *subsys.Poller
	timer *time.Timer
	seen  uint64 // the value of Dispatcher.driven when the keeper looked last
	busy  uint16 // a bit for each of the last ticks, set if waiters made progress often
}

// runKeeper is the keeper's goroutine.
func (d *Dispatcher) runKeeper(p *subsys.Poller) {
	defer d.running.Done()
	k := keeper{d: d, p: p, timer: time.NewTimer(tick), seen: d.driven.Load()}
	defer k.timer.Stop()
	for {
		asked, stops := k.awaitTick()
		if stops {
			return
		}
		d.flushDeferred() // in case the token holder that is to do that waits for a processor
		d.flushAcks()
		p.EndNap()
		now := d.driven.Load()
		k.noteTick(now)
		if now != k.seen && !asked && !d.pollerParked.Load() {
			k.seen = now
			continue
		}
		if closed := k.drive(); closed {
			return
		}
	}
}

// awaitTick waits for the next tick, or until the keeper is asked to take over.
func (k *keeper) awaitTick() (asked, stops bool) {
	// Each tick takes a processor from another goroutine or process for some microseconds, in which
	// a message waits.
	if bits.OnesCount16(k.busy) >= 8 && !k.p.Asleep() {
		k.timer.Reset(longTick)
	} else {
		k.timer.Reset(tick)
	}
	select {
	case <-k.timer.C:
		return false, false
	case <-k.d.keeperCall:
		return true, false
	case <-k.d.stop:
		return false, true
	}
}

// noteTick notes whether waiters have made progress often since the keeper looked last. now is the
// value of Dispatcher.driven.
func (k *keeper) noteTick(now uint64) {
	if k.busy <<= 1; now-k.seen >= busyDrives {
		k.busy |= 1
	}
}

// drive makes progress until waiters do again, or until an acknowledgement is due that cannot be
// written yet. While nothing comes it is parked. It reports whether the poller was closed.
func (k *keeper) drive() (closed bool) {
	d, p := k.d, k.p
	for woken := false; d.token.TryLock(); {
		if woken {
			woken = false
			arrived := p.Poll() > 0
			others := d.driven.Load() != k.seen
			if arrived || others {
				d.token.Unlock()
				d.offerToken()
				if arrived {
					runtime.Gosched() // a goroutine that has waited long for the message goes first
				}
				if others {
					return false // waiters have made progress meanwhile, and may again
				}
				continue
			}
		}
		more, isAckDue := k.drain()
		if isAckDue {
			return false
		}
		if more {
			continue
		}
		if !p.Park() {
			return true
		}
		d.keeperParked.Store(false)
		woken = true
	}
	return false
}

// drain reads everything that has come, and gives the token up. more reports that there may be more
// to read. isAckDue reports that an acknowledgement is not written yet, because another goroutine
// writes or the peer does not read. If neither is so, the gate is armed, and the caller parks. The
// token must be held.
func (k *keeper) drain() (more, isAckDue bool) {
	d, p := k.d, k.p
	// The gate fires once, for what comes after it was armed or has come already. So nothing is
	// missed between Drain and Park.
	more = p.Drain()
	d.flushAcks()
	isAckDue = d.acksDue.Load()
	if isAckDue {
		p.Idle() // the next check covers everything
	}
	if !more && !isAckDue {
		d.keeperParked.Store(true)
		p.Arm()
	}
	k.seen = d.driven.Load()
	d.token.Unlock()
	d.offerToken()
	return more, isAckDue
}

// handToKeeper leaves the remaining work to the keeper. The caller holds the token and is about to
// give it up: it may have polled the event that the keeper is parked for, even the wake.
func (d *Dispatcher) handToKeeper(p *subsys.Poller) {
	if d.keeperParked.Load() && (p.Idle() || d.acksDue.Load() || p.More()) {
		p.Wake()
	}
}

// wakeKeeper asks the keeper to take over.
func (d *Dispatcher) wakeKeeper() {
	select {
	case d.keeperCall <- struct{}{}:
	default:
	}
}

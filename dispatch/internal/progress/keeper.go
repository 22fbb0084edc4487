// SPDX-License-Identifier: Apache-2.0

package progress

import (
	"math/bits"
	"runtime"
	"sync/atomic"
	"time"

	"github.com/rocl-go/rocl/subsys"
)

// This file has the keeper, the goroutine that makes progress while no waiter does.

const (
	tick       = time.Millisecond // how often the keeper checks whether other goroutines make progress
	longTick   = 4 * tick         // the same, while other goroutines make progress often and do not sleep
	busyDrives = 32               // takes of the token in a tick that count as often
	aloneMost  = 16               // takes of the token while the keeper is parked, after which it is woken to check the poller
)

// keeping is what waiters know of the keeper.
type keeping struct {
	isParked atomic.Bool   // the keeper is parked on the armed gate
	call     chan struct{} // tells the keeper to check at once
	alone    int           // how often the token was taken while the keeper was parked; the token guards it
}

// A keeper makes progress while no waiter does. While waiters make progress, it only checks each
// tick whether they still do. Otherwise it parks on the poller's gate, holding no thread.
type keeper struct {
	e     *Engine
	p     *subsys.Poller
	timer *time.Timer
	seen  uint64 // the value of Engine.driven when the keeper looked last
	busy  uint16 // a bit for each of the last ticks, set if waiters made progress often
}

// keep is the keeper's goroutine.
func (e *Engine) keep(p *subsys.Poller) {
	k := keeper{e: e, p: p, timer: time.NewTimer(tick), seen: e.driven.Load()}
	defer k.timer.Stop()
	for {
		asked, stops := k.awaitTick()
		if stops {
			return
		}
		e.work.FlushDeferred() // in case the token holder that is to do that waits for a processor
		e.acknowledge()
		p.EndNap()
		now := e.driven.Load()
		k.noteTick(now)
		if now != k.seen && !asked && !e.parking.pollerParked.Load() {
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
	case <-k.e.keeper.call:
		return true, false
	case <-k.e.stop:
		return false, true
	}
}

// noteTick notes whether waiters have made progress often since the keeper looked last. now is the
// value of Engine.driven.
func (k *keeper) noteTick(now uint64) {
	if k.busy <<= 1; now-k.seen >= busyDrives {
		k.busy |= 1
	}
}

// drive makes progress until waiters do again, or until an acknowledgement is due that cannot be
// written yet. While nothing comes it is parked. It reports whether the poller was closed.
func (k *keeper) drive() (closed bool) {
	e, p := k.e, k.p
	for woken := false; e.token.TryLock(); {
		if woken {
			woken = false
			arrived := p.Poll() > 0
			others := e.driven.Load() != k.seen
			if arrived || others {
				e.Unlock()
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
		e.keeper.isParked.Store(false)
		woken = true
	}
	return false
}

// drain reads everything that has come, and gives the token up. more reports that there may be more
// to read. isAckDue reports that an acknowledgement is not written yet, because another goroutine
// writes or the peer does not read. If neither is so, the gate is armed, and the caller parks. The
// token must be held.
func (k *keeper) drain() (more, isAckDue bool) {
	e, p := k.e, k.p
	// The gate fires once, for what comes after it was armed or has come already. So nothing is
	// missed between Drain and Park.
	more = p.Drain()
	e.acknowledge()
	isAckDue = e.acksDue.Load()
	if isAckDue {
		p.Idle() // the next check covers everything
	}
	if !more && !isAckDue {
		e.keeper.isParked.Store(true)
		p.Arm()
	}
	k.seen = e.driven.Load()
	e.Unlock()
	return more, isAckDue
}

// handToKeeper leaves the remaining work to the keeper. The caller holds the token and is about to
// give it up: it may have polled the event that the keeper is parked for, even the wake.
func (e *Engine) handToKeeper(p *subsys.Poller) {
	if e.keeper.isParked.Load() && (p.Idle() || e.acksDue.Load() || p.More()) {
		p.Wake()
	}
}

// CallKeeper asks the keeper to take over.
func (e *Engine) CallKeeper() {
	select {
	case e.keeper.call <- struct{}{}:
	default:
	}
}

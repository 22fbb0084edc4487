// SPDX-License-Identifier: Apache-2.0

package progress

import (
	"context"
	"runtime"
	"sync"
	"sync/atomic"
	"time"

	"github.com/rocl-go/rocl/dispatch/internal/spin"
	"github.com/rocl-go/rocl/internal/lock"
	"github.com/rocl-go/rocl/subsys"
)

// Work is what has to be done beside polling. The methods may be called by any goroutine, with or
// without the token, and at the same time.
type Work interface {
	// Flush writes everything that is queued.
	Flush()
	// FlushCalls writes what is queued where there are requests or replies.
	FlushCalls()
	// FlushDeferred writes what goroutines have queued while Engine.Yields reported true.
	FlushDeferred()
	// Acknowledge acknowledges what has been received. If it cannot yet, it calls Engine.OweAck.
	Acknowledge()
}

// Config is what an Engine needs.
type Config struct {
	Work    Work
	Count   *subsys.Counters
	Spin    func() spin.Machine // makes a Machine
	OneProc bool                // there is one processor
}

// An Engine makes the progress of one context. All methods may be called concurrently.
type Engine struct {
	work   Work
	count  *subsys.Counters
	oneP   bool
	poller atomic.Pointer[subsys.Poller]

	token        lock.Mutex[levelToken] // held by the goroutine that drives the poller
	driven       atomic.Uint64          // how often the token was taken; the keeper compares it
	tokenWaiters atomic.Int32           // goroutines in Lock
	parking      parking
	keeper       keeping
	spin         spin.Machine // how long waiters poll; the token guards it
	local        local
	acksDue      atomic.Bool  // Work owes an acknowledgement
	isAckTimed   atomic.Bool  // a timer of ackSoon runs
	held         atomic.Int32 // the count of Hold
	yields       atomic.Bool  // the token holder yields to woken goroutines, and writes what they queue

	// Paced is how many links Flush and FlushCalls have to check. They are called if it is not 0.
	Paced atomic.Int32

	stop    chan struct{} // closed to end the keeper
	running sync.WaitGroup
}

// The levels of this package's locks. The documentation of package dispatch has the table.
type (
	levelToken  struct{} // Engine.token
	levelParked struct{} // parking.mu
)

func (levelToken) Depth() (int, string)  { return 10, "token" }
func (levelParked) Depth() (int, string) { return 80, "parked" }

// Init prepares e for use. Until Start is called there is nothing to poll.
func (e *Engine) Init(c Config) {
	e.work, e.count, e.oneP = c.Work, c.Count, c.OneProc
	e.spin, e.local.spin = c.Spin(), c.Spin()
	e.keeper.call = make(chan struct{}, 1)
	e.stop = make(chan struct{})
}

// Start makes the poller, and starts the keeper. It is called once, and not after Close.
func (e *Engine) Start() (*subsys.Poller, error) {
	p, err := subsys.NewPoller(e.count)
	if err != nil {
		return nil, err
	}
	e.poller.Store(p)
	e.running.Go(func() { e.keep(p) })
	return p, nil
}

// Poller returns the poller, or nil before Start and after Close.
func (e *Engine) Poller() *subsys.Poller { return e.poller.Load() }

// Close ends the keeper and closes the poller. Waiters may still wait: they find nothing to poll.
func (e *Engine) Close() {
	close(e.stop)
	p := e.poller.Load()
	if p == nil {
		return
	}
	p.EndPark()
	e.running.Wait()
	e.token.Lock() // a waiter may still hold it, about to return
	e.poller.Store(nil)
	e.token.Unlock()
	p.Close()
}

// tryToken takes the token to drive p, and reports whether it did. It does not wait for the token,
// and fails if the poller was closed after the caller had loaded it.
func (e *Engine) tryToken(p *subsys.Poller) bool {
	if !e.token.TryLock() {
		return false
	}
	if e.poller.Load() == p {
		return true
	}
	e.token.Unlock()
	return false
}

// pollable returns the poller if it has anything to poll, else nil.
func (e *Engine) pollable() *subsys.Poller {
	if p := e.poller.Load(); p != nil && p.Len() > 0 {
		return p
	}
	return nil
}

// Lock takes the token, to work on what belongs to its holder. A goroutine that polls or sleeps
// with the token gives it up soon. The caller holds no lock and works on no frame of a peer: that
// work is done with the token held.
func (e *Engine) Lock() {
	if e.token.TryLock() {
		return
	}
	e.tokenWaiters.Add(1)
	if p := e.poller.Load(); p != nil {
		p.Wake()
	}
	e.token.Lock()
	e.tokenWaiters.Add(-1)
}

// Unlock gives up the token, and offers it to a parked waiter.
func (e *Engine) Unlock() {
	e.token.Unlock()
	e.parking.offerToken()
}

// Settle waits until the goroutine that has the token has worked on what it has read.
func (e *Engine) Settle() {
	e.Lock()
	defer e.Unlock()
}

// PortLock returns the token for ports. What is due when they unlock it is acknowledged after a
// tick: a port without a poller has no keeper.
func (e *Engine) PortLock() sync.Locker { return portLock{e} }

type portLock struct{ *Engine }

// Unlock implements sync.Locker.
func (l portLock) Unlock() {
	l.Engine.Unlock()
	l.ackSoon()
}

// IsWanted reports whether a goroutine waits in Lock.
func (e *Engine) IsWanted() bool { return e.tokenWaiters.Load() > 0 }

// OweAck notes that an acknowledgement is due.
func (e *Engine) OweAck() {
	if !e.acksDue.Load() {
		e.acksDue.Store(true)
	}
}

// OwesAck reports whether an acknowledgement is due.
func (e *Engine) OwesAck() bool { return e.acksDue.Load() }

// acknowledge acknowledges what is due.
func (e *Engine) acknowledge() {
	if e.acksDue.Swap(false) {
		e.work.Acknowledge()
	}
}

// ackSoon arranges that what is due is acknowledged after a tick.
func (e *Engine) ackSoon() {
	if e.acksDue.Load() && e.isAckTimed.CompareAndSwap(false, true) {
		time.AfterFunc(tick, func() {
			e.isAckTimed.Store(false)
			e.acknowledge()
			e.ackSoon()
		})
	}
}

// Hold counts n more messages that the program has received and not released. While there are any,
// waiters let other goroutines run before they poll.
func (e *Engine) Hold(n int32) { e.held.Add(n) }

// Yields reports whether the token holder yields to woken goroutines. What they queue meanwhile the
// holder writes (Work.FlushDeferred).
func (e *Engine) Yields() bool { return e.yields.Load() }

// flush writes what is queued.
func (e *Engine) flush() {
	if e.Paced.Load() > 0 {
		e.work.Flush()
	}
}

// Poll makes progress once, without waiting. It reports whether something has arrived, or another
// goroutine makes progress. If all is true and nothing has arrived, it also asks the kernel about
// connections that are seldom checked.
func (e *Engine) Poll(all bool) (arrived bool) {
	e.flush()
	p := e.poller.Load()
	if p == nil {
		return false
	}
	if !e.tryToken(p) {
		return true
	}
	e.driven.Add(1)
	arrived = p.Poll() > 0
	if all && !arrived {
		arrived = p.PollAll() > 0
	}
	e.handToKeeper(p)
	e.Unlock()
	return arrived
}

// Wait returns nil when w has been fired, or the cause when ctx ends first. The goroutine makes
// progress meanwhile.
func (e *Engine) Wait(ctx context.Context, w *Waiter) error {
	if w.isFired() { // what is queued is written by the next goroutine that really waits
		return nil
	}
	done := ctx.Done()
	// With nothing to flush or to poll, w parks. This is park with fewer calls: the processor
	// mispredicts each return after the goroutine has been switched.
	if done == nil && e.Paced.Load() == 0 && e.held.Load() == 0 && e.pollable() == nil && w.state.CompareAndSwap(awake, parked) {
		<-w.ch
		if e.endPark(w) {
			return nil
		}
		e.parking.nudged.Add(1)
	}
	isFlushed := !e.yields.Load() && e.parking.woken() <= 0
	if isFlushed {
		e.flush()
	} // otherwise the token holder flushes; this goroutine may become the holder
	if e.held.Load() > 0 {
		runtime.Gosched() // another goroutine may have been given the message: it goes first
	}
	for {
		hasEnded := isDone(done)
		if w.isFired() || hasEnded {
			if !isFlushed {
				e.flush()
			}
			if w.isFired() {
				return nil
			}
			return context.Cause(ctx)
		}
		switch p := e.pollable(); {
		case p == nil:
			e.park(done, w, false)
		case e.tryToken(p):
			isFlushed = true // drive flushes
			e.driveAndPark(done, w, p)
		default: // another goroutine makes progress
			if !isFlushed && !e.yields.Load() {
				e.flush()
			}
			isFlushed = true
			e.park(done, w, true)
		}
	}
}

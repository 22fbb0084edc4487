// SPDX-License-Identifier: Apache-2.0

package progress

import (
	"context"
	"errors"
	"math/rand/v2"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/rocl-go/rocl/dispatch/internal/spin"
	"github.com/rocl-go/rocl/internal/testkit/eventually"
	"github.com/rocl-go/rocl/internal/testkit/posix"
	"github.com/rocl-go/rocl/internal/testkit/try"
	"github.com/rocl-go/rocl/subsys"
)

// work counts what an Engine asks for. While isStuck it cannot acknowledge.
type work struct {
	e                            *Engine
	flushes, calls, defers, acks atomic.Int32
	isStuck                      atomic.Bool
}

func (w *work) Flush()         { w.flushes.Add(1) }
func (w *work) FlushCalls()    { w.calls.Add(1) }
func (w *work) FlushDeferred() { w.defers.Add(1) }
func (w *work) Acknowledge() {
	if w.isStuck.Load() {
		w.e.OweAck()
		return
	}
	w.acks.Add(1)
}

// newEngine returns an Engine without a poller.
func newEngine(policy spin.Policy, budget time.Duration) (*Engine, *work) {
	e, w := &Engine{}, &work{}
	w.e = e
	e.Init(Config{Work: w, Count: &subsys.Counters{}, OneProc: runtime.GOMAXPROCS(0) < 2,
		Spin: func() spin.Machine { return spin.New(policy, budget, 100, runtime.GOMAXPROCS(0)) }})
	return e, w
}

// pipe is a connection: the Engine that polls it calls got for each byte that the test writes.
type pipe struct {
	r, w int
	most int // bytes read at a time
	got  func()
}

func (p *pipe) Ready(subsys.Readiness) (frames int, again bool) {
	n, err := posix.Read(p.r, make([]byte, p.most))
	if err != nil {
		return 0, false
	}
	for range n {
		p.got()
	}
	return n, n == p.most
}

func (p *pipe) write(t *testing.T, n int) { try.Works(posix.Write(p.w, make([]byte, n)))(t) }

// polling returns an Engine that has a connection to poll.
func polling(t *testing.T, policy spin.Policy, budget time.Duration, got func()) (*Engine, *work, *pipe) {
	t.Helper()
	e, w := newEngine(policy, budget)
	poller := try.Get(e.Start())(t)
	r, out, err := posix.Pipe()
	try.OK(t, err)
	p := &pipe{r: r, w: out, most: 64, got: got}
	try.OK(t, poller.Add(p.r, p))
	t.Cleanup(func() {
		poller.Remove(p.r)
		e.Close()
		posix.Close(p.r)
		posix.Close(p.w)
	})
	return e, w, p
}

func newWaiter(e *Engine) *Waiter {
	w := &Waiter{}
	w.Init(e)
	return w
}

// listed returns a parked waiter that would make progress.
func listed(e *Engine) *Waiter {
	w := newWaiter(e)
	w.state.Store(parked)
	e.parking.list(w)
	return w
}

// isDriven reports whether a goroutine has the token.
func (e *Engine) isDriven() bool {
	if e.token.TryLock() {
		e.token.Unlock()
		return false
	}
	return true
}

// With spin.Never a waiter sleeps for each event, with spin.Always for hardly any. With
// spin.Adaptive a waiter sleeps if the event is long in coming, and therefore later polls for a
// shorter time.
//
// Promise (Waiting): A waiting goroutine polls as configured: never, always, or where that pays and
// no other goroutine wants the processor. See also dispatch/internal/spin: TestSpin.
func TestPolicies(t *testing.T) {
	const rounds = 20
	for name, policy := range map[string]spin.Policy{"never": spin.Never, "adaptive": spin.Adaptive, "always": spin.Always} {
		t.Run(name, func(t *testing.T) {
			var w *Waiter
			e, _, p := polling(t, policy, 0, func() { w.Fire() })
			// A round in which the machine keeps a goroutine from running counts other sleeps.
			eventually.True(t, "a round with as many sleeps as the policy says", func() bool {
				slept := func() uint64 { return e.count.Sleeps.Load() + e.Woken() }
				before := slept()
				for range rounds {
					w = newWaiter(e)
					late := time.AfterFunc(2*time.Millisecond, func() { p.write(t, 1) })
					try.Check(t, e.Wait(context.Background(), w))
					late.Stop()
				}
				if policy == spin.Always {
					return slept()-before <= rounds/2
				}
				return slept()-before >= rounds
			})
			if policy == spin.Adaptive && !e.oneP && !e.spin.IsCrowded() && e.spin.Spin() > spin.DefaultBudget/2 {
				t.Errorf("polls for %v though events come after 2 ms", e.spin.Spin())
			}
		})
	}
}

// If other goroutines have the processors, an adaptive waiter no longer polls. It sleeps long
// before its budget is used up, and the waiters after it sleep at once.
func TestCrowded(t *testing.T) {
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(2))
	e, _, _ := polling(t, spin.Adaptive, time.Second, func() {})
	var done atomic.Bool
	var busy sync.WaitGroup
	for range 4 {
		busy.Go(func() {
			for x := 1; !done.Load() && x != 0; x = x*5 | 1 {
			}
		})
	}
	defer busy.Wait()
	defer done.Store(true)
	for range 20 { // several tries: a thread may be woken for a goroutine that computes just as the waiter yields
		ctx, end := context.WithTimeout(context.Background(), time.Second/2)
		err := e.Wait(ctx, newWaiter(e))
		end()
		if !errors.Is(err, context.DeadlineExceeded) {
			t.Fatal(err)
		}
		e.Lock()
		isCrowded := e.spin.IsCrowded()
		e.Unlock()
		if isCrowded {
			return
		}
	}
	t.Error("no waiter let other goroutines run")
}

// The keeper acknowledges what other goroutines have read and left: after a Poll, and while a
// waiter polls without end.
func TestKeeperAcknowledges(t *testing.T) {
	var owes atomic.Pointer[Engine]
	e, w, p := polling(t, spin.Always, 0, func() { owes.Load().OweAck() })
	owes.Store(e)
	acknowledged := func(what string, read func()) {
		t.Helper()
		before := w.acks.Load()
		p.write(t, 1)
		read()
		eventually.True(t, what, func() bool { return w.acks.Load() > before })
	}
	for range 5 {
		eventually.True(t, "the keeper is parked", e.keeper.isParked.Load)
		acknowledged("acknowledged after a Poll", func() { e.Poll(true) })
	}
	eventually.True(t, "the keeper is parked", e.keeper.isParked.Load)
	ctx, cancel := context.WithCancel(context.Background())
	var waits sync.WaitGroup
	waits.Go(func() { _ = e.Wait(ctx, newWaiter(e)) })
	eventually.True(t, "it polls", e.isDriven)
	acknowledged("acknowledged while a waiter polls", func() {})
	cancel()
	waits.Wait()
}

// An acknowledgement that cannot be written is tried again until it can.
func TestStuckAcknowledgement(t *testing.T) {
	var owes atomic.Pointer[Engine]
	e, w, p := polling(t, spin.Never, 0, func() { owes.Load().OweAck() })
	owes.Store(e)
	w.isStuck.Store(true)
	p.write(t, 1)
	eventually.True(t, "the keeper has tried", func() bool { return e.OwesAck() && !e.keeper.isParked.Load() })
	w.isStuck.Store(false)
	eventually.True(t, "acknowledged", func() bool { return w.acks.Load() == 1 })
}

// The keeper reads what a waiter has left unread.
func TestLeftUnread(t *testing.T) {
	const n = 1000
	var w *Waiter
	var read atomic.Int32
	e, _, p := polling(t, spin.Adaptive, 0, func() {
		if read.Add(1)%n == 1 {
			w.Fire()
		}
	})
	p.most = 10
	for round := range int32(5) {
		eventually.True(t, "the keeper is parked", e.keeper.isParked.Load)
		w = newWaiter(e)
		p.write(t, n)
		try.Check(t, e.Wait(context.Background(), w))
		eventually.True(t, "all is read", func() bool { return read.Load() == (round+1)*n })
	}
}

// The goroutine that polls writes what has been queued: everything before it polls, and calls while
// it polls. The keeper writes what was left to a token holder that does not come to it.
func TestWrites(t *testing.T) {
	e, w, _ := polling(t, spin.Always, 0, func() {})
	eventually.True(t, "the keeper writes", func() bool { return w.defers.Load() > 0 })
	e.Paced.Add(1)
	ctx, cancel := context.WithCancel(context.Background())
	var waits sync.WaitGroup
	waits.Go(func() { _ = e.Wait(ctx, newWaiter(e)) })
	eventually.True(t, "calls are written", func() bool { return w.flushes.Load() > 0 && w.calls.Load() > 1 })
	cancel()
	waits.Wait()
}

// However waits end, no goroutine remains counted as woken: goroutines that poll would give way to
// it.
func TestWokenAreCounted(t *testing.T) {
	for _, policy := range []spin.Policy{spin.Never, spin.Adaptive} {
		e, _, p := polling(t, policy, 0, func() {})
		var all sync.WaitGroup
		for g := range uint64(8) {
			all.Go(func() {
				random := rand.New(rand.NewPCG(1, g))
				for range 100 {
					w := newWaiter(e)
					ctx, cancel := context.WithCancel(context.Background())
					if random.IntN(2) == 0 {
						time.AfterFunc(time.Duration(random.IntN(200))*time.Microsecond, cancel)
					}
					isFired := make(chan bool)
					time.AfterFunc(time.Duration(random.IntN(200))*time.Microsecond, func() {
						_, _ = posix.Write(p.w, []byte{0}) // unless the pipe is full, and readable already
						w.Fire()
						close(isFired)
					})
					if err := e.Wait(ctx, w); err != nil && ctx.Err() == nil {
						t.Error(err)
					}
					cancel()
					<-isFired
					w.Reset()
				}
			})
		}
		all.Wait()
		if n := e.parking.woken(); n != 0 {
			t.Errorf("%d goroutines are counted as woken", n)
		}
		if n := e.parking.wants.Load(); n != 0 {
			t.Errorf("%d waiters are in the list", n)
		}
	}
}

// The token is offered to a waiter that is still parked, not to a waiter that has been fired.
func TestTokenIsOfferedToParked(t *testing.T) {
	e, _ := newEngine(spin.Adaptive, 0)
	waits, isFired := listed(e), listed(e) // the last one is the first in the list
	isFired.Fire()
	e.parking.offerToken()
	if len(waits.ch) != 1 || e.parking.wants.Load() != 0 {
		t.Error("the parked waiter has not been offered the token, or waiters are in the list")
	}
	e.endPark(isFired)
	e.endPark(waits)
	if n := e.parking.woken(); n != 0 {
		t.Errorf("%d goroutines are counted as woken", n)
	}
}

// A goroutine that gives way parks until the last woken goroutine has run. Meanwhile the token is
// offered to no other waiter.
func TestParkForWoken(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e, _ := newEngine(spin.Adaptive, 0)
		other, first, second := listed(e), listed(e), listed(e)
		for _, w := range []*Waiter{first, second} {
			w.Fire()
			e.parking.unlist(w)
		}
		poller := newWaiter(e)
		returned := false
		go func() { e.parkForWoken(nil, poller); returned = true }()
		synctest.Wait()
		e.endPark(first)
		synctest.Wait()
		if returned || len(other.ch) != 0 {
			t.Error("the token was offered before all woken goroutines had run")
		}
		e.endPark(second)
		synctest.Wait()
		if !returned || poller.isFired() || e.parking.woken() != 0 || e.parking.pollerParked.Load() {
			t.Error("the poller has not returned, or goroutines are counted as woken")
		}
	})
}

// Without a poller a waiter parks, and returns as its event happens or its context ends.
func TestWaitsWithoutPoller(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e, _ := newEngine(spin.Adaptive, 0)
		w := newWaiter(e)
		cause := errors.New("enough")
		ctx, end := context.WithTimeoutCause(context.Background(), time.Second, cause)
		defer end()
		if err := e.Wait(ctx, w); err != cause {
			t.Errorf("%v, want %v", err, cause)
		}
		time.AfterFunc(time.Second, w.Fire)
		try.Check(t, e.Wait(context.Background(), w))
		w.Reset()
		time.AfterFunc(time.Second, w.nudge)
		time.AfterFunc(2*time.Second, w.Fire)
		start := time.Now()
		try.Check(t, e.Wait(context.Background(), w))
		if d := time.Since(start); d != 2*time.Second {
			t.Errorf("waited for %v", d)
		}
		e.Close()
	})
}

// What ports without a poller have delivered is acknowledged after a tick, again and again until it
// can be.
func TestPortsAreAcknowledged(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e, w := newEngine(spin.Adaptive, 0)
		w.isStuck.Store(true)
		port := e.PortLock()
		port.Lock()
		e.OweAck()
		port.Unlock()
		time.Sleep(5*tick + tick/2)
		w.isStuck.Store(false)
		time.Sleep(tick)
		if w.acks.Load() != 1 || e.OwesAck() {
			t.Error("nothing was acknowledged")
		}
	})
}

// A goroutine that takes the token need not wait for the one that polls or sleeps with it, and that
// one goes on waiting.
func TestLockEndsPolling(t *testing.T) {
	for _, policy := range []spin.Policy{spin.Never, spin.Always} {
		e, _, _ := polling(t, policy, 0, func() {})
		w := newWaiter(e)
		var waits sync.WaitGroup
		waits.Go(func() { try.Check(t, e.Wait(context.Background(), w)) })
		eventually.True(t, "a goroutine has the token, or has parked after that", func() bool { return e.isDriven() || e.parking.wants.Load() > 0 })
		for range 20 {
			eventually.Returns(t, "Lock", e.Lock)
			if e.poller.Load().Asleep() || w.isFired() {
				t.Error("another goroutine polls, or the waiter has been fired")
			}
			e.Unlock()
		}
		w.Fire()
		waits.Wait()
	}
}

// A receiver polls for what comes from within the process for no longer than its budget, also in
// virtual time, and not while there is a connection to poll.
func TestLocalTurn(t *testing.T) {
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(2))
	synctest.Test(t, func(t *testing.T) {
		e, _ := newEngine(spin.Adaptive, 0)
		turn, begins := e.BeginLocal()
		if !begins {
			t.Fatal("it does not poll")
		}
		if _, begins := e.BeginLocal(); begins {
			t.Error("two goroutines poll")
		}
		for turn.GoesOn(nil) {
		}
		turn.End(false)
		if turn, begins = e.BeginLocal(); !begins {
			t.Fatal("it does not poll again")
		}
		ended := make(chan struct{})
		close(ended)
		if turn.GoesOn(ended) {
			t.Error("it polls on for a receiver that has given up")
		}
		turn.End(true)
		e.Paced.Add(1)
		if _, begins := e.BeginLocal(); begins {
			t.Error("it polls while something is queued")
		}
	})
	e, _, _ := polling(t, spin.Adaptive, 0, func() {})
	if _, begins := e.BeginLocal(); begins {
		t.Error("it polls beside a connection")
	}
}

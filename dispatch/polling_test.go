// SPDX-License-Identifier: Apache-2.0

package dispatch

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/rocl-go/rocl/dispatch/internal/spin"
	"github.com/rocl-go/rocl/internal/testkit/eventually"
	"github.com/rocl-go/rocl/subsys/shm"
	"github.com/rocl-go/rocl/subsys/tcp"
)

// Invalid values of a Polling are refused, and values that are not set have defaults.
func TestPollingCheck(t *testing.T) {
	for _, c := range []struct {
		polling Polling
		procs   int
		next    time.Duration
	}{
		{Polling{}, 1, 0},
		{Polling{}, 2, spin.DefaultBudget},
		{Polling{Budget: time.Millisecond, Pollers: 7}, 2, time.Millisecond},
		{Polling{Policy: PollNever, Pollers: 7}, 8, 0},
		{Polling{Policy: PollAlways}, 1, 1},
	} {
		m := c.polling.machine(c.procs)
		if m.Next() != c.next || m.IsEndless() != (c.polling.Policy == PollAlways) {
			t.Errorf("%+v on %d processors: %v, endless: %v", c.polling, c.procs, m.Next(), m.IsEndless())
		}
		if err := c.polling.Check(); err != nil {
			t.Error(err)
		}
	}
	for _, p := range []Polling{{Policy: 3}, {Budget: -1}, {Budget: MaxBudget + 1}, {Pollers: -1}} {
		if err := p.Check(); !errors.Is(err, ErrPolling) {
			t.Errorf("%+v: %v", p, err)
		}
	}
}

// echoing answers the messages to m until m is closed.
func echoing(t *testing.T, d *Dispatcher, m *Mailbox, to *Dispatcher) {
	t.Helper()
	back, err := d.Flow(to.self, 1)
	if err != nil {
		t.Fatal(err)
	}
	go func() {
		for {
			msg, err := m.Recv(context.Background())
			if err != nil {
				return
			}
			err = back.Send(context.Background(), 1, msg.Tag(), msg.Buffer())
			msg.Release()
			if err != nil {
				return
			}
		}
	}()
}

// pinging sends n messages over f and waits for the answer to each, at m.
func pinging(t *testing.T, d *Dispatcher, f *Flow, m *Mailbox, n int) {
	t.Helper()
	ctx := soon(t)
	for i := range uint64(n) {
		if err := f.Send(ctx, 1, i, buf(t, d, "ping")); err != nil {
			t.Fatal(err)
		}
		msg, err := m.Recv(ctx)
		if err != nil {
			t.Fatalf("answer %d: %v", i, err)
		}
		if msg.Tag() != i {
			t.Fatalf("answer %d in place of %d", msg.Tag(), i)
		}
		msg.Release()
	}
}

// compute starts n goroutines that only compute, until stop.
func compute(n int) (stop func()) {
	var done atomic.Bool
	var busy sync.WaitGroup
	for range n {
		busy.Go(func() {
			for x := 1; !done.Load() && x != 0; x = x*5 | 1 {
			}
		})
	}
	return func() { done.Store(true); busy.Wait() }
}

// On one processor messages come and go beside a goroutine that computes without end, with each
// policy.
//
// Promise (Waiting): On one processor messages pass beside a goroutine that computes without end,
// also over shared memory. See also tests: TestOneProcessor.
func TestOneProcessor(t *testing.T) {
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(1))
	stop := compute(1)
	defer stop()
	for name, tr := range transports() {
		for _, policy := range []PollPolicy{PollNever, PollAdaptive, PollAlways} {
			t.Run(fmt.Sprint(name, " ", policy), func(t *testing.T) {
				w := newWorld()
				how := func(c *Config) { c.Poll.Policy = policy }
				a, b := w.node(t, 1, tr, how), w.node(t, 2, tr, how)
				ma, mb := box(t, a, 1, 0), box(t, b, 1, 0)
				echoing(t, b, mb, a)
				pinging(t, a, flow(t, a, mb), ma, 10)
			})
		}
	}
}

// napping joins two contexts over shared memory that never poll, until the first one sleeps on a
// futex.
func napping(t *testing.T, w *world) (a, b *Dispatcher, ma, mb *Mailbox) {
	t.Helper()
	if runtime.GOMAXPROCS(0) < 2 {
		t.Skip("on one processor no goroutine holds a thread asleep")
	}
	never := func(c *Config) { c.Poll.Policy = PollNever }
	a, b = w.node(t, 1, shm.New(), never), w.node(t, 2, shm.New(), never)
	ma, mb = box(t, a, 1, 0), box(t, b, 1, 0)
	echoing(t, b, mb, a)
	drowse(t, a, ma, flow(t, a, mb))
	return a, b, ma, mb
}

// drowse sends messages over f until a's last sleep was short, so that the next one is a nap.
func drowse(t *testing.T, a *Dispatcher, ma *Mailbox, f *Flow) {
	t.Helper()
	eventually.True(t, "a short sleep", func() bool { return drowsy(t, a, ma, f) })
}

// drowsy sends a few messages over f, and reports whether a's next sleep is a nap.
func drowsy(t *testing.T, a *Dispatcher, ma *Mailbox, f *Flow) bool {
	t.Helper()
	pinging(t, a, f, ma, 20)
	a.progress.Lock()
	defer a.progress.Unlock()
	return a.progress.Poller().Naps()
}

// Most sleeps of two contexts that talk over shared memory are naps, which epoll does not see.
func TestNaps(t *testing.T) {
	a, _, ma, mb := napping(t, newWorld())
	f := flow(t, a, mb)
	var naps uint64
	eventually.True(t, "a hundred naps", func() bool { // other processes may have the machine for a while
		sleeps, polls := a.count.Sleeps.Load(), a.count.Polls.Load()
		pinging(t, a, f, ma, 200)
		if s, p := a.count.Sleeps.Load()-sleeps, a.count.Polls.Load()-polls; s > p {
			naps += s - p
		}
		return naps > 100
	})
}

// A nap is ended by each event that a waiter waits for: a message from a goroutine of its own
// context, the end of its patience, the end of its mailbox, the end of its context, and another
// transport's frames.
//
// Promise (Waiting): A waiting goroutine is woken by every event that concerns it, even if it
// sleeps on a futex. See also TestNapEnds.
func TestNapIsEnded(t *testing.T) {
	recv := func(m *Mailbox, ctx context.Context) chan error {
		done := make(chan error, 1)
		go func() {
			msg, err := m.Recv(ctx)
			if err == nil {
				msg.Release()
			}
			done <- err
		}()
		return done
	}
	asleep := func(t *testing.T, d *Dispatcher) {
		t.Helper()
		looks := 0
		eventually.True(t, "the waiter sleeps", func() bool {
			looks++
			return d.progress.Poller().Asleep() || looks > 200 // it slept between two looks, and is parked
		})
	}
	want := func(t *testing.T, done chan error, want error) {
		t.Helper()
		if err := eventually.Value(t, "the end of a sleep", done); !errors.Is(err, want) {
			t.Errorf("%v, want %v", err, want)
		}
	}
	t.Run("own", func(t *testing.T) {
		a, _, ma, _ := napping(t, newWorld())
		self, err := a.Flow(a.self, 1)
		if err != nil {
			t.Fatal(err)
		}
		done := recv(ma, context.Background())
		asleep(t, a)
		if err := self.Send(soon(t), 1, 1, buf(t, a, "hello")); err != nil {
			t.Fatal(err)
		}
		want(t, done, nil)
	})
	t.Run("cancelled", func(t *testing.T) {
		a, _, ma, _ := napping(t, newWorld())
		ctx, cancel := context.WithCancel(context.Background())
		done := recv(ma, ctx)
		asleep(t, a)
		cancel()
		want(t, done, context.Canceled)
	})
	t.Run("mailbox", func(t *testing.T) {
		a, _, ma, _ := napping(t, newWorld())
		done := recv(ma, context.Background())
		asleep(t, a)
		ma.Close()
		want(t, done, ErrClosed)
	})
	t.Run("close", func(t *testing.T) {
		a, _, ma, _ := napping(t, newWorld())
		done := recv(ma, context.Background())
		asleep(t, a)
		if err := a.Close(soon(t)); err != nil {
			t.Error(err)
		}
		want(t, done, ErrClosed)
	})
	t.Run("peer", func(t *testing.T) { // only a descriptor tells the peer's end
		a, b, _, mb := napping(t, newWorld())
		f := flow(t, a, mb)
		_ = b.Close(soon(t))
		eventually.True(t, "the end is noticed", func() bool {
			err := f.Send(soon(t), 1, 1, buf(t, a, "hello"))
			return errors.Is(err, ErrGone) || errors.Is(err, ErrUnreachable)
		})
	})
	t.Run("tcp", func(t *testing.T) {
		w := newWorld()
		a, _, ma, mb := napping(t, w)
		if err := a.Listen(tcp.New(), ""); err != nil {
			t.Fatal(err)
		}
		w.mu.Lock()
		w.at[a.self] = a.Addrs()
		w.mu.Unlock()
		c := w.node(t, 3, tcp.New())
		m2 := box(t, a, 2, 0)
		to, err := c.Flow(a.self, 2)
		if err != nil {
			t.Fatal(err)
		}
		f := flow(t, a, mb)
		naps := 0
		for range 20 { // beside frames of tcp, only many short sleeps in a row lead to a nap
			if eventually.Within(time.Second, func() bool { return drowsy(t, a, ma, f) }) {
				naps++
			}
			done := recv(m2, soon(t))
			if err := to.Send(soon(t), 1, 1, buf(t, c, "hello")); err != nil {
				t.Fatal(err)
			}
			want(t, done, nil)
		}
		if naps == 0 {
			t.Skip("other processes have the machine: there were no naps")
		}
	})
}

// Connections do not poll for a context that must not, nor where the peer would lack the processor.
func TestSpin(t *testing.T) {
	for _, c := range []struct {
		policy PollPolicy
		procs  int
		spins  bool
	}{{PollAdaptive, 2, true}, {PollAlways, 2, true}, {PollNever, 2, false}, {PollAdaptive, 1, false}, {PollAlways, 1, false}} {
		p := Polling{Policy: c.policy}
		if spins := p.spin(c.procs) > 0; spins != c.spins {
			t.Errorf("%v on %d processors: spins %v", c.policy, c.procs, spins)
		}
	}
}

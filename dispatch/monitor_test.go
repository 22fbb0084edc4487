// SPDX-License-Identifier: Apache-2.0

package dispatch

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"runtime"
	"sync"
	"testing"

	"github.com/rocl-go/rocl/dispatch/internal/credit"
	"github.com/rocl-go/rocl/internal/testkit/eventually"
	"github.com/rocl-go/rocl/internal/testkit/try"
	"github.com/rocl-go/rocl/resource"
	"github.com/rocl-go/rocl/subsys"
	"github.com/rocl-go/rocl/subsys/shm"
	"github.com/rocl-go/rocl/subsys/tcp"
)

var monitorsMost = flag.Int("monitors", 20_000, "monitors of TestManyMonitors")

// monitored returns the identifier of m's resource.
func monitored(m *Mailbox) resource.GID { return m.d.self.WithSerial(m.serial) }

func monitorOf(t testing.TB, m *Mailbox, of resource.GID, tag uint64) (stop func()) {
	t.Helper()
	stop, err := m.Monitor(soon(t), of, tag)
	try.OK(t, err)
	return stop
}

// awaitGone receives a message that says that a resource has ended.
func awaitGone(t testing.TB, m *Mailbox, of resource.GID, tag uint64, sel ...Select) {
	t.Helper()
	msg := try.Get(m.Recv(soon(t), sel...))(t)
	defer msg.Release()
	if !msg.IsGone() || msg.From() != of || msg.Tag() != tag || msg.Len() != 0 {
		t.Fatalf("a message from %v, tag %d, of %d bytes, gone: %v; want the end of %v, tag %d", msg.From(), msg.Tag(), msg.Len(), msg.IsGone(), of, tag)
	}
}

// isEmpty fails the test if a mailbox has a message.
func isEmpty(t testing.TB, m *Mailbox) {
	t.Helper()
	if msg, err := m.TryRecv(); err == nil {
		t.Fatalf("left: a message from %v, tag %d, of %d bytes, gone: %v", msg.From(), msg.Tag(), msg.Len(), msg.IsGone())
	} else if !errors.Is(err, ErrEmpty) {
		t.Fatal(err)
	}
}

// The end of a resource comes behind all that it has sent: large messages that wait in lines as it
// is deleted, and messages over other lanes. That holds also if the monitor is set while it ends,
// or after that.
//
// Promise (Ends): `Monitor` tells by one message, behind the resource's last message, that the
// resource has ended, however it ended and whenever the monitor was set. See also TestMonitor.
func TestMonitorBehindMessages(t *testing.T) {
	const large, small = 16 << 20, 100
	run := func(t *testing.T, a, b *Dispatcher, lane Lane) {
		for round := range uint32(3) {
			mine := box(t, a, 1+round, 256<<20)
			its := box(t, b, 1+round, 0)
			id := monitored(its)
			if round != 1 {
				monitorOf(t, mine, id, 7)
			}
			f := flowOver(t, b, mine, lane)
			for range small {
				try.OK(t, f.SendBytes(soon(t), its.serial, 4, []byte("last words")))
			}
			sizes := []int{10, 20_000, 300_000, large} // the last one waits in a line when Send returns
			for tag, size := range sizes {
				try.OK(t, f.SendBytes(soon(t), its.serial, uint64(tag), make([]byte, size)))
			}
			its.Close()
			if round == 1 {
				monitorOf(t, mine, id, 7)
			}
			for n := 0; ; n++ {
				msg := try.Get(mine.Recv(soon(t)))(t)
				isGone := msg.IsGone()
				msg.Release()
				if isGone {
					if all := small + len(sizes); n != all {
						t.Errorf("round %d: the end came behind %d of %d messages", round, n, all)
					}
					break
				}
			}
			isEmpty(t, mine)
		}
	}
	over(t, transports(), func(t *testing.T, w *world, tr subsys.Transport) {
		run(t, w.node(t, 1, tr), w.node(t, 2, tr), "")
	})
	for _, lane := range []Lane{"", "tcp", "shm"} {
		t.Run(fmt.Sprintf("over %q, neighbours", lane), func(t *testing.T) {
			b, a := both(t)
			run(t, a, b, lane)
		})
		t.Run(fmt.Sprintf("over %q, links", lane), func(t *testing.T) {
			w := newWorld()
			a, b := w.node(t, 1, shm.New()), w.node(t, 2, shm.New())
			w.listenToo(t, a, tcp.New())
			w.listenToo(t, b, tcp.New())
			run(t, a, b, lane)
		})
	}
}

// Senders that wait for credit of a resource are told that it is gone, although a large message
// from it is under way.
//
// Promise (Mailboxes): Senders that wait for credit are told that the resource is gone.
func TestGoneBehindLargeTellsSenders(t *testing.T) {
	w := newWorld()
	a, b := w.node(t, 1, tcp.New()), w.node(t, 2, tcp.New())
	mine, its := box(t, a, 1, 64<<20), box(t, b, 1, FirstCredit)
	failed := make(chan error, 1)
	go func() {
		f, err := a.Flow(b.self, 1)
		for err == nil {
			err = f.SendBytes(context.Background(), 1, 0, make([]byte, 50_000))
		}
		failed <- err
	}()
	take(t, its)
	try.OK(t, flow(t, b, mine).SendBytes(soon(t), 1, 0, make([]byte, 32<<20)))
	its.Close()
	if err := <-failed; !errors.Is(err, ErrGone) {
		t.Fatal(err)
	}
}

// A message that tells of an end is stored even if the mailbox has no room. It is selected like any
// other message.
func TestMonitorFullMailbox(t *testing.T) {
	over(t, transports(), func(t *testing.T, w *world, tr subsys.Transport) {
		a, b := w.node(t, 1, tr), w.node(t, 2, tr)
		mine, its, other := box(t, a, 1, FirstCredit), box(t, b, 1, 0), box(t, b, 2, 0)
		monitorOf(t, mine, monitored(its), 7)
		monitorOf(t, mine, monitored(its), 8) // each monitor has its own tag
		f, ended := flow(t, b, mine), func() context.Context { ctx, cancel := context.WithCancel(soon(t)); cancel(); return ctx }()
		full := 0
		for ctx := soon(t); f.SendBytes(ctx, other.serial, 1, make([]byte, FirstCredit-credit.Overhead)) == nil; full++ {
			ctx = ended // from the second monitor on
		}
		its.Close()
		awaitGone(t, mine, monitored(its), 8, Tag(8))
		awaitGone(t, mine, monitored(its), 7, From(monitored(its)))
		for range full {
			take(t, mine)
		}
		isEmpty(t, mine)
		mine.Close()
	})
}

// The monitors of a resource on itself, on a resource of its own context, and on a resource that is
// closed itself leave nothing.
func TestMonitorWithin(t *testing.T) {
	w := newWorld()
	a := w.node(t, 1, tcp.New())
	m, o := box(t, a, 1, 0), box(t, a, 2, 0)
	monitorOf(t, m, monitored(m), 1)
	monitorOf(t, m, monitored(o), 2)
	monitorOf(t, o, monitored(m), 3)
	try.OK(t, flow(t, a, m).SendBytes(soon(t), o.serial, 9, nil))
	o.Close()
	take(t, m)
	for range 2 { // a message that tells of an end is put back like any other
		msg, err := m.Recv(soon(t))
		if err != nil || !msg.IsGone() {
			t.Fatal("not an end:", err)
		}
		if err := errors.Join(o.PutBack(msg), m.PutBack(msg)); !errors.Is(err, ErrNotReceived) || errors.Is(err, ErrClosed) {
			t.Fatal(err)
		}
		if err := m.PutBack(msg); !errors.Is(err, ErrNotReceived) {
			t.Fatal("twice:", err)
		}
	}
	awaitGone(t, m, monitored(o), 2)
	m.Close()
	if m.monitors.First() != nil || o.monitors.First() != nil {
		t.Error("closed mailboxes have monitors")
	}
	try.Fails(m.Monitor(soon(t), monitored(o), 1))(t, ErrClosed)
}

// No reference remains to a monitor with a closed mailbox, to a stopped monitor, or to a monitor
// whose context ends.
func TestMonitorIsForgotten(t *testing.T) {
	w := newWorld()
	a, b := w.node(t, 1, tcp.New()), w.node(t, 2, tcp.New())
	its := box(t, b, 1, 0)
	one, two, three := box(t, a, 1, 0), box(t, a, 2, 0), box(t, a, 3, 0)
	monitorOf(t, one, monitored(its), 1)
	stop := monitorOf(t, two, monitored(its), 1)
	ctx, cancel := context.WithCancel(context.Background())
	try.OK(t, errOf(three.Monitor(ctx, monitored(its), 1)))
	one.Close()
	stop()
	stop()
	cancel()
	try.Fails(three.Monitor(ctx, monitored(its), 1))(t, context.Canceled)
	l := try.Get(a.link(b.self))(t)
	eventually.True(t, "the link has no endings", locked(&l.mu, func() bool { return len(l.endings) == 0 }))
	its.Close()
	ended, _ := onEnd(t, flow(t, a, its)) // behind any other message that would come
	awaitEnd(t, ended, ErrGone)
	isEmpty(t, two)
	isEmpty(t, three)
}

// If a monitor is stopped as the resource ends, one message comes or none, and none after stop has
// returned.
//
// Promise (Ends): The message of a monitor comes once, even into a full mailbox, and never after
// `stop` has returned. See also TestMonitorFullMailbox.
func TestMonitorStopRaces(t *testing.T) {
	over(t, transports(), func(t *testing.T, w *world, tr subsys.Transport) {
		a, b := w.node(t, 1, tr), w.node(t, 2, tr)
		mine := box(t, a, 1, 0)
		reported := 0
		for i := range uint32(300) {
			its := box(t, b, 1+i, 0)
			stop := monitorOf(t, mine, monitored(its), uint64(i))
			var both sync.WaitGroup
			both.Go(its.Close)
			both.Go(func() {
				for range i % 50 { // so that the stop is sometimes early and sometimes late
					runtime.Gosched()
					a.progress.Poll(true)
				}
				stop()
			})
			both.Wait()
			n, _ := mine.Len()
			ended := make(chan error, 1) // when this is reported, all messages have come
			try.OK(t, errOf(a.OnEnd(soon(t), b.self, its.serial, func(err error) { ended <- err })))
			awaitEnd(t, ended, ErrGone)
			if now, _ := mine.Len(); now != n || n > 1 {
				t.Fatalf("%d messages when stop had returned, %d later", n, now)
			}
			if reported += n; n > 0 {
				awaitGone(t, mine, monitored(its), uint64(i))
			}
		}
		t.Logf("reported %d of 300 times", reported)
	})
}

// Monitors need little memory, in this context and at the peer, and no room in the mailbox that
// they watch.
//
// Promise (Ends): A monitor takes at most 500 bytes, and no credit or memory of the monitored
// mailbox. See also TestMonitorIsPromisedNothing.
func TestManyMonitors(t *testing.T) {
	w := newWorld()
	limited := func(c *Config) { c.Mailbox = 1 << 20 }
	a, b := w.node(t, 1, tcp.New()), w.node(t, 2, tcp.New(), limited)
	const boxes = 100
	var its [boxes]*Mailbox
	for i := range its {
		its[i] = box(t, b, uint32(1+i), 0)
	}
	mine := box(t, a, 1, 0)
	heap := func() int64 {
		var s runtime.MemStats
		runtime.GC()
		runtime.ReadMemStats(&s)
		return int64(s.HeapAlloc)
	}
	before := heap()
	stops := make([]func(), *monitorsMost)
	for i := range stops {
		var err error
		if stops[i], err = mine.Monitor(context.Background(), monitored(its[i%boxes]), uint64(i)); err != nil {
			t.Fatal(err)
		}
	}
	per := (heap() - before) / int64(len(stops))
	t.Logf("%d bytes a monitor", per)
	if per > 500 {
		t.Errorf("%d bytes a monitor", per)
	}
	for i, stop := range stops {
		if i%2 == 0 {
			stop()
		}
	}
	for i := range its {
		its[i].Close()
	}
	seen := make([]bool, len(stops))
	for range len(stops) / 2 {
		msg := try.Get(mine.Recv(soon(t)))(t)
		i := msg.Tag()
		if !msg.IsGone() || seen[i] || i%2 == 0 || msg.From() != monitored(its[i%boxes]) {
			t.Fatalf("the end of %v, tag %d", msg.From(), i)
		}
		seen[i] = true
		msg.Release()
	}
	isEmpty(t, mine)
}

// A context that only waits for the end of a resource is promised nothing of its mailbox. Messages
// that it sends later arrive all the same, small and large.
func TestMonitorIsPromisedNothing(t *testing.T) {
	over(t, links(), func(t *testing.T, w *world, tr subsys.Transport) {
		b := w.node(t, 99, tr)
		its := box(t, b, 1, 1<<20)
		var all [8]*Dispatcher
		for i := range all {
			all[i] = w.node(t, uint64(1+i), tr)
			monitorOf(t, box(t, all[i], 1, 0), monitored(its), 1)
			ended, _ := onEnd(t, func() *Flow { f, _ := all[i].Flow(b.self, 77); return f }())
			awaitEnd(t, ended, ErrGone) // now the account is open
		}
		its.mu.Lock()
		promise := its.credit.Promised()
		flows, window := its.credit.Share()
		its.mu.Unlock()
		if promise != 0 || flows != 0 || window != 1<<20 {
			t.Errorf("%d contexts that monitor: %d bytes are promised, %d send, and the window is %d", len(all), promise, flows, window)
		}
		for i, size := range []int{0, FirstCredit - credit.Overhead, 100_000, 600_000, 3 << 20} {
			exchange(t, all[i], its, 1, size)
		}
		its.Close()
		for _, a := range all {
			awaitGone(t, a.mailbox(1), monitored(its), 1)
		}
	})
}

// The end of a context is reported behind what its other lanes carry.
func TestMonitorContextEndsOverLanes(t *testing.T) {
	for _, lane := range []Lane{"tcp", "shm"} {
		t.Run(string(lane), func(t *testing.T) {
			b, a := both(t)
			mine, second, its := box(t, a, 1, 64<<20), box(t, a, 2, 64<<20), box(t, b, 1, 0)
			monitorOf(t, mine, monitored(its), 7)
			const each = 50
			for i := range each {
				for _, f := range []*Flow{flowOver(t, b, mine, lane), flowOver(t, b, second, "tcp,shm")} {
					for tag, size := range []int{10, 200_000} {
						if err := f.SendBytes(soon(t), 1, uint64(tag), make([]byte, size)); err != nil {
							t.Fatal(i, err)
						}
					}
				}
			}
			closed := make(chan error, 1)
			go func() { closed <- b.Close(soon(t)) }()
			for range 2 * each {
				msg, err := mine.Recv(soon(t))
				if err != nil || msg.IsGone() {
					t.Fatal("too early:", err)
				}
				msg.Release()
			}
			awaitGone(t, mine, monitored(its), 7)
			if n, _ := second.Len(); n != 2*each {
				t.Errorf("the other lane has delivered %d messages", n)
			}
			try.OK(t, <-closed)
		})
	}
}

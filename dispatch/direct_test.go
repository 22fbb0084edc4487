// SPDX-License-Identifier: Apache-2.0

package dispatch

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/rocl-go/rocl/dispatch/internal/credit"
	"github.com/rocl-go/rocl/internal/testkit/eventually"
	"github.com/rocl-go/rocl/internal/testkit/try"
	"github.com/rocl-go/rocl/resource"
	"github.com/rocl-go/rocl/subsys/inproc"
	"github.com/rocl-go/rocl/subsys/tcp"
)

// A message within the process lies in its sender's buffer, and needs none of the receiver's
// memory. A context with bounded memory may send itself messages that fill most of it.
//
// Promise (Memory): A message within the process takes none of the receiver's memory. Only the
// mailbox's limit bounds it. See also TestOwnMailboxesReserveNothing.
func TestOwnMessageNeedsNoMemory(t *testing.T) {
	d := newWorld().node(t, 1, inproc.NewNetwork().Transport(), small(16<<20))
	mb := box(t, d, 1, 0)
	f := flow(t, d, mb)
	received := make(chan error, 1)
	go func() {
		msg, err := mb.Recv(soon(t))
		if err == nil {
			msg.Release()
		}
		received <- err
	}()
	b := try.Get(d.cfg.Pool.Get(9 << 20))(t)
	try.OK(t, f.Send(soon(t), 1, 0, b))
	try.OK(t, <-received)
}

// Messages that may still come within the process have no memory reserved, for any number of
// resources. The reserve for messages over links is given back when the mailboxes are closed.
func TestOwnMailboxesReserveNothing(t *testing.T) {
	const memory, mailboxes = 8 << 20, 64
	d := newWorld().node(t, 1, inproc.NewNetwork().Transport(), small(memory))
	var boxes []*Mailbox
	for i := range uint32(mailboxes) {
		mb := box(t, d, 1+i, 0)
		try.OK(t, flow(t, d, mb).SendBytes(soon(t), 1, 0, []byte("x")))
		if i%2 == 0 {
			take(t, mb)
		}
		boxes = append(boxes, mb)
	}
	if n := d.budget.Promised(); n != 0 {
		t.Errorf("%d bytes of the memory are promised", n)
	}
	available := func() {
		t.Helper()
		b := try.Get(d.cfg.Pool.Get(memory / 8 * 7 / 2))(t)
		b.Release()
	}
	available()
	for _, mb := range boxes[:4] {
		together(t, mb, 4<<10, "over", "a", "link") // beside the context's own messages
	}
	if n := d.budget.Promised(); n != 4*FirstCredit {
		t.Errorf("%d bytes of the memory are promised to four links", n)
	}
	for _, mb := range boxes {
		mb.Close()
	}
	if n := d.budget.Promised(); n != 0 {
		t.Errorf("%d bytes of the memory are promised by closed mailboxes", n)
	}
	available()
}

// A sender within the process with a message that exceeds the mailbox's limit does not take the one
// grant beyond the budget, which contexts of other processes wait for.
func TestOwnMessageLeavesTheBudget(t *testing.T) {
	d := newWorld().node(t, 1, inproc.NewNetwork().Transport(), small(8<<20))
	mb := box(t, d, 1, FirstCredit)
	try.OK(t, flow(t, d, mb).Send(soon(t), 1, 0, buf(t, d, string(make([]byte, 1<<20)))))
	mb.mu.Lock()
	defer mb.mu.Unlock()
	if oversized(mb) == nil || d.budget.Oversize() != nil {
		t.Errorf("the mailbox's grant is %v, the budget's %v", oversized(mb), d.budget.Oversize())
	}
}

// Goroutines of one context that wait for credit with large messages get it one at a time. The
// mailbox stores one message beyond its limit, not one of each goroutine.
func TestLimitOfManyGoroutines(t *testing.T) {
	synctest.Test(t, testLimitOfManyGoroutines)
}

func testLimitOfManyGoroutines(t *testing.T) {
	const large, senders = 2 << 20, 6
	w, tr := newWorld(), inproc.NewNetwork().Transport()
	a, b := w.node(t, 1, tr), w.node(t, 2, tr)
	mb := box(t, b, 1, 1<<20)
	f := flow(t, a, mb)
	try.OK(t, f.SendBytes(soon(t), 1, 0, []byte("keeps large ones out")))
	sent := make(chan error, senders)
	for i := range senders {
		go func() { sent <- f.Send(soon(t), 1, uint64(1+i), buf(t, a, string(make([]byte, large)))) }()
	}
	synctest.Wait() // the senders wait
	take(t, mb)
	for i := range senders {
		synctest.Wait()
		if n, stored := mb.Len(); n != 1 || stored != credit.Charge(large) {
			t.Fatalf("message %d: %d messages, %d bytes are stored", i, n, stored)
		}
		take(t, mb)
	}
	for range senders {
		try.Check(t, <-sent)
	}
}

// A Send that fails has delivered nothing, and its buffer stays the caller's. A Send that returns
// nil has delivered, even if its context ends at that moment.
func TestSendAsContextEnds(t *testing.T) {
	const rounds, size = 300, FirstCredit
	w, tr := newWorld(), inproc.NewNetwork().Transport()
	a, b := w.node(t, 1, tr), w.node(t, 2, tr)
	mb := box(t, b, 1, FirstCredit)
	f := flow(t, a, mb)
	accepted := 0
	for i := range uint64(rounds) {
		if err := f.SendBytes(soon(t), 1, 0, make([]byte, size/2)); err != nil { // the next message waits for it
			t.Fatal(err)
		}
		ctx, cancel := context.WithCancel(t.Context())
		p := buf(t, a, string(make([]byte, size)))
		p.Retain()
		sent := make(chan error, 1)
		go func() { sent <- f.Send(ctx, 1, 1+i, p) }()
		eventually.True(t, "the sender", func() bool { return hasWaiters(f) })
		cancel()
		time.Sleep(time.Duration(i%8) * 5 * time.Microsecond) // the moment of the receive varies
		take(t, mb, Tag(0))
		err := <-sent
		n, _ := mb.Len()
		switch {
		case err == nil && n == 1:
			accepted++
			take(t, mb, Tag(1+i))
			if refs := p.Refs(); refs != 1 {
				t.Fatalf("a delivered buffer has %d references", refs)
			}
		case errors.Is(err, context.Canceled) && n == 0:
			if refs := p.Refs(); refs != 2 {
				t.Fatalf("the buffer of a message that was not sent has %d references", refs)
			}
			p.Release()
		default:
			t.Fatalf("Send: %v, and %d messages are stored", err, n)
		}
		p.Release()
	}
	t.Logf("%d of %d were delivered", accepted, rounds)
}

// A message to a context that closes fails with ErrGone, as a message to any resource that no
// longer exists does: ErrClosed is for the sender's own context. The route to that context is not
// remembered.
func TestSendToClosing(t *testing.T) {
	w, tr := newWorld(), inproc.NewNetwork().Transport()
	a, b := w.node(t, 1, tr), w.node(t, 2, tr)
	closing := func(is bool) {
		b.mu.Lock()
		defer b.mu.Unlock()
		b.closing = is
	}
	ctx := soon(t)
	one, other := box(t, b, 1, 0), box(t, b, 2, 0)
	f := flow(t, a, one)
	exchange(t, a, one, 1, 10)
	closing(true)
	isGone := func(what string, err error) {
		t.Helper()
		if !errors.Is(err, ErrGone) || errors.Is(err, ErrClosed) {
			t.Errorf("%s to a context that closes: %v", what, err)
		}
	}
	g, err := a.Flow(b.self, other.serial)
	if err == nil {
		err = g.SendBytes(ctx, 1, 1, []byte("hello"))
	}
	if n, _ := other.Len(); n == 0 {
		isGone("the first message", err)
	}
	closing(false)
	third := box(t, b, 3, 0)
	exchange(t, a, third, 1, 10) // counted, though the message before failed
	exchange(t, a, third, 1, 10)
	if all := a.Routes(); len(all) != 1 || all[0].Sent != 2 {
		t.Errorf("%+v", all)
	}
	b.Close(ctx)
	isGone("a later message", f.SendBytes(ctx, 1, 1, []byte("hello")))
	a.Close(ctx)
	try.Fails(f.SendBytes(ctx, 1, 1, []byte("hello")))(t, ErrClosed, "a message of a closed context")
}

// A stopLog is a log handler that blocks at the first line with a text.
type stopLog struct {
	slog.Handler
	text          string
	reached, pass chan struct{}
	once          *sync.Once
}

func (g stopLog) Enabled(context.Context, slog.Level) bool { return true }

func (g stopLog) Handle(_ context.Context, r slog.Record) error {
	if r.Message == g.text {
		g.once.Do(func() {
			close(g.reached)
			<-g.pass
		})
	}
	return nil
}

// No report comes after Close has returned: Close waits for the reports that another context of the
// process is about to make.
func TestReportBeforeClose(t *testing.T) {
	synctest.Test(t, testReportBeforeClose)
}

func testReportBeforeClose(t *testing.T) {
	w, tr := newWorld(), inproc.NewNetwork().Transport()
	g := stopLog{slog.DiscardHandler, "dispatch: undelivered", make(chan struct{}), make(chan struct{}), new(sync.Once)}
	var isClosed, isLate atomic.Bool
	reported := make(chan struct{}, 1)
	a := w.node(t, 1, tr, func(c *Config) {
		c.Logger = slog.New(g)
		c.Undelivered = func(Undelivered) {
			isLate.Store(isClosed.Load())
			reported <- struct{}{}
		}
	})
	b := w.node(t, 2, tr)
	mb := box(t, b, 1, 0)
	try.OK(t, flow(t, a, mb).SendBytes(soon(t), 1, 0, []byte("unread")))
	go mb.Close()
	<-g.reached
	closed := make(chan struct{})
	go func() {
		a.Close(soon(t))
		isClosed.Store(true)
		close(closed)
	}()
	synctest.Wait()
	select {
	case <-closed:
		t.Error("closed beside a report that is being made")
	default:
	}
	close(g.pass)
	<-closed
	<-reported
	if isLate.Load() {
		t.Error("a report came after Close")
	}
}

// A context that closes as it sends its first message to another context is not kept by that
// context.
func TestClosedAtFirstMessage(t *testing.T) {
	w, tr := newWorld(), inproc.NewNetwork().Transport()
	a, b := w.node(t, 1, tr), w.node(t, 2, tr)
	mb := box(t, b, 1, 0)
	o, _ := a.neighbour(linkKey{peer: b.self})
	locked, goOn := make(chan struct{}), make(chan struct{})
	go func() {
		b.mu.Lock() // the passage gets this far
		close(locked)
		<-goOn
		b.mu.Unlock()
	}()
	<-locked
	made := make(chan *passageEnd, 1)
	go func() { made <- a.passage(o) }()
	eventually.True(t, "the passage at its sender", func() bool { return a.Linked(b.self) })
	a.mu.Lock() // as Close does
	a.closing = true
	clear(a.passages.byPeer)
	a.mu.Unlock()
	close(goOn)
	if p := <-made; p != nil {
		t.Error("a closed context has a passage")
	}
	if b.Linked(a.self) {
		t.Error("a context that is closed is kept by another one")
	}
	a.mu.Lock()
	a.closing = false
	a.mu.Unlock()
	exchange(t, a, mb, 1, 10)
}

// Routes shows once what messages have gone over. A lane within the process beside a common link
// over TCP is one route, and the link is another.
func TestRoutesOfLaneWithinProcess(t *testing.T) {
	w, near := newWorld(), inproc.NewNetwork().Transport()
	a, b := w.node(t, 1, tcp.New()), w.node(t, 2, tcp.New())
	w.listenToo(t, a, near)
	w.listenToo(t, b, near)
	one, other := box(t, b, 1, 0), box(t, b, 2, 0)
	for range 3 {
		exchange(t, a, one, 1, 10)
		exchangeOver(t, a, other, "inproc", 1, 10)
	}
	for _, d := range []*Dispatcher{a, b} {
		if all := d.Routes(); len(all) != 2 || all[0].Transport != "inproc" || all[1].Transport != "tcp" {
			t.Errorf("routes of %v: %+v", d.self, all)
		}
		if n := d.Stats().Links; n != 2 {
			t.Errorf("%d links of %v", n, d.self)
		}
	}
}

// Both ends of a route within the process count in one place, whichever side sends first. The other
// context learns once that this one has ended.
func TestPassages(t *testing.T) {
	for _, first := range []int{0, 1} {
		w, near := newWorld(), inproc.NewNetwork().Transport()
		var ended [2]atomic.Int32
		var d [2]*Dispatcher
		for i := range d {
			d[i] = w.node(t, uint64(1+i), near, func(c *Config) { c.Ended = func(resource.GID) { ended[i].Add(1) } })
		}
		from, to := d[first], d[1-first]
		mf, mt := box(t, from, 1, 0), box(t, to, 1, 0)
		exchange(t, from, mt, 1, 10)
		exchange(t, from, mt, 1, 10)
		exchange(t, to, mf, 1, 30)
		routes := func(d *Dispatcher) (s string) {
			for _, r := range d.Routes() {
				s += fmt.Sprintf("%v %d/%d %d/%d;", r.Peer, r.Sent, r.SentBytes, r.Received, r.ReceivedBytes)
			}
			return s
		}
		if got, want := routes(from), fmt.Sprintf("%v 2/20 1/30;", to.self); got != want {
			t.Errorf("at the sender %s, want %s", got, want)
		}
		if got, want := routes(to), fmt.Sprintf("%v 1/30 2/20;", from.self); got != want {
			t.Errorf("at the receiver %s, want %s", got, want)
		}
		from.Close(soon(t))
		if n := ended[1-first].Load(); n != 1 {
			t.Errorf("reported %d times that a context has ended", n)
		}
		for _, d := range d {
			if s := d.Stats(); s.Links != 0 || s.Sent["inproc"]+s.Received["inproc"] != 3 || s.SentBytes+s.ReceivedBytes != 50 {
				t.Errorf("after the end: %+v", s)
			}
		}
	}
}

// Nothing is copied for an empty message.
func TestNoCopyOfNothing(t *testing.T) {
	d := newWorld().node(t, 1, inproc.NewNetwork().Transport())
	mb := box(t, d, 1, 0)
	exchange(t, d, mb, 1, 0)
	if n := d.Stats().Copies; n != 0 {
		t.Errorf("%d copies", n)
	}
}

// Contexts that send each other their first messages at once agree on the ends that count them.
func TestFirstMessagesAtOnce(t *testing.T) {
	w, near := newWorld(), inproc.NewNetwork().Transport()
	const contexts, goroutines = 4, 3
	var ds []*Dispatcher
	var boxes []*Mailbox
	for i := range uint64(contexts) {
		ds = append(ds, w.node(t, 1+i, near))
		boxes = append(boxes, box(t, ds[i], 1, 0))
	}
	var wg sync.WaitGroup
	for i, from := range ds {
		for _, to := range boxes {
			for range goroutines {
				wg.Go(func() {
					try.Check(t, flow(t, from, to).SendBytes(soon(t), uint32(1+i), 0, []byte("hello")))
				})
			}
		}
	}
	wg.Wait()
	for _, d := range ds {
		all := d.Routes()
		if len(all) != contexts-1 {
			t.Errorf("%d routes", len(all))
		}
		for _, r := range all {
			if r.Sent != goroutines || r.Received != goroutines {
				t.Errorf("%v: %+v", d.self, r)
			}
		}
	}
}

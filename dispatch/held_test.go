// SPDX-License-Identifier: Apache-2.0

package dispatch

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"testing"
	"time"

	"github.com/rocl-go/rocl/buffers"
	"github.com/rocl-go/rocl/dispatch/internal/wire"
	"github.com/rocl-go/rocl/internal/testkit/eventually"
	"github.com/rocl-go/rocl/internal/testkit/try"
	"github.com/rocl-go/rocl/resource"
	"github.com/rocl-go/rocl/subsys"
	"github.com/rocl-go/rocl/subsys/tcp"
)

// This file has tests of messages that were taken over by the successor of a link, beside the other
// things that can happen to a message.

// An heirWorld is two contexts. The link of b with a leaves messages to its successor.
type heirWorld struct {
	w    *world
	hole *relay // between them, until succeed
	a, b *Dispatcher
	mine *Mailbox // of b

	hasParted bool
	l         *link // of b
	reports   chan Undelivered
}

func newHeirWorld(t *testing.T, change ...func(*Config)) *heirWorld {
	w := newWorld()
	h := &heirWorld{w: w, reports: make(chan Undelivered, 10)}
	h.a = w.node(t, 1, tcp.New(), append(change, unreported(t))...)
	h.b = w.node(t, 2, tcp.New(), func(c *Config) { c.Undelivered = func(u Undelivered) { h.reports <- u } })
	h.mine = box(t, h.b, 1, 0)
	h.hole = newRelay(t, h.a.Addrs()[0], 1<<62, 0)
	h.leads("tcp://" + h.hole.ln.Addr().String())
	return h
}

// leads sets the address of a.
func (h *heirWorld) leads(addrs ...string) {
	h.w.mu.Lock()
	defer h.w.mu.Unlock()
	h.w.at[h.a.self] = addrs
}

// flow returns the flow of b to a mailbox of a that has got a message.
func (h *heirWorld) flow(t *testing.T, to *Mailbox) *Flow {
	t.Helper()
	talk(t, h.b, h.a, to, 1)
	f := flow(t, h.b, to)
	eventually.True(t, "the link is idle", f.idle)
	h.l = f.l
	return f
}

// push adds messages of n bytes to f, as if they had been sent with the given tags and purpose.
func (f *Flow) push(n int, why purpose, tags ...uint64) {
	for _, tag := range tags {
		hd := subsys.Header{Type: wire.TypeData, Flags: why.flags(), Dst: f.dst, Src: 1, Tag: tag, Len: uint32(n)}
		m := &subsys.Frame{Header: hd, Data: make([]byte, n)}
		switch {
		case f.l.s.Splits(n):
			m.Buf = f.l.d.cfg.Pool.Borrow(new(buffers.Buffer), m.Data, returned{})
			f.l.s.Queue(&f.line, m, why.call)
		case why.call != 0:
			f.l.putLocked(wire.TypeCall, f.dst, 1, why.call)
			f.l.s.PushRequest(m, why.call)
		default:
			f.l.s.Push(m)
		}
	}
}

// part makes a give up the session.
func (h *heirWorld) part(t *testing.T) {
	t.Helper()
	h.hasParted = true
	h.a.eachLink(func(l *link) { l.endLink(ErrUnreachable) })
	eventually.True(t, "the session is given up", func() bool { return h.a.formerOf(linkKey{peer: h.b.self}) != wire.Past{} })
}

// succeed makes the link leave its messages to a successor, which it returns, after push has added
// messages and before has run. None of the messages arrives before that.
func (h *heirWorld) succeed(t *testing.T, push, before func()) *link {
	t.Helper()
	h.hole.swallows.Store(true)
	h.l.mu.Lock()
	past := wire.Past{Session: h.l.life.PeerID(), Have: h.l.s.Next()}
	push()
	h.l.mu.Unlock()
	if before != nil {
		before()
	}
	h.leads(h.a.Addrs()...)
	if !h.hasParted {
		h.part(t)
	}
	h.l.giveUp(fmt.Errorf("%w: of a test", ErrUnreachable), past)
	next := try.Get(h.b.linkOf(h.l.key))(t)
	return next
}

// starts runs flush in a goroutine, and returns when it waits.
func (h *heirWorld) starts(t *testing.T, flush func() error) <-chan error {
	t.Helper()
	done := make(chan error, 1)
	go func() { done <- flush() }()
	eventually.True(t, "Flush waits", locked(&h.l.mu, func() bool { return h.l.behind.First() != nil }))
	return done
}

// Flush and Close do not wait for a message of SendAndForget that the successor holds. Its loss is
// not reported.
func TestHeldForgotten(t *testing.T) {
	h := newHeirWorld(t)
	its := box(t, h.a, 7, FirstCredit)
	f := h.flow(t, its)
	var flushed <-chan error
	next := h.succeed(t, func() {
		f.push(40<<10, purpose{}, 0)
		f.push(40<<10, purpose{isForgotten: true}, 1, 2)
	}, func() { flushed = h.starts(t, func() error { return h.b.Flush(soon(t)) }) })
	for _, err := range []error{<-flushed, h.mine.Flush(soon(t)), h.b.Flush(soon(t), its.d.self.WithSerial(7))} {
		try.Check(t, err, "flush")
	}
	next.mu.Lock()
	held := next.held
	next.mu.Unlock()
	if held != 2 {
		t.Errorf("%d messages are held", held)
	}
	try.Check(t, h.b.Close(soon(t)), "close")
	if len(h.reports) > 0 {
		t.Errorf("reported: %+v", <-h.reports)
	}
}

// A forgotten message that was held is delivered behind the message before it, if there is room.
func TestHeldForgottenArrives(t *testing.T) {
	h := newHeirWorld(t)
	its := box(t, h.a, 7, FirstCredit)
	f := h.flow(t, its)
	h.succeed(t, func() {
		f.push(40<<10, purpose{}, 0)
		f.push(40<<10, purpose{isForgotten: true}, 1)
		f.push(40<<10, purpose{}, 2)
	}, nil)
	for tag := range uint64(3) {
		takeTag(t, its, tag)
	}
	try.Check(t, h.b.Flush(soon(t)))
}

// A Flush that began before the successor took messages over counts each of them once, by target,
// whether it had a number, waited in a line, or is held.
func TestHeldAreCounted(t *testing.T) {
	h := newHeirWorld(t)
	var fs []*Flow
	for serial := range uint32(3) {
		fs = append(fs, h.flow(t, box(t, h.a, 7+serial, FirstCredit)))
	}
	ctx, cancel := context.WithCancel(soon(t))
	defer cancel()
	var flushed, ofTwo <-chan error
	next := h.succeed(t, func() {
		for i, f := range fs {
			f.push(40<<10, purpose{}, 0)
			f.push(40<<10, purpose{isForgotten: true}, 1)
			f.push(40<<10, purpose{}, []uint64{2, 3}[i%2:]...)
		}
		fs[2].push(2<<20, purpose{}, 4, 5)
	}, func() {
		flushed = h.starts(t, func() error { return h.b.Flush(ctx) })
		ofTwo = h.starts(t, func() error { return h.mine.Flush(ctx, fs[0].target(), fs[1].target()) })
	})
	eventually.True(t, "the first messages are acknowledged", locked(&next.mu, func() bool { return next.s.IsIdle() && next.held > 0 }))
	cancel()
	want := map[resource.GID]int{fs[0].target(): 2, fs[1].target(): 1, fs[2].target(): 4}
	for i, done := range []<-chan error{flushed, ofTwo} {
		var fe *FlushError
		if err := <-done; !errors.As(err, &fe) || fe.Undelivered != 0 {
			t.Fatalf("Flush %d: %v; %d reports", i, err, len(h.reports))
		}
		got := map[resource.GID]int{}
		for _, to := range fe.Targets {
			got[to.To] = to.Waiting
		}
		if i == 1 {
			delete(want, fs[2].target())
		}
		if !maps.Equal(got, want) {
			t.Errorf("Flush %d: %v wait, want %v", i, got, want)
		}
	}
	_ = h.b.Close(ended()) // without waiting for what has no room
}

// A Flush that has listed the links before one of them ended waits for what the successor has.
func TestFlushBesideSuccession(t *testing.T) {
	h := newHeirWorld(t)
	f := h.flow(t, box(t, h.a, 7, FirstCredit))
	next := h.succeed(t, func() { f.push(40<<10, purpose{}, 0, 1) }, nil)
	h.l.mu.Lock()
	marks := h.l.underWayLocked(nil, allMessages)
	h.l.mu.Unlock()
	if len(marks) != 1 || marks[0].l != next {
		t.Fatalf("%d watermarks of a link that has a successor", len(marks))
	}
	try.Fails(marks[0].passed(ended(), allMessages))(t, context.Canceled)
	_ = h.b.Close(ended()) // without waiting for what has no room
}

// A Flush that began before the successor took a large message over returns when that is in its
// mailbox, and so does a wait for the acknowledgement of the messages.
func TestFlushOfMovedLarge(t *testing.T) {
	h := newHeirWorld(t)
	its := box(t, h.a, 7, 32<<20)
	f := h.flow(t, its)
	var flushed <-chan error
	h.succeed(t, func() { f.push(8<<20, purpose{}, 0, 1) }, func() {
		h.l.mu.Lock()
		marks := h.l.underWayLocked(nil, allMessages)
		h.l.mu.Unlock()
		flushed = h.starts(t, func() error { return h.b.Flush(soon(t)) })
		defer func() {
			go func() {
				for _, w := range marks {
					_ = w.passed(soon(t), allMessages)
				}
				h.reports <- Undelivered{Tag: 99} // as a mark
			}()
		}()
	})
	try.Check(t, <-flushed)
	if n, _ := its.Len(); n != 2 {
		t.Errorf("Flush returned with %d messages in the mailbox", n)
	}
	if u := <-h.reports; u.Tag != 99 {
		t.Errorf("reported %+v", u)
	}
}

// A request that its caller gives up reaches no receiver, whether the call is given up before the
// request was taken over, or while it is held. The messages behind it go on, and Flush returns.
func TestHeldRequestCancelled(t *testing.T) {
	for _, when := range []string{"before", "held", "on the way"} {
		t.Run(when, func(t *testing.T) {
			h := newHeirWorld(t)
			its := box(t, h.a, 7, FirstCredit)
			f := h.flow(t, its)
			p := try.Get(h.mine.beginCall(soon(t), f, 5, nil))(t)
			cancelled := make(chan struct{})
			cancel := func() {
				ctx := ended()
				try.Fails(p.Wait(ctx))(t, context.Canceled, "the call")
				close(cancelled)
			}
			var flushed <-chan error
			next := h.succeed(t, func() {
				if when != "on the way" {
					f.push(40<<10, purpose{}, 0)
				}
				f.push(40<<10, purpose{call: p.number}, 5)
				f.push(10, purpose{}, 1)
			}, func() {
				flushed = h.starts(t, func() error { return h.b.Flush(soon(t)) })
				if when == "before" {
					cancel()
				}
			})
			if when == "held" {
				eventually.True(t, "the request is held", locked(&next.mu, func() bool { return next.s.IsIdle() && next.held > 0 }))
			}
			if when != "before" {
				cancel()
			}
			<-cancelled
			try.Check(t, <-flushed, "flush")
			// What is sent now comes behind the cancellation.
			try.OK(t, flow(t, h.b, its).SendBytes(soon(t), h.mine.serial, 2, nil))
			try.Check(t, h.b.Flush(soon(t)), "flush")
			var tags []uint64
			for len(tags) == 0 || tags[len(tags)-1] != 2 {
				m, err := its.Recv(soon(t))
				if err != nil {
					t.Fatal(tags, err)
				}
				tags = append(tags, m.Tag())
				m.Release()
			}
			for _, tag := range tags {
				if tag == 5 {
					t.Errorf("the request was received: %v", tags)
				}
			}
			isEmpty(t, its)
			try.Check(t, h.b.Flush(soon(t)), "flush")
			if len(h.reports) > 0 {
				t.Errorf("reported: %+v", <-h.reports)
			}
		})
	}
}

// A message that the successor has taken over, and that the peer's memory never holds any more, is
// reported, or ends its call. The messages behind it go on. Flush says why the message was lost.
func TestHeldTooLarge(t *testing.T) {
	for _, kind := range []string{"message", "request", "forgotten"} {
		t.Run(kind, func(t *testing.T) {
			h := newHeirWorld(t, small(4<<20))
			its := box(t, h.a, 7, 0)
			f := h.flow(t, its)
			const n = 5 << 20
			var why purpose
			var p Pending
			var err error
			switch kind {
			case "request":
				if p, err = h.mine.beginCall(soon(t), f, 5, nil); err != nil {
					t.Fatal(err)
				}
				why.call = p.number
			case "forgotten":
				why.isForgotten = true
			}
			var flushed <-chan error
			h.succeed(t, func() {
				f.push(10, purpose{}, 0)
				f.push(n, why, 5)
				f.push(10, purpose{}, 1)
			}, func() { flushed = h.starts(t, func() error { return h.b.Flush(soon(t)) }) })
			err = <-flushed
			switch kind {
			case "message":
				var fe *FlushError
				if !errors.As(err, &fe) || !errors.Is(err, ErrTooLarge) || fe.Undelivered != 1 || fe.Waiting != 0 {
					t.Errorf("flush: %v", err)
				}
				if u := <-h.reports; u.Tag != 5 || u.Bytes != n || !errors.Is(u.Err, ErrTooLarge) {
					t.Errorf("reported: %+v", u)
				}
			case "request":
				if _, cerr := p.Wait(soon(t)); !errors.Is(cerr, ErrTooLarge) {
					t.Errorf("the call: %v", cerr)
				}
				fallthrough
			default:
				try.Check(t, err, "flush")
			}
			for tag := range uint64(2) {
				takeTag(t, its, tag)
			}
			if len(h.reports) > 0 {
				t.Errorf("reported too: %+v", <-h.reports)
			}
			nothingPromised(t, h.a, its)
		})
	}
}

// A context that has given up a session, and then monitors a resource of the peer anew, is not told
// that the resource is gone when the idle peer, which knows nothing of that, resumes the session.
func TestMonitorAfterGivingUp(t *testing.T) {
	h := newHeirWorld(t)
	its := box(t, h.a, 7, 0)
	h.flow(t, its)
	h.hole.swallows.Store(true)
	h.part(t)
	h.w.mu.Lock()
	here := h.w.at[h.b.self]
	h.w.at[h.b.self] = nil
	h.w.mu.Unlock()
	stop := try.Get(its.Monitor(soon(t), monitored(h.mine), 99))(t)
	defer stop()
	h.leads(h.a.Addrs()...)
	h.hole.end() // the peer dials, with the session that it knows
	talk(t, h.b, h.a, its, 1)
	h.w.setAddrs(h.b.self, here...)
	isEmpty(t, its)
	h.mine.Close()
	awaitGone(t, its, monitored(h.mine), 99)
}

// The receiver of a request that the successor has taken over learns why its caller has given up
// the call, wherever the request was by then. A request that was given up before is not received.
func TestHeldRequestReason(t *testing.T) {
	for _, when := range []string{"queued", "in the line", "as the successor takes over"} {
		t.Run(when, func(t *testing.T) {
			h := newHeirWorld(t)
			its := box(t, h.a, 7, 0)
			f := h.flow(t, its)
			size := 10
			if when == "in the line" {
				size = 2 << 20
			}
			p := try.Get(h.mine.beginCall(soon(t), f, 5, nil))(t)
			received, why := make(chan struct{}), make(chan error, 1)
			go func() {
				defer close(why)
				for {
					m, err := its.Recv(soon(t))
					if err != nil || m.Tag() == 6 {
						if err == nil {
							m.Release()
						}
						return
					}
					ended := make(chan error, 1)
					stop := m.OnCancel(func(err error) { ended <- err })
					close(received)
					why <- <-ended
					stop()
					m.Release()
				}
			}()
			eventually.True(t, "a receiver waits", locked(&its.mu, func() bool { return its.waiters.First() != nil }))
			var e call
			h.succeed(t, func() { f.push(size, purpose{call: p.number}, 5) }, func() {
				if when == "as the successor takes over" {
					e = p.take()
					return
				}
				ctx, cancel := context.WithDeadline(soon(t), time.Unix(0, 0))
				defer cancel()
				try.Fails(p.Wait(ctx))(t, context.DeadlineExceeded, "the call")
			})
			if when == "as the successor takes over" {
				select {
				case <-received:
				case <-soon(t).Done():
					t.Fatal("the request is not received")
				}
				e.tellCancelled(p.number, context.DeadlineExceeded)
				h.b.doneWaiting(p.w)
			}
			try.OK(t, flow(t, h.b, its).SendBytes(soon(t), h.mine.serial, 6, nil))
			n := 0
			for err := range why {
				n++
				if err != context.DeadlineExceeded {
					t.Errorf("the receiver learns %v", err)
				}
			}
			if wasReceived := n > 0; wasReceived != (when == "as the successor takes over") {
				t.Errorf("received: %v", wasReceived)
			}
			try.Check(t, h.b.Flush(soon(t)), "flush")
		})
	}
}

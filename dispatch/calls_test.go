// SPDX-License-Identifier: Apache-2.0

package dispatch

import (
	"bytes"
	"context"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/rocl-go/rocl/dispatch/internal/session"
	"github.com/rocl-go/rocl/dispatch/internal/wire"
	"github.com/rocl-go/rocl/internal/lock"
	"github.com/rocl-go/rocl/internal/testkit/eventually"
	"github.com/rocl-go/rocl/internal/testkit/try"
	"github.com/rocl-go/rocl/resource"
	"github.com/rocl-go/rocl/subsys"
	"github.com/rocl-go/rocl/subsys/tcp"
)

// called sends a request with a copy of p, and waits for the reply.
func called(ctx context.Context, m *Mailbox, f *Flow, tag uint64, p []byte) (*Message, error) {
	c, err := m.RequestBytes(ctx, f, tag, p)
	if err != nil {
		return nil, err
	}
	return c.Wait(ctx)
}

// served replies to each request with its payload, reversed, until the mailbox is closed.
func served(m *Mailbox) {
	for {
		msg, err := m.Recv(context.Background())
		if err != nil {
			return
		}
		_ = m.ReplyBytes(context.Background(), msg, reversed(msg.Bytes())) // the caller may have ended
		msg.Release()
	}
}

func reversed(p []byte) []byte {
	out := make([]byte, len(p))
	for i := range p {
		out[len(p)-1-i] = p[i]
	}
	return out
}

// requestAt receives a request.
func requestAt(t *testing.T, m *Mailbox) *Message {
	t.Helper()
	msg := try.Get(m.Recv(soon(t)))(t)
	if !msg.IsCall() {
		t.Fatal("the message is no request")
	}
	return msg
}

// counts returns how many calls wait, and how many replies were dropped.
func (c *calls) counts() (inFlight int, late uint64) {
	c.box.mu.Lock()
	defer c.box.mu.Unlock()
	for i := range c.table {
		if c.table[i].w != nil {
			inFlight++
		}
	}
	if inFlight != c.inFlight || c.box.credit.Stored() != 0 || c.box.count != 0 {
		panic(fmt.Sprintf("%d calls in the table, %d counted; %d bytes stored", inFlight, c.inFlight, c.box.credit.Stored()))
	}
	return inFlight, c.late
}

// noCalls fails the test if calls are left, or more replies than late were dropped.
func noCalls(t *testing.T, d *Dispatcher, late uint64) {
	t.Helper()
	if n, l := d.calls.counts(); n != 0 || l != late {
		t.Errorf("%d calls are left, %d replies were dropped, want %d", n, l, late)
	}
}

// unreported fails the test if a message is reported as undelivered.
func unreported(t *testing.T) func(*Config) {
	return func(c *Config) { c.Undelivered = func(u Undelivered) { t.Errorf("reported: %+v", u) } }
}

// pairs runs f for each transport, with a pair of contexts that have a mailbox each.
func pairs(t *testing.T, f func(t *testing.T, a, b *Dispatcher, ma, mb *Mailbox)) {
	over(t, transports(), func(t *testing.T, w *world, tr subsys.Transport) {
		a, b := w.node(t, 1, tr, unreported(t)), w.node(t, 2, tr, unreported(t))
		f(t, a, b, box(t, a, 1, 0), box(t, b, 7, 0))
	})
}

// Promise (Calls): `Call` returns the reply to its own request, whatever the size, however many
// calls are in flight and wherever the connection is cut. See also TestSessionModel.
func TestCall(t *testing.T) {
	pairs(t, func(t *testing.T, a, b *Dispatcher, ma, mb *Mailbox) {
		f := flow(t, a, mb)
		go served(mb)
		for i, size := range []int{0, 1, 100, session.Inline, session.Inline + 1, 70_000, session.PieceLen + 1, 3 << 20, 5} {
			p := bytes.Repeat([]byte{1, 2, byte(i)}, size/3+1)[:size]
			m, err := called(soon(t), ma, f, uint64(i), p)
			if err != nil {
				t.Fatal(size, err)
			}
			if m.Tag() != uint64(i) || m.From() != b.self.WithSerial(7) || m.IsCall() || !bytes.Equal(m.Bytes(), reversed(p)) {
				t.Fatalf("reply %d of %d bytes from %v", m.Tag(), m.Len(), m.From())
			}
			m.Release()
		}
		noCalls(t, a, 0)
		mb.Close()
	})
}

// A request in a buffer leaves the buffer to its caller, whether the call succeeds or fails.
//
// Promise (Calls): If `Call` fails, the buffer stays the caller's.
func TestCallKeepsBuffer(t *testing.T) {
	pairs(t, func(t *testing.T, a, b *Dispatcher, ma, mb *Mailbox) {
		for _, size := range []int{10, 20_000, 1 << 20} {
			p := noise(t, a, size, 3)
			c := try.Get(ma.Request(soon(t), flow(t, a, mb), 1, p))(t)
			msg := requestAt(t, mb)
			try.OK(t, mb.Reply(soon(t), msg, msg.Buffer()))
			msg.Release()
			reply := try.Get(c.Wait(soon(t)))(t)
			if !bytes.Equal(reply.Bytes(), p.Bytes()) {
				t.Fatal("the reply differs")
			}
			reply.Release()
			eventually.True(t, "the buffer is the caller's alone", func() bool { return p.Refs() == 1 })
			p.Release()
		}
		p := noise(t, a, 20_000, 3)
		f := flow(t, a, mb)
		mb.Close()
		c, err := ma.Request(soon(t), f, 1, p)
		if err == nil {
			_, err = c.Wait(soon(t))
		}
		if !errors.Is(err, ErrGone) {
			t.Error(err)
		}
		eventually.True(t, "the buffer is the caller's alone", func() bool { return p.Refs() == 1 })
		p.Release()
	})
}

// Many goroutines call in both directions at once a server with a goroutine for each request. Each
// call gets its own reply.
func TestCallsConcurrent(t *testing.T) {
	pairs(t, func(t *testing.T, a, b *Dispatcher, ma, mb *Mailbox) {
		const goroutines, each = 200, 20
		var wg sync.WaitGroup
		for _, m := range []*Mailbox{ma, mb} {
			go func() { // a goroutine for each request
				for {
					msg, err := m.Recv(context.Background())
					if err != nil {
						return
					}
					go func() {
						try.Check(t, m.ReplyBytes(context.Background(), msg, reversed(msg.Bytes())))
						msg.Release()
					}()
				}
			}()
		}
		for _, end := range []struct{ from, to *Mailbox }{{ma, mb}, {mb, ma}} {
			f := flow(t, end.from.d, end.to)
			for g := range uint64(goroutines) {
				wg.Go(func() {
					for i := range uint64(each) {
						p := binary.LittleEndian.AppendUint64(nil, g<<32|i)
						if i%7 == 3 {
							p = append(p, make([]byte, rand.IntN(30_000))...)
						}
						m, err := called(soon(t), end.from, f, g, p)
						if err != nil {
							t.Error(err)
							return
						}
						if m.Tag() != g || !bytes.Equal(m.Bytes(), reversed(p)) {
							t.Errorf("call %d of %d got another's reply", i, g)
						}
						m.Release()
					}
				})
			}
		}
		wg.Wait()
		noCalls(t, a, 0)
		noCalls(t, b, 0)
		ma.Close()
		mb.Close()
	})
}

// A resource calls itself, and another resource of its context.
func TestCallOwn(t *testing.T) {
	pairs(t, func(t *testing.T, a, _ *Dispatcher, ma, _ *Mailbox) {
		other := box(t, a, 2, 0)
		for _, m := range []*Mailbox{ma, other} {
			go served(m)
			reply := try.Get(called(soon(t), ma, flow(t, a, m), 1, []byte("abc")))(t)
			if string(reply.Bytes()) != "cba" || reply.From() != a.self.WithSerial(m.serial) {
				t.Errorf("%q from %v", reply.Bytes(), reply.From())
			}
			reply.Release()
		}
		ma.Close()
		other.Close()
	})
}

// hundreds begins calls that their target does not reply to. receives says whether the target
// receives the requests.
func hundreds(t *testing.T, ma, mb *Mailbox, receives bool) (ended chan error, n int) {
	t.Helper()
	n, ended = 500, make(chan error, 500)
	f := flow(t, ma.d, mb)
	for i := range n {
		c := try.Get(ma.RequestBytes(soon(t), f, 1, make([]byte, i)))(t)
		go func() {
			_, err := c.Wait(soon(t))
			ended <- err
		}()
	}
	eventually.True(t, "the requests have come", func() bool { has, _ := mb.Len(); return has == n })
	for i := 0; receives && i < n; i++ {
		requestAt(t, mb).clearCall() // as if the server kept it
	}
	return ended, n
}

func awaitEnds(t *testing.T, ended chan error, n int, want error) {
	t.Helper()
	for range n {
		awaitEnd(t, ended, want)
	}
}

// Calls end when their target is deleted, whether it has received the requests or not, and when its
// context is closed or killed. Nothing is reported as undelivered.
//
// Promise (Calls): A call ends with `ErrGone` when its target ends, wherever its request or reply
// is at that moment. See also TestCallServerKilledAtEveryFrame.
func TestCallServerDeleted(t *testing.T) {
	for how, end := range map[string]func(w *world, b *Dispatcher, mb *Mailbox) error{
		"deleted, not received": func(_ *world, _ *Dispatcher, mb *Mailbox) error { mb.Close(); return nil },
		"deleted":               func(_ *world, _ *Dispatcher, mb *Mailbox) error { mb.Close(); return nil },
		"closed":                func(_ *world, b *Dispatcher, _ *Mailbox) error { return b.Close(soon(t)) },
		"killed":                func(w *world, b *Dispatcher, _ *Mailbox) error { w.kill(b); return nil },
	} {
		t.Run(how, func(t *testing.T) {
			all := transports()
			if how == "killed" {
				all = links()
			}
			over(t, all, func(t *testing.T, w *world, tr subsys.Transport) {
				a, b := w.node(t, 1, tr, unreported(t)), w.node(t, 2, tr, givesUp)
				mb := box(t, b, 7, 0)
				ended, n := hundreds(t, box(t, a, 1, 0), mb, how != "deleted, not received")
				if k := a.Stats().Calls; k != n {
					t.Errorf("%d calls are counted, of %d", k, n)
				}
				try.OK(t, end(w, b, mb))
				awaitEnds(t, ended, n, ErrGone)
				noCalls(t, a, 0)
			})
		})
	}
}

// kill breaks the connections of d, as a crash would.
func (w *world) kill(d *Dispatcher) {
	w.setGone(d.self, true)
	for _, p := range d.ports {
		p.Close()
	}
}

// Calls end when the calling resource is deleted, or its context is closed. Other calls continue.
//
// Promise (Calls): A call ends with `ErrClosed` when its resource is closed, with the cause when
// its `ctx` ends, and with `ErrNoReply` when the server releases the request. See also
// TestCallCancelled.
func TestCallCallerCloses(t *testing.T) {
	pairs(t, func(t *testing.T, a, b *Dispatcher, ma, mb *Mailbox) {
		ended, n := hundreds(t, ma, mb, true)
		other := box(t, a, 2, 0)
		goesOn := try.Get(other.RequestBytes(soon(t), flow(t, a, mb), 1, nil))(t)
		ma.Close()
		awaitEnds(t, ended, n, ErrClosed)
		try.Fails(ma.RequestBytes(soon(t), flow(t, a, mb), 1, nil))(t, ErrClosed)
		go served(mb)
		awaitReply(t, goesOn)
		mb.Close()

		mc := box(t, b, 8, 0)
		third := box(t, a, 3, 0)
		ended, n = hundreds(t, third, mc, true)
		try.OK(t, a.Close(soon(t)))
		awaitEnds(t, ended, n, ErrClosed)
		try.Fails(third.RequestBytes(soon(t), &Flow{mb: mc, in: &inflow{}}, 1, nil))(t, ErrClosed)
	})
}

// The target of a call does not exist: the error says so, and nothing is reported.
func TestCallMissing(t *testing.T) {
	pairs(t, func(t *testing.T, a, b *Dispatcher, ma, _ *Mailbox) {
		for _, size := range []int{0, 20_000, 1 << 20} {
			f, err := a.Flow(b.self, 99)
			if err == nil {
				_, err = called(soon(t), ma, f, 1, make([]byte, size))
			}
			if !errors.Is(err, ErrGone) {
				t.Error(size, err)
			}
		}
		noCalls(t, a, 0)
	})
}

// A request that comes just as its target goes is refused, which ends its call.
func TestCallRefused(t *testing.T) {
	pairs(t, func(t *testing.T, a, b *Dispatcher, ma, mb *Mailbox) {
		for i := range uint32(50) {
			mb := box(t, b, 100+i, 0)
			f := flow(t, a, mb)
			var wg sync.WaitGroup
			for g := range 4 {
				wg.Go(func() {
					for {
						m, err := called(soon(t), ma, f, 1, make([]byte, g*g*g*10_000))
						if err != nil {
							if !errors.Is(err, ErrGone) {
								t.Error(err)
							}
							return
						}
						m.Release()
					}
				})
			}
			go served(mb)
			eventually.True(t, "requests come", locked(&mb.mu, func() bool { return len(mb.inflows) > 0 }))
			mb.Close()
			wg.Wait()
		}
		if n, _ := a.calls.counts(); n > 0 { // replies may come behind the end
			t.Errorf("%d calls are left", n)
		}
	})
}

// The call of a request that is released without a reply fails.
func TestCallReleased(t *testing.T) {
	pairs(t, func(t *testing.T, a, b *Dispatcher, ma, mb *Mailbox) {
		c := try.Get(ma.RequestBytes(soon(t), flow(t, a, mb), 1, make([]byte, 1000)))(t)
		requestAt(t, mb).Release()
		try.Fails(c.Wait(soon(t)))(t, ErrNoReply)
		noCalls(t, a, 0)
	})
}

// A request has one reply, from any goroutine, and by any mailbox of its context. A second reply,
// or a reply to a message that is no request, is an error at the server.
//
// Promise (Calls): A request has one reply. A second one, or one to a message that is no request,
// is `ErrNotCall`.
func TestReplyOnce(t *testing.T) {
	pairs(t, func(t *testing.T, a, b *Dispatcher, ma, mb *Mailbox) {
		f := flow(t, a, mb)
		c := try.Get(ma.RequestBytes(soon(t), f, 1, nil))(t)
		msg, other := requestAt(t, mb), box(t, b, 9, 0)
		try.Fails(ma.ReplyBytes(soon(t), msg, nil))(t, ErrNotCall, "by another context")
		ended, cancel := context.WithCancel(context.Background())
		cancel()
		large := make([]byte, 10<<20) // more than the first credit
		if err := mb.ReplyBytes(ended, msg, large); !errors.Is(err, context.Canceled) && err != nil {
			t.Error(err)
		}
		var sent atomic.Int32
		var wg sync.WaitGroup
		for range 8 {
			wg.Go(func() {
				switch err := other.ReplyBytes(soon(t), msg, []byte("x")); {
				case err == nil:
					sent.Add(1)
				case !errors.Is(err, ErrNotCall):
					t.Error(err)
				}
			})
		}
		wg.Wait()
		reply := try.Get(c.Wait(soon(t)))(t)
		if reply.From() != b.self.WithSerial(7) || sent.Load() > 1 || (sent.Load() == 1) != (reply.Len() == 1) {
			t.Errorf("%d replies; one of %d bytes from %v", sent.Load(), reply.Len(), reply.From())
		}
		try.Fails(other.ReplyBytes(soon(t), reply, nil))(t, ErrNotCall, "to a reply")
		reply.Release()
		if !msg.IsCall() {
			t.Error("a request that has its reply is none")
		}
		msg.Release()
		try.OK(t, f.SendBytes(soon(t), 1, 1, nil))
		plain := try.Get(mb.Recv(soon(t)))(t)
		if err := mb.ReplyBytes(soon(t), plain, nil); plain.IsCall() || !errors.Is(err, ErrNotCall) {
			t.Errorf("to a message: %v", err)
		}
		plain.Release()
		noCalls(t, a, 0)
	})
}

// A call that is cancelled ends at once, with the cause. Its reply is dropped and gives its credit
// back: replies many times the credit of a sender do not stop the server.
//
// Promise (Calls): A late reply is dropped and counted. A reply to a context that has ended fails
// with `ErrGone`. See also TestReplyToCallerKilledAtEveryFrame.
func TestCallCancelled(t *testing.T) {
	pairs(t, func(t *testing.T, a, b *Dispatcher, ma, mb *Mailbox) {
		f := flow(t, a, mb)
		cause := errors.New("enough")
		const n = 50
		for range n {
			ctx, cancel := context.WithCancelCause(context.Background())
			c := try.Get(ma.RequestBytes(soon(t), f, 1, nil))(t)
			msg := requestAt(t, mb)
			cancel(cause)
			if _, err := c.Wait(ctx); !errors.Is(err, cause) {
				t.Fatal(err)
			}
			try.OK(t, mb.ReplyBytes(soon(t), msg, make([]byte, 1<<20)))
			msg.Release()
		}
		eventually.True(t, "the replies are dropped", func() bool { _, late := a.calls.counts(); return late == n })
		noCalls(t, a, n)
		if s := a.Stats(); s.LateReplies != n || s.Calls != 0 {
			t.Errorf("%d late replies and %d calls are counted", s.LateReplies, s.Calls)
		}
		go served(mb)
		m := try.Get(called(soon(t), ma, f, 1, make([]byte, 3<<20)))(t)
		m.Release()
		mb.Close()
	})
}

// Replies that no goroutine has taken yet leave their credit to other replies, although the caller
// waits for one of those first.
func TestRepliesOutOfOrder(t *testing.T) {
	pairs(t, func(t *testing.T, a, b *Dispatcher, ma, mb *Mailbox) {
		f := flow(t, a, mb)
		const n = 4
		var calls [n]Pending
		var requests [n]*Message
		for i := range n {
			p := try.Get(ma.RequestBytes(soon(t), f, uint64(i), []byte("request")))(t)
			calls[i], requests[i] = p, requestAt(t, mb)
		}
		var replies sync.WaitGroup
		replies.Go(func() {
			for i := n - 1; i >= 0; i-- {
				try.Check(t, mb.Reply(soon(t), requests[i], noise(t, b, 1<<20, uint64(i))))
				requests[i].Release()
			}
		})
		for i, p := range calls {
			m, err := p.Wait(soon(t))
			if err != nil {
				t.Fatal(i, err)
			}
			m.Release()
		}
		replies.Wait()
	})
}

// Cancel ends a call from another goroutine. It changes nothing if the reply has come, or if Wait
// has returned.
//
// Promise (Calls): A call begun by `StartCall` ends as `Call` does, or by `Cancel` from any
// goroutine. See also TestCancelledRequestsLeave.
func TestCallCancelledByOther(t *testing.T) {
	pairs(t, func(t *testing.T, a, b *Dispatcher, ma, mb *Mailbox) {
		f := flow(t, a, mb)
		cause := errors.New("given up")
		start := func() (Pending, *Message) {
			p := try.Get(ma.RequestBytes(soon(t), f, 1, []byte("request")))(t)
			return p, requestAt(t, mb)
		}
		p, msg := start()
		waits := make(chan error)
		go func() {
			_, err := p.Wait(context.Background())
			waits <- err
		}()
		p.Cancel(cause)
		try.Fails(<-waits)(t, cause)
		try.Check(t, mb.ReplyBytes(soon(t), msg, []byte("late")))
		msg.Release()

		other, msg := start()
		other.Cancel(nil) // without a cause it fails all the same
		if msg, err := other.Wait(soon(t)); msg != nil || !errors.Is(err, context.Canceled) {
			t.Error(msg, err)
		}
		msg.Release()

		second, msg := start() // behind the late reply, which is dropped
		try.Check(t, mb.ReplyBytes(soon(t), msg, []byte("reply")))
		msg.Release()
		eventually.True(t, "the reply comes", func() bool { n, _ := a.calls.counts(); return n == 0 })
		p.Cancel(cause) // the call has ended
		second.Cancel(cause)
		awaitReply(t, second)
		second.Cancel(cause)
		noCalls(t, a, 1)
	})
}

// Calls that are cancelled as their replies come return the cause or the reply, and leave nothing.
func TestCallCancelledAsReplied(t *testing.T) {
	pairs(t, func(t *testing.T, a, b *Dispatcher, ma, mb *Mailbox) {
		f := flow(t, a, mb)
		go served(mb)
		var wg sync.WaitGroup
		for range 16 {
			wg.Go(func() {
				for range 100 {
					ctx, cancel := context.WithTimeout(context.Background(), time.Duration(rand.IntN(200))*time.Microsecond)
					m, err := called(ctx, ma, f, 1, []byte("xyz"))
					switch {
					case err == nil:
						m.Release()
					case !errors.Is(err, context.DeadlineExceeded):
						t.Error(err)
					}
					cancel()
				}
			})
		}
		wg.Wait()
		mb.Close()
		eventually.True(t, "nothing waits", func() bool { n, _ := a.calls.counts(); return n == 0 })
	})
}

// A reply to a context that has ended fails, or is dropped without a report.
func TestReplyToDead(t *testing.T) {
	pairs(t, func(t *testing.T, a, b *Dispatcher, ma, mb *Mailbox) {
		f := flow(t, a, mb)
		for range 2 {
			try.OK(t, errOf(ma.RequestBytes(soon(t), f, 1, nil)))
		}
		first, second := requestAt(t, mb), requestAt(t, mb)
		ma.Close()
		if err := mb.ReplyBytes(soon(t), first, nil); err != nil { // the resource is deleted: no error
			t.Fatal(err)
		}
		try.OK(t, a.Close(soon(t)))
		in := second.in
		eventually.True(t, "the server knows", func() bool { return in.l == nil || in.l.ended() })
		try.Fails(mb.ReplyBytes(soon(t), second, nil))(t, ErrGone)
		first.Release()
		second.Release()
		mb.Close()
	})
}

// A caller with a full mailbox, which receives nothing, gets its replies, small and large.
//
// Promise (Calls): A reply needs no room in the caller's mailbox, and has no order with other
// messages.
func TestCallFullMailbox(t *testing.T) {
	over(t, transports(), func(t *testing.T, w *world, tr subsys.Transport) {
		a, b := w.node(t, 1, tr), w.node(t, 2, tr)
		ma, mb := box(t, a, 1, FirstCredit), box(t, b, 1, 0)
		stop, cancel := context.WithCancel(context.Background())
		defer cancel()
		var blocked sync.WaitGroup
		for range 3 {
			blocked.Go(func() {
				back := flow(t, b, ma)
				for back.SendBytes(stop, 1, 0, make([]byte, 1000)) == nil {
				}
			})
		}
		eventually.True(t, "the mailbox is full", locked(&ma.mu, func() bool { return len(ma.credit.Waiting()) > 0 }))
		go served(mb)
		f := flow(t, a, mb)
		for _, size := range []int{1, 60_000, 100_000, 5 << 20, 1} {
			m := try.Get(called(soon(t), ma, f, 1, make([]byte, size)))(t)
			m.Release()
		}
		cancel()
		blocked.Wait()
		mb.Close()
	})
}

// A request waits for the first connection like any message. Its call ends when the link has.
func TestCallBeforeConnection(t *testing.T) {
	w := newWorld()
	a := w.node(t, 1, tcp.New(), unreported(t))
	m := box(t, a, 1, 0)
	unknown := resource.MakeGID(1, 9, 0)
	f := try.Get(a.Flow(unknown, 1))(t)
	short, cancel := context.WithTimeout(context.Background(), 50*time.Millisecond)
	defer cancel()
	call := func(ctx context.Context) error {
		p, err := m.RequestBytes(ctx, f, 1, nil)
		if err == nil {
			_, err = p.Wait(ctx)
		}
		return err
	}
	try.Fails(call(short))(t, context.DeadlineExceeded)
	w.setGone(unknown, true)
	try.Fails(call(soon(t)))(t, ErrGone)
	noCalls(t, a, 0)
}

// Frames about calls from a hostile peer cut the connection, or are ignored.
//
// Promise (Calls): A peer that breaks the rules of calls loses its connection. See also
// TestUnreadEnds.
func TestHostileCalls(t *testing.T) {
	h := func(seq uint32, typ, flags uint8, dst uint32, tag uint64, data ...byte) subsys.Frame {
		return subsys.Frame{Header: subsys.Header{Type: typ, Flags: flags, Seq: seq, Dst: dst, Src: 5, Tag: tag, Len: uint32(len(data))}, Data: data}
	}
	call := func(seq, dst uint32, number uint64) subsys.Frame { return h(seq, wire.TypeCall, 0, dst, number) }
	ask := func(seq, dst uint32) subsys.Frame { return h(seq, wire.TypeData, wire.FlagCall, dst, 1, 2) }
	other := ask(1, 1)
	other.Src = 6
	for name, fs := range map[string][]subsys.Frame{
		"a number and no request":      {call(0, 1, 3), h(1, wire.TypeNeed, 0, 1, 100)},
		"two numbers":                  {call(0, 1, 3), call(1, 1, 4)},
		"a number and a message":       {call(0, 1, 3), h(1, wire.TypeData, 0, 1, 1, 2)},
		"a request without a number":   {ask(0, 1)},
		"one behind a message":         {h(0, wire.TypeData, 0, 1, 1, 2), ask(1, 1)},
		"one of another resource":      {call(0, 1, 3), other},
		"one to another resource":      {call(0, 1, 3), ask(1, 2)},
		"the number 0":                 {call(0, 1, 0)},
		"a number with a payload":      {h(0, wire.TypeCall, 0, 1, 3, 1)},
		"a large one without a number": {h(0, wire.TypeBegin, wire.FlagCall, 1, 9, 0, 1, 0, 0)},
		"an end without a reason":      {h(0, wire.TypeNoReply, 0, 1, 3)},
		"an end with many":             {h(0, wire.TypeNoReply, 0, 1, 3, 1, 2)},
		"a number and the goodbye":     {call(0, 1, 3), h(1, wire.TypeBye, 0, 0, 0)},
	} {
		for _, together := range []bool{false, true} {
			t.Run(fmt.Sprint(name, " ", together), func(t *testing.T) {
				d := newWorld().node(t, 3, tcp.New())
				box(t, d, 1, 0)
				box(t, d, 2, 0)
				c := &fakeConn{}
				_, ep := linked(t, d, c)
				var err error
				if together {
					err = ep.comes(c, fs)
				} else {
					for i := range fs {
						try.OK(t, err, "frame %d is refused", i-1)
						err = ep.comes(c, fs[i:i+1])
					}
				}
				if !errors.Is(err, ErrProtocol) {
					t.Errorf("the last frame: %v", err)
				}
			})
		}
	}

	// Replies and ends of calls that do not exist, or that belong to another resource, change
	// nothing and keep nothing. The same holds for flags without a meaning, and for requests to the
	// serial for replies.
	d := newWorld().node(t, 3, tcp.New())
	m := box(t, d, 1, 0)
	c := &fakeConn{}
	l, ep := linked(t, d, c)
	p := try.Get(m.RequestBytes(soon(t), l.flow(9), 4, nil))(t)
	seq := uint32(0)
	comes := func(f subsys.Frame, src uint32) {
		t.Helper()
		f.Seq, f.Src = seq, src
		seq++
		try.OK(t, ep.comes(c, []subsys.Frame{f}))
	}
	numbers := []uint64{0, 1, p.number + 1, p.number + 1<<32, p.number - 1<<32, 1 << 63, math.MaxUint64, 1<<32 - 1, 1<<31 - 1}
	for _, n := range numbers {
		comes(h(0, wire.TypeData, 0, wire.Replies, n), 9)
		comes(h(0, wire.TypeNoReply, 0, 9, n, 1), 1)
	}
	comes(h(0, wire.TypeData, 0, wire.Replies, p.number), 8)
	comes(h(0, wire.TypeNoReply, 0, 8, p.number, 1), 1)
	comes(call(0, wire.Replies, 77), 9)
	comes(ask(0, wire.Replies), 9)
	if n, late := d.calls.counts(); n != 1 || late != uint64(len(numbers)+2) {
		t.Errorf("%d calls wait, %d replies were dropped", n, late)
	}
	comes(h(0, wire.TypeData, 0xfe, 1, 3, 1), 5)
	if msg, err := m.TryRecv(); err != nil || msg.IsCall() {
		t.Error("a message with unknown flags is not one", err)
	} else {
		msg.Release()
	}
	comes(h(0, wire.TypeData, 0, wire.Replies, p.number, 42), 9)
	reply, err := p.Wait(soon(t))
	if err != nil || reply.Tag() != 4 || reply.Bytes()[0] != 42 {
		t.Fatal(err)
	}
	reply.Release()

	// The credit of their target bounds a flood of requests.
	box(t, d, 2, 0)
	for range FirstCredit / 64 {
		comes(call(0, 2, 5), 9)
		f := ask(0, 2)
		f.Data, f.Len = nil, 0
		comes(f, 9)
	}
	f := call(0, 2, 5)
	f.Seq, f.Src = seq, 9
	g := ask(seq+1, 2)
	g.Src = 9
	try.Fails(ep.comes(c, []subsys.Frame{f, g}))(t, ErrProtocol)
	m.Close()
}

// A peer that does not acknowledge that its requests were released is cut off in the end.
func TestUnreadEnds(t *testing.T) {
	d := newWorld().node(t, 3, tcp.New())
	c := &fakeConn{}
	l, ep := linked(t, d, c)
	l.mostPending = 1000
	in := newInflow(l, 1, nil)
	l.mu.Lock()
	for range l.mostPending {
		l.putLocked(wire.TypeNoReply, 1, 5, 1, wire.WhyReleased)
	}
	l.mu.Unlock()
	l.unanswered(in, 5, 1, wire.WhyReleased)
	f := subsys.Frame{Header: subsys.Header{Type: wire.TypeNeed, Dst: 1, Tag: 64}}
	try.Fails(ep.comes(c, []subsys.Frame{f}))(t, ErrProtocol)
}

// A small call takes no more locks than two messages. One lock enters it into the table, in place
// of the lock to receive the reply.
func TestLocksOfCall(t *testing.T) {
	if !lock.IsWatched {
		t.Skip("locks are counted in a build with the tag rocldebug")
	}
	over(t, transports(), func(t *testing.T, w *world, tr subsys.Transport) {
		a, b := w.node(t, 1, tr), w.node(t, 2, tr)
		ma, mb := box(t, a, 1, 0), box(t, b, 1, 0)
		f := flow(t, a, mb)
		one := func() {
			c := try.Get(ma.RequestBytes(t.Context(), f, 1, []byte("hello")))(t)
			msg := requestAt(t, mb)
			try.OK(t, mb.ReplyBytes(t.Context(), msg, []byte("world")))
			msg.Release()
			m := try.Get(c.Wait(t.Context()))(t)
			m.Release()
		}
		most := 8.2
		if tr.Name() == "inproc" {
			most = 5.2 // one more for the credit of the request
		}
		leastLocks(t, one, most)
	})
}

// The end of a target is watched while calls to it are made, and for some time after.
func TestCallWatch(t *testing.T) {
	pairs(t, func(t *testing.T, a, b *Dispatcher, ma, mb *Mailbox) {
		f := flow(t, a, mb)
		c := &a.calls
		watched := func() bool {
			c.box.mu.Lock()
			defer c.box.mu.Unlock()
			return f.calls.isWatched
		}
		for range 3 {
			p := try.Get(ma.RequestBytes(soon(t), f, 1, nil))(t)
			c.sweep()
			if c.sweep(); !watched() {
				t.Fatal("the end of a target is not watched during a call")
			}
			msg := requestAt(t, mb)
			try.OK(t, mb.ReplyBytes(soon(t), msg, nil))
			msg.Release()
			awaitReply(t, p)
			c.sweep()
			if c.sweep(); watched() {
				t.Fatal("the end of a target is watched without a call")
			}
		}
	})
}

// A small request is sent directly behind the number of its call.
func TestGoldenCall(t *testing.T) {
	d := newWorld().node(t, 3, tcp.New())
	c := &fakeConn{}
	l, _ := linked(t, d, c)
	l.mu.Lock()
	h := subsys.Header{Type: wire.TypeData, Flags: wire.FlagCall, Tag: 1, Src: 7, Dst: 9, Len: 2}
	if !l.copyCallLocked(&h, []byte("hi"), 5) {
		t.Fatal("a small request is not copied")
	}
	l.postLocked()
	var got []byte
	for _, f := range c.sent {
		got = append(got, f.Data...) // a batch
	}
	want := "00000000" + "17000000" + "00000000" + "00000000" + "0500000000000000" + "07000000" + "09000000" +
		"02000000" + "10010000" + "01000000" + "00000000" + "0100000000000000" + "07000000" + "09000000" + "6869"
	if hex.EncodeToString(got) != want {
		t.Errorf("%x", got)
	}
}

// A connection that is cut anywhere loses no request and no reply, and doubles none.
func TestCallCutAnywhere(t *testing.T) {
	cutsAt(t, 61, 1009, 6_000, func(after int64) { cutCalls(t, after) })
}

func cutCalls(t *testing.T, after int64) {
	a, b, end := cutPair(t, after, unreported(t))
	ma, mb := box(t, a, 1, 0), box(t, b, 1, 0)
	var got atomic.Int32
	go func() {
		for {
			msg, err := mb.Recv(context.Background())
			if err != nil {
				return
			}
			got.Add(1)
			if msg.Tag()%5 != 4 { // otherwise the caller is told that there is no reply
				_ = mb.ReplyBytes(context.Background(), msg, reversed(msg.Bytes()))
			}
			msg.Release()
		}
	}()
	f := flow(t, a, mb)
	var wg sync.WaitGroup
	const each = 10
	for g := range 2 {
		wg.Go(func() {
			for i := range each {
				p := bytes.Repeat([]byte{byte(i), byte(g)}, i*17)
				if i == 7 {
					p = make([]byte, 10_000)
				}
				m, err := called(soon(t), ma, f, uint64(i), p)
				switch {
				case i%5 == 4 && errors.Is(err, ErrNoReply):
					continue
				case err != nil || i%5 == 4:
					t.Errorf("cut after %d: call %d: %v", after, i, err)
					return
				case !bytes.Equal(m.Bytes(), reversed(p)):
					t.Errorf("cut after %d: call %d: another reply", after, i)
				}
				m.Release()
			}
		})
	}
	wg.Wait()
	if n := got.Load(); n != 2*each {
		t.Errorf("cut after %d: %d requests came", after, n)
	}
	noCalls(t, a, 0)
	mb.Close()
	end()
}

// A server that is killed after any number of bytes ends the calls to it, also if their request or
// reply has come in part.
func TestCallKilledAnywhere(t *testing.T) {
	cutsAt(t, 37, 997, 3_000, func(after int64) { killCalls(t, after) })
}

func killCalls(t *testing.T, after int64) {
	w := newWorld()
	a, b := w.node(t, 1, tcp.New(), unreported(t)), w.node(t, 2, tcp.New(), givesUp)
	die := sync.OnceFunc(func() { w.kill(b) })
	r := startRelay(t, b.Addrs()[0], &relay{after: after}, 1)
	w.setAddrs(a.self) // only a dials
	w.setAddrs(b.self, "tcp://"+r.ln.Addr().String())
	ma, mb := box(t, a, 1, 0), box(t, b, 1, 0)
	go served(mb)
	f := flow(t, a, mb)
	var wg sync.WaitGroup
	for g := range 3 {
		wg.Go(func() {
			for i := 0; ; i++ {
				if r.cuts.Load() < 1 {
					die() // nothing comes over the connection after the cut
				}
				m, err := called(soon(t), ma, f, uint64(i), make([]byte, g*100))
				if err != nil {
					if !errors.Is(err, ErrGone) {
						t.Errorf("killed after %d: %v", after, err)
					}
					return
				}
				m.Release()
			}
		})
	}
	eventually.True(t, "the cut", func() bool { return r.cuts.Load() < 1 })
	die()
	wg.Wait()
	noCalls(t, a, 0)
	mb.Close()
	r.ln.Close()
}

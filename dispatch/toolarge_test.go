// SPDX-License-Identifier: Apache-2.0

package dispatch

import (
	"bytes"
	"context"
	"errors"
	"testing"

	"github.com/rocl-go/rocl/buffers"
	"github.com/rocl-go/rocl/internal/testkit/eventually"
	"github.com/rocl-go/rocl/internal/testkit/try"
	"github.com/rocl-go/rocl/resource"
	"github.com/rocl-go/rocl/subsys"
)

// returned is the lender of memory that the test owns.
type returned struct{}

func (returned) Return(bool) {}

// A reply into the caller's memory needs none of the context's memory: it comes though it is three
// times as large.
//
// Promise (Memory): A reply that comes to memory of the program does not count against
// `WithMemory`. See also TestLandingTakenBackBeyondMemory.
func TestLandingBeyondMemory(t *testing.T) {
	over(t, allTransports(t), func(t *testing.T, w *world, tr subsys.Transport) {
		a, b := w.node(t, 1, tr), w.node(t, 2, tr, small(4<<20), unreported(t))
		ma, mb := box(t, a, 1, 0), box(t, b, 2, 0)
		want := random(12 << 20)
		dst := make([]byte, len(want))
		go replies(t, ma)
		for range 3 {
			clear(dst)
			c := try.Get(mb.RequestInto(soon(t), flow(t, b, ma), 3, asksFor(len(want)), dst))(t)
			msg, err := c.Wait(soon(t))
			if err != nil || !lies(msg, dst) || !bytes.Equal(dst, want) {
				t.Fatalf("not the reply: %v", err)
			}
			msg.Release()
		}
		nothingPromised(t, b, mb)
	})
}

// nothingPromised checks that no credit for a message beyond the budget is left in the accounts.
func nothingPromised(t *testing.T, d *Dispatcher, boxes ...*Mailbox) {
	t.Helper()
	eventually.True(t, "no posted credit", func() bool {
		for _, m := range append(boxes, d.calls.box) {
			m.mu.Lock()
			sum := uint64(0)
			for in := range m.inflows {
				sum += in.Posted()
			}
			isOver := m.credit.Promised() > m.credit.Limit() || d.budget.Promised() > int64(d.budget.Memory())
			m.mu.Unlock()
			if sum != 0 || isOver {
				return false
			}
		}
		return true
	})
}

// What the receiver's memory never holds is refused at once: a message, a message of TrySend, a
// request, and a reply, whose call ends too. Other messages go on.
func TestNeverHeld(t *testing.T) {
	over(t, links(), func(t *testing.T, w *world, tr subsys.Transport) {
		a, b := w.node(t, 1, tr), w.node(t, 2, tr, small(4<<20))
		ma, mb := box(t, a, 1, 0), box(t, b, 2, 0)
		f := flow(t, a, mb)
		const n = 5 << 20
		try.Fails(f.try(soon(t), 1, n))(t, ErrTooLarge, "a message")
		large := buf(t, a, string(make([]byte, n)))
		defer large.Release()
		eventually.True(t, "TrySend fails", func() bool {
			err := f.TrySend(context.Background(), 1, 2, large)
			if err != nil && !errors.Is(err, ErrFull) && !errors.Is(err, ErrTooLarge) {
				t.Fatal(err)
			}
			return errors.Is(err, ErrTooLarge)
		})
		try.Fails(ma.Request(soon(t), f, 3, large))(t, ErrTooLarge, "a request")
		replied := make(chan error, 1)
		go func() {
			msg, err := ma.Recv(soon(t))
			if err != nil {
				replied <- err
				return
			}
			replied <- ma.Reply(soon(t), msg, large)
			msg.Release()
		}()
		c := try.Get(mb.RequestBytes(soon(t), flow(t, b, ma), 4, []byte("?")))(t)
		try.Fails(c.Wait(soon(t)))(t, ErrTooLarge, "a call whose reply is too large")
		try.Fails(<-replied)(t, ErrTooLarge, "a reply")
		try.Check(t, f.try(soon(t), 5, 2<<20))
		take(t, mb, Tag(5))
		nothingPromised(t, b, mb)
	})
}

// A call that ends while a reply that the context never holds comes into its memory drops that
// reply. The link lives, and its credit comes back.
func TestLandingTakenBackBeyondMemory(t *testing.T) {
	over(t, streamTransports(t), func(t *testing.T, _ *world, tr subsys.Transport) {
		a, b, g, _ := gated(t, tr, 64<<10, unreported(t), small(4<<20))
		ma, mb := box(t, a, 1, 0), box(t, b, 2, 0)
		talk(t, a, b, mb, 1)
		dst := make([]byte, 12<<20)
		c := try.Get(mb.RequestInto(soon(t), flow(t, b, ma), 3, nil, dst))(t)
		request := try.Get(ma.Recv(soon(t)))(t)
		ctx, cancel := context.WithCancel(soon(t))
		waited := make(chan error, 1)
		go func() { _, err := c.Wait(ctx); waited <- err }()
		// a has the same memory, so it sends from memory that is not registered.
		lent := a.cfg.Pool.Borrow(new(buffers.Buffer), random(len(dst)), returned{})
		try.OK(t, ma.Reply(soon(t), request, lent))
		request.Release()
		g.let(6 << 20)
		eventually.True(t, "a part is there", func() bool { b.progress.Lock(); defer b.progress.Unlock(); return dst[1<<20] != 0 || dst[1<<20+1] != 0 })
		cancel()
		if err := <-waited; !errors.Is(err, context.Canceled) {
			t.Fatal(err)
		}
		g.let(1 << 40)
		nothingPromised(t, b, mb)
		try.OK(t, flow(t, a, mb).try(soon(t), 4, 1<<20))
		take(t, mb, Tag(4))
	})
}

// The first credit of many senders that send nothing leaves the program half of the memory.
//
// Promise (Memory): The credit of idle senders reserves at most half of a context's memory.
func TestIdleSendersLeaveMemory(t *testing.T) {
	w := newWorld()
	d := w.node(t, 1, transports()["tcp"], small(2<<20))
	mb := box(t, d, 1, 0)
	for i := range uint64(100) {
		l := newLink(d, linkKey{peer: resource.MakeGID(1, 2+i, 0)})
		in := inflowFor(mb, l)
		try.OK(t, in.checkCredit(0))
	}
	b := try.Get(d.Buffer(600 << 10))(t)
	b.Release()
}

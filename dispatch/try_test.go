// SPDX-License-Identifier: Apache-2.0

package dispatch

import (
	"context"
	"errors"
	"testing"

	"github.com/rocl-go/rocl/buffers"
	"github.com/rocl-go/rocl/dispatch/internal/credit"
	"github.com/rocl-go/rocl/internal/lock"
	"github.com/rocl-go/rocl/internal/testkit/eventually"
	"github.com/rocl-go/rocl/internal/testkit/try"
	"github.com/rocl-go/rocl/subsys"
)

// tries sends n bytes with TrySend, or returns why it cannot. The buffer of a refused call must
// stay the caller's.
func (f *Flow) tries(t *testing.T, tag uint64, n int) error {
	t.Helper()
	b, err := f.dispatcher().cfg.Pool.Get(n)
	try.OK(t, err)
	if err = f.TrySend(context.Background(), 1, tag, b); err != nil {
		if b.State() != buffers.Owned || b.Refs() != 1 {
			t.Fatalf("a refused buffer is %v, with %d references", b.State(), b.Refs())
		}
		b.Release()
	}
	return err
}

// TrySend accepts messages as long as there is credit. It refuses the next message with ErrFull
// itself, and asks for the credit that the message needs. The credit comes when the receiver has
// continued.
//
// Promise (Sending): `TrySend` never waits. It fails with `ErrFull`, keeps the order, and asks for
// the credit that it lacks. See also TestTrySendAsks.
func TestTrySend(t *testing.T) {
	const size = 30_000
	over(t, transports(), func(t *testing.T, w *world, tr subsys.Transport) {
		a, b := w.node(t, 1, tr), w.node(t, 2, tr)
		mb := box(t, b, 1, 4*FirstCredit)
		f := flow(t, a, mb)
		sent, received := uint64(0), uint64(0)
		eventually.True(t, "a full mailbox", func() bool { // the credit that was asked for comes while there is room
			for {
				switch err := f.tries(t, sent, size); err {
				case nil:
					sent++
					continue
				case ErrFull:
					return sent >= 4*FirstCredit/(size+credit.Overhead)
				default:
					t.Fatal(err)
				}
			}
		})
		if sent > 5*FirstCredit/size {
			t.Errorf("%d messages of %d bytes were accepted by a mailbox of %d", sent, size, 4*FirstCredit)
		}
		for range 10 {
			for range 5 {
				takeTag(t, mb, received)
				received++
			}
			before := sent
			eventually.True(t, "room again", func() bool {
				if err := f.tries(t, sent, size); err == nil {
					sent++
				} else if err != ErrFull {
					t.Fatal(err)
				}
				return sent == before+5
			})
		}
		for ; received < sent; received++ {
			take(t, mb, Tag(received))
		}
		mb.Close()
		eventually.True(t, "the end", func() bool { err := f.tries(t, 0, 10); return errors.Is(err, ErrGone) })
		try.Fails(f.tries(t, 0, 10))(t, ErrGone)
	})
}

// A later TrySend accepts a message that is larger than the first credit, and than the mailbox's
// limit.
func TestTrySendLarge(t *testing.T) {
	over(t, transports(), func(t *testing.T, w *world, tr subsys.Transport) {
		a, b := w.node(t, 1, tr), w.node(t, 2, tr)
		mb := box(t, b, 1, FirstCredit)
		f := flow(t, a, mb)
		for i := range uint64(3) {
			eventually.True(t, "credit", func() bool {
				err := f.tries(t, i, 5*FirstCredit)
				if err != nil && err != ErrFull {
					t.Fatal(err)
				}
				return err == nil
			})
			take(t, mb, Tag(i))
		}
	})
}

// Credit beyond the limit that a refused TrySend has asked for, and does not use, is given back.
// Other senders continue, and no link ends.
func TestTrySendGivesBack(t *testing.T) {
	over(t, transports(), func(t *testing.T, w *world, tr subsys.Transport) {
		a, b, c := w.node(t, 1, tr), w.node(t, 2, tr), w.node(t, 3, tr)
		mb := box(t, b, 1, FirstCredit)
		f := flow(t, a, mb)
		granted := func() uint64 { mb.mu.Lock(); defer mb.mu.Unlock(); _, end, _ := mb.credit.Oversize(); return end }
		before := granted()
		if err := f.tries(t, 1, 8*FirstCredit); err != ErrFull && tr.Name() != "inproc" {
			t.Fatal(err)
		} else if err == nil {
			take(t, mb)
			try.OK(t, f.tries(t, 1, 60_000))
			before = granted()
			if err := f.tries(t, 1, 8*FirstCredit); err != ErrFull {
				t.Fatal(err)
			}
			take(t, mb)
		}
		eventually.True(t, "the grant", func() bool { return granted() != before })
		eventually.Returns(t, "another large message", func() {
			try.Check(t, flow(t, c, mb).try(soon(t), 2, 8*FirstCredit))
		})
		take(t, mb, Tag(2))
		for i := range 40 { // both sides still count alike, over the same link
			try.OK(t, f.try(soon(t), 3, 50_000), "message %d", i)
			take(t, mb, Tag(3))
		}
		if p := promised(mb); p > 3*FirstCredit {
			t.Errorf("%d bytes are promised", p)
		}
	})
}

// A refused TrySend goes behind the messages that wait, and changes nothing for them.
func TestTrySendBehindSend(t *testing.T) {
	over(t, transports(), func(t *testing.T, w *world, tr subsys.Transport) {
		a, b := w.node(t, 1, tr), w.node(t, 2, tr)
		mb := box(t, b, 1, FirstCredit)
		f := flow(t, a, mb)
		try.OK(t, f.try(soon(t), 1, 60_000))
		sent := make(chan error, 1)
		go func() { sent <- f.try(soon(t), 2, 60_000) }()
		needed(t, mb)
		if err := f.tries(t, 3, 10); err != ErrFull {
			t.Fatal(err)
		}
		take(t, mb, Tag(1))
		try.OK(t, <-sent)
		take(t, mb, Tag(2))
		eventually.True(t, "room", func() bool { return f.tries(t, 3, 10) == nil })
		take(t, mb, Tag(3))
	})
}

// A refused TrySend allocates nothing.
func TestTrySendAllocs(t *testing.T) {
	if lock.IsWatched {
		t.Skip("a build that watches locks allocates for each")
	}
	over(t, transports(), func(t *testing.T, w *world, tr subsys.Transport) {
		a, b := w.node(t, 1, tr), w.node(t, 2, tr)
		mb := box(t, b, 1, FirstCredit)
		f := flow(t, a, mb)
		try.OK(t, f.tries(t, 1, 60_000))
		try.OK(t, a.Flush(soon(t)))
		p := try.Get(a.Buffer(60_000))(t)
		defer p.Release()
		if n := testing.AllocsPerRun(1000, func() {
			if err := f.TrySend(context.Background(), 1, 1, p); err != ErrFull {
				t.Fatal(err)
			}
		}); n >= 1 {
			t.Errorf("%v allocations a call", n)
		}
	})
}

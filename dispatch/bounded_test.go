// SPDX-License-Identifier: Apache-2.0

package dispatch

import (
	"context"
	"encoding/binary"
	"errors"
	"math/rand/v2"
	"testing"

	"github.com/rocl-go/rocl/dispatch/internal/credit"
	"github.com/rocl-go/rocl/dispatch/internal/wire"
	"github.com/rocl-go/rocl/internal/testkit/eventually"
	"github.com/rocl-go/rocl/internal/testkit/try"
	"github.com/rocl-go/rocl/subsys"
)

func bounded(t testing.TB, d *Dispatcher, serial uint32, bytes, messages int) *Mailbox {
	t.Helper()
	m := try.Get(d.BoundedMailbox(serial|Bounded, bytes, messages))(t)
	return m
}

// A mailbox of ten messages makes a fast sender wait after ten messages, whatever their size.
//
// Promise (Mailboxes): `MailboxLimit` and `MailboxMessages` hold for all senders together, from the
// first message on. An empty mailbox may take one larger message. See also TestBoundedManySenders.
func TestMailboxMessages(t *testing.T) {
	for name, tr := range transports() {
		for _, size := range []int{0, 100, 300_000} {
			t.Run(name, func(t *testing.T) {
				const most, n = 10, 50
				w := newWorld()
				a, b := w.node(t, 1, tr), w.node(t, 2, tr)
				mb := bounded(t, b, 1, 0, most)
				f := flow(t, a, mb)
				sent := make(chan error, 1)
				go func() {
					for i := range uint64(n) {
						if err := f.try(soon(t), i, size); err != nil {
							sent <- err
							return
						}
					}
					sent <- nil
				}()
				full := func() bool { c, _ := mb.Len(); return c >= most }
				for i := range n {
					if n-i > most {
						eventually.True(t, "ten messages", full)
						if i == 0 {
							eventually.True(t, "a sender that waits", locked(&mb.mu, func() bool { return len(mb.credit.Waiting()) == 1 }))
						}
						if c, _ := mb.Len(); c > most {
							t.Fatalf("after %d of them there are %d messages", i, c)
						}
					}
					m, err := mb.Recv(soon(t))
					if err != nil || m.Tag() != uint64(i) || m.Len() != size {
						t.Fatal(m, err)
					}
					m.Release()
				}
				try.OK(t, <-sent)
			})
		}
	}
}

// The limits of a mailbox hold, except for one message, with many sending contexts, some of which
// keep credit and do not use it. All messages arrive in order.
func TestBoundedManySenders(t *testing.T) {
	for name, tr := range transports() {
		for what, limit := range map[string]struct{ bytes, messages int }{
			"messages": {0, 5}, "bytes": {1000, 0}, "both": {2000, 8}, "less than one": {1, 0}, "one message": {0, 1},
		} {
			t.Run(name+" "+what, func(t *testing.T) {
				const senders, each, longest = 8, 100, 300
				w := newWorld()
				b := w.node(t, 100, tr)
				mb := bounded(t, b, 1, limit.bytes, limit.messages)
				sent := make(chan error, senders)
				for i := range uint64(senders) {
					a := w.node(t, 1+i, tr)
					f := flow(t, a, mb)
					go func() {
						r := rand.New(rand.NewPCG(i, 1))
						for n := range uint64(each) {
							if err := f.try(soon(t), i<<32|n, r.IntN(longest)); err != nil {
								sent <- err
								return
							}
						}
						sent <- nil
					}()
				}
				var next [senders]uint64
				for range senders * each {
					if c, stored := mb.Len(); limit.messages > 0 && c > limit.messages+1 || limit.bytes > 1 && stored > uint64(limit.bytes)+longest+credit.Overhead {
						t.Fatalf("%d messages of %d bytes are stored", c, stored)
					}
					m := try.Get(mb.Recv(soon(t)))(t)
					i, n := m.Tag()>>32, m.Tag()&(1<<32-1)
					if n != next[i] {
						t.Fatalf("message %d of sender %d in place of %d", n, i, next[i])
					}
					next[i]++
					m.Release()
				}
				for range senders {
					try.Check(t, <-sent)
				}
			})
		}
	}
}

// A message that is longer than the mailbox's limit comes when the mailbox is empty, and a
// sender that gives up leaves nothing behind.
func TestBoundedLarge(t *testing.T) {
	over(t, transports(), func(t *testing.T, w *world, tr subsys.Transport) {
		a, b := w.node(t, 1, tr), w.node(t, 2, tr)
		mb := bounded(t, b, 1, 1000, 0)
		f := flow(t, a, mb)
		for range 5 {
			try.OK(t, f.try(soon(t), 1, 100))
			gaveUp := make(chan error, 1)
			ctx, cancel := context.WithCancel(soon(t))
			go func() { gaveUp <- f.try(ctx, 2, 500_000) }()
			needed(t, mb)
			cancel()
			if err := <-gaveUp; err == nil {
				t.Fatal("a message was accepted that does not fit")
			}
			take(t, mb, Tag(1))
			try.OK(t, f.try(soon(t), 3, 500_000))
			take(t, mb, Tag(3))
		}
		try.OK(t, a.Flush(soon(t)))
		eventually.True(t, "no more than the window is promised", func() bool { return promised(mb) <= 1000 })
	})
}

// TrySend fills a bounded mailbox and no more.
func TestBoundedTrySend(t *testing.T) {
	over(t, transports(), func(t *testing.T, w *world, tr subsys.Transport) {
		a, b := w.node(t, 1, tr), w.node(t, 2, tr)
		mb := bounded(t, b, 1, 0, 3)
		f := flow(t, a, mb)
		for range 5 {
			n := 0
			eventually.True(t, "a full mailbox", func() bool {
				if err := f.tries(t, 1, 10); err == nil {
					n++
				} else if err != ErrFull {
					t.Fatal(err)
				}
				return n == 3
			})
			for range 10 {
				if err := f.tries(t, 1, 10); err != ErrFull {
					t.Fatalf("a fourth message: %v", err)
				}
				if err := f.tries(t, 1, 0); err != ErrFull {
					t.Fatalf("an empty message: %v", err)
				}
			}
			for range 3 {
				take(t, mb)
			}
		}
	})
}

// A mailbox is full of messages that no receive selects. The receive lets in twice as many, and
// then fails.
func TestBoundedStuck(t *testing.T) {
	over(t, transports(), func(t *testing.T, w *world, tr subsys.Transport) {
		a, b := w.node(t, 1, tr), w.node(t, 2, tr)
		mb := bounded(t, b, 1, 0, 10)
		sent := behind(t, a, mb, 19, 10)
		take(t, mb, Tag(2))
		try.Check(t, <-sent)
		for range 19 {
			take(t, mb, Tag(1))
		}
	})
}

// An invalid unit in a Credit frame is refused.
//
// Promise (Hostile peers): A peer that states an invalid charge for a message loses its connection.
func TestHostileUnit(t *testing.T) {
	w := newWorld()
	tr := transports()["tcp"]
	a, b := w.node(t, 1, tr), w.node(t, 2, tr)
	talk(t, a, b, box(t, b, 7, 0), 1)
	mb := bounded(t, b, 1, 1<<20, 1<<10)
	f := flow(t, a, mb)
	try.OK(t, f.try(soon(t), 1, 100))
	unit := func(n uint64) []byte { return binary.LittleEndian.AppendUint64(nil, n) }
	for what, c := range map[string]struct {
		dst     uint32
		payload []byte
	}{
		"another unit":       {mb.serial, unit(2048)},
		"more than messages": {mb.serial + 1, unit(MaxMessage + credit.Overhead + 1)},
		"overflow":           {mb.serial + 1, unit(1<<64 - 1)},
		"not bounded":        {7, unit(1024)},
		"length":             {mb.serial, []byte{1}},
	} {
		h := subsys.Header{Type: wire.TypeCredit, Dst: c.dst, Tag: 1 << 30, Len: uint32(len(c.payload))}
		f.l.d.progress.Lock()
		err := f.l.control(&subsys.Frame{Header: h, Data: c.payload})
		f.l.d.progress.Unlock()
		if !errors.Is(err, ErrProtocol) {
			t.Errorf("%s: %v", what, err)
		}
	}
	f.l.mu.Lock()
	defer f.l.mu.Unlock()
	if f.credit.Unit() != 1<<10 {
		t.Errorf("a message is charged %d", f.credit.Unit())
	}
}

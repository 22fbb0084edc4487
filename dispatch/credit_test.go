// SPDX-License-Identifier: Apache-2.0

package dispatch

import (
	"context"
	"errors"
	"slices"
	"testing"
	"time"

	"github.com/rocl-go/rocl/dispatch/internal/credit"
	"github.com/rocl-go/rocl/dispatch/internal/life"
	"github.com/rocl-go/rocl/dispatch/internal/wire"
	"github.com/rocl-go/rocl/internal/testkit/eventually"
	"github.com/rocl-go/rocl/resource"
	"github.com/rocl-go/rocl/subsys"
	"github.com/rocl-go/rocl/subsys/inproc"
	"github.com/rocl-go/rocl/subsys/tcp"
)

// promised returns the charged bytes of mb that are stored or may still arrive.
func promised(mb *Mailbox) uint64 {
	mb.mu.Lock()
	defer mb.mu.Unlock()
	return mb.credit.Promised()
}

// oversized returns the account that has the grant beyond the limit of mb. mb.mu must be held.
func oversized(mb *Mailbox) *credit.Account {
	a, _, _ := mb.credit.Oversize()
	return a
}

// inflowFor returns the account of a link with mb, to which it is not listed.
func inflowFor(mb *Mailbox, l *link) *inflow {
	in := newInflow(l, mb.serial, nil)
	in.mb = mb
	return in
}

// Promise (Mailboxes): If the messages of many senders exceed a mailbox's limit, one sender at a
// time gets credit. A sender that gives up returns it. See also TestOversizeGrantGivenBack.
func TestOneOversizeGrant(t *testing.T) {
	const senders, limit, large = 20, 1 << 20, 8 << 20
	for name, tr := range transports() {
		t.Run(name, func(t *testing.T) {
			w := newWorld()
			b := w.node(t, 100, tr)
			mb := box(t, b, 1, limit)
			sent := make(chan error, senders)
			for i := range uint64(senders) {
				f := flow(t, w.node(t, 1+i, tr), mb)
				go func() { sent <- f.try(soon(t), 1, large) }()
			}
			const most = limit + senders*FirstCredit + large + credit.Overhead
			for i := range senders {
				msg, err := mb.Recv(soon(t))
				if err != nil {
					t.Fatal(err)
				}
				msg.Release()
				if _, stored := mb.Len(); stored > large+credit.Overhead {
					t.Fatalf("after %d messages %d bytes are stored", i+1, stored)
				}
				if p := promised(mb); p > most {
					t.Fatalf("after %d messages %d bytes are promised, at most %d may be", i+1, p, most)
				}
			}
			for range senders {
				if err := <-sent; err != nil {
					t.Error(err)
				}
			}
		})
	}
}

// A sender that is granted credit beyond the mailbox's limit and does not use it gives it back, so
// that the next sender gets credit.
func TestOversizeGrantGivenBack(t *testing.T) {
	for name, tr := range links() {
		t.Run(name, func(t *testing.T) {
			w := newWorld()
			a, b, c := w.node(t, 1, tr), w.node(t, 2, tr), w.node(t, 3, tr)
			mb := box(t, b, 1, FirstCredit)
			fa, fc := flow(t, a, mb), flow(t, c, mb)
			if err := fc.try(soon(t), 0, 60_000); err != nil { // it makes all other messages wait
				t.Fatal(err)
			}
			eventually.True(t, "the first message", func() bool { n, _ := mb.Len(); return n == 1 })

			ctx, cancel := context.WithCancel(soon(t))
			gaveUp := make(chan error, 1)
			go func() { gaveUp <- fa.try(ctx, 1, 8*FirstCredit) }()
			needed(t, mb)
			// The grant is made while the sender gives up: it arrives when no sender waits.
			mb.mu.Lock()
			in := mb.credit.Waiting()[0].Owner().(*inflow)
			mb.credit.GrantNeed(&in.Account)
			mb.mu.Unlock()
			cancel()
			if err := <-gaveUp; !errors.Is(err, context.Canceled) {
				t.Fatal(err)
			}
			in.l.credit(mb, in)
			eventually.True(t, "the grant given back", func() bool { mb.mu.Lock(); defer mb.mu.Unlock(); return oversized(mb) == nil })
			take(t, mb)
			eventually.Returns(t, "another large message", func() {
				if err := fc.try(soon(t), 2, 8*FirstCredit); err != nil {
					t.Error(err)
				}
			})
			take(t, mb, Tag(2))
			for i := range 40 { // both sides still count alike
				if err := fa.try(soon(t), 3, 50_000); err != nil {
					t.Fatalf("message %d: %v", i, err)
				}
				take(t, mb, Tag(3))
			}
		})
	}
}

// needed waits until one sender waits for credit of mb.
func needed(t *testing.T, mb *Mailbox) {
	t.Helper()
	eventually.True(t, "the need", func() bool { mb.mu.Lock(); defer mb.mu.Unlock(); return len(mb.credit.Waiting()) == 1 })
}

// grantUnused makes the mailbox mb, which is empty, grant a sender of a credit beyond its limit. It
// keeps the grant from the sender, as if the sender's process had been stopped. The result of the
// sender's message is sent on the channel.
func grantUnused(t *testing.T, a *Dispatcher, mb *Mailbox) (in *inflow, sent chan error) {
	t.Helper()
	if err := flow(t, a, mb).try(soon(t), 0, 60_000); err != nil { // it makes all other messages wait
		t.Fatal(err)
	}
	eventually.True(t, "the first message", func() bool { n, _ := mb.Len(); return n == 1 })
	sent = make(chan error, 1)
	go func() { sent <- flow(t, a, mb).try(soon(t), 1, 8*FirstCredit) }()
	needed(t, mb)
	mb.mu.Lock()
	in = mb.credit.Waiting()[0].Owner().(*inflow)
	mb.credit.GrantNeed(&in.Account)
	mb.mu.Unlock()
	take(t, mb)
	return in, sent
}

// A sender is granted credit beyond the mailbox's limit, and nothing comes from it while another
// sender waits. It loses its link, and the other sender's message is let in.
//
// Promise (Mailboxes): A sender that holds credit beyond a mailbox's limit and sends nothing loses
// its link. The other senders go on. See also TestOversizeGrantOfMemoryNotUsed.
func TestOversizeGrantNotUsed(t *testing.T) {
	for name, tr := range links() {
		t.Run(name, func(t *testing.T) {
			w := newWorld()
			a, c := w.node(t, 1, tr), w.node(t, 3, tr)
			b := w.node(t, 2, tr, func(c *Config) { c.GiveUp = 50 * time.Millisecond })
			mb, other := box(t, b, 1, FirstCredit), box(t, b, 2, 0)
			_, sent := grantUnused(t, a, mb)
			eventually.Returns(t, "another large message", func() {
				if err := flow(t, c, mb).try(soon(t), 2, 8*FirstCredit); err != nil {
					t.Error(err)
				}
			})
			take(t, mb, Tag(2))
			eventually.Returns(t, "the sender that did not use its grant", func() {
				if err := <-sent; !errors.Is(err, ErrUnreachable) {
					t.Error(err)
				}
			})
			eventually.Returns(t, "a new link", func() {
				if err := flow(t, a, other).try(soon(t), 3, 10); err != nil {
					t.Error(err)
				}
				take(t, other)
			})
		})
	}
}

// The same holds if the credit was granted by another mailbox of a context with bounded memory.
func TestOversizeGrantOfMemoryNotUsed(t *testing.T) {
	w := newWorld()
	tr := transports()["tcp"]
	a, c := w.node(t, 1, tr), w.node(t, 3, tr)
	b := w.node(t, 2, tr, small(4<<20), func(c *Config) { c.GiveUp = 50 * time.Millisecond })
	mb, other := box(t, b, 1, FirstCredit), box(t, b, 2, FirstCredit)
	grantUnused(t, a, mb)
	eventually.Returns(t, "a large message to another resource", func() {
		if err := flow(t, c, other).try(soon(t), 2, 2<<20); err != nil {
			t.Error(err)
		}
	})
	take(t, other, Tag(2))
}

// A sender keeps its grant while this context's memory is used up: its message may wait for memory.
func TestOversizeGrantWithoutMemory(t *testing.T) {
	w := newWorld()
	tr := transports()["tcp"]
	a, c := w.node(t, 1, tr), w.node(t, 3, tr)
	b := w.node(t, 2, tr, small(4<<20), func(c *Config) { c.GiveUp = time.Hour })
	mb := box(t, b, 1, FirstCredit)
	in, _ := grantUnused(t, a, mb)
	go func() { _ = flow(t, c, mb).try(soon(t), 2, 8*FirstCredit) }()
	needed(t, mb)
	used, err := b.cfg.Pool.GetReserved(2 << 20)
	if err != nil {
		t.Fatal(err)
	}
	more, err := b.cfg.Pool.GetReserved(1 << 20)
	if err != nil {
		t.Fatal(err)
	}
	for range 10 {
		mb.checkOversize()
	}
	if in.l.ended() {
		t.Error("its link was ended while the memory was used up")
	}
	used.Release()
	more.Release()
	mb.checkOversize()
	mb.checkOversize()
	eventually.True(t, "the end of its link", in.l.ended)
	for _, d := range []*Dispatcher{a, c} { // else Close waits until the messages are received
		d.eachLink(func(l *link) { l.endLink(ErrUnreachable) })
	}
}

// A sender keeps its grant while its message comes, however slowly, while no other sender waits,
// and while its message waits for a receiver.
func TestOversizeGrantInUse(t *testing.T) {
	w := newWorld()
	tr := transports()["tcp"]
	patient := func(c *Config) { c.GiveUp = time.Hour }
	a, b, c := w.node(t, 1, tr, patient), w.node(t, 2, tr, patient), w.node(t, 3, tr, patient)
	mb := box(t, b, 1, FirstCredit)
	in, sent := grantUnused(t, a, mb)
	for range 3 {
		mb.checkOversize()
	}
	waiting := make(chan error, 1)
	go func() { waiting <- flow(t, c, mb).try(soon(t), 2, 8*FirstCredit) }()
	needed(t, mb)
	in.l.d.progress.Lock()
	in.l.parts = append(in.l.parts, part{dst: mb.serial, total: 8 * FirstCredit})
	in.l.d.progress.Unlock()
	for range 10 {
		in.l.d.progress.Lock()
		in.l.parts[0].have++
		in.l.d.progress.Unlock()
		mb.checkOversize()
	}
	in.l.d.progress.Lock()
	in.l.parts = nil
	in.l.d.progress.Unlock()
	in.l.credit(mb, in)
	if err := <-sent; err != nil {
		t.Fatal(err)
	}
	eventually.True(t, "the message", func() bool { n, _ := mb.Len(); return n == 1 })
	for range 3 {
		mb.checkOversize()
	}
	if in.l.ended() {
		t.Fatal("its link was ended")
	}
	take(t, mb, Tag(1))
	if err := <-waiting; err != nil {
		t.Error(err)
	}
	take(t, mb, Tag(2))
}

// A message that is larger than the context's memory can hold fails at once, and makes no other
// message wait, even if receivers never wait.
//
// Promise (Memory): A message that a context's memory can never hold is refused with `ErrTooLarge`
// and delays no other. See also TestNeverHeld.
func TestTooLargeForMemoryDelaysNone(t *testing.T) {
	w := newWorld()
	tr := transports()["tcp"]
	a, b, c := w.node(t, 1, tr), w.node(t, 2, tr, small(4<<20)), w.node(t, 3, tr)
	mb := box(t, b, 1, FirstCredit)
	if err := flow(t, a, mb).try(soon(t), 1, 4<<20); !errors.Is(err, ErrTooLarge) {
		t.Errorf("the message too large for the memory: %v", err)
	}
	eventually.Returns(t, "a large message", func() {
		if err := flow(t, c, mb).try(soon(t), 2, 8*FirstCredit); err != nil {
			t.Error(err)
		}
	})
	take(t, mb, Tag(2))
}

// A grant that arrives after its sender has given up is given back, even if other senders have
// asked for other credit meanwhile.
func TestEarlierGrantGivenBack(t *testing.T) {
	for name, second := range map[string]struct {
		size  int
		waits bool // it waits when the first sender gives up; otherwise it asks and gives up afterwards
	}{
		"smaller waits":    {4 * FirstCredit, true},
		"larger gives up":  {12 * FirstCredit, false},
		"smaller gives up": {4 * FirstCredit, false},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld()
			tr := transports()["tcp"]
			a, b, c := w.node(t, 1, tr), w.node(t, 2, tr), w.node(t, 3, tr)
			mb := box(t, b, 1, FirstCredit)
			fa, fc := flow(t, a, mb), flow(t, c, mb)
			if err := fc.try(soon(t), 0, 60_000); err != nil { // it makes all other messages wait
				t.Fatal(err)
			}
			eventually.True(t, "the first message", func() bool { n, _ := mb.Len(); return n == 1 })

			gaveUp, sent := make(chan error, 1), make(chan error, 1)
			ctx, cancel := context.WithCancel(soon(t))
			defer cancel()
			go func() { gaveUp <- fa.try(ctx, 1, 8*FirstCredit) }()
			needed(t, mb)
			ctx2, cancel2 := context.WithCancel(soon(t))
			defer cancel2()
			if second.waits {
				go func() { sent <- fa.try(ctx2, 2, second.size) }()
				eventually.True(t, "a second sender", func() bool {
					fa.l.mu.Lock()
					defer fa.l.mu.Unlock()
					return fa.waiters.First() != fa.waiters.Last()
				})
			}
			mb.mu.Lock()
			in := mb.credit.Waiting()[0].Owner().(*inflow)
			mb.credit.GrantNeed(&in.Account)
			mb.mu.Unlock()
			asked := func() uint64 { fa.l.mu.Lock(); defer fa.l.mu.Unlock(); return fa.credit.Asked() }
			cancel()
			if err := <-gaveUp; !errors.Is(err, context.Canceled) {
				t.Fatal(err)
			}
			if !second.waits {
				go func() { sent <- fa.try(ctx2, 2, second.size) }()
				eventually.True(t, "the second question", func() bool { return asked() != 0 })
				cancel2()
				if err := <-sent; !errors.Is(err, context.Canceled) {
					t.Fatal(err)
				}
			}
			in.l.credit(mb, in)
			if second.waits {
				take(t, mb, Tag(2))
				if err := <-sent; err != nil {
					t.Fatal(err)
				}
			}
			eventually.True(t, "the grant given back", func() bool { mb.mu.Lock(); defer mb.mu.Unlock(); return oversized(mb) == nil })
			take(t, mb)
			eventually.Returns(t, "another large message", func() {
				if err := fc.try(soon(t), 3, 8*FirstCredit); err != nil {
					t.Error(err)
				}
			})
			take(t, mb, Tag(3))
			for i := range 40 { // both sides still count alike
				if err := fa.try(soon(t), 4, 50_000); err != nil {
					t.Fatalf("message %d: %v", i, err)
				}
				take(t, mb, Tag(4))
			}
		})
	}
}

// A mailbox that is full of one sender's messages still takes FirstCredit of another sender's, as
// often as they are received.
//
// Promise (Mailboxes): A receiver that selects senders by `From` gets their messages, however
// large, while others fill the mailbox. See also TestLargeFromOneWhileFull.
func TestFirstCreditWhileFull(t *testing.T) {
	for name, tr := range transports() {
		t.Run(name, func(t *testing.T) {
			w := newWorld()
			a, b, c := w.node(t, 1, tr), w.node(t, 2, tr), w.node(t, 3, tr)
			mb := box(t, b, 1, 4*FirstCredit)
			fc := flow(t, c, mb)
			full, stop := context.WithCancel(soon(t))
			filled := make(chan error, 1)
			go func() {
				for {
					if err := fc.try(full, 7, 10_000); err != nil {
						filled <- err
						return
					}
				}
			}()
			eventually.True(t, "a full mailbox", func() bool { mb.mu.Lock(); defer mb.mu.Unlock(); return len(mb.credit.Waiting()) == 1 })
			box(t, a, 1, 0) // the sender, which the receiver names
			fa := flow(t, a, mb)
			const messages = 100
			sent := make(chan error, 1)
			go func() {
				for range messages {
					if err := fa.try(soon(t), 1, 10_000); err != nil {
						sent <- err
						return
					}
				}
				sent <- nil
			}()
			for range messages {
				take(t, mb, From(a.self.WithSerial(1)))
			}
			if err := <-sent; err != nil {
				t.Error(err)
			}
			stop()
			<-filled
		})
	}
}

// A receiver that waits for one sender gets that sender's message, even if the message needs more
// credit than FirstCredit and messages of other senders fill the mailbox.
func TestLargeFromOneWhileFull(t *testing.T) {
	for name, tr := range transports() {
		t.Run(name, func(t *testing.T) {
			w := newWorld()
			a, b, c := w.node(t, 1, tr), w.node(t, 2, tr), w.node(t, 3, tr)
			mb := box(t, b, 1, FirstCredit)
			if err := flow(t, c, mb).try(soon(t), 7, 60_000); err != nil {
				t.Fatal(err)
			}
			eventually.True(t, "a full mailbox", func() bool { n, _ := mb.Len(); return n == 1 })
			box(t, a, 1, 0) // the sender, which the receiver names
			fa := flow(t, a, mb)
			for i := range 3 {
				sent := make(chan error, 1)
				go func() { sent <- fa.try(soon(t), 1, 4*FirstCredit) }()
				if i == 0 { // first the need comes before the receiver, then at any time
					needed(t, mb)
				}
				take(t, mb, From(a.self.WithSerial(1)))
				if err := <-sent; err != nil {
					t.Error(err)
				}
			}
		})
	}
}

// The needs of senders are counted correctly, in whatever order they ask, give up and leave.
func TestGrantsAreCounted(t *testing.T) {
	d := newWorld().node(t, 1, inproc.NewNetwork().Transport())
	mb := box(t, d, 1, 1<<20)
	var ins []*inflow
	for i := range uint64(20) {
		l := newLink(d, linkKey{peer: resource.MakeGID(1, 2+i, 0)})
		in := inflowFor(mb, l)
		mb.admit(in)
		ins = append(ins, in)
	}
	granted := 0
	for i, in := range ins {
		g, err := mb.onNeed(in, credit.Charge(8<<20), credit.Outgoing{})
		if err != nil {
			t.Fatal(err)
		}
		if g != 0 {
			if granted++; i != 0 {
				t.Errorf("sender %d goes before the first", i)
			}
		}
	}
	if granted != 1 {
		t.Errorf("%d senders were granted 8 MiB of 1 MiB at once", granted)
	}
	for _, in := range ins {
		mb.closeAccount(in)
	}
	if p := promised(mb); p != 0 || locked(&mb.mu, func() bool { return oversized(mb) != nil })() {
		t.Errorf("%d bytes are promised to no sender", p)
	}
}

// The arrival of a message beyond the limit lets the next sender have its credit, if a receiver
// waits for the message of that sender alone: nothing else would, until the first is received.
//
// Promise (Memory): A receiver that waits for one sender gets its large message, whatever other
// large messages come first.
func TestArrivalGrants(t *testing.T) {
	w := newWorld()
	for name, opts := range map[string][]func(*Config){"mailbox": nil, "memory": {small(1 << 20)}} {
		t.Run(name, func(t *testing.T) {
			d := w.node(t, 1, inproc.NewNetwork().Transport(), opts...)
			mb := box(t, d, 1, FirstCredit)
			var ins [2]*inflow
			for i := range ins {
				l := newLink(d, linkKey{peer: resource.MakeGID(1, 2+uint64(i), 0)})
				ins[i] = inflowFor(mb, l)
				mb.admit(ins[i])
			}
			const size = 400_000
			if g, err := mb.onNeed(ins[0], credit.Charge(size), credit.Outgoing{}); err != nil || g < credit.Charge(size) {
				t.Fatalf("%d granted: %v", g, err)
			}
			ctx, end := context.WithCancel(t.Context())
			received := make(chan error, 1)
			go func() {
				_, err := mb.Recv(ctx, From(ins[1].l.peer.WithSerial(1)))
				received <- err
			}()
			eventually.True(t, "a receiver", func() bool { mb.mu.Lock(); defer mb.mu.Unlock(); return mb.waiters.First() != nil })
			if g, err := mb.onNeed(ins[1], credit.Charge(size), credit.Outgoing{}); err != nil || g != 0 {
				t.Fatalf("%d granted while the first message is under way: %v", g, err)
			}
			b, err := d.arriving(size)
			if err != nil {
				t.Fatal(err)
			}
			if err := mb.deliver(ins[0], []subsys.Frame{{Header: subsys.Header{Src: 1, Len: size}, Data: b.Bytes(), Buf: b}}, size, 0, nil); err != nil {
				t.Fatal(err)
			}
			eventually.True(t, "credit of the second sender", func() bool { mb.mu.Lock(); defer mb.mu.Unlock(); return ins[1].Granted() >= credit.Charge(size) })
			eventually.True(t, "a dial, to tell that credit", func() bool { l := ins[1].l; l.mu.Lock(); defer l.mu.Unlock(); return l.life.State() == life.Dialling })
			end()
			if err := <-received; !errors.Is(err, context.Canceled) {
				t.Error(err)
			}
			take(t, mb)
			for _, in := range ins {
				mb.closeAccount(in)
			}
		})
	}
}

// A peer that gives back credit that it does not have is cut off. A peer that gives back credit
// while the mailbox grants more keeps what it was granted last.
func TestGiveBack(t *testing.T) {
	d := newWorld().node(t, 1, inproc.NewNetwork().Transport())
	mb := box(t, d, 1, 1<<20)
	l := newLink(d, linkKey{peer: resource.MakeGID(1, 2, 0)})
	l.d.progress.Lock()
	defer l.d.progress.Unlock()
	say := func(tag, held uint64) error {
		f := subsys.Frame{Header: subsys.Header{Type: wire.TypeNeed, Dst: 1, Tag: tag}}
		if held > 0 {
			f.Data = heldPayload(held)
		}
		return l.control(&f)
	}
	if err := say(1<<19, 0); err != nil { // asks for credit
		t.Fatal(err)
	}
	in := l.inflow(1)
	if in.Granted() != 1<<19 {
		t.Fatalf("%d granted", in.Granted())
	}
	if err := say(FirstCredit, FirstCredit); err != nil || in.Granted() != 1<<19 {
		t.Errorf("a late return: %v, %d granted", err, in.Granted())
	}
	if err := say(FirstCredit, 1<<19); err != nil || in.Granted() != FirstCredit || promised(mb) != FirstCredit {
		t.Errorf("a return: %v, %d granted, %d promised", err, in.Granted(), promised(mb))
	}
	for _, wrong := range []uint64{0, FirstCredit - 1} {
		if err := say(wrong, FirstCredit); !errors.Is(err, ErrProtocol) {
			t.Errorf("a return to %d: %v", wrong, err)
		}
	}
	if err := l.control(&subsys.Frame{Header: subsys.Header{Type: wire.TypeNeed, Dst: 1, Tag: 1}, Data: []byte("short")}); !errors.Is(err, ErrProtocol) {
		t.Errorf("a short return: %v", err)
	}
	mb.Close()
}

// The credit that a peer learns does not fall, and is never more than its grant, in whatever order
// the goroutines that grant it tell it. No grant is told twice: the peer may have given it back
// between the two.
func TestCreditSentInOrder(t *testing.T) {
	d := newWorld().node(t, 1, inproc.NewNetwork().Transport())
	mb := box(t, d, 1, 1<<20)
	l := newLink(d, linkKey{peer: resource.MakeGID(1, 2, 0)})
	l.d.progress.Lock()
	defer l.d.progress.Unlock()
	sent := func() (limits []uint64) {
		fs := l.s.Take()
		defer l.s.Untake(fs, 0)
		for _, e := range fs {
			for b := e.Data; e.Type == subsys.TypeBatch && len(b) > 0; {
				var h subsys.Header
				if err := h.Parse(b); err != nil {
					t.Fatal(err)
				}
				if b = b[subsys.HeaderLen+int(h.Len):]; h.Type == wire.TypeCredit {
					limits = append(limits, h.Tag)
				}
			}
		}
		return limits
	}
	need := func(total uint64, payload ...byte) {
		if err := l.control(&subsys.Frame{Header: subsys.Header{Type: wire.TypeNeed, Dst: 1, Tag: total}, Data: payload}); err != nil {
			t.Fatal(err)
		}
	}
	in := l.inflow(1)
	late, err := mb.onNeed(in, 2*FirstCredit, credit.Outgoing{}) // granted, and not told yet
	if err != nil {
		t.Fatal(err)
	}
	need(4 * FirstCredit)
	mb.finishHandOut(new(Message), in, late)
	if got := sent(); !slices.Equal(got, []uint64{4 * FirstCredit}) {
		t.Errorf("the peer is granted %d", got)
	}
	need(FirstCredit, heldPayload(4*FirstCredit)...)
	mb.finishHandOut(new(Message), in, late)
	if got := sent(); !slices.Equal(got, []uint64{4 * FirstCredit}) {
		t.Errorf("after credit was given back the peer is granted %d", got)
	}
	need(4 * FirstCredit)
	if got := sent(); !slices.Equal(got, []uint64{4 * FirstCredit, 4 * FirstCredit}) {
		t.Errorf("after the peer asked again it is granted %d", got)
	}
	mb.Close()
}

// A receiver that waits for a message that does not come lets its mailbox grow by one message
// beyond the limit, and no further.
func TestLimitWhileReceiverWaits(t *testing.T) {
	for name, tr := range transports() {
		t.Run(name, func(t *testing.T) {
			const large = 2 * FirstCredit
			w := newWorld()
			a, b := w.node(t, 1, tr), w.node(t, 2, tr)
			mb := box(t, b, 1, FirstCredit)
			f := flow(t, a, mb)
			ctx, stop := context.WithCancel(soon(t))
			defer stop()
			received := make(chan error, 1)
			go func() {
				_, err := mb.Recv(ctx, Tag(9))
				received <- err
			}()
			eventually.True(t, "the receiver", func() bool { mb.mu.Lock(); defer mb.mu.Unlock(); return mb.waiters.First() != nil })
			sent := make(chan error, 1)
			go func() {
				for {
					if err := f.try(ctx, 1, large); err != nil {
						sent <- err
						return
					}
				}
			}()
			eventually.True(t, "the sender stopped", func() bool {
				mb.mu.Lock()
				defer mb.mu.Unlock()
				return len(mb.credit.Waiting()) == 1 && mb.credit.Next() == nil
			})
			if n, stored := mb.Len(); stored > FirstCredit+large+credit.Overhead {
				t.Errorf("%d messages of %d bytes are stored", n, stored)
			}
			stop()
			<-sent
			<-received
		})
	}
}

// A receiver that waits for one sender by name gets its large message even while another sender's
// message, beyond the limit, is stored.
func TestLargeFromOneBehindLarge(t *testing.T) {
	for name, tr := range transports() {
		for memory, change := range map[string]func(*Config){"": func(*Config) {}, " of little memory": small(4 << 20)} {
			t.Run(name+memory, func(t *testing.T) {
				const large = 1_200_000
				w := newWorld()
				a, b, c := w.node(t, 1, tr), w.node(t, 2, tr, change), w.node(t, 3, tr)
				mb := box(t, b, 1, FirstCredit)
				if err := flow(t, c, mb).try(soon(t), 7, large); err != nil {
					t.Fatal(err)
				}
				eventually.True(t, "a full mailbox", func() bool { n, _ := mb.Len(); return n == 1 })
				box(t, a, 1, 0) // the sender, which the receiver names
				fa := flow(t, a, mb)
				for range 3 {
					sent := make(chan error, 1)
					go func() { sent <- fa.try(soon(t), 1, large) }()
					take(t, mb, From(a.self.WithSerial(1)))
					if err := <-sent; err != nil {
						t.Fatal(err)
					}
				}
				take(t, mb, Tag(7))
				if err := flow(t, c, mb).try(soon(t), 7, large); err != nil {
					t.Error(err)
				}
				take(t, mb, Tag(7))
			})
		}
	}
}

// A sender of large messages asks for credit behind their pieces. The mailbox does not grant the
// credit before it has the earlier messages.
func TestNeedBehindPieces(t *testing.T) {
	const large, messages = 8 << 20, 4
	a, b, g, _ := gated(t, tcp.New(), 1<<19)
	mb := box(t, b, 1, FirstCredit)
	f := flow(t, a, mb)
	sent := make(chan error, 1)
	go func() {
		for range messages {
			if err := f.try(soon(t), 1, large); err != nil {
				sent <- err
				return
			}
		}
		sent <- nil
	}()
	eventually.True(t, "a sender that waits", func() bool {
		f.l.mu.Lock()
		defer f.l.mu.Unlock()
		return f.waiters.First() != nil && f.credit.Sent() > 0
	})
	f.l.mu.Lock()
	if f.credit.Sent() != large+credit.Overhead || f.credit.Asked() > f.credit.Sent() && f.line.IsWaiting() {
		t.Errorf("%d bytes are accepted, and credit for %d is asked for", f.credit.Sent(), f.credit.Asked())
	}
	f.l.mu.Unlock()
	g.let(1 << 40)
	for range messages {
		take(t, mb)
		if _, stored := mb.Len(); stored > large+credit.Overhead {
			t.Errorf("%d bytes are stored", stored)
		}
	}
	if err := <-sent; err != nil {
		t.Error(err)
	}
}

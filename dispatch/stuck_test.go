// SPDX-License-Identifier: Apache-2.0

package dispatch

import (
	"errors"
	"testing"
	"time"

	"github.com/rocl-go/rocl/dispatch/internal/credit"
	"github.com/rocl-go/rocl/internal/testkit/eventually"
	"github.com/rocl-go/rocl/internal/testkit/try"
	"github.com/rocl-go/rocl/subsys"
)

// behind makes a context send messages of size bytes with tag 1, until it has sent n or waits for
// credit, and then one message with tag 2. The results are sent on the channel.
func behind(t *testing.T, from *Dispatcher, mb *Mailbox, n, size int) chan error {
	f, sent := flow(t, from, mb), make(chan error, 1)
	go func() {
		for range n {
			if err := f.try(soon(t), 1, size); err != nil {
				sent <- err
				return
			}
		}
		sent <- f.try(soon(t), 2, 10)
	}()
	return sent
}

// A receiver gets a message that lies behind more others than its mailbox may hold, as long as they
// are at most twice as many.
//
// Promise (Mailboxes): While a receiver waits for a message that is not stored, its mailbox may
// take twice its limit. If nothing moves for as long as `WithGiveUp` says, the receive fails with
// `ErrStuck` and loses nothing. See also TestLimitWhileReceiverWaits.
func TestSelectiveReceiveDoublesLimit(t *testing.T) {
	const limit, size, n = 1 << 20, 100_000, 17
	over(t, transports(), func(t *testing.T, w *world, tr subsys.Transport) {
		a, b := w.node(t, 1, tr), w.node(t, 2, tr)
		mb := box(t, b, 1, limit)
		sent := behind(t, a, mb, n, size)
		eventually.True(t, "a sender that waits", locked(&mb.mu, func() bool { return len(mb.credit.Waiting()) == 1 }))
		if _, stored := mb.Len(); stored > limit+FirstCredit {
			t.Errorf("without a receiver %d bytes are stored", stored)
		}
		take(t, mb, Tag(2))
		try.Check(t, <-sent)
		if _, stored := mb.Len(); stored > 2*limit+FirstCredit {
			t.Errorf("%d bytes are stored", stored)
		}
		for range n {
			take(t, mb, Tag(1))
		}
	})
}

// A receive that waits behind more than twice as many messages as its mailbox may hold fails with
// ErrStuck. It has lost nothing: it succeeds when the others have been received.
func TestStuckReceive(t *testing.T) {
	const limit, size, n = 1 << 20, 100_000, 40
	over(t, transports(), func(t *testing.T, w *world, tr subsys.Transport) {
		a, b := w.node(t, 1, tr), w.node(t, 2, tr, func(c *Config) { c.GiveUp = 100 * time.Millisecond })
		idle := w.node(t, 3, tr)
		box(t, a, 1, 0)
		box(t, idle, 1, 0)
		mb := box(t, b, 1, limit)
		talk(t, idle, b, mb, 7) // the context has credit, and sends nothing
		sent := behind(t, a, mb, n, size)
		for what, sel := range map[string]Select{"tag": Tag(2), "origin and tag": All(From(a.self.WithSerial(1)), Tag(2)), "one of two origins": All(From(a.self.WithSerial(1), idle.self.WithSerial(1)), Tag(2))} {
			try.Fails(mb.Recv(soon(t), sel))(t, ErrStuck, what)
		}
		if _, stored := mb.Len(); stored > 2*limit+FirstCredit+size+credit.Overhead {
			t.Errorf("%d bytes are stored", stored)
		}
		for range n {
			take(t, mb, Tag(1))
		}
		take(t, mb, Tag(2))
		try.Check(t, <-sent)
	})
}

// A receive does not fail while another goroutine receives messages, however slowly, nor if it
// waits for a context that has room.
func TestNotStuck(t *testing.T) {
	const limit, size, n = 1 << 20, 100_000, 40
	w := newWorld()
	tr := transports()["tcp"]
	a, idle := w.node(t, 1, tr), w.node(t, 3, tr)
	b := w.node(t, 2, tr, func(c *Config) { c.GiveUp = time.Hour }) // the test calls checkStuck itself
	mb := box(t, b, 1, limit)
	box(t, idle, 1, 0)
	talk(t, idle, b, mb, 7)
	sent := behind(t, a, mb, n, size)
	results := make(chan error, 2)
	recv := func(sel ...Select) {
		m, err := mb.Recv(soon(t), sel...)
		if err == nil {
			m.Release()
		}
		results <- err
	}
	go recv(Tag(2))
	go recv(From(idle.self.WithSerial(1)))
	isFull := func() bool {
		mb.mu.Lock()
		defer mb.mu.Unlock()
		return mb.waiters.First() != mb.waiters.Last() && mb.credit.Promised()+size > 2*mb.credit.Limit() && len(mb.credit.Waiting()) == 1
	}
	for range 5 {
		eventually.True(t, "a full mailbox", isFull)
		for range 2 {
			mb.checkStuck()
			take(t, mb, Tag(1))
			eventually.True(t, "a full mailbox", isFull)
		}
	}
	select {
	case err := <-results:
		t.Fatalf("a receive ended: %v", err)
	default:
	}
	mb.checkStuck()
	mb.checkStuck()
	if err := <-results; !errors.Is(err, ErrStuck) { // the receive of tag 2
		t.Fatal(err)
	}
	mb.checkStuck()
	mb.checkStuck()
	try.OK(t, flow(t, idle, mb).try(soon(t), 3, 10))
	try.Check(t, <-results, "a receive from a context that has room")
	for range n - 10 {
		take(t, mb, Tag(1))
	}
	take(t, mb, Tag(2))
	try.Check(t, <-sent)
}

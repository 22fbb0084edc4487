// SPDX-License-Identifier: Apache-2.0

package dispatch

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"testing"

	"github.com/rocl-go/rocl/dispatch/internal/credit"
	"github.com/rocl-go/rocl/internal/testkit/eventually"
	"github.com/rocl-go/rocl/internal/testkit/try"
	"github.com/rocl-go/rocl/resource"
	"github.com/rocl-go/rocl/subsys"
)

// shown returns what a snapshot of the mailbox's context has of it.
func shown(t testing.TB, m *Mailbox) MailboxSnapshot {
	t.Helper()
	s := m.d.Snapshot()
	i := slices.IndexFunc(s.Mailboxes, func(b MailboxSnapshot) bool { return b.Resource == m.id() })
	if i < 0 {
		t.Fatalf("%v is not in %+v", m.id(), s)
	}
	return s.Mailboxes[i]
}

// inBackground runs wait, which waits until ctx ends, until the test ends.
func inBackground(t testing.TB, wait func(ctx context.Context)) {
	ctx, end := context.WithCancel(t.Context())
	var running sync.WaitGroup
	running.Go(func() { wait(ctx) })
	t.Cleanup(func() { end(); running.Wait() })
}

// A snapshot shows the messages that wait, those that were received, and the receives that wait,
// with what they select.
func TestSnapshotOfMailbox(t *testing.T) {
	over(t, transports(), func(t *testing.T, w *world, tr subsys.Transport) {
		a, b := w.node(t, 1, tr), w.node(t, 2, tr)
		from, to := box(t, a, 1, 0), box(t, b, 1, 0)
		f := flow(t, a, to)
		for tag := range uint64(100) {
			try.OK(t, f.SendBytes(t.Context(), from.serial, tag, []byte("some bytes")))
		}
		eventually.True(t, "100 messages", func() bool { return shown(t, to).Messages == 100 })
		const each = credit.Overhead + 10
		for range 30 {
			take(t, to)
		}
		s := shown(t, to)
		want := MailboxSnapshot{
			Resource: to.id(), Messages: 70, Bytes: 70 * each, Limit: 16 << 20, Received: 30 * each, Arrived: 100 * each,
			First: MessageSnapshot{From: from.id(), Tag: 30, Bytes: 10},
		}
		if fmt.Sprint(s) != fmt.Sprint(want) {
			t.Fatalf("got  %+v\nwant %+v", s, want)
		}

		others := []resource.GID{box(t, a, 8, 0).id(), box(t, a, 9, 0).id()} // they live, and send nothing
		waits := map[string][]Select{
			"[] [777] ":                          {Tag(777)},
			"[] [777 778] ":                      {Tag(777, 778)},
			"[] [] tags from 1000 to 2000":       {Tags(1000, 2000)},
			fmt.Sprint(others, " [] "):           {From(others...)},
			fmt.Sprint(others[1:], " [777] "):    {From(others[1]), Tag(777)},
			"[] [777 778] one of 2 alternatives": {Any(Tag(777), Tag(778))},
			"[] [] one of 2 alternatives":        {Any(From(others[1]), Tag(778))},
		}
		for _, sel := range waits {
			inBackground(t, func(ctx context.Context) { _, _ = to.Recv(ctx, sel...) })
		}
		eventually.True(t, "the receives wait", func() bool { return len(shown(t, to).Waits) == len(waits) })
		first, again := shown(t, to).Waits, shown(t, to).Waits
		numbers := map[uint64]bool{}
		for i, r := range first {
			if text := fmt.Sprint(r.From, r.Tags, " ", r.Select); waits[text] == nil {
				t.Errorf("a receive shows as %q", text)
			}
			if numbers[r.Number] = true; again[i].Number != r.Number {
				t.Errorf("the number of a receive changes from %d to %d", r.Number, again[i].Number)
			}
		}
		try.Equal(t, len(numbers), len(waits), "receives with different numbers")
	})
}

// Received and Arrived only grow, also when the account of a sender ends, and count what is
// received afterwards.
func TestSnapshotAcrossEnds(t *testing.T) {
	over(t, transports(), func(t *testing.T, w *world, tr subsys.Transport) {
		b := w.node(t, 100, tr)
		to := box(t, b, 1, 0)
		const each = credit.Overhead + 5
		for n := range uint64(3) {
			a := w.node(t, n+1, tr)
			from := box(t, a, 1, 0)
			f := flow(t, a, to)
			for range 10 {
				try.OK(t, f.SendBytes(t.Context(), from.serial, 1, []byte("hello")))
			}
			eventually.True(t, "10 more messages", func() bool { return shown(t, to).Arrived == 10*(n+1)*each })
			take(t, to)
			try.OK(t, a.Close(soon(t)))
			w.setGone(a.self, true)
			eventually.True(t, "the account has ended", locked(&to.mu, func() bool { return len(to.inflows) == 0 }))
			s := shown(t, to)
			if s.Arrived != 10*(n+1)*each || s.Received != (n+1)*each {
				t.Errorf("after the end of %d senders: %+v", n+1, s)
			}
		}
		for range 27 {
			take(t, to)
		}
		if s := shown(t, to); s.Messages != 0 || s.Received != s.Arrived || s.Arrived != 30*each {
			t.Errorf("when all is received: %+v", s)
		}
	})
}

// A send that waits for room shows at its sender and at the mailbox, and a call at its caller.
func TestSnapshotOfWaits(t *testing.T) {
	over(t, transports(), func(t *testing.T, w *world, tr subsys.Transport) {
		a, b := w.node(t, 1, tr), w.node(t, 2, tr)
		from := box(t, a, 1, 0)
		to := try.Get(b.BoundedMailbox(Bounded|1, 1000, 1))(t)
		f := flow(t, a, to)
		try.OK(t, f.SendBytes(t.Context(), from.serial, 1, []byte("fills the mailbox")))
		inBackground(t, func(ctx context.Context) { _ = f.SendBytes(ctx, from.serial, 7, []byte("waits")) })
		message := MessageSnapshot{From: from.id(), Tag: 7, Bytes: 5}
		eventually.True(t, "the send waits at both ends", func() bool {
			sends, senders := a.Snapshot().Sends, shown(t, to).Senders
			if len(sends) != 1 || len(senders) != 1 {
				return false
			}
			s := sends[0]
			if s.Number == 0 || s != (SendSnapshot{s.Number, from.id(), to.id(), 7, 5}) || senders[0] != message {
				t.Errorf("the send shows as %+v and %+v", s, senders)
			}
			return true
		})

		server := box(t, b, 2, 0)
		p := try.Get(from.RequestBytes(t.Context(), flow(t, a, server), 9, []byte("question")))(t)
		calls := a.Snapshot().Calls
		if len(calls) != 1 || calls[0] != (CallSnapshot{Number: p.number, From: from.id(), To: server.id(), Tag: 9}) {
			t.Errorf("the call shows as %+v", calls)
		}
		p.Cancel(nil)
		_, _ = p.Wait(t.Context())
		if calls = a.Snapshot().Calls; len(calls) != 0 {
			t.Errorf("after its end the call shows as %+v", calls)
		}
	})
}

// A link that cannot connect shows as one that dials, with the reason and what waits for it.
func TestSnapshotOfLinks(t *testing.T) {
	over(t, links(), func(t *testing.T, w *world, tr subsys.Transport) {
		a, b := w.node(t, 1, tr, givesUp), w.node(t, 2, tr)
		from, to := box(t, a, 1, 0), box(t, b, 1, 0)
		try.OK(t, flow(t, a, to).SendBytes(t.Context(), from.serial, 1, []byte("hello")))
		take(t, to)
		eventually.True(t, "the link is connected and idle", func() bool {
			s := a.Snapshot().Links
			return len(s) == 1 && s[0].Peer == b.self && s[0].State == "connected" && s[0].Unacknowledged == 0 && s[0].Queued == 0 && s[0].Sent == 1
		})
		nowhere := resource.MakeGID(1, 9, 0)
		f := try.Get(a.Flow(nowhere, 1))(t)
		try.OK(t, f.SendAndForget(t.Context(), from.serial, 1, []byte("hello")))
		eventually.True(t, "the link without a peer has a reason", func() bool {
			s := a.Snapshot().Links[0] // the most interesting one
			return s.Peer == nowhere && s.State == "dialling" && s.Queued == 1 && s.LastError != ""
		})
	})
}

// Beyond their limits, lists have the most interesting entries, and the others are counted.
func TestSnapshotIsLimited(t *testing.T) {
	w := newWorld()
	a := w.node(t, 1, transports()["inproc"])
	const more = 5000
	for i := range uint32(more) {
		box(t, a, i+1, 0)
	}
	last := a.mailbox(more)
	try.OK(t, flow(t, a, last).SendBytes(t.Context(), 1, 1, []byte("hello")))
	for range mostWaiting + 3 {
		inBackground(t, func(ctx context.Context) { _, _ = last.Recv(ctx, Tag(2)) })
	}
	eventually.True(t, "the receives that are left out are counted", func() bool {
		s := a.Snapshot()
		return len(s.Mailboxes) == mostEntries && s.Cut["resources"] == more-mostEntries && s.Mailboxes[0].Resource == last.id() &&
			len(s.Mailboxes[0].Waits) == mostWaiting && s.Cut["receivers"] == 3 && s.Mailboxes[0].ReceivesWaiting() == mostWaiting+3
	})
}

// Snapshots may be taken while messages, calls and receives go on, and change nothing about them.
func TestSnapshotsBesideMessages(t *testing.T) {
	over(t, transports(), func(t *testing.T, w *world, tr subsys.Transport) {
		a, b := w.node(t, 1, tr), w.node(t, 2, tr)
		from, to := box(t, a, 1, 0), box(t, b, 1, 0)
		f := flow(t, a, to)
		inBackground(t, func(ctx context.Context) {
			for ctx.Err() == nil {
				a.Snapshot()
				b.Snapshot()
			}
		})
		const n = 3000
		inBackground(t, func(ctx context.Context) {
			for tag := range uint64(n) {
				if err := f.SendBytes(ctx, from.serial, tag, []byte("hello")); err != nil {
					t.Error(err)
				}
			}
		})
		for tag := range uint64(n) {
			takeTag(t, to, tag)
		}
	})
}

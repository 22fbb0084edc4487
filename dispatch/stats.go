// SPDX-License-Identifier: Apache-2.0

package dispatch

import "github.com/rocl-go/rocl/resource"

// Stats counts what messages cost. All counts except Links and Calls only grow.
type Stats struct {
	Sent, Received           map[string]uint64 // messages, by transport
	SentBytes, ReceivedBytes uint64            // payload
	Copies, CopiedBytes      uint64            // copies made in user space
	Reads, Writes, Polls     uint64            // system calls
	Sleeps, Wakeups          uint64            // of waiters
	Resumed, Resent          uint64            // broken connections that links survived; frames retransmitted
	Moved                    uint64            // changes of a link from one transport to another
	Undelivered              uint64            // messages accepted and not delivered
	Unreported               uint64            // those of Undelivered with a report that was dropped
	LateReplies              uint64            // replies dropped because their call had ended before they came
	StuckReceives            uint64            // receives that failed with ErrStuck
	Links                    int               // links to other contexts, including contexts of this process
	Calls                    int               // calls of this context that wait for their replies
}

// Stats returns the present counts.
func (d *Dispatcher) Stats() Stats {
	var t traffic
	d.countLocal()
	d.mu.RLock()
	links := len(d.passages.byPeer)
	for _, e := range d.passages.byPeer {
		t.addRoute(e.route())
	}
	t.add(&d.past)
	live := d.allLinksLocked() // with past under one lock: a link that ends is in one of the two
	d.mu.RUnlock()
	links += len(live)
	for _, l := range live {
		l.mu.Lock()
		l.flushCountersLocked()
		t.add(&l.traffic)
		l.mu.Unlock()
	}
	d.calls.box.mu.Lock()
	inFlight, late := d.calls.inFlight, d.calls.late
	d.calls.box.mu.Unlock()
	c, woken := &d.count, d.progress.Woken()
	return Stats{
		Sent: t.sent, Received: t.received, SentBytes: t.sentB, ReceivedBytes: t.receivedB,
		Copies: c.Copies.Load() + t.copies, CopiedBytes: c.CopiedB.Load() + t.copiedB,
		Reads: c.Reads.Load(), Writes: c.Writes.Load(), Polls: c.Polls.Load(),
		Sleeps: c.Sleeps.Load() + woken, Wakeups: c.Wakeups.Load() + woken,
		Resumed: t.resumed, Resent: t.resent, Moved: t.moved, Undelivered: d.lost.Load(), Unreported: d.unreported.Load(), Links: links,
		LateReplies: late, StuckReceives: t.stuck, Calls: inFlight,
	}
}

// CountCopy counts a copy of n bytes made on the caller's behalf.
func (d *Dispatcher) CountCopy(n int) {
	d.countCopies(1, n)
}

// Linked reports whether there is a link to the context peer, or whether peer is in this process
// and messages went to it or came from it. It makes no link.
func (d *Dispatcher) Linked(peer resource.GID) bool {
	d.mu.RLock()
	defer d.mu.RUnlock()
	return d.passages.byPeer[peer] != nil || len(d.links[peer]) > 0
}

// countCopies counts n copies of payloads that had so many bytes.
func (d *Dispatcher) countCopies(n, bytes int) {
	d.count.Copies.Add(uint64(n))
	d.count.CopiedB.Add(uint64(bytes))
}

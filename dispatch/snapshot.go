// SPDX-License-Identifier: Apache-2.0

package dispatch

import (
	"cmp"
	"fmt"
	"maps"
	"slices"

	"github.com/rocl-go/rocl/dispatch/internal/credit"
	"github.com/rocl-go/rocl/dispatch/internal/life"
	"github.com/rocl-go/rocl/dispatch/internal/wire"
	"github.com/rocl-go/rocl/resource"
)

// Limits of a Snapshot. Cut has the number of entries beyond them.
const (
	mostEntries = 4096 // of each list of the context
	mostWaiting = 16   // of each list of a mailbox or a receive
	chunk       = 4096 // calls that are looked at while the lock is held once
)

// A Snapshot is what the message half of a context has, and what waits in it, at one moment. The
// parts are taken one after another, each under the lock of one mailbox or link.
type Snapshot struct {
	Mailboxes []MailboxSnapshot // the most interesting first: those that senders wait for, then by waiting messages
	Sends     []SendSnapshot    // those that have been seen first come first
	Calls     []CallSnapshot    // the oldest first
	Links     []LinkSnapshot    // the most interesting first: those without a connection, then by what is not acknowledged
	Cut       map[string]int    // how many entries of "resources", "receivers", "senders", "sends", "calls" and "links" were left out
}

// A MailboxSnapshot is what a mailbox has at one moment, and what waits for it. Times are not among
// it: the path of a message reads no clock. Two snapshots tell what stands still.
type MailboxSnapshot struct {
	Resource resource.GID       `json:"resource"`
	Messages int                `json:"messages"`            // that wait to be received
	Bytes    uint64             `json:"bytes"`               // of them, as they count against Limit
	Limit    uint64             `json:"limit"`               // in bytes
	Received uint64             `json:"received"`            // bytes that receives have taken, as they count against Limit; grows, except by PutBack
	Arrived  uint64             `json:"arrived"`             // bytes that have come, likewise; grows only
	First    MessageSnapshot    `json:"first,omitzero"`      // the message that waits first; zero: none
	Waits    []ReceiverSnapshot `json:"receivers,omitempty"` // receives that wait
	Senders  []MessageSnapshot  `json:"senders,omitempty"`   // messages for which the mailbox has no room: one of each context that waits

	MoreWaits   int `json:"more_receivers,omitempty"` // receives that wait and are not in Waits
	MoreSenders int `json:"more_senders,omitempty"`   // contexts that wait and are not in Senders
}

// ReceivesWaiting returns how many receives wait.
func (s *MailboxSnapshot) ReceivesWaiting() int { return len(s.Waits) + s.MoreWaits }

// SendersWaiting returns how many contexts wait for room.
func (s *MailboxSnapshot) SendersWaiting() int { return len(s.Senders) + s.MoreSenders }

// A MessageSnapshot is a message that waits in a mailbox, or for room in it.
type MessageSnapshot struct {
	From  resource.GID `json:"from"`  // a resource, or a context if the sender has not told
	Tag   uint64       `json:"tag"`   // 0 if the sender has not told
	Bytes uint64       `json:"bytes"` // the length of the payload; in Senders the credit that the sender lacks, if it has not told
}

// A ReceiverSnapshot is a receive that waits, and what it selects. Number tells it from other
// receives and sends of the context. A receive from several mailboxes is one of each.
type ReceiverSnapshot struct {
	Number uint64         `json:"number"`
	From   []resource.GID `json:"from,omitempty"`   // contexts or resources; none: any
	Tags   []uint64       `json:"tags,omitempty"`   // none: any, unless Select says more
	Select string         `json:"select,omitempty"` // the rest of the condition in words, if From and Tags are not all of it
}

// A SendSnapshot is a send of this context that waits for room at its target.
type SendSnapshot struct {
	Number uint64       `json:"number"` // tells it from other sends and receives of the context
	From   resource.GID `json:"from"`
	To     resource.GID `json:"to"`
	Tag    uint64       `json:"tag"`
	Bytes  uint64       `json:"bytes"`
}

// A CallSnapshot is a call of this context that waits for its reply.
type CallSnapshot struct {
	Number uint64       `json:"number"` // tells it from other calls of the context
	From   resource.GID `json:"from"`
	To     resource.GID `json:"to"`
	Tag    uint64       `json:"tag"`
	Name   string       `json:"name,omitempty"` // of a call of package rpc
}

// A LinkSnapshot is a link, or a passage within the process, at one moment.
type LinkSnapshot struct {
	Route
	State          string `json:"state"`                // "connected", "dialling", "detached" (no connection is needed), "local" or "ended"
	Unacknowledged int    `json:"unacknowledged"`       // frames that were sent, and not acknowledged yet
	Queued         int    `json:"queued"`               // frames that wait for the connection, and large messages that wait behind others
	Senders        int    `json:"senders,omitempty"`    // sends that wait for room in the link
	LastError      string `json:"last_error,omitempty"` // why the last connection was lost, or the last attempt failed; it may be old
}

// A shortlist keeps the most entries that compare orders first, and counts the others.
type shortlist[T any] struct {
	all     []T
	cut     int
	compare func(a, b *T) int
}

// add adds an entry.
func (s *shortlist[T]) add(e T) {
	if s.all = append(s.all, e); len(s.all) == 2*mostEntries {
		s.take()
	}
}

// take returns the entries, in order, and how many others there are.
func (s *shortlist[T]) take() ([]T, int) {
	slices.SortStableFunc(s.all, func(a, b T) int { return s.compare(&a, &b) })
	if n := len(s.all) - mostEntries; n > 0 {
		clear(s.all[mostEntries:])
		s.all, s.cut = s.all[:mostEntries], s.cut+n
	}
	return s.all, s.cut
}

// Snapshot returns what the dispatcher has now. It is for looking on: it works on messages from
// within the process as a receive does, and costs the mailboxes no more.
func (d *Dispatcher) Snapshot() (s Snapshot) {
	s.Cut = map[string]int{}
	boxes := shortlist[MailboxSnapshot]{compare: compareMailboxes}
	sends := shortlist[SendSnapshot]{compare: func(a, b *SendSnapshot) int { return cmp.Compare(a.Number, b.Number) }}
	links := shortlist[LinkSnapshot]{compare: compareLinks}

	d.mu.RLock()
	mine, flows := slices.Collect(maps.Values(d.boxes)), slices.Collect(maps.Values(d.passages.flows))
	for _, e := range d.passages.byPeer {
		links.add(LinkSnapshot{Route: e.route(), State: "local"})
	}
	d.mu.RUnlock()
	for _, m := range mine {
		if m.serial != 0 && m.serial != wire.Replies {
			boxes.add(m.snapshot(s.Cut))
		}
	}
	for _, f := range flows {
		f.mb.mu.Lock()
		for w := f.in.waiters.First(); w != nil; w = w.place.Next() {
			if msg := w.msg; msg != nil {
				sends.add(SendSnapshot{d.numberLocked(w), msg.from, f.mb.id(), msg.tag, uint64(len(msg.data))})
			}
		}
		f.mb.mu.Unlock()
	}
	d.eachLink(func(l *link) { links.add(l.snapshot(&sends)) })

	s.Calls = d.calls.snapshot(s.Cut)
	var n [3]int
	s.Mailboxes, n[0] = boxes.take()
	s.Sends, n[1] = sends.take()
	s.Links, n[2] = links.take()
	for i, name := range []string{"resources", "sends", "links"} {
		noteCut(s.Cut, name, n[i])
	}
	return s
}

// noteCut notes that n entries of a list were left out.
func noteCut(all map[string]int, list string, n int) {
	if n > 0 {
		all[list] += n
	}
}

// compareMailboxes orders mailboxes by interest.
func compareMailboxes(a, b *MailboxSnapshot) int {
	return cmp.Or(cmp.Compare(b.SendersWaiting(), a.SendersWaiting()), cmp.Compare(b.Messages, a.Messages), cmp.Compare(b.Arrived, a.Arrived), a.Resource.Compare(b.Resource))
}

// compareLinks orders links by interest.
func compareLinks(a, b *LinkSnapshot) int {
	calm := func(l *LinkSnapshot) int { // 0: the link has no connection, and would
		if l.State == "dialling" {
			return 0
		}
		return 1
	}
	return cmp.Or(calm(a)-calm(b), cmp.Compare(b.Unacknowledged+b.Queued, a.Unacknowledged+a.Queued),
		cmp.Compare(b.SentBytes+b.ReceivedBytes, a.SentBytes+a.ReceivedBytes), a.Peer.Compare(b.Peer))
}

// numberLocked returns the number of a waiter, which the first snapshot that sees it gives it. The
// lock of the list that has the waiter must be held.
func (d *Dispatcher) numberLocked(w *waiter) uint64 {
	if w.number == 0 {
		w.number = d.numbers.Add(1)
	}
	return w.number
}

// id returns the resource of the mailbox.
func (m *Mailbox) id() resource.GID { return m.d.self.WithSerial(m.serial) }

// snapshot returns what the mailbox has now, and notes in left what it leaves out.
func (m *Mailbox) snapshot(left map[string]int) MailboxSnapshot {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.storeQueuesLocked()
	m.takeBackLocked()
	s := MailboxSnapshot{Resource: m.id(), Messages: m.count, Bytes: m.credit.Stored(), Limit: m.credit.Limit(), Arrived: m.past}
	for in := range m.inflows {
		s.Arrived += in.Received()
	}
	s.Received = s.Arrived - min(s.Bytes, s.Arrived)
	if msg := m.messages.First(); msg != nil {
		s.First = MessageSnapshot{msg.from, msg.tag, uint64(len(msg.data))}
	}
	n := 0
	for w := m.waiters.First(); w != nil; w = w.place.Next() {
		if n++; n <= mostWaiting {
			s.Waits = append(s.Waits, w.sel.snapshot(m.d.numberLocked(w)))
		}
	}
	s.MoreWaits, s.MoreSenders = max(n-mostWaiting, 0), max(len(m.credit.Waiting())-mostWaiting, 0)
	noteCut(left, "receivers", s.MoreWaits)
	waiting := m.credit.Waiting()
	for _, a := range waiting[:min(len(waiting), mostWaiting)] {
		s.Senders = append(s.Senders, a.Owner().(*inflow).lacksLocked())
	}
	noteCut(left, "senders", s.MoreSenders)
	return s
}

// lacksLocked returns the message for which the sender waits. The mailbox's mu must be held.
func (in *inflow) lacksLocked() MessageSnapshot {
	c := in.from.context()
	if w := in.waiters.First(); w != nil && w.msg != nil {
		return MessageSnapshot{w.msg.from, w.msg.tag, uint64(len(w.msg.data))}
	}
	o, lacks := in.Need()
	if o != (credit.Outgoing{}) {
		return MessageSnapshot{c.WithSerial(o.Src), o.Tag, uint64(o.Size)}
	}
	return MessageSnapshot{From: c, Bytes: lacks}
}

// snapshot describes a receive with the selector s.
func (s *Select) snapshot(number uint64) ReceiverSnapshot {
	r := ReceiverSnapshot{Number: number}
	parts := s.parts()
	anyFrom, anyTag, rest := false, false, len(parts) > 1
	for i := range parts {
		p := &parts[i]
		from := p.namedFrom()
		r.From, anyFrom = append(r.From, from[:min(len(from), mostWaiting)]...), anyFrom || from == nil
		switch {
		case p.hasTag && p.span == 0 && p.mask == 0:
			r.Tags = append(r.Tags, p.first)
		case p.more != nil && p.more.tags != nil:
			r.Tags = append(r.Tags, p.more.tags[:min(len(p.more.tags), mostWaiting)]...)
		default:
			anyTag = true
			rest = rest || p.hasTag
		}
		if len(r.From) >= mostWaiting || len(r.Tags) >= mostWaiting {
			rest = true
			break
		}
	}
	if anyFrom {
		r.From = nil
	}
	if anyTag {
		r.Tags = nil
	}
	switch {
	case len(parts) > 1:
		r.Select = fmt.Sprintf("one of %d alternatives", len(parts))
	case rest:
		r.Select = fmt.Sprintf("tags %s", parts[0].tagText())
	}
	return r
}

// snapshot returns the calls that wait, the oldest first, and notes in left what it leaves out. It
// holds the lock for a part of the table at a time.
func (c *calls) snapshot(left map[string]int) []CallSnapshot {
	list := shortlist[CallSnapshot]{compare: func(a, b *CallSnapshot) int { return cmp.Compare(a.Number, b.Number) }}
	for i, isEnd := 0, false; !isEnd; i += chunk {
		c.box.mu.Lock()
		isEnd = i+chunk >= len(c.table)
		for j := i; j < min(i+chunk, len(c.table)); j++ {
			if e := &c.table[j]; e.w != nil {
				list.add(CallSnapshot{Number: uint64(e.begun)<<32 | uint64(j+1), From: e.m.id(), To: e.f.target(), Tag: e.tag})
			}
		}
		c.box.mu.Unlock()
	}
	all, n := list.take()
	noteCut(left, "calls", n)
	return all
}

// snapshot returns the state of the link, and adds the sends that wait for room at their targets to
// sends.
func (l *link) snapshot(sends *shortlist[SendSnapshot]) LinkSnapshot {
	l.mu.Lock()
	defer l.mu.Unlock()
	s := LinkSnapshot{Route: l.routeLocked(), State: "connected"}
	switch {
	case l.conn != nil:
	case l.life.HasEnded():
		s.State = "ended"
	case l.life.State() == life.Detached:
		s.State = "detached"
	default:
		s.State = "dialling"
	}
	s.Unacknowledged, s.Queued = l.s.Load()
	for w := l.full.First(); w != nil; w = w.place.Next() {
		s.Senders++
	}
	if l.lastError != nil {
		s.LastError = l.lastError.Error()
	}
	if l.liveness.starved == 0 && l.held == 0 {
		return s
	}
	for _, f := range l.flows {
		for w := f.waiters.First(); w != nil; w = w.place.Next() {
			sends.add(SendSnapshot{l.d.numberLocked(w), l.d.self.WithSerial(w.sends.Src), f.target(), w.sends.Tag, uint64(w.sends.Size)})
		}
	}
	return s
}

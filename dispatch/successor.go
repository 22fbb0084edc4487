// SPDX-License-Identifier: Apache-2.0

package dispatch

import (
	"context"
	"errors"
	"slices"

	"github.com/rocl-go/rocl/dispatch/internal/credit"
	"github.com/rocl-go/rocl/dispatch/internal/session"
	"github.com/rocl-go/rocl/dispatch/internal/wire"
	"github.com/rocl-go/rocl/subsys"
)

// A context gives up a session when its peer is out of reach for as long as GiveUp says. The peer
// may have been idle meanwhile, or wait longer, and knows nothing of it. It learns that with the
// next handshake, from an Attach with another session or from a refusal. By then it may have
// accepted messages. The context that has given up also says how far the peer's frames had come
// (wire.Past). Frames from there on have certainly not been received, so their messages go to the
// successor of the peer's link:
//
//	this context                            the peer, idle
//	is cut off, and gives up                accepts a message
//	                     ◄── Attach, known session ──
//	                     ── Refuse, Past ───────────►
//	                                        the link ends; its successor takes the message over
//	                     ◄── Attach, new session ────
//	                     ◄── Data ───────────────────
//
// Messages before that point, which were not acknowledged, may have been delivered, and are
// reported. If the other side does not know the point any more, it is the first frame that was
// never handed to a connection.
//
// The accounts of a new session begin anew. So messages that were taken over wait for credit in
// front of the senders of their flow, as held messages. Monitors go on in the successor. Calls go
// on if their requests do. Other calls fail, since their replies are lost.

// formerMost is how many sessions a context remembers that it has given up.
const formerMost = 4096

// A held message was taken over from a former link, and waits for credit.
type held struct {
	subsys.Frame
	call uint64 // the number of the call that the message is the request of; 0: none
}

// noteFormer remembers how far the peer's frames have come, if this context has given up the
// session, or was told that the peer's node is dead: the peer may live. The link must have ended,
// and the token must be held, so that no more frames are being received.
func (l *link) noteFormer() {
	l.mu.Lock()
	cause, known := l.life.Cause(), l.life.PeerID() != 0
	p := wire.Past{Session: l.life.ID(), Have: l.s.Expected()}
	l.mu.Unlock()
	isOver := errors.Is(cause, ErrGone) && !errors.Is(cause, ErrNodeDead) || errors.Is(cause, ErrClosed)
	if !known || isOver {
		return
	}
	d, k := l.d, l.key
	d.mu.Lock()
	defer d.mu.Unlock()
	if _, isKnown := d.former[k]; !isKnown && len(d.former) >= formerMost {
		for k := range d.former {
			delete(d.former, k)
			break
		}
	}
	if d.former == nil {
		d.former = map[linkKey]wire.Past{}
	}
	d.former[k] = p
}

// formerOf returns how far the peer had come in the session that this context has given up last.
func (d *Dispatcher) formerOf(k linkKey) wire.Past {
	d.mu.RLock()
	defer d.mu.RUnlock()
	return d.former[k]
}

// giveUp ends the link because the peer has given up the session. When it returns, the link has its
// successor.
func (l *link) giveUp(err error, past wire.Past) {
	l.mu.Lock()
	l.awaitPenLocked() // a goroutine that writes would finish the end later
	l.actLocked(l.life.GivenUp(err, past))
	l.mu.Unlock()
}

// A succession is what has to be done when a link has ended and left messages to its successor,
// without locks.
type succession struct {
	next  *link
	olds  []*Flow          // the flows of the former link
	moved map[uint64]*Flow // the flows of the successor that have requests, by the numbers of the calls
}

// succeedLocked makes the successor of the link, if the link leaves messages to one. It publishes
// the successor when it has the messages, so that no later message overtakes them. Messages that
// may have been delivered go to lost. mu must be held, and no goroutine may write.
func (l *link) succeedLocked(lost func(*subsys.Header)) *succession {
	has, have, isKnown := l.life.HasHeir()
	if !has {
		return nil
	}
	from := l.s.Most()
	if isKnown && l.s.HasReached(have) {
		from = have
	}
	n := newLink(l.d, l.key)
	n.addrs, n.hasMet, n.knowsTraces = l.addrs, l.hasMet, l.knowsTraces
	s := &succession{next: n, moved: map[uint64]*Flow{}}
	var flows []*Flow
	withdraw := func(call uint64) { // its caller has given it up
		if f := s.moved[call]; f != nil {
			f.dropHeldLocked(call)
			delete(s.moved, call)
		}
	}
	keep := func(m *subsys.Frame, call uint64) {
		switch {
		case m.Type == wire.TypeCancel:
			withdraw(call)
			return
		case m.Dst == wire.Replies: // its call has ended
			session.Finish(m.Buf)
			return
		}
		f := n.flows[m.Dst]
		if f == nil {
			f = n.newFlow(m.Dst)
			flows = append(flows, f)
		}
		w := l.d.waiter()
		w.charge, w.held, w.sends = credit.Charge(len(m.Data)), &held{*m, call}, credit.Outgoing{Src: m.Src, Tag: m.Tag, Size: uint32(len(m.Data))}
		if m.Buf != nil {
			m.Buf.Discount()
		}
		f.waiters.push(w)
		n.held++
		if call != 0 {
			s.moved[call] = f
		}
	}
	l.s.Divide(from, lost, keep)
	for _, f := range l.flows {
		s.olds = append(s.olds, f)
		f.takeHeldLocked(func(h *held) { keep(&h.Frame, h.call) })
		for _, c := range f.cancels {
			withdraw(c.number)
		}
	}
	for _, f := range flows {
		f.serveLocked()
	}
	for dst := range l.endings {
		n.putLocked(wire.TypeNeed, dst, 0, n.limitLocked(dst))
	}
	n.mu.TryLock() // only this goroutine knows n; a cancel of an ending that was passed on waits
	defer n.mu.Unlock()
	l.passEndingsLocked(n)
	l.flushCountersLocked()
	if !l.publishSuccessorLocked(n) {
		n.passEndingsLocked(l)
		n.s.Drain(lost)
		for _, f := range flows {
			f.loseHeldLocked(lost)
		}
		return nil
	}
	l.heir = n
	return s
}

// passEndingsLocked makes o call the functions that wait for ends of the peer's resources. The mu
// of both must be held.
func (l *link) passEndingsLocked(o *link) {
	for _, list := range l.endings {
		for e := list.First(); e != nil; e = e.place.Next() {
			e.at.Store(o)
		}
	}
	l.endings, o.endings = nil, l.endings
}

// publishSuccessorLocked puts n in the place of l, unless the context closes. mu must be held.
func (l *link) publishSuccessorLocked(n *link) bool {
	d := l.d
	d.mu.Lock()
	defer d.mu.Unlock()
	all := d.links[l.peer]
	i := slices.Index(all, l)
	if d.closing || i < 0 {
		return false
	}
	all[i] = n
	d.past.add(&l.traffic)
	return true
}

// finish makes calls go on whose requests the successor has, fails the others with cause, and has
// the successor dial. No lock may be held.
func (s *succession) finish(d *Dispatcher, cause error) {
	c := &d.calls
	c.box.mu.Lock()
	for number, f := range s.moved {
		if i := c.findLocked(number); i != 0 {
			c.unlinkLocked(i)
			c.linkLocked(i, f)
		}
	}
	c.box.mu.Unlock()
	for _, f := range s.olds {
		c.box.mu.Lock()
		cancel := f.calls.cancel
		c.box.mu.Unlock()
		if cancel != nil {
			cancel()
		}
		c.endFlowCalls(f, cause)
	}
	ended, cancel := context.WithCancel(context.Background())
	cancel() // the watch of a call waits for nothing
	for _, f := range s.moved {
		if err := c.watch(ended, f); err != nil {
			c.endFlowCalls(f, err)
		}
	}
	s.next.mu.Lock()
	if s.next.life.HasEnded() || s.next.isIdleLocked() {
		s.next.mu.Unlock()
		return
	}
	s.next.postLocked()
}

// takeHeldLocked takes the held messages out of the flow's waiters, and yields them in order. mu
// must be held.
func (f *Flow) takeHeldLocked(yield func(*held)) {
	for w := f.waiters.First(); w != nil && w.held != nil; w = f.waiters.First() {
		f.waiters.remove(w)
		f.l.held--
		h := w.held
		f.l.d.doneWaiting(w)
		yield(h)
		f.l.behind.fireAll() // they check again
	}
}

// removeHeldLocked takes one held message out of the flow's waiters, and releases its buffer. mu
// must be held.
func (f *Flow) removeHeldLocked(w *waiter) {
	f.waiters.remove(w)
	f.l.held--
	session.Finish(w.held.Buf)
	f.l.d.doneWaiting(w)
	f.l.behind.fireAll() // they check again
	f.l.wakeFlushingLocked()
}

// dropHeldLocked drops the request of a call that its caller has given up, if the request is held.
// The messages behind it may need less credit. mu must be held.
func (f *Flow) dropHeldLocked(number uint64) (isDropped bool) {
	for w := f.waiters.First(); w != nil && w.held != nil; w = w.place.Next() {
		if w.held.call == number {
			f.removeHeldLocked(w)
			return true
		}
	}
	return false
}

// loseHeldLocked takes the held messages out of the flow's waiters, releases their buffers, and
// yields their headers. mu must be held.
func (f *Flow) loseHeldLocked(lost func(*subsys.Header)) {
	f.takeHeldLocked(func(h *held) {
		lost(&h.Header)
		session.Finish(h.Buf)
	})
}

// enqueueHeldLocked puts a held message, which has credit now, into the session. w is in no list.
// mu must be held.
func (f *Flow) enqueueHeldLocked(w *waiter) {
	l, h := f.l, w.held
	l.held--
	l.d.doneWaiting(w)
	switch {
	case l.s.Splits(len(h.Data)) || f.line.IsWaiting():
		l.s.Queue(&f.line, &h.Frame, h.call)
	case h.call != 0:
		if h.Buf == nil && l.copyCallLocked(&h.Header, h.Data, h.call) {
			break
		}
		l.putLocked(wire.TypeCall, f.dst, h.Src, h.call)
		l.s.PushRequest(&h.Frame, h.call)
	case h.Buf == nil && l.copyLocked(&h.Header, h.Data):
	default:
		l.s.Push(&h.Frame)
	}
	l.attendLocked()
}

// isIdleLocked reports whether everything has been acknowledged. mu must be held.
func (l *link) isIdleLocked() bool { return l.s.IsIdle() && l.held == 0 }

// needsAcksLocked reports whether anything but messages of SendAndForget has not been acknowledged.
// mu must be held.
func (l *link) needsAcksLocked() bool { return l.s.NeedsAcks() || l.holdsLocked(isAwaited) }

// isAwaited selects every message except those of SendAndForget.
func isAwaited(_ *link, h *subsys.Header) bool { return h.Flags&wire.FlagForget == 0 }

// holdsLocked reports whether a message that covers selects is held. mu must be held.
func (l *link) holdsLocked(covers func(*link, *subsys.Header) bool) (holds bool) {
	l.eachHeldLocked(func(h *subsys.Header) { holds = holds || covers(l, h) })
	return holds
}

// eachHeldLocked yields the headers of the held messages. mu must be held.
func (l *link) eachHeldLocked(yield func(*subsys.Header)) {
	if l.held == 0 {
		return
	}
	for _, f := range l.flows {
		for w := f.waiters.First(); w != nil && w.held != nil; w = w.place.Next() {
			yield(&w.held.Header)
		}
	}
}

// former returns how far the peer had come in the session that this context has given up last, over
// the lane of the handshake.
func (ep *endpoint) former() wire.Past {
	return ep.d.formerOf(linkKey{ep.peer, ep.lane})
}

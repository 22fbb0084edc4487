// SPDX-License-Identifier: Apache-2.0

package dispatch

import (
	"encoding/binary"
	"fmt"

	"github.com/rocl-go/rocl/dispatch/internal/wire"
	"github.com/rocl-go/rocl/subsys"
)

// A context with limited memory never has memory for some messages. It refuses such a message when
// the message's sender asks for credit, unless the program has given memory for the message
// (landing):
//
//	sender                                  receiver
//	------                                  --------
//	Flow.admit: Need, with the message ──►  Mailbox.onNeed: has the message a landing?
//	sends the message              ◄─ Credit  yes: credit that no limit counts
//	fails with ErrTooLarge       ◄─ TooLarge  no, and it is larger than the memory holds
//
// If the program takes its memory back while such a message is under way, the message is dropped.
// TooLarge then makes its sender report the message as undelivered.

// An outgoing names the message for which a sender waits for credit.
type outgoing struct {
	src  uint32
	tag  uint64
	size uint32
}

// needLen is the length of the payload of a Need that names a message.
const needLen = 12

// needPayload returns the payload of the Need for o.
func (o outgoing) needPayload() []byte {
	return binary.LittleEndian.AppendUint32(binary.LittleEndian.AppendUint64(nil, o.tag), o.size)
}

// parseNeed returns the message of a Need with a payload of needLen bytes.
func parseNeed(f *subsys.Frame) outgoing {
	return outgoing{f.Src, binary.LittleEndian.Uint64(f.Data), binary.LittleEndian.Uint32(f.Data[8:])}
}

// landingLeast is the least size of a message that may be granted credit because it has a landing.
// A smaller message may arrive among others, in memory of the context.
const landingLeast = FirstCredit

// landingMost limits the credit that a sender has at a time for messages with a landing: the sender
// only says that it has such a message. One message may be longer.
const landingMost = 64 << 20

// hasLandingLocked reports whether a sender needs credit up to need for one reply for which the
// program has given memory. mu must be held.
func (m *Mailbox) hasLandingLocked(in *inflow, need uint64) bool {
	o := in.needFor
	if m.calls == nil || in.l == nil || o.size < landingLeast || need > in.granted+in.charge(int(o.size)) {
		return false
	}
	ld := m.calls.landingLocked(o.tag, in.l.peer.WithSerial(o.src))
	return ld != nil && int(o.size) <= len(ld.mem) && !ld.isInUse()
}

// landsLocked reports whether a waiting sender gets credit for a message with a landing now. mu
// must be held.
func (m *Mailbox) landsLocked(in *inflow) bool {
	return m.hasLandingLocked(in, in.need) && (in.postedOut == 0 || in.postedOut+in.need-in.granted <= landingMost)
}

// takePosted takes from posted, one of the two counts of in, as much of a negative number more as
// it has, and returns the rest of more.
func (in *inflow) takePosted(posted *uint64, more int64) int64 {
	if more >= 0 || *posted == 0 {
		return more
	}
	n := min(uint64(-more), *posted)
	*posted -= n
	return more + int64(n)
}

// neverHolds returns the error for a message of n bytes to dst that the peer's memory never holds.
func (l *link) neverHolds(dst uint32, n int) error {
	return fmt.Errorf("%w: %d bytes, which the memory of %v never holds", ErrTooLarge, n, l.peer.WithSerial(dst).Context())
}

// refuseNeed refuses the message o to dst, whose sender waits for credit up to limit. If the
// message is the reply to a call, the call ends too. The token must be held.
func (l *link) refuseNeed(dst uint32, limit uint64, o outgoing) {
	if dst == wire.Replies {
		l.d.calls.end(o.tag, l.peer.WithSerial(o.src), fmt.Errorf("%w: a reply of %d bytes, which the memory of this context never holds", ErrTooLarge, o.size))
	}
	p := binary.LittleEndian.AppendUint32(nil, o.size)
	l.answer(wire.TypeTooLarge, dst, o.src, o.tag, binary.LittleEndian.AppendUint64(p, limit)...)
}

// dropMessage drops a message that has come and for which there is no memory any more. The token
// must be held.
func (l *link) dropMessage(in *inflow, src uint32, tag uint64, size int, p purpose) {
	in.mb.drop(in, size)
	switch {
	case p.call != 0:
		l.answer(wire.TypeNoReply, in.dst, src, p.call, wire.WhyTooLarge)
	case !p.isForgotten && in.dst != wire.Replies: // the call of a reply has ended
		l.answer(wire.TypeTooLarge, in.dst, src, tag, binary.LittleEndian.AppendUint32(nil, uint32(size))...)
	}
}

// drop accounts for a message of n bytes that has come and is not stored.
func (m *Mailbox) drop(in *inflow, n int) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.closed {
		return
	}
	c := in.charge(n)
	in.received += c
	in.consumed += c
	m.addOutstandingLocked(in, -int64(c))
	m.addPromisedLocked(in, -int64(c))
	if m.oversize == in && in.consumed >= m.oversizeEnd {
		m.endOversizeLocked()
	}
	m.grantQueuedSoon()
}

// onTooLarge fails the sender of a message that the peer's memory never holds. A message that was
// sent already is reported as undelivered. The token must be held.
func (l *link) onTooLarge(f *subsys.Frame) error {
	if len(f.Data) != 4 && len(f.Data) != 12 {
		return fmt.Errorf("%w: the refusal of a message with %d bytes", ErrProtocol, len(f.Data))
	}
	size := binary.LittleEndian.Uint32(f.Data)
	err := l.neverHolds(f.Dst, int(size))
	if len(f.Data) == 4 {
		l.mu.Lock()
		isNew := l.s.Reported(f.Dst, f.Src, f.Tag, size)
		l.mu.Unlock()
		if isNew {
			l.d.undelivered(Undelivered{From: l.d.self.WithSerial(f.Src), To: l.peer.WithSerial(f.Dst), Tag: f.Tag, Bytes: int(size), Err: err})
		}
		return nil
	}
	l.mu.Lock()
	fl, o := l.flows[f.Dst], outgoing{f.Src, f.Tag, size}
	if fl == nil || fl.gone != nil || fl.asked != binary.LittleEndian.Uint64(f.Data[4:]) || fl.askedFor != o {
		l.mu.Unlock()
		return nil // the sender has given up
	}
	fl.asked, fl.askedFor = 0, outgoing{}
	w := fl.waiters.First()
	if w == nil || w.sends != o {
		fl.tryCredit.tooLarge = int(size)
		l.mu.Unlock()
		return nil
	}
	h := w.held
	if h != nil {
		fl.removeHeldLocked(w)
	} else {
		fl.waiters.remove(w)
		w.cause = err
		w.Fire()
	}
	l.answered = fl.serveLocked() || l.answered
	l.mu.Unlock()
	switch {
	case h == nil:
	case h.call != 0:
		l.d.calls.end(h.call, fl.target(), err)
	case isReported(&h.Header):
		l.d.undelivered(Undelivered{From: l.d.self.WithSerial(h.Src), To: fl.target(), Tag: h.Tag, Bytes: int(size), Err: err})
	}
	return nil
}

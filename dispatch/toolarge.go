// SPDX-License-Identifier: Apache-2.0

package dispatch

import (
	"encoding/binary"
	"fmt"

	"github.com/rocl-go/rocl/dispatch/internal/credit"
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

// needLen is the length of the payload of a Need that names a message.
const needLen = 12

// needPayload returns the payload of the Need for o.
func needPayload(o credit.Outgoing) []byte {
	return binary.LittleEndian.AppendUint32(binary.LittleEndian.AppendUint64(nil, o.Tag), o.Size)
}

// parseNeed returns the message of a Need with a payload of needLen bytes.
func parseNeed(f *subsys.Frame) credit.Outgoing {
	return credit.Outgoing{Src: f.Src, Tag: binary.LittleEndian.Uint64(f.Data), Size: binary.LittleEndian.Uint32(f.Data[8:])}
}

// landingLeast is the least size of a message that may be granted credit because it has a landing.
// A smaller message may arrive among others, in memory of the context.
const landingLeast = credit.First

// HasMemory implements [credit.Owner]. The mailbox's mu must be held.
func (in *inflow) HasMemory(o credit.Outgoing, more uint64) bool {
	m := in.home
	if m.calls == nil || in.l == nil || o.Size < landingLeast || more > in.Charge(int(o.Size)) {
		return false
	}
	ld := m.calls.landingLocked(o.Tag, in.l.peer.WithSerial(o.Src))
	return ld != nil && int(o.Size) <= len(ld.mem) && !ld.isInUse()
}

// neverHolds returns the error for a message of n bytes to dst that the peer's memory never holds.
func (l *link) neverHolds(dst uint32, n int) error {
	return fmt.Errorf("%w: %d bytes, which the memory of %v never holds", ErrTooLarge, n, l.peer.WithSerial(dst).Context())
}

// refuseNeed refuses the message o to dst, whose sender waits for credit up to limit. If the
// message is the reply to a call, the call ends too. The token must be held.
func (l *link) refuseNeed(dst uint32, limit uint64, o credit.Outgoing) {
	if dst == wire.Replies {
		l.d.calls.end(o.Tag, l.peer.WithSerial(o.Src), fmt.Errorf("%w: a reply of %d bytes, which the memory of this context never holds", ErrTooLarge, o.Size))
	}
	p := binary.LittleEndian.AppendUint32(nil, o.Size)
	l.answer(wire.TypeTooLarge, dst, o.Src, o.Tag, binary.LittleEndian.AppendUint64(p, limit)...)
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
	m.credit.Drop(&in.Account, in.Charge(n))
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
	fl, o := l.flows[f.Dst], credit.Outgoing{Src: f.Src, Tag: f.Tag, Size: size}
	if fl == nil || fl.gone != nil || !fl.credit.Refused(binary.LittleEndian.Uint64(f.Data[4:]), o) {
		l.mu.Unlock()
		return nil // the sender has given up
	}
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
	l.answered = fl.skipLocked() || l.answered
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

// SPDX-License-Identifier: Apache-2.0

package dispatch

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/rocl-go/rocl/buffers"
	"github.com/rocl-go/rocl/dispatch/internal/credit"
)

// ErrFull is returned by TrySend when a message cannot be accepted without waiting.
//
// Cause: the receiver is slower than its senders. Remedy: send later, or by `Send`, which waits.
var ErrFull = errors.New("rocl: the mailbox has no room now")

// A tryCredit is credit that a refused TrySend has asked for, and that no goroutine waits for. If
// no TrySend asks again within tryCreditKept, the request is withdrawn, and the credit that was
// granted meanwhile is given back. Other senders may wait for that credit, and a receiver ends the
// link of a context that does not use a grant beyond a mailbox's limit.
//
//	refused ──► asked ──► granted ──► used by the next TrySend or Send
//	                │         │
//	                └─────────┴─ no TrySend for tryCreditKept ──► given back
//
// The lock of the flow's credit guards it: link.mu, or Mailbox.mu within the process.
type tryCredit struct {
	timer    *time.Timer // calls dropTryCredit; nil until first set
	isSet    bool        // the timer is set, or dropTryCredit is being called
	repeated bool        // a TrySend has been refused since the timer was set
	tooLarge int         // the size of a message that the receiver has refused as too large; 0: none
}

// tryCreditKept returns how long credit is kept for a TrySend.
func (d *Dispatcher) tryCreditKept() time.Duration { return min(time.Second, d.cfg.GiveUp) }

// keepTryCreditLocked notes that a TrySend has been refused and starts the timer. The lock of the
// credit must be held.
func (f *Flow) keepTryCreditLocked(d *Dispatcher) {
	w := &f.tryCredit
	w.repeated = true
	if w.isSet {
		return
	}
	w.isSet, w.repeated = true, false
	if w.timer == nil {
		w.timer = time.AfterFunc(d.tryCreditKept(), f.dropTryCredit)
	} else {
		w.timer.Reset(d.tryCreditKept())
	}
}

// expireOrRenewLocked reports whether the credit is to be dropped, and otherwise sets the timer
// anew. The lock of the credit must be held.
func (w *tryCredit) expireOrRenewLocked(d *Dispatcher) bool {
	if w.isSet = w.repeated; w.isSet {
		w.repeated = false
		w.timer.Reset(d.tryCreditKept())
	}
	return !w.isSet
}

// TrySend sends as [Flow.Send] does, but does not wait: ctx has only what Config.Trace looks for.
// If the resource has no credit left for this context, or messages wait for credit, it fails with
// the error ErrFull itself, and b stays the caller's. Then it asks the resource for the credit that
// this message needs. The credit is kept for a second after it has come.
func (f *Flow) TrySend(ctx context.Context, src uint32, tag uint64, b *buffers.Buffer) error {
	if b.Len() > MaxMessage {
		return fmt.Errorf("%w: %d bytes, at most %d", ErrTooLarge, b.Len(), MaxMessage)
	}
	if f.mb != nil {
		return f.tryDirect(ctx, src, tag, b)
	}
	why := f.traced(ctx, purpose{})
	l := f.l
	l.mu.Lock()
	c := f.credit.Charge(b.Len())
	switch {
	case f.gone != nil:
		l.mu.Unlock()
		return beforehand(f.gone)
	case f.waiters.First() != nil, !l.s.HasRoom(): // the message may not overtake those that wait
		l.mu.Unlock()
		return ErrFull
	case f.credit.Take(c):
		if f.enqueueLocked(src, tag, b.Bytes(), b, why) {
			b.EndCopied()
		}
		return nil
	case f.tryCredit.tooLarge > 0 && b.Len() >= f.tryCredit.tooLarge:
		f.tryCredit.tooLarge = 0 // the next TrySend asks again
		l.mu.Unlock()
		return l.neverHolds(f.dst, b.Len())
	}
	b.Discount()
	f.keepTryCreditLocked(l.d)
	if !f.credit.HasAsked(c) && f.askLocked(c, credit.Outgoing{Src: src, Tag: tag, Size: uint32(b.Len())}) {
		l.postLocked()
	} else {
		l.mu.Unlock()
	}
	return ErrFull
}

// dropTryCredit takes back what TrySend has asked for, unless TrySend has asked again. It runs in
// the goroutine of the timer.
func (f *Flow) dropTryCredit() {
	if f.mb != nil {
		f.dropDirectTryCredit()
		return
	}
	l := f.l
	l.mu.Lock()
	if f.gone != nil || l.life.HasEnded() {
		f.tryCredit.isSet = false
	} else if f.tryCredit.expireOrRenewLocked(l.d) && f.waiters.First() == nil {
		unasks := f.withdrawNeedLocked()
		if f.giveBackLocked(true) || unasks {
			l.postLocked()
			return
		}
	}
	l.mu.Unlock()
}

// tryDirect is TrySend within the process.
func (f *Flow) tryDirect(ctx context.Context, src uint32, tag uint64, b *buffers.Buffer) error {
	why := f.traced(ctx, purpose{})
	if why.trace == nil && f.queue.add(src, tag, b.Bytes(), b, false) {
		return nil
	}
	m, in := f.mb, f.in
	d := in.from.(*Dispatcher)
	m.mu.Lock()
	defer m.mu.Unlock()
	if err := f.opensLocked(); err != nil {
		return err
	}
	if in.waiters.First() != nil {
		return ErrFull
	}
	if !m.takeLocalCreditLocked(in, b.Len()) {
		f.keepTryCreditLocked(d)
		return ErrFull
	}
	msg := m.d.message()
	msg.data, msg.buf, msg.from, msg.tag, msg.in = b.Bytes(), b, d.self.WithSerial(src), tag, in
	msg.trace = why.trace
	m.takeInLocked(msg, f.passage)
	f.queue.openLocked()
	return nil
}

// dropDirectTryCredit is dropTryCredit within the process.
func (f *Flow) dropDirectTryCredit() {
	m, in := f.mb, f.in
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.closed || in.IsClosed() {
		f.tryCredit.isSet = false
	} else if f.tryCredit.expireOrRenewLocked(in.from.(*Dispatcher)) && in.waiters.First() == nil {
		m.withdrawNeedLocked(in)
	}
}

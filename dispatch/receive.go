// SPDX-License-Identifier: Apache-2.0

package dispatch

import (
	"context"
	"errors"
	"fmt"
	"iter"

	"github.com/rocl-go/rocl/resource"
)

// This file has the receives from one mailbox; recvany.go has the receive from several.

// Recv returns the first message that every sel selects, and waits for it until ctx ends. A message
// that arrives as ctx ends is returned or kept, never lost. Recv returns ErrClosed once the mailbox
// is closed, and ErrSelect if no message can match. If sel names origins, and all of these have
// ended and left nothing that matches, it returns ErrGone, after some milliseconds. If ctx ends
// while this context tries in vain to reach the context of such an origin, the error has a
// [NoConnectionError] with the reason.
//
// Any number of goroutines may call Recv at a time. A message that several of them select goes to
// the one that has waited longest. Functions that are passed to OnEnd, and Config.Logger and
// Config.Trust, may not call Recv: their callers may hold locks or the progress token.
//
// Recv fails with ErrStuck if it waits behind messages that it does not select. That is so when
// three conditions hold. The mailbox is full of such messages, although its limit is doubled
// meanwhile. A context from which a message could match waits for room. Nothing has come to the
// mailbox or been received from it for as long as Config.GiveUp. Then the receive could succeed
// only if another goroutine received what is stored, or if a context that has room sent a match.
// Recv does not fail if every context that its selectors name has room. No message is lost: receive
// some of the stored messages, and try again.
func (m *Mailbox) Recv(ctx context.Context, sel ...Select) (*Message, error) {
	if len(sel) == 0 {
		if msg := m.open.take(); msg != nil {
			return msg, nil
		}
	}
	var own Select
	f, err := merge(sel, &own)
	if err != nil {
		return nil, m.receiving(err)
	}
	m.mu.Lock()
	msg := m.matchLocked(f)
	if msg == nil && m.spinLocked(ctx.Done()) {
		msg = m.matchLocked(f) // what has come meanwhile
	}
	if msg != nil {
		return m.handOutLocked(msg), nil
	}
	if m.closed {
		m.mu.Unlock()
		return nil, m.receiving(ErrClosed)
	}
	w := m.d.waiter()
	w.sel = *f
	m.addReceiverLocked(w)

	err = m.d.progress.Wait(ctx, &w.Waiter)
	if err != nil {
		m.mu.Lock() // w may be handed a message until it is out of the list
		if w.place.IsListed() {
			m.waiters.remove(w)
		}
		m.mu.Unlock()
	}
	if w.origins != nil {
		w.origins.stop()
	}
	var grantee *inflow
	var grant uint64
	var cause error
	msg, grantee, grant, cause = w.msg, w.grantee, w.grant, w.cause
	m.d.doneWaiting(w)
	switch {
	case msg != nil:
		return m.finishHandOut(msg, grantee, grant), nil
	case cause != nil:
		err = cause
	case err == nil: // fired without a message
		err = ErrClosed
	default:
		err = m.d.Explain(err, f.namedFrom()...)
	}
	return nil, m.receiving(err)
}

// addReceiverLocked makes w wait for a message that its selectors match. mu must be held;
// addReceiverLocked releases it.
func (m *Mailbox) addReceiverLocked(w *waiter) {
	m.waiters.push(w)
	m.storeQueuesLocked() // a sender may not have seen w
	m.endQueuesLocked()
	if !m.isOriginTimerSet && w.sel.namesOrigins() {
		m.startOriginTimerLocked()
	}
	if len(m.credit.Waiting()) > 0 {
		m.watchStuckLocked()
		m.grantQueuedLocked()
	} else {
		m.mu.Unlock()
	}
}

// Messages returns the messages that every sel selects, as they come, for a loop that ends with
// ctx, with the mailbox, or by itself. It yields an error, at last, in the cases in which Recv
// returns one that is neither the cause of ctx nor ErrClosed.
func (m *Mailbox) Messages(ctx context.Context, sel ...Select) iter.Seq2[*Message, error] {
	return func(yield func(*Message, error) bool) {
		for {
			msg, err := m.Recv(ctx, sel...)
			if err != nil {
				if ctx.Err() == nil && !errors.Is(err, ErrClosed) {
					yield(nil, err)
				}
				return
			}
			if !yield(msg, nil) {
				return
			}
		}
	}
}

// TryRecv returns the first message that every sel selects, as [Mailbox.Recv] does, but does not
// wait: if no message matches, it returns ErrEmpty. It checks once what the transports have.
func (m *Mailbox) TryRecv(sel ...Select) (*Message, error) {
	if len(sel) == 0 {
		if msg := m.open.take(); msg != nil {
			return msg, nil
		}
	}
	msg, err := m.lookFor(sel, m.matchLocked)
	if err != nil {
		return nil, err
	}
	return m.handOutLocked(msg), nil
}

// An Envelope describes a message that is not received yet.
type Envelope struct {
	From resource.GID // the resource that sent the message
	Tag  uint64       // the number the sender gave it
	Len  int          // the length of its payload in bytes
}

// Peek describes the message that TryRecv would return, and leaves it in the mailbox. It fails as
// TryRecv does. Another goroutine may receive that message next.
func (m *Mailbox) Peek(sel ...Select) (Envelope, error) {
	msg, err := m.lookFor(sel, m.findLocked)
	if err != nil {
		return Envelope{}, err
	}
	e := Envelope{From: msg.from, Tag: msg.tag, Len: msg.Len()}
	m.mu.Unlock()
	return e, nil
}

// lookFor returns the message that find gives for sel, with mu held. If there is none, it checks
// once what the transports have. If there still is none, it returns an error, and mu is not held.
func (m *Mailbox) lookFor(sel []Select, find func(*Select) *Message) (*Message, error) {
	var own Select
	f, err := merge(sel, &own)
	if err != nil {
		return nil, err
	}
	for try := 0; ; try++ {
		m.mu.Lock()
		if msg := find(f); msg != nil {
			return msg, nil
		}
		closed := m.closed
		m.mu.Unlock()
		if closed {
			return nil, ErrClosed
		}
		if try > 0 {
			return nil, ErrEmpty
		}
		m.d.progress.Poll(true)
	}
}

// receiving returns the error of a receive that fails because of err.
func (m *Mailbox) receiving(err error) error {
	return fmt.Errorf("rocl: receive at %v: %w", m.d.self.WithSerial(m.serial), err)
}

// handOutLocked lets msg, which is unlinked, leave the mailbox. mu must be held; handOutLocked
// releases it.
func (m *Mailbox) handOutLocked(msg *Message) *Message {
	grantee, grant := m.consumeLocked(msg)
	m.mu.Unlock()
	return m.finishHandOut(msg, grantee, grant)
}

// finishHandOut tells a sender, with the account grantee, of the credit that msg has left behind.
// mu must not be held.
func (m *Mailbox) finishHandOut(msg *Message, grantee *inflow, grant uint64) *Message {
	if msg.d != nil { // the message is in no batch
		msg.isHeld = true
		msg.d.progress.Hold(1)
		if msg.trace != nil {
			msg.trace.reach(Received)
		}
	}
	if grant != 0 {
		grantee.from.credit(m, grantee)
		m.mu.Lock()
		m.grantQueuedLocked()
	}
	return msg
}

// Poll makes progress once, without waiting. It reports whether something has arrived, or another
// goroutine makes progress.
func (d *Dispatcher) Poll() (arrived bool) { return d.progress.Poll(false) }

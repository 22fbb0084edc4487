// SPDX-License-Identifier: Apache-2.0

package dispatch

import "errors"

// ErrNotReceived is returned by PutBack for a message that was not received from that resource, or
// that has been released or put back since.
//
// Cause: `PutBack` at the wrong resource. Remedy: use the one that received it.
var ErrNotReceived = errors.New("rocl: message was not received from this resource")

// PutBack stores a message that the mailbox has handed out, before all other messages. If a
// receiver waits for it, PutBack hands the message to that receiver instead. The request of a call
// that has been given up since it was received is dropped. From then on the message belongs to the
// mailbox. If PutBack returns an error, ErrClosed or ErrNotReceived, the message stays the
// caller's.
//
// A message that is stored counts against the credit of its sender again, as before it was
// received. The sender may have been given new credit meanwhile, and keeps that. So a mailbox may
// exceed its limit by the messages that receivers hold at once and put back. It gives its senders
// no more credit until these messages have been received again.
func (m *Mailbox) PutBack(msg *Message) error {
	if msg == nil || msg.in == nil || msg.in.home != m {
		return ErrNotReceived
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	switch {
	case m.closed:
		return ErrClosed
	case msg.place.IsListed(): // the message is stored
		return ErrNotReceived
	}
	m.takeBackLocked()
	msg.read = 0
	if msg.isHeld {
		msg.isHeld = false
		msg.d.progress.Hold(-1)
	}
	if msg.call != 0 {
		if _, isCancelled := msg.in.takeEarlyLocked(msg.call); isCancelled {
			msg.clearCall()
			msg.in = nil
			msg.Release()
			return nil
		}
	}
	if w := m.receiverLocked(msg); w != nil {
		w.msg = msg // the sender has been told of its credit already
		w.finish()
		return nil
	}
	if msg.gone == nil {
		m.unconsumeLocked(msg.in, len(msg.data))
	}
	msg = m.dense(msg)
	m.messages.PushFront(msg, &msg.place)
	m.count++
	m.endSpinLocked()
	if m.matcher != nil {
		m.matcher.prepend(msg)
	}
	return nil
}

// unconsumeLocked undoes consume for a message of n bytes, except for the credit that the sender
// was given. mu must be held.
func (m *Mailbox) unconsumeLocked(in *inflow, n int) {
	m.credit.Return(&in.Account, in.Charge(n))
}

// SPDX-License-Identifier: Apache-2.0

package dispatch

import (
	"time"

	"github.com/rocl-go/rocl/buffers"
)

// A small message lies in the block that it was read into, and keeps all of that block. So a
// mailbox counts the memory that its stored messages really keep. It copies messages out of their
// blocks if that memory is more than twice what the mailbox may store, or if the messages have been
// stored for some seconds. A message that a receiver waits for, or that is received soon, is never
// copied.

// A pin is a buffer that stored messages of one sending context lie in. The mailbox's mu guards its
// fields.
type pin struct {
	in    *inflow
	buf   *buffers.Buffer
	size  uint64 // bytes of the buffer
	used  uint64 // charged bytes of the stored messages in the buffer
	count int    // how many these messages are
	seen  uint32 // the number of the sweep that came to it first; 0: none
	next  *pin   // in the mailbox's list of unused pins
	// isSparse is set while the stored messages need less than half of the buffer.
	isSparse bool
}

const (
	sweepEvery = time.Second
	sweepMost  = 4096 // messages that one sweep checks
)

// countMemoryLocked counts the memory of msg, which is stored from now on. A message that needs at
// least half of its buffer has no pin, nor has a message that came from no context. mu must be
// held.
func (m *Mailbox) countMemoryLocked(msg *Message) {
	in := msg.in
	if msg.gone != nil { // the message has no payload
		return
	}
	p := in.pin
	if p == nil || p.buf != msg.buf {
		if msg.batch == nil && msg.buf != nil {
			if size := uint64(msg.buf.Footprint(m.d.cfg.Pool)); size <= 2*charge(len(msg.data)) {
				msg.kept = max(size, uint64(len(msg.data)))
				m.held += msg.kept
				return
			}
		}
		if p = m.pins; p != nil {
			m.pins = p.next
		} else {
			p = new(pin)
		}
		p.in, p.buf, p.size, p.next, p.seen = in, msg.buf, uint64(len(msg.data)), nil, 0
		if msg.buf != nil {
			p.size = max(p.size, uint64(msg.buf.Footprint(m.d.cfg.Pool)))
		}
		in.pin = p
		m.held += p.size
	}
	p.count++
	p.used += charge(len(msg.data))
	msg.pin = p
	m.noteSparseLocked(p)
}

// noteSparseLocked notes whether a buffer is sparse, and starts the timer of sweep if it has become
// so. mu must be held.
func (m *Mailbox) noteSparseLocked(p *pin) {
	isSparse := p.count > 0 && p.size > 2*p.used
	if isSparse == p.isSparse {
		return
	}
	if p.isSparse = isSparse; !isSparse {
		m.sparse--
		return
	}
	m.sparse++
	switch {
	case m.isSweeping:
		return
	case m.sweeper == nil:
		m.sweeper = time.AfterFunc(sweepEvery, m.sweep)
	default:
		m.sweeper.Reset(sweepEvery)
	}
	m.isSweeping = true
}

// sweep copies messages out of sparse blocks, if it has seen these blocks before. It continues
// where it ended the last time, each second while there are such blocks. It runs in the goroutine
// of the timer sweeper.
func (m *Mailbox) sweep() {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.isSweeping = m.sparse > 0; !m.isSweeping {
		return
	}
	msg := m.messages.First()
	if m.swept != nil {
		msg = m.swept.place.Next()
	}
	if m.sweeps++; m.sweeps == 0 { // 0 means that no sweep came
		m.sweeps++
	}
	for range sweepMost {
		if msg == nil {
			m.swept = nil
			break
		}
		if p := msg.pin; p != nil && p.isSparse {
			if p.seen == 0 {
				p.seen = m.sweeps
			} else if p.seen != m.sweeps {
				if out := m.copyOutLocked(msg); out != nil {
					msg = out
				}
			}
		}
		m.swept, msg = msg, msg.place.Next()
	}
	m.sweeper.Reset(sweepEvery)
}

// uncountMemoryLocked undoes countMemoryLocked. mu must be held.
func (m *Mailbox) uncountMemoryLocked(msg *Message) {
	p := msg.pin
	if p == nil {
		m.held -= msg.kept
		msg.kept = 0
		return
	}
	msg.pin = nil
	p.used -= charge(len(msg.data))
	p.count--
	if m.noteSparseLocked(p); p.count > 0 {
		return
	}
	m.held -= p.size
	if p.in.pin == p {
		p.in.pin = nil
	}
	if m.pinAgain == p {
		m.pinAgain = nil
	}
	p.in, p.buf, p.next, m.pins = nil, nil, m.pins, p
}

// heldMostLocked returns how many bytes the stored messages may keep, not counting the block that
// was read last. mu must be held.
func (m *Mailbox) heldMostLocked() uint64 { return 2 * max(m.dense, m.stored) }

// compactLocked copies messages out of sparse blocks, until the memory that is kept is within
// bounds. It continues where it ended the last time. It may come to each message twice, since a
// block that was not sparse then may have become so. mu must be held.
func (m *Mailbox) compactLocked() {
	most := m.heldMostLocked()
	if last := m.messages.Last(); last != nil && last.pin != nil {
		most += last.pin.size
	}
	for range 2 {
		msg := m.messages.First()
		if m.compacted != nil {
			msg = m.compacted.place.Next()
		}
		for ; msg != nil && m.held > most; msg = msg.place.Next() {
			if p := msg.pin; p != nil && p.isSparse {
				if msg = m.copyOutLocked(msg); msg == nil {
					return // no memory: the pool bounds what is kept
				}
			}
			m.compacted = msg
		}
		if m.held <= most {
			return
		}
		m.compacted = nil
	}
}

// copyOutLocked gives a stored message a buffer of its own. It returns the message, or a new
// Message in its place if the old one was in a batch, or nil if there is no memory. mu must be
// held.
func (m *Mailbox) copyOutLocked(msg *Message) *Message {
	b, err := m.d.cfg.Pool.GetReserved(len(msg.data))
	if err != nil {
		return nil
	}
	copy(b.Bytes(), msg.data)
	m.d.CountCopy(len(msg.data))
	own := msg
	if m.swept == msg {
		m.swept = msg.place.Prev()
	}
	if m.compacted == msg {
		m.compacted = msg.place.Prev()
	}
	if msg.batch != nil {
		own = m.d.message()
		own.from, own.tag, own.in = msg.from, msg.tag, msg.in
		own.call, own.isForgotten = msg.call, msg.isForgotten
		msg.clearCall()
		m.messages.Replace(&msg.place, own, &own.place)
		if m.matcher != nil {
			m.matcher.exchange(msg, own)
		}
	}
	m.uncountMemoryLocked(msg)
	if msg.batch != nil {
		msg.in = nil
		msg.Release()
	} else {
		msg.buf.Release()
	}
	own.buf, own.data = b, b.Bytes()
	latest := own.in.pin // messages that follow may lie in this block
	m.countMemoryLocked(own)
	own.in.pin = latest
	return own
}

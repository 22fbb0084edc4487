// SPDX-License-Identifier: Apache-2.0

package dispatch

import "github.com/rocl-go/rocl/buffers"

// A small message lies in the block into which it was read, and keeps all of it. So
// a mailbox counts what its stored messages really keep, and copies them out of their
// blocks where that is more than twice what it may store. A message that a receiver
// waits for, or that is received soon, is never copied.

// A pin is a buffer that stored messages of one sending context lie in. Its fields are
// guarded by the mailbox.
type pin struct {
	in    *inflow
	buf   *buffers.Buffer
	size  uint64 // bytes of the buffer,
	used  uint64 // and charged bytes of the stored messages in it
	count int    // of them
	next  *pin   // in the mailbox's list of unused ones
}

// hold counts the memory of msg, which is stored from here on. mu is held.
func (m *Mailbox) hold(msg *Message) {
	in := msg.in
	p := in.pin
	if p == nil || p.buf != msg.buf {
		if p = m.pins; p != nil {
			m.pins = p.next
		} else {
			p = new(pin)
		}
		p.in, p.buf, p.size, p.next = in, msg.buf, uint64(len(msg.data)), nil
		if msg.buf != nil {
			p.size = max(p.size, uint64(msg.buf.Footprint(m.d.cfg.Pool)))
		}
		in.pin = p
		m.held += p.size
	}
	p.count++
	p.used += charge(len(msg.data))
	msg.pin = p
}

// unhold undoes hold. mu is held.
func (m *Mailbox) unhold(msg *Message) {
	p := msg.pin
	if p == nil {
		return
	}
	msg.pin = nil
	p.used -= charge(len(msg.data))
	if p.count--; p.count > 0 {
		return
	}
	m.held -= p.size
	if p.in.pin == p {
		p.in.pin = nil
	}
	p.in, p.buf, p.next, m.pins = nil, nil, m.pins, p
}

// heldMost is how many bytes the stored messages may keep, beside the block that was
// read last. mu is held.
func (m *Mailbox) heldMost() uint64 { return 2 * max(m.dense, m.stored) }

// compact copies messages out of blocks that hold little else, until what is kept is
// within bounds. It goes on where it ended the last time, and may come to each message
// twice, since a block of which much was in use then may have been received meanwhile.
// mu is held.
func (m *Mailbox) compact() {
	most := m.heldMost()
	if m.last != nil && m.last.pin != nil {
		most += m.last.pin.size
	}
	for range 2 {
		msg := m.first
		if m.compacted != nil {
			msg = m.compacted.next
		}
		for ; msg != nil && m.held > most; msg = msg.next {
			if p := msg.pin; p != nil && p.size > 2*p.used {
				if msg = m.copyOut(msg); msg == nil {
					return // no memory: what is kept is bounded by the pool
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

// copyOut gives a stored message a buffer of its own. It returns the message, which is
// another one if it came with others, or nil if there is no memory. mu is held.
func (m *Mailbox) copyOut(msg *Message) *Message {
	b, err := m.d.cfg.Pool.GetReserved(len(msg.data))
	if err != nil {
		return nil
	}
	copy(b.Bytes(), msg.data)
	m.d.CountCopy(len(msg.data))
	own := msg
	if msg.parcel != nil {
		own = m.d.message()
		own.from, own.tag, own.in, own.prev, own.next = msg.from, msg.tag, msg.in, msg.prev, msg.next
		if own.prev != nil {
			own.prev.next = own
		} else {
			m.first = own
		}
		if own.next != nil {
			own.next.prev = own
		} else {
			m.last = own
		}
	}
	m.unhold(msg)
	if msg.parcel != nil {
		msg.in, msg.prev, msg.next = nil, nil, nil
		msg.Release()
	} else {
		msg.buf.Release()
	}
	own.buf, own.data = b, b.Bytes()
	latest := own.in.pin // messages that follow may lie there
	m.hold(own)
	own.in.pin = latest
	return own
}

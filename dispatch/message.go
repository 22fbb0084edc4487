// SPDX-License-Identifier: Apache-2.0

package dispatch

import (
	"fmt"
	"iter"
	"sync"
	"sync/atomic"
	"unsafe"

	"github.com/rocl-go/rocl/buffers"
	"github.com/rocl-go/rocl/resource"
	"github.com/rocl-go/rocl/subsys"
)

// A Message is one received message. It belongs to whoever received it until
// Release.
type Message struct {
	data   []byte
	buf    *buffers.Buffer // what data lies in; nil if nothing does
	from   resource.GID
	tag    uint64
	in     *inflow // which the message counts against, or did until it was received
	next   *Message
	prev   *Message
	d      *Dispatcher // of a message by itself
	parcel *parcel     // of one that came with others
	pin    *pin        // of one that is stored,
	kept   uint64      // or the bytes of its buffer
	read   uint32      // bytes of data that Read has returned
	isHeld bool        // received, and counted in Dispatcher.held
	isSent bool        // in the buffer of a sender of this process, which others may hold
	slot   *slot       // its places in the chains of the mailbox; nil: none
	isGone bool        // it tells that its origin has ended
	request
}

// Bytes returns the payload: a view of registered memory, valid until Release, to be read.
// A receiver that changes it calls Writable. A payload above 2 KiB that came from another
// process of the node lies in that process's memory, and writing to it ends this process.
// One that came from this process may lie in memory that its sender and other receivers
// read.
func (m *Message) Bytes() []byte { return m.data }

// ReadOnly reports whether the payload must not be written, because it lies in another
// process's memory or another process reads it. Messages above 2 KiB over shared memory
// (package subsys/shm) are read-only, also when they are sent on, within this process or
// back to where they came from; no others are.
func (m *Message) ReadOnly() bool { return m.buf != nil && m.buf.ReadOnly() }

// Writable returns the payload for a receiver that changes it. A payload that is ReadOnly is
// copied first, and so is one in a buffer of this process that others hold: its
// sender has retained it, or sent it, or a slice of it, to several targets. The memory is given back.
// Any other payload stays where it is. After Writable, Bytes and Buffer are of what it
// returned. It fails as Buffer of the context does; then the message is as it was. Nothing
// else may use the message meanwhile.
func (m *Message) Writable() ([]byte, error) {
	if !m.ReadOnly() && !(m.isSent && m.buf.IsShared()) {
		return m.data, nil
	}
	d := m.d
	if m.parcel != nil {
		d = m.parcel.d
	}
	b, err := d.Buffer(len(m.data))
	if err != nil {
		return nil, fmt.Errorf("dispatch: copying a message of %d bytes: %w", len(m.data), err)
	}
	copy(b.Bytes(), m.data)
	d.CountCopy(len(m.data))
	m.moveTo(b)
	return m.data, nil
}

// moveTo makes b, which has a copy of the payload, the message's buffer.
func (m *Message) moveTo(b *buffers.Buffer) {
	if m.parcel == nil { // else the parcel holds it, for all
		m.buf.Release()
	}
	m.buf, m.data, m.isSent = b, b.Bytes(), false
}

// Len is the length of the payload in bytes.
func (m *Message) Len() int { return len(m.data) }

// From is the resource that sent the message: a reply goes there.
func (m *Message) From() resource.GID { return m.from }

// Tag is the number the sender gave the message.
func (m *Message) Tag() uint64 { return m.tag }

// IsGone reports whether the library made the message to tell that the resource From has
// ended: Resource.Monitor asked for that. The message has no payload. It comes behind all
// messages from that resource. Only a resource that lives, because its context was merely out
// of reach, may send more.
func (m *Message) IsGone() bool { return m.isGone }

// Buffer returns the payload as a buffer of its own that can be sent on
// without copying. The caller owns it, apart from the message.
func (m *Message) Buffer() *buffers.Buffer {
	if m.buf == nil {
		return nil
	}
	b := m.buf.Bytes()
	if len(m.data) == 0 {
		return m.buf.Slice(0, 0)
	}
	if len(b) == len(m.data) && &b[0] == &m.data[0] {
		return m.buf.Retain()
	}
	off := int(uintptr(unsafe.Pointer(&m.data[0])) - uintptr(unsafe.Pointer(&b[0])))
	return m.buf.Slice(off, len(m.data))
}

// Release gives the payload's memory and the Message back. Neither may be
// touched afterwards.
//
// The sender of a request that is released without a reply is told: its call fails with
// ErrNoReply.
func (m *Message) Release() {
	if m.call != 0 {
		m.isDone()
	}
	buf, d, p := m.buf, m.d, m.parcel
	m.data, m.read, m.buf, m.d, m.parcel, m.in, m.isGone, m.isSent = nil, 0, nil, nil, nil, nil, false, false
	switch {
	case p != nil:
		if buf != p.buf { // a copy
			buf.Release()
		}
		p.drop()
	case d != nil:
		if m.isHeld {
			m.isHeld = false
			d.held.Add(-1)
		}
		if buf != nil {
			buf.Release()
		}
		d.singles.Put(m)
	}
}

const (
	parcelLen   = 32 // messages of a full parcel
	parcelLeast = 8  // fewer come as messages by themselves
)

// A parcel is a number of messages that came in one block. They share one
// reference to it: to count one for each would cost as much as all the rest.
type parcel struct {
	d    *Dispatcher
	buf  *buffers.Buffer
	left atomic.Int32 // messages not released yet
	msgs [parcelLen]Message
}

func (p *parcel) drop() {
	if p.left.Add(-1) == 0 {
		p.buf.Release()
		p.buf = nil
		p.d.parcels.Put(p)
	}
}

// depot keeps messages for reuse.
type depot struct {
	singles sync.Pool
	parcels sync.Pool
}

// message returns a message by itself.
func (d *Dispatcher) message() *Message {
	m, _ := d.singles.Get().(*Message)
	if m == nil {
		m = new(Message)
	}
	m.d = d
	return m
}

// messages yields a message for each of fs, at most parcelLen, which together hold
// the buffer that they lie in.
func (d *Dispatcher) messages(fs []subsys.Frame) iter.Seq2[int, *Message] {
	return func(yield func(int, *Message) bool) {
		n, b := len(fs), fs[0].Buf
		if n == 1 || b == nil {
			for i := range fs {
				m := d.message()
				m.buf = b
				switch {
				case b == nil:
				case fs[i].Spare:
					fs[i].Buf = nil
				default:
					b.Retain()
				}
				yield(i, m)
			}
			return
		}
		p, _ := d.parcels.Get().(*parcel)
		if p == nil {
			p = &parcel{d: d}
		}
		p.buf = b.Retain()
		p.left.Store(int32(n))
		for i := range n {
			m := &p.msgs[i]
			m.buf, m.parcel = b, p
			yield(i, m)
		}
	}
}

// SPDX-License-Identifier: Apache-2.0

package dispatch

import (
	"fmt"
	"sync"
	"sync/atomic"
	"unsafe"

	"github.com/rocl-go/rocl/buffers"
	"github.com/rocl-go/rocl/dispatch/internal/list"
	"github.com/rocl-go/rocl/resource"
)

// A Message is one received message. It belongs to the receiver until Release. Its payload stays
// readable until then, even if it lies in shared memory and the sending process has ended or was
// killed.
type Message struct {
	data   []byte
	buf    *buffers.Buffer // the buffer that data lies in; nil: none
	from   resource.GID
	tag    uint64
	in     *inflow             // the account of the sender that the message counts against, or did until it was received
	place  list.Place[Message] // in the mailbox
	d      *Dispatcher         // set in a message that is part of no run
	run    *run                // the run that the message is part of; nil: none
	rest   rest                // the messages behind this one in the mailbox that have no Message yet
	read   uint32              // bytes of data that Read has returned
	isHeld bool                // received, and counted in Dispatcher.held
	isSent bool                // the payload is in a buffer that a sender of this process may hold too
	trace  *trace              // what came ahead of the message; nil: nothing
	slot   *slot               // the places of the message in the chains of the mailbox; nil: none
	gone   error               // why the origin has ended, of which the message tells; nil: it is another message
	// isForgotten says that the message was sent by SendAndForget.
	isForgotten bool
	request
}

// Bytes returns the payload: a view of registered memory, valid until Release, to be read. A
// receiver that changes it calls Writable. A payload above 2 KiB from another process of the node
// lies in that process's memory, and writing to it ends this process. A payload from this process
// may lie in memory that its sender and other receivers read.
func (m *Message) Bytes() []byte { return m.data }

// ReadOnly reports whether the payload must not be written, because it lies in another process's
// memory or another process reads it. Only messages above 2 KiB over shared memory (package
// subsys/shm) are read-only. They stay read-only when they are sent on, within this process or back
// to their origin.
func (m *Message) ReadOnly() bool { return m.buf != nil && m.buf.ReadOnly() }

// Writable returns the payload for a receiver that changes it. A payload that is ReadOnly is copied
// first, and the memory of the original is given back. So is a payload in a buffer of this process
// that has other holders: its sender has retained the buffer, or sent it, or a slice of it, to
// several targets. Any other payload stays where it is. After Writable, Bytes and Buffer refer to
// the payload that it returned. Writable fails as Buffer of the context does; then the message is
// unchanged. No other goroutine may use the message meanwhile.
func (m *Message) Writable() ([]byte, error) {
	if !m.ReadOnly() && !(m.isSent && m.buf.IsShared()) {
		return m.data, nil
	}
	d := m.d
	if m.run != nil {
		d = m.run.d
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
	if m.run == nil || m.buf != m.run.buf { // otherwise the run holds the buffer, for all its messages
		m.buf.Release()
	}
	m.buf, m.data, m.isSent = b, b.Bytes(), false
}

// Len returns the length of the payload in bytes.
func (m *Message) Len() int { return len(m.data) }

// From returns the resource that sent the message. A reply goes there.
func (m *Message) From() resource.GID { return m.from }

// Tag returns the number that the sender gave the message.
func (m *Message) Tag() uint64 { return m.tag }

// IsGone reports whether the library made the message to tell that the resource From has ended, as
// Resource.Monitor asked. Such a message has no payload, and comes behind all messages from that
// resource. The resource sends more only if it lives: its context was merely out of reach.
func (m *Message) IsGone() bool { return m.gone != nil }

// GoneErr returns why the resource From has ended, if IsGone is true, and nil otherwise. The error
// matches ErrGone or ErrUnreachable. If no connection was made for as long as Config.GiveUp says,
// it is a *NoConnectionError, with the reason.
func (m *Message) GoneErr() error { return m.gone }

// Buffer returns the payload as a buffer of its own that can be sent on without copying. The caller
// owns that buffer, independently of the message. Buffer returns nil if the message has none.
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

// Release gives the payload's memory and the Message back. Neither may be used afterwards.
//
// The release of a request without a reply is told to its sender: the call fails with ErrNoReply.
// Release may not be called while Reply is under way with the message: that uses the message.
func (m *Message) Release() {
	if m.call != 0 {
		m.endRequest()
	}
	if m.trace != nil {
		m.trace.reach(Released)
	}
	buf, d, r := m.buf, m.d, m.run
	if m.isHeld {
		d.progress.Hold(-1)
	}
	if r != nil {
		*m = Message{}
		if buf != r.buf { // of the sender, or a copy
			buf.Release()
		}
		r.drop(1)
		return
	}
	if buf != nil {
		buf.Release()
	}
	*m = Message{} // last: an atomic operation waits for the stores before it
	if d != nil {
		d.singles.Put(m)
	}
}

// messagePool keeps messages and runs for reuse.
type messagePool struct {
	singles   sync.Pool
	runs      sync.Pool
	shortRuns sync.Pool
	openings  atomic.Uint64 // runs that were opened, for the numbers of openings
}

// message returns an empty message that is part of no run.
func (d *Dispatcher) message() *Message {
	m, _ := d.singles.Get().(*Message)
	if m == nil {
		m = new(Message)
	}
	m.d = d
	return m
}

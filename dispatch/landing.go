// SPDX-License-Identifier: Apache-2.0

package dispatch

import (
	"fmt"
	"sync"

	"github.com/rocl-go/rocl/buffers"
	"github.com/rocl-go/rocl/dispatch/internal/wire"
	"github.com/rocl-go/rocl/resource"
)

// A landing is memory of the program in which the payload of one message is to lie. If the message
// is large and comes over a stream, its payload is read into that memory. Otherwise the goroutine
// that waits for the message copies the payload there.
//
//	            take
//	vacant ─────────────────────────► taken
//	  │  ▲                             │ │
//	  │  └─ last Release of the buffer ┘ │ move
//	  │                                  ▼
//	  │ move                           taken and moved: the rest of the message
//	  ▼                                  │              goes to other memory
//	moved ◄── last Release of the buffer ┘
//
// A landing that was moved stays so: no message comes to it any more.
//
// Connections write to the memory only while they have the buffer that take returned, and only with
// the progress token held. withdraw takes the token. So the memory belongs to the program again
// when withdraw returns.
type landing struct {
	mem []byte
	l   *link // the link that the message comes over; the token must be held

	mu      sync.Mutex // no lock is taken while it is held
	isTaken bool
	isMoved bool
	moved   *buffers.Buffer // a buffer for the rest of the message; nil: there was no memory for it
	buf     buffers.Buffer  // refers to mem while it is taken
}

// take returns a buffer that refers to the memory, for a message of n bytes. It returns nil if the
// message does not fit, or if a message or a connection has the memory. The token must be held.
func (ld *landing) take(d *Dispatcher, l *link, n int) *buffers.Buffer {
	ld.mu.Lock()
	defer ld.mu.Unlock()
	if ld.isTaken || ld.isMoved || n > len(ld.mem) {
		return nil
	}
	ld.isTaken, ld.l = true, l
	return d.cfg.Pool.Borrow(&ld.buf, ld.mem[:n], ld)
}

// Return implements buffers.Lender.
func (ld *landing) Return(bool) {
	ld.mu.Lock()
	moved := ld.moved
	ld.isTaken, ld.moved = false, nil
	ld.mu.Unlock()
	if moved != nil {
		moved.Release()
	}
}

// Moved implements buffers.Lander. The token must be held.
func (ld *landing) Moved() (to *buffers.Buffer, isMoved bool) {
	ld.mu.Lock()
	defer ld.mu.Unlock()
	return ld.moved, ld.isMoved
}

// withdraw is move for a goroutine without the token. No lock may be held.
func (ld *landing) withdraw(d *Dispatcher) {
	d.progress.Lock()
	defer d.progress.Unlock()
	ld.move(d)
}

// move takes the memory back. When it returns, nothing writes to the memory any more, and no
// message will be read into it. The rest of a message that is being read goes to other memory, if
// there is some, and the message is dropped, because its call has ended or gets another reply. The
// token must be held, and no lock.
func (ld *landing) move(d *Dispatcher) {
	ld.mu.Lock()
	l, isTaken, n := ld.l, ld.isTaken, ld.buf.Len()
	ld.isMoved = true
	ld.mu.Unlock()
	if !isTaken {
		return
	}
	var b *buffers.Buffer
	if !d.budget.NeverHolds(n) {
		b, _ = d.arriving(n)
	}
	if p := l.partIn(&ld.buf); p != nil {
		if p.buf, p.isDropped = nil, b == nil; b != nil {
			p.buf = b.Retain()
		}
		ld.buf.Release()
	}
	ld.mu.Lock()
	if ld.isTaken {
		ld.moved, b = b, nil
	}
	ld.mu.Unlock()
	if b != nil { // no message or connection had the memory any more
		b.Release()
	}
}

// copyIn moves the payload of msg, which has come for ld, into ld's memory, if the payload fits and
// is not there already. Neither a lock nor the token may be held.
func (ld *landing) copyIn(d *Dispatcher, msg *Message) {
	switch {
	case msg.buf == &ld.buf:
		return
	case ld.isInUse():
		ld.withdraw(d)
	}
	if n := len(msg.data); n > 0 && n <= len(ld.mem) {
		b := (&landing{mem: ld.mem}).take(d, nil, n)
		copy(b.Bytes(), msg.data)
		d.CountCopy(n)
		msg.moveTo(b)
	}
}

// isInUse reports whether a message lies in the memory, or is being read into it.
func (ld *landing) isInUse() bool {
	ld.mu.Lock()
	defer ld.mu.Unlock()
	return ld.isTaken
}

// memory returns a buffer for the payload of n bytes of a message to dst that comes over l. The
// buffer refers to the landing of the message if there is one, and comes from the pool otherwise.
// It is nil, without an error, if the message had a landing when its sender got credit, has none
// now, and is larger than the memory ever holds. The token must be held.
func (l *link) memory(dst, src uint32, tag uint64, n int) (*buffers.Buffer, error) {
	if ld := l.landing(dst, l.peer.WithSerial(src), tag); ld != nil {
		if b := ld.take(l.d, l, n); b != nil {
			return b, nil
		}
	}
	if l.d.budget.NeverHolds(n) {
		return nil, nil
	}
	return l.d.arriving(n)
}

// landing returns the landing of a message to dst, or nil. The token must be held.
func (l *link) landing(dst uint32, from resource.GID, tag uint64) *landing {
	if dst == wire.Replies {
		if c := &l.d.calls; c.landings.Load() > 0 {
			return c.landing(tag, from)
		}
	}
	return nil
}

// partIn returns the message that is being read into b, or nil. The token must be held.
func (l *link) partIn(b *buffers.Buffer) *part {
	for i := range l.parts {
		if l.parts[i].buf == b {
			return &l.parts[i]
		}
	}
	return nil
}

// arriving returns a buffer for n bytes that arrive, from the memory that is kept for them.
func (d *Dispatcher) arriving(n int) (*buffers.Buffer, error) {
	buf, err := d.cfg.Pool.GetReserved(n)
	if err != nil {
		return nil, fmt.Errorf("dispatch: a buffer for %d bytes: %w", n, err)
	}
	return buf, nil
}

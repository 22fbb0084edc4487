// SPDX-License-Identifier: Apache-2.0

package buffers

import (
	"fmt"
	"sync"
	"sync/atomic"
	"unsafe"
)

// State says where a buffer is in its life.
type State uint32

// States of a buffer.
const (
	Free      State = iota // in the pool
	Owned                  // the caller's
	Sending                // accepted for sending, not acknowledged yet
	Delivered              // the library is through with it; other references keep it
)

func (s State) String() string {
	switch s {
	case Free:
		return "free"
	case Owned:
		return "owned"
	case Sending:
		return "sending"
	case Delivered:
		return "delivered"
	}
	return fmt.Sprintf("State(%d)", uint32(s))
}

// A Buffer is a piece of registered memory with a count of its holders.
type Buffer struct {
	mem    []byte
	n      int
	at     int           // where Write goes on
	refs   atomic.Int32  // holders; 1 while free, so that Get and the last Release need not write it
	state  atomic.Uint32 // see wait.go
	pool   *Pool
	parent *Buffer // of a slice
	home   *home   // what it was cut from; nil for a slice
	next   *Buffer // in a free list, guarded by it
	free   bool    // in one; written by whoever owns the buffer or its list
	view   bool    // a slice that View made

	abandoned atomic.Bool // is not to be used again
	lender    Lender      // whose memory it is, if not the pool's
	debugBuffer
}

// A Lender lends memory to buffers (see Pool.Borrow).
type Lender interface {
	// Return takes a loan back after the last Release of its buffer. isAbandoned reports
	// whether Abandon was called: then somebody may still read the memory, and it must not
	// be written again.
	Return(isAbandoned bool)
}

// A Lander is a Lender of memory into which messages are read.
type Lander interface {
	Lender
	// Moved reports whether the lender has taken the memory back before a message was read to its end.
	// The rest is read into the same place of the buffer that Moved returns, which has what came before;
	// nil: there was no memory for one.
	Moved() (to *Buffer, isMoved bool)
}

// Borrow makes of b, which is the lender's and nobody's until then, a buffer over
// memory that is not the pool's: the last Release gives it back to l, and with it b.
// It is not written; see ReadOnly.
func (p *Pool) Borrow(b *Buffer, mem []byte, l Lender) *Buffer {
	b.mem, b.n, b.at, b.pool, b.lender, b.free = mem, len(mem), 0, p, l, false
	if b.refs.Load() != 1 { // it is not new
		b.refs.Store(1)
	}
	if b.state.Load() != uint32(Owned) {
		b.state.Store(uint32(Owned))
	}
	return b
}

// root is the buffer of which b is a slice, or b.
func (b *Buffer) root() *Buffer {
	for b.parent != nil {
		b = b.parent
	}
	return b
}

// ReadOnly reports whether the memory must not be written, because another process reads
// it or owns it. A write to another process's memory ends this process. Large messages from
// shared memory are read-only.
func (b *Buffer) ReadOnly() bool {
	for ; b.parent != nil; b = b.parent {
		if b.view {
			return true
		}
	}
	if b.lender == nil {
		return false
	}
	_, isWritten := b.lender.(Lander)
	return !isWritten
}

// Moved returns a buffer for what is still to be read into b, whose lender has taken the memory back
// (see Lander); nil without an error: the lender has not, or b is the pool's own. It fails with
// ErrMoved where there is no such buffer. The caller holds b, and releases both.
func (b *Buffer) Moved() (*Buffer, error) {
	root := b.root()
	l, _ := root.lender.(Lander)
	if l == nil {
		return nil, nil
	}
	switch to, isMoved := l.Moved(); {
	case !isMoved:
		return nil, nil
	case to == nil:
		return nil, ErrMoved
	default:
		off := uintptr(unsafe.Pointer(unsafe.SliceData(b.mem))) - uintptr(unsafe.Pointer(unsafe.SliceData(root.mem)))
		return to.Slice(int(off), b.n), nil
	}
}

// Lender returns the lender of b's memory, or nil if the memory is a pool's own.
func (b *Buffer) Lender() Lender { return b.root().lender }

// Pool returns the pool that b belongs to. For borrowed memory it is the pool whose Borrow
// was called.
func (b *Buffer) Pool() *Pool { return b.pool }

// Footprint is the number of p's bytes that b itself keeps from being used again. It is
// 0 for a slice, and for memory of another pool or of a lender.
func (b *Buffer) Footprint(p *Pool) int {
	if b.pool != p || b.parent != nil || b.lender != nil {
		return 0
	}
	return len(b.mem)
}

// Locate returns the arena in which data lies, which must be within b, and
// where. ok is false if other processes cannot be given it.
func (b *Buffer) Locate(data []byte) (a *Arena, off int, ok bool) {
	h := b.root().home
	if h == nil || h.FD < 0 {
		return nil, 0, false
	}
	off, ok = h.Offset(data)
	return &h.Arena, off, ok
}

// Abandon is Release for a holder that cannot know when another process will have read the
// memory to its end. The memory is not used again. A shared arena is unmapped when nothing
// else in it is in use; what other processes have mapped stays as it is.
func (b *Buffer) Abandon() {
	b.root().abandoned.Store(true)
	b.Release()
}

// Bytes is the buffer's memory, of length Len. It is valid until the caller's
// reference is released.
func (b *Buffer) Bytes() []byte { return b.mem[:b.n] }

// Len is the length in bytes.
func (b *Buffer) Len() int { return b.n }

// Cap is the length the buffer can be resized to.
func (b *Buffer) Cap() int { return len(b.mem) }

// Resize changes the length, up to Cap. Any other n fails with ErrTooLarge. Write
// goes on at the new end.
func (b *Buffer) Resize(n int) error {
	switch {
	case n < 0:
		return fmt.Errorf("%w: %d bytes", errNegative, n)
	case n > len(b.mem):
		return fmt.Errorf("%w: %d bytes, at most %d", ErrTooLarge, n, len(b.mem))
	}
	b.n, b.at = n, n
	return nil
}

// Retain adds a reference and returns b. Only a holder may retain: a buffer
// that has been given back is noticed where it can be, and counted.
func (b *Buffer) Retain() *Buffer {
	if b.free {
		b.pool.late.Add(1)
		b.pool.debugLate(b)
	}
	b.refs.Add(1)
	return b
}

// Refs is the number of references.
func (b *Buffer) Refs() int {
	if b.free {
		return 0
	}
	return int(b.refs.Load())
}

// IsShared reports whether there is another reference to b's memory: to b, or to a buffer
// that b is a slice of. If there is none, there is none until the caller makes one.
func (b *Buffer) IsShared() bool {
	for ; b != nil; b = b.parent {
		if b.refs.Load() > 1 {
			return true
		}
	}
	return false
}

// Release drops a reference; the last one gives the memory back.
func (b *Buffer) Release() {
	if b.refs.Load() != 1 { // else we are the only holder, and nobody can become another
		if b.refs.Add(-1) > 0 {
			return
		}
		b.refs.Store(1)
	}
	b.pool.put(b)
}

var slices = sync.Pool{New: func() any { return new(Buffer) }}

// Slice returns the n bytes from off as a buffer of its own that keeps b's
// memory alive. It panics, as slicing does, if they are not within b.
func (b *Buffer) Slice(off, n int) *Buffer { return b.cut(b.mem[off : off+n : off+n]) }

// View returns data, which must lie in b's memory, as a read-only buffer of its own that
// keeps the memory alive.
func (b *Buffer) View(data []byte) *Buffer {
	s := b.cut(data[:len(data):len(data)])
	s.view = true
	return s
}

// cut makes a slice of b.
func (b *Buffer) cut(mem []byte) *Buffer {
	s := slices.Get().(*Buffer)
	s.mem, s.n, s.at, s.pool, s.parent, s.free = mem, len(mem), 0, b.pool, b.Retain(), false
	s.refs.Store(1)
	s.state.Store(uint32(Owned))
	return s
}

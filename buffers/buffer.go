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
	Delivered              // every send of it has ended; other references keep it
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

// A Buffer is a piece of registered memory with a count of references.
type Buffer struct {
	mem     []byte
	n       int
	at      int           // where the next Write begins
	refs    atomic.Int32  // references; 1 while free, so that Get and the last Release need not write it
	state   atomic.Uint32 // counts sends in progress, see wait.go
	pool    *Pool
	parent  *Buffer // of a slice: the buffer that it was cut from
	home    *home   // the arena that the memory is in; nil for a slice and for borrowed memory
	next    *Buffer // in a free list, guarded by the lock of the list
	free    bool    // reports whether it is in a free list; written by the holder of the buffer or of the list's lock
	view    bool    // a slice that View made
	isLarge bool    // counts in the pool's largeUsed

	isDiscounted atomic.Bool // counts in the pool's discounted
	abandoned    atomic.Bool // the memory must not be used again
	lender       Lender      // the owner of the memory, nil if the pool owns it
	debugBuffer
}

// A Lender lends memory to buffers (see Pool.Borrow).
type Lender interface {
	// Return takes a loan back after the last Release of its buffer. isAbandoned reports whether
	// Abandon was called. Then another process may still read the memory, so it must not be written
	// again.
	Return(isAbandoned bool)
}

// A Lander is a Lender of memory into which messages are read.
type Lander interface {
	Lender
	// Moved reports whether the lender has taken the memory back before a message was read to its
	// end. The remaining bytes must be read into the buffer to, at the same offset: it has the
	// bytes that came before. to is nil if there was no memory for such a buffer.
	Moved() (to *Buffer, isMoved bool)
}

// Borrow makes b a buffer over mem, which belongs to l and not to the pool, and returns b. b must
// not be in use. The last Release gives b and its memory back to l. The memory is not written
// unless l is a Lander; see ReadOnly.
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

// root returns the buffer that b was sliced from in the first place, or b if it is no slice.
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

// Moved returns the buffer into which the remaining bytes of b must be read because the lender has
// taken the memory back (see Lander). It returns nil without an error if the lender has not, or if
// the memory is the pool's own. It returns ErrMoved if the lender has no such buffer. The caller
// must hold a reference to b, and releases both buffers.
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

// Footprint returns the number of bytes of p that b keeps from reuse. It is 0 for a slice, and for
// memory of another pool or of a lender.
func (b *Buffer) Footprint(p *Pool) int {
	if b.pool != p || b.parent != nil || b.lender != nil {
		return 0
	}
	return len(b.mem)
}

// Locate returns the arena in which data lies, and the offset in it. data must be within b. ok is
// false if other processes cannot map the arena.
func (b *Buffer) Locate(data []byte) (a *Arena, off int, ok bool) {
	h := b.root().home
	if h == nil || h.FD < 0 {
		return nil, 0, false
	}
	off, ok = h.Offset(data)
	return &h.Arena, off, ok
}

// Abandon is Release for a holder that cannot know when another process stops reading the memory.
// The memory is not used again. A shared arena is unmapped when no other buffer in it is in use.
// Mappings in other processes stay valid.
func (b *Buffer) Abandon() {
	b.root().abandoned.Store(true)
	b.Release()
}

// Bytes returns the buffer's memory, of length Len. It is valid until the caller's reference is
// released.
func (b *Buffer) Bytes() []byte { return b.mem[:b.n] }

// Len returns the length in bytes.
func (b *Buffer) Len() int { return b.n }

// Cap returns the length up to which the buffer can be resized.
func (b *Buffer) Cap() int { return len(b.mem) }

// Resize changes the length, up to Cap. A larger n fails with ErrTooLarge, and so does a negative
// one. The next Write begins at the new end.
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

// Retain adds a reference and returns b. The caller must hold a reference. The pool counts a Retain
// of a buffer that is free, where the pool can detect it.
func (b *Buffer) Retain() *Buffer {
	if b.free {
		b.pool.late.Add(1)
		b.pool.debugLate(b)
	}
	b.refs.Add(1)
	return b
}

// Refs returns the number of references.
func (b *Buffer) Refs() int {
	if b.free {
		return 0
	}
	return int(b.refs.Load())
}

// IsShared reports whether another reference to b's memory exists: to b, or to a buffer that b is a
// slice of. If none exists, none can appear until the caller makes one.
func (b *Buffer) IsShared() bool {
	for ; b != nil; b = b.parent {
		if b.refs.Load() > 1 {
			return true
		}
	}
	return false
}

// Release drops a reference. The last Release gives the memory back.
func (b *Buffer) Release() {
	if b.refs.Load() != 1 { // else this is the only reference, and no other goroutine can add one
		if b.refs.Add(-1) > 0 {
			return
		}
		b.refs.Store(1)
	}
	b.pool.put(b)
}

// sliceBuffers has buffers for slice.
var sliceBuffers = sync.Pool{New: func() any { return new(Buffer) }}

// Slice returns the n bytes from off as a buffer of its own, which keeps b's memory in use until it
// is released. It panics, as slicing does, if the bytes are not within b.
func (b *Buffer) Slice(off, n int) *Buffer { return b.slice(b.mem[off : off+n : off+n]) }

// View returns data, which must lie in b's memory, as a read-only buffer of its own. The buffer
// keeps b's memory in use until it is released.
func (b *Buffer) View(data []byte) *Buffer {
	s := b.slice(data[:len(data):len(data)])
	s.view = true
	return s
}

// slice returns a new buffer over mem, a part of b's memory, with a reference to b.
func (b *Buffer) slice(mem []byte) *Buffer {
	s := sliceBuffers.Get().(*Buffer)
	s.mem, s.n, s.at, s.pool, s.parent, s.free = mem, len(mem), 0, b.pool, b.Retain(), false
	s.refs.Store(1)
	s.state.Store(uint32(Owned))
	return s
}

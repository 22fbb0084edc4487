package buffers

import (
	"fmt"
	"sync"
	"sync/atomic"
)

// State says where a buffer is in its life.
type State uint32

// States of a buffer.
const (
	Free      State = iota // in the pool
	Owned                  // the caller's
	Sending                // accepted for sending, not acknowledged yet
	Delivered              // the peer has it; other references keep it
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
	refs   atomic.Int32
	state  atomic.Uint32
	pool   *Pool
	parent *Buffer // of a slice
	class  int8
	arena  uint32
	next   *Buffer // in a free list, guarded by it
	debugBuffer
}

// Bytes is the buffer's memory, of length Len. It is valid until the caller's
// reference is released.
func (b *Buffer) Bytes() []byte { return b.mem[:b.n] }

// Len is the length in bytes.
func (b *Buffer) Len() int { return b.n }

// Cap is the length the buffer can be resized to.
func (b *Buffer) Cap() int { return len(b.mem) }

// Resize changes the length, up to Cap.
func (b *Buffer) Resize(n int) error {
	if n < 0 || n > len(b.mem) {
		return fmt.Errorf("%w: %d bytes, at most %d", ErrTooLarge, n, len(b.mem))
	}
	b.n = n
	return nil
}

// Retain adds a reference and returns b.
func (b *Buffer) Retain() *Buffer {
	b.refs.Add(1)
	return b
}

// RetainN is Retain n times.
func (b *Buffer) RetainN(n int) { b.refs.Add(int32(n)) }

// ReleaseAll is Release of each, cheaper for many.
func ReleaseAll(bs []*Buffer) {
	var first, last *Buffer
	n := 0
	flush := func() {
		if first != nil {
			p := first.pool
			p.free[first.class].pushChain(first, last, n)
			if p.heed.Load() != 0 {
				p.look(first)
			}
			first, last, n = nil, nil, 0
		}
	}
	for _, b := range bs {
		if b.parent != nil || b.class == classes {
			b.Release()
			continue
		}
		switch k := b.refs.Add(-1); {
		case k > 0:
			continue
		case k < 0:
			b.refs.Add(1)
			b.pool.doubles.Add(1)
			b.pool.debugDouble(b)
			continue
		}
		b.pool.debugPut(b)
		if first != nil && (first.pool != b.pool || first.class != b.class) {
			flush()
		}
		if first == nil {
			last = b
		}
		b.next, first = first, b
		n++
	}
	flush()
}

// Refs is the number of references.
func (b *Buffer) Refs() int { return int(b.refs.Load()) }

// Release drops a reference; the last one gives the memory back.
func (b *Buffer) Release() {
	switch n := b.refs.Add(-1); {
	case n > 0:
		return
	case n < 0:
		b.refs.Add(1)
		if b.pool != nil {
			b.pool.doubles.Add(1)
			b.pool.debugDouble(b)
		}
		return
	}
	if parent := b.parent; parent != nil {
		b.mem, b.parent, b.pool = nil, nil, nil
		slices.Put(b)
		parent.Release()
		return
	}
	b.pool.put(b)
}

// State says where the buffer is in its life, as rocl_bfstat does.
func (b *Buffer) State() State {
	if b.refs.Load() <= 0 {
		return Free
	}
	return State(b.state.Load())
}

// SetState is for those who move the buffer: links and mailboxes.
func (b *Buffer) SetState(s State) { b.state.Store(uint32(s)) }

// Done says whether the library is through with a buffer that its sender has
// retained.
func (b *Buffer) Done() bool { return b.State() != Sending }

var slices = sync.Pool{New: func() any { return new(Buffer) }}

// Slice returns the n bytes from off as a buffer of its own that keeps b's
// memory alive. It panics, as slicing does, if they are not within b.
func (b *Buffer) Slice(off, n int) *Buffer {
	mem := b.mem[off : off+n : off+n]
	s := slices.Get().(*Buffer)
	s.mem, s.n, s.pool, s.parent = mem, n, b.pool, b.Retain()
	s.refs.Store(1)
	s.state.Store(uint32(Owned))
	return s
}

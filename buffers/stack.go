// SPDX-License-Identifier: Apache-2.0

package buffers

import (
	"sync"
	"sync/atomic"
)

// A stack is a free list of buffers of one class.
//
// The buffer released last waits in a slot, which needs one atomic operation instead of a lock and
// an unlock. A program that gets and releases in turn never needs the list.
//
// The list has two halves, so that a getting goroutine and a releasing one, such as the two ends of
// a stream, rarely meet. pop takes from one half and push adds to the other. pop swaps them when
// its half is empty.
type stack struct {
	hot   slot // counted neither in gets nor in puts
	_     [56]byte
	getMu sync.Mutex
	ready *Buffer
	gets  int      // buffers handed out since the start
	_     [40]byte // the halves in different cache lines
	putMu sync.Mutex
	back  *Buffer
	puts  int // buffers taken back since the start
	_     [40]byte
}

// A slot holds at most one free buffer.
type slot struct{ atomic.Pointer[Buffer] }

// take empties the slot and returns its buffer, or nil if the slot is empty.
func (s *slot) take() *Buffer {
	if s.Load() == nil {
		return nil
	}
	return s.Swap(nil)
}

// put marks b free and puts it into the slot. It reports false, and leaves b as it was, if the slot
// is full.
func (s *slot) put(b *Buffer) bool {
	if s.Load() != nil {
		return false
	}
	b.free = true
	if s.CompareAndSwap(nil, b) {
		return true
	}
	b.free = false
	return false
}

func (s *stack) pop() *Buffer {
	if b := s.hot.take(); b != nil {
		b.free = false
		if b.refs.Load() == 1 {
			return b
		}
		b.refs.Add(-1) // retained late, as below; it counts as out
	}
	s.getMu.Lock()
	for {
		b := s.ready
		if b == nil {
			s.putMu.Lock()
			b, s.back = s.back, nil
			s.putMu.Unlock()
			if b == nil {
				break
			}
		}
		s.ready, b.next, b.free = b.next, nil, false
		s.gets++
		if b.refs.Load() == 1 {
			s.getMu.Unlock()
			return b
		}
		// The buffer was retained after its last release. It belongs to the goroutine that retained
		// it, and comes back with that goroutine's Release.
		b.refs.Add(-1)
	}
	s.getMu.Unlock()
	return nil
}

// cool moves the buffer in the slot to the list.
func (s *stack) cool() {
	if b := s.hot.take(); b != nil {
		b.free = false
		s.push(b)
	}
}

// push marks b free and adds it to the list. It reports false if b is in the list already.
func (s *stack) push(b *Buffer) bool {
	s.putMu.Lock()
	if b.free {
		s.putMu.Unlock()
		return false
	}
	b.next, b.free, s.back = s.back, true, b
	s.puts++
	s.putMu.Unlock()
	return true
}

// lose counts a buffer as taken back that is never handed out again.
func (s *stack) lose() {
	s.putMu.Lock()
	s.puts++
	s.putMu.Unlock()
}

// pushChain adds buffers that were never handed out, linked from first to last
// and marked free.
func (s *stack) pushChain(first, last *Buffer) {
	s.putMu.Lock()
	last.next, s.back = s.back, first
	s.putMu.Unlock()
}

// withdraw removes the free buffers of h from the list, and returns how many it removed.
func (s *stack) withdraw(h *home) (n int) {
	s.cool()
	s.getMu.Lock()
	defer s.getMu.Unlock()
	s.putMu.Lock()
	defer s.putMu.Unlock()
	for _, list := range []**Buffer{&s.ready, &s.back} {
		for p := list; *p != nil; {
			if b := *p; b.home == h && b.refs.Load() == 1 { // else it was retained late
				*p, b.next = b.next, nil
				n++
			} else {
				p = &b.next
			}
		}
	}
	return n
}

// forgoLocked finds the arenas whose every buffer is in the list or lost, removes their buffers
// from the list and returns the arenas. The pool's mu must be held.
func (s *stack) forgoLocked() (whole []*home) {
	s.cool()
	s.getMu.Lock()
	defer s.getMu.Unlock()
	s.putMu.Lock()
	defer s.putMu.Unlock()
	for _, list := range []*Buffer{s.ready, s.back} {
		for b := list; b != nil; b = b.next {
			if b.refs.Load() != 1 {
				continue // retained late
			}
			if b.home.idle++; b.home.idle+b.home.lost == len(b.home.bufs) {
				whole = append(whole, b.home)
			}
		}
	}
	for _, list := range []**Buffer{&s.ready, &s.back} {
		for p := list; *p != nil; {
			if h := (*p).home; h.idle+h.lost == len(h.bufs) {
				*p = (*p).next
			} else {
				p = &(*p).next
			}
		}
		for b := *list; b != nil; b = b.next {
			b.home.idle = 0
		}
	}
	return whole
}

// handed counts a buffer that was never in the list as handed out.
func (s *stack) handed() {
	s.getMu.Lock()
	s.gets++
	s.getMu.Unlock()
}

// out returns the number of buffers handed out and not taken back.
func (s *stack) out() int {
	s.getMu.Lock()
	defer s.getMu.Unlock()
	s.putMu.Lock()
	defer s.putMu.Unlock()
	n := s.gets - s.puts
	if s.hot.Load() != nil {
		n--
	}
	return n
}

func (s *stack) clear() {
	s.cool()
	s.getMu.Lock()
	s.putMu.Lock()
	s.ready, s.back = nil, nil
	s.putMu.Unlock()
	s.getMu.Unlock()
}

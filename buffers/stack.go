package buffers

import "sync"

// A stack is a free list. It has two halves, so that one goroutine getting and
// another releasing, as the two ends of a stream do, rarely meet: pop works on
// one, push on the other, and they are swapped when the first is empty.
type stack struct {
	getMu sync.Mutex
	ready *Buffer
	_     [48]byte // the halves in different cache lines
	putMu sync.Mutex
	back  *Buffer
	_     [48]byte
}

func (s *stack) pop() *Buffer {
	s.getMu.Lock()
	b := s.ready
	if b == nil {
		s.putMu.Lock()
		b, s.back = s.back, nil
		s.putMu.Unlock()
	}
	if b != nil {
		s.ready, b.next = b.next, nil
	}
	s.getMu.Unlock()
	return b
}

func (s *stack) push(b *Buffer) {
	s.putMu.Lock()
	b.next, s.back = s.back, b
	s.putMu.Unlock()
}

func (s *stack) clear() {
	s.getMu.Lock()
	s.putMu.Lock()
	s.ready, s.back = nil, nil
	s.putMu.Unlock()
	s.getMu.Unlock()
}

package buffers

import "sync"

// A stack is a free list. It has two halves, so that one goroutine getting and
// another releasing, as the two ends of a stream do, rarely meet: pop works on
// one, push on the other, and they are swapped when the first is empty.
type stack struct {
	getMu sync.Mutex
	ready *Buffer
	gets  int      // handed out, ever
	_     [40]byte // the halves in different cache lines
	putMu sync.Mutex
	back  *Buffer
	puts  int // taken back, ever
	_     [40]byte
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
		s.gets++
	}
	s.getMu.Unlock()
	return b
}

func (s *stack) push(b *Buffer) {
	s.putMu.Lock()
	b.next, s.back = s.back, b
	s.puts++
	s.putMu.Unlock()
}

// pushChain is push of the n buffers linked from first to last.
func (s *stack) pushChain(first, last *Buffer, n int) {
	s.putMu.Lock()
	last.next, s.back = s.back, first
	s.puts += n
	s.putMu.Unlock()
}

// handed counts a buffer that was never in the list as handed out.
func (s *stack) handed() {
	s.getMu.Lock()
	s.gets++
	s.getMu.Unlock()
}

// out is the number of buffers handed out and not taken back.
func (s *stack) out() int {
	s.getMu.Lock()
	defer s.getMu.Unlock()
	s.putMu.Lock()
	defer s.putMu.Unlock()
	return s.gets - s.puts
}

func (s *stack) clear() {
	s.getMu.Lock()
	s.putMu.Lock()
	s.ready, s.back = nil, nil
	s.putMu.Unlock()
	s.getMu.Unlock()
}

// SPDX-License-Identifier: Apache-2.0

package subsys

import (
	"container/list"
	"sync"
)

// Handshakes is a bounded set of a port's connections whose peers have not authenticated yet. If
// there is one too many, the oldest connection of the source that has most is cut. A genuine peer
// completes its handshake within milliseconds, and a source cannot keep out another one that has
// fewer connections.
type Handshakes struct {
	mu    sync.Mutex
	most  int
	count int
	next  uint64
	from  map[string]*list.List // the *Handshake of each source, the oldest first
}

// A Handshake is one connection in Handshakes.
type Handshake struct {
	all       *Handshakes
	source    string
	number    uint64 // sequence number of Add
	at        *list.Element
	closeConn func()
}

// NewHandshakes returns a set of at most most connections.
func NewHandshakes(most int) *Handshakes {
	return &Handshakes{most: most, from: map[string]*list.List{}}
}

// Add adds a connection from a source, see package netsource. closeConn is called at most once, if
// the connection is closed for another one. No lock is held then, and Done reports false from then
// on.
func (s *Handshakes) Add(source string, closeConn func()) *Handshake {
	s.mu.Lock()
	h := &Handshake{all: s, source: source, number: s.next, closeConn: closeConn}
	s.next++
	l := s.from[h.source]
	if l == nil {
		l = list.New()
		s.from[h.source] = l
	}
	h.at = l.PushBack(h)
	var out *Handshake
	if s.count++; s.count > s.most {
		out = s.worstLocked()
		s.removeLocked(out)
	}
	s.mu.Unlock()
	if out != nil {
		out.closeConn()
	}
	return h
}

// Len returns the number of connections in the set.
func (s *Handshakes) Len() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.count
}

// worstLocked returns the oldest connection of the source that has most. Of several such sources it
// takes the oldest connection. mu must be held.
func (s *Handshakes) worstLocked() (w *Handshake) {
	most := 0
	for _, l := range s.from {
		first := l.Front().Value.(*Handshake)
		if l.Len() > most || l.Len() == most && first.number < w.number {
			most, w = l.Len(), first
		}
	}
	return w
}

// removeLocked removes h, which must be in the set. mu must be held.
func (s *Handshakes) removeLocked(h *Handshake) {
	l := s.from[h.source]
	l.Remove(h.at)
	h.at = nil
	if l.Len() == 0 {
		delete(s.from, h.source)
	}
	s.count--
}

// Done removes the connection from the set. It reports false if the connection was cut or removed
// before.
func (h *Handshake) Done() bool {
	h.all.mu.Lock()
	defer h.all.mu.Unlock()
	if h.at == nil {
		return false
	}
	h.all.removeLocked(h)
	return true
}

// CloseAll closes all connections in the set.
func (s *Handshakes) CloseAll() {
	for {
		s.mu.Lock()
		w := s.worstLocked()
		if w != nil {
			s.removeLocked(w)
		}
		s.mu.Unlock()
		if w == nil {
			return
		}
		w.closeConn()
	}
}

// SPDX-License-Identifier: Apache-2.0

package subsys

import (
	"container/list"
	"sync"
)

// Strangers is a bounded set of a port's connections whose peers have not authenticated yet. If
// there is one too many, the oldest connection of the source that has most is cut. A genuine peer
// completes its handshake within milliseconds, and a source cannot keep out another one that has
// fewer connections.
type Strangers struct {
	mu    sync.Mutex
	most  int
	count int
	next  uint64
	from  map[string]*list.List // the *Stranger of each source, the oldest first
}

// A Stranger is one connection in Strangers.
type Stranger struct {
	all    *Strangers
	source string
	number uint64 // sequence number of Add
	at     *list.Element
	cut    func()
}

// NewStrangers returns a set of at most most connections.
func NewStrangers(most int) *Strangers {
	return &Strangers{most: most, from: map[string]*list.List{}}
}

// Add adds a connection from a source, see package netsource. cut is called at most once, if the
// connection has to give way to another one. No lock is held then, and Done reports false from then
// on.
func (s *Strangers) Add(source string, cut func()) *Stranger {
	s.mu.Lock()
	st := &Stranger{all: s, source: source, number: s.next, cut: cut}
	s.next++
	l := s.from[st.source]
	if l == nil {
		l = list.New()
		s.from[st.source] = l
	}
	st.at = l.PushBack(st)
	var out *Stranger
	if s.count++; s.count > s.most {
		out = s.worst()
		s.remove(out)
	}
	s.mu.Unlock()
	if out != nil {
		out.cut()
	}
	return st
}

// Len returns the number of connections in the set.
func (s *Strangers) Len() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.count
}

// worst returns the oldest connection of the source that has most. Of several such sources it takes
// the oldest connection. mu must be held.
func (s *Strangers) worst() (w *Stranger) {
	most := 0
	for _, l := range s.from {
		first := l.Front().Value.(*Stranger)
		if l.Len() > most || l.Len() == most && first.number < w.number {
			most, w = l.Len(), first
		}
	}
	return w
}

// remove removes st, which must be in the set. mu must be held.
func (s *Strangers) remove(st *Stranger) {
	l := s.from[st.source]
	l.Remove(st.at)
	st.at = nil
	if l.Len() == 0 {
		delete(s.from, st.source)
	}
	s.count--
}

// Done removes the connection from the set. It reports false if the connection was cut or removed
// before.
func (st *Stranger) Done() bool {
	st.all.mu.Lock()
	defer st.all.mu.Unlock()
	if st.at == nil {
		return false
	}
	st.all.remove(st)
	return true
}

// CutAll cuts all connections in the set.
func (s *Strangers) CutAll() {
	for {
		s.mu.Lock()
		w := s.worst()
		if w != nil {
			s.remove(w)
		}
		s.mu.Unlock()
		if w == nil {
			return
		}
		w.cut()
	}
}

// SPDX-License-Identifier: Apache-2.0

package subsys

import (
	"container/list"
	"sync"
)

// Strangers are the connections of a port whose peers have not yet shown who
// they are. Their number is bounded. When there is one too many, the oldest of
// the source that has most gives way: a peer that shakes hands is done in
// milliseconds, and a source cannot keep out another that has fewer.
type Strangers struct {
	mu    sync.Mutex
	most  int
	count int
	next  uint64
	from  map[string]*list.List // of *Stranger, the oldest first
}

// A Stranger has one place among Strangers.
type Stranger struct {
	all    *Strangers
	source string
	number uint64 // in the order of Add
	at     *list.Element
	cut    func()
}

// NewStrangers returns Strangers with places for most.
func NewStrangers(most int) *Strangers {
	return &Strangers{most: most, from: map[string]*list.List{}}
}

// Add gives a connection from a source, see package netsource, a place. cut is called, at
// most once, if the place is wanted for another connection; no lock is held then,
// and Done has no effect any more.
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

// Len returns how many places are taken.
func (s *Strangers) Len() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.count
}

// worst returns the oldest stranger of the source that has most, and of several
// such sources the oldest stranger of all. mu must be held.
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

// remove takes the place of st, which must have one. mu must be held.
func (s *Strangers) remove(st *Stranger) {
	l := s.from[st.source]
	l.Remove(st.at)
	st.at = nil
	if l.Len() == 0 {
		delete(s.from, st.source)
	}
	s.count--
}

// Done gives the place back and reports whether there was one still.
func (st *Stranger) Done() bool {
	st.all.mu.Lock()
	defer st.all.mu.Unlock()
	if st.at == nil {
		return false
	}
	st.all.remove(st)
	return true
}

// CutAll cuts every stranger.
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

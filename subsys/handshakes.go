// SPDX-License-Identifier: Apache-2.0

package subsys

import "sync"

// Handshakes is a bounded set of a port's connections whose peers have not authenticated yet. If
// there is one too many, the oldest connection of the source that has most is cut. A genuine peer
// completes its handshake within milliseconds, and a source cannot keep out another one that has
// fewer connections.
type Handshakes struct {
	mu   sync.Mutex
	most int
	next uint64
	all  map[*Handshake]struct{}
	of   map[string]int // the number of connections of each source
}

// A Handshake is one connection in Handshakes.
type Handshake struct {
	in        *Handshakes
	source    string
	number    uint64 // sequence number of Add
	closeConn func()
}

// NewHandshakes returns a set of at most most connections.
func NewHandshakes(most int) *Handshakes {
	return &Handshakes{most: most, all: map[*Handshake]struct{}{}, of: map[string]int{}}
}

// Add adds a connection from a source, see package netsource. closeConn is called at most once, if
// the connection is closed for another one. No lock is held then, and Done reports false from then
// on.
func (s *Handshakes) Add(source string, closeConn func()) *Handshake {
	s.mu.Lock()
	h := &Handshake{in: s, source: source, number: s.next, closeConn: closeConn}
	s.next++
	s.all[h] = struct{}{}
	s.of[source]++
	var out *Handshake
	if len(s.all) > s.most {
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
	return len(s.all)
}

// worstLocked returns the oldest connection of the source that has most. Of several such sources it
// takes the oldest connection. mu must be held.
func (s *Handshakes) worstLocked() (w *Handshake) {
	for h := range s.all {
		if w == nil || s.of[h.source] > s.of[w.source] || s.of[h.source] == s.of[w.source] && h.number < w.number {
			w = h
		}
	}
	return w
}

// removeLocked removes h, and reports false if it is not in the set. mu must be held.
func (s *Handshakes) removeLocked(h *Handshake) bool {
	if _, isIn := s.all[h]; !isIn {
		return false
	}
	delete(s.all, h)
	if s.of[h.source]--; s.of[h.source] == 0 {
		delete(s.of, h.source)
	}
	return true
}

// Done removes the connection from the set. It reports false if the connection was cut or removed
// before.
func (h *Handshake) Done() bool {
	h.in.mu.Lock()
	defer h.in.mu.Unlock()
	return h.in.removeLocked(h)
}

// CloseAll closes all connections in the set.
func (s *Handshakes) CloseAll() {
	s.mu.Lock()
	all := s.all
	s.all, s.of = map[*Handshake]struct{}{}, map[string]int{}
	s.mu.Unlock()
	for h := range all {
		h.closeConn()
	}
}

// SPDX-License-Identifier: Apache-2.0

package port

import (
	"container/list"
	"net"
	"sync"
)

// strangers are the streams of those who have not shown yet who they are, and
// memberlist's, which does not tell us when they have. There is room for so
// many; then the oldest goes, not the newest: whoever holds the places takes
// them from himself, and a member needs his for a moment only.
type strangers struct {
	mu  sync.Mutex
	all list.List // of *stranger, oldest first
}

type stranger struct {
	net.Conn
	of *strangers
	at *list.Element // nil: no stranger any more
}

func (s *strangers) add(c net.Conn) *stranger {
	n := &stranger{Conn: c, of: s}
	s.mu.Lock()
	n.at = s.all.PushBack(n)
	var old *stranger
	if s.all.Len() > maxPending {
		old = s.all.Front().Value.(*stranger)
		old.forget()
	}
	s.mu.Unlock()
	if old != nil {
		old.Conn.Close()
	}
	return n
}

func (n *stranger) forget() {
	if n.at != nil {
		n.of.all.Remove(n.at)
		n.at = nil
	}
}

// known says that it has shown who it is.
func (n *stranger) known() {
	n.of.mu.Lock()
	defer n.of.mu.Unlock()
	n.forget()
}

func (n *stranger) Close() error {
	n.known()
	return n.Conn.Close()
}

// close closes all there are.
func (s *strangers) close() {
	s.mu.Lock()
	defer s.mu.Unlock()
	for e := s.all.Front(); e != nil; e = e.Next() {
		e.Value.(*stranger).Conn.Close()
	}
}

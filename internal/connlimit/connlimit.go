// SPDX-License-Identifier: Apache-2.0

// Package connlimit bounds how many connections a listener has at a time. Where one more comes, the oldest is closed, not the newest: a
// stranger who opens connections and says nothing takes the places from itself.
package connlimit

import (
	"container/list"
	"net"
	"sync"

	"github.com/rocl-go/rocl/internal/netsource"
)

// A Set has the connections that count. Its methods may be called concurrently.
type Set struct {
	most, each int

	mu      sync.Mutex // guards all below, and the fields of each Conn
	all     list.List  // of *Conn, the one that became idle first at the front
	sources map[string]int
}

// New returns a Set of at most most connections, and at most each from one source: an IP address, or the first half of an IPv6 address.
func New(most, each int) *Set { return &Set{most: most, each: each, sources: map[string]int{}} }

// A Conn is a connection that counts until it is closed or released.
type Conn struct {
	net.Conn
	set    *Set
	source string
	at     *list.Element // nil: it does not count
	isBusy bool
}

// Add lets nc count. It closes another connection, the longest idle of the source or of all, if there are too many.
func (s *Set) Add(nc net.Conn) *Conn {
	c := &Conn{Conn: nc, set: s, source: netsource.Of(nc.RemoteAddr())}
	s.mu.Lock()
	var out *Conn
	switch {
	case s.sources[c.source] >= s.each:
		out = s.oldestLocked(c.source, true)
	case s.all.Len() >= s.most:
		out = s.oldestLocked("", false)
	}
	if out != nil {
		out.releaseLocked()
	}
	c.at = s.all.PushBack(c)
	s.sources[c.source]++
	s.mu.Unlock()
	if out != nil {
		out.Conn.Close()
	}
	return c
}

// Len returns how many connections count.
func (s *Set) Len() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.all.Len()
}

// oldestLocked returns the connection that has been idle for longest, of one source if that is asked for. Where all are busy it is the one
// that has been for longest.
func (s *Set) oldestLocked(source string, ofSource bool) (oldest *Conn) {
	for e := s.all.Front(); e != nil; e = e.Next() {
		c := e.Value.(*Conn)
		if ofSource && c.source != source {
			continue
		}
		if !c.isBusy {
			return c
		}
		if oldest == nil {
			oldest = c
		}
	}
	return oldest
}

// SetBusy says whether the connection is being served. A busy one is closed only where no other can be.
func (c *Conn) SetBusy(busy bool) {
	c.set.mu.Lock()
	defer c.set.mu.Unlock()
	c.isBusy = busy
	if c.at != nil {
		c.set.all.MoveToBack(c.at)
	}
}

// Release lets the connection count no more. It stays open.
func (c *Conn) Release() {
	c.set.mu.Lock()
	defer c.set.mu.Unlock()
	c.releaseLocked()
}

func (c *Conn) releaseLocked() {
	if c.at == nil {
		return
	}
	c.set.all.Remove(c.at)
	c.at = nil
	if c.set.sources[c.source]--; c.set.sources[c.source] == 0 {
		delete(c.set.sources, c.source)
	}
}

// Close implements net.Conn.
func (c *Conn) Close() error {
	c.Release()
	return c.Conn.Close()
}

// Listener returns a listener whose connections, of type *Conn, are those of s.
func (s *Set) Listener(ln net.Listener) net.Listener { return &listener{ln, s} }

type listener struct {
	net.Listener
	set *Set
}

func (l *listener) Accept() (net.Conn, error) {
	nc, err := l.Listener.Accept()
	if err != nil {
		return nil, err
	}
	return l.set.Add(nc), nil
}

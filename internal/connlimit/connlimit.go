// SPDX-License-Identifier: Apache-2.0

// Package connlimit bounds the number of connections of a listener. When there is one too many, the
// oldest is closed, not the newest. So a client that opens idle connections displaces its own
// connections.
package connlimit

import (
	"container/list"
	"net"
	"sync"

	"github.com/rocl-go/rocl/internal/os/netsource"
)

// A Set holds the connections that count towards a limit. Its methods may be called concurrently.
type Set struct {
	most, each int

	mu      sync.Mutex // guards all fields below, and the fields of each Conn
	all     list.List  // of *Conn, the one idle for longest at the front
	sources map[string]int
}

// New returns a Set of at most most connections, and at most each from one source: an IP address,
// or the first half of an IPv6 address.
func New(most, each int) *Set { return &Set{most: most, each: each, sources: map[string]int{}} }

// A Conn is a connection that counts until it is closed or released.
type Conn struct {
	net.Conn
	set    *Set
	source string
	at     *list.Element // nil: the connection does not count
	isBusy bool
}

// Add adds nc to the set. If there are too many connections, Add closes the one that has been idle
// for longest: of nc's source if that has too many, else of all.
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

// oldestLocked returns the connection that has been idle for longest, only of the source if
// ofSource. If all are busy, it returns the one that has been busy for longest. s.mu must be held.
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

// SetBusy sets whether the connection is being served. A busy connection is closed only if all are
// busy.
func (c *Conn) SetBusy(busy bool) {
	c.set.mu.Lock()
	defer c.set.mu.Unlock()
	c.isBusy = busy
	if c.at != nil {
		c.set.all.MoveToBack(c.at)
	}
}

// Release removes the connection from the set. It stays open.
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

// Listener returns a listener that adds its connections, of type *Conn, to s.
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

// SPDX-License-Identifier: Apache-2.0

package directory

import (
	"context"
	"crypto/hmac"
	"encoding/binary"
	"errors"
	"fmt"
	"log/slog"
	"sync"

	"github.com/rocl-go/rocl/directory/internal/node"
	"github.com/rocl-go/rocl/directory/internal/wire"
	"github.com/rocl-go/rocl/internal/planted"
	"github.com/rocl-go/rocl/resource"
)

// registrationServer is the server's end of the registration connection of a context.
type registrationServer struct {
	// Server.mu guards the following two fields.
	superseded bool          // the context has joined again over another connection
	leaving    chan struct{} // closed when the context's resources are deleted; nil: they are not to be

	member bool // the context would become the cluster's member in place of this server

	pid     int    // of the context's process, after it has registered something; 0 if it is not known
	program string // the name of its program, likewise
	hasLeft bool   // the context said that it leaves
	isTold  bool   // it has registered something, so its end is logged at level info

	mu  sync.Mutex // guards out: terms that change, and before that the answer to join
	out wire.Conn
}

// serveRegistrations serves a registration connection until it ends. Then the context's resources
// are deleted, unless the context has joined again over another connection or the server is closed.
func (s *Server) serveRegistrations(c *wire.Conn) error {
	var offering *offer
	if s.Follows() {
		if offering = s.offers.arrives(); offering != nil {
			defer s.offers.heard(offering, 0)
		}
	}
	m, err := c.ReadMessage()
	if err != nil {
		return err
	}
	self, offers, list, err := s.join(&m)
	if err != nil {
		_ = c.SendError(m.ID, err)
		return err
	}
	if offering != nil && !s.offers.heard(offering, offers) {
		offering = nil
	}
	_, member := list.Get(wire.JoinMember)
	me := &registrationServer{member: member, out: *wire.NewConn(c.Conn)}
	me.mu.Lock() // until the answer to join is sent
	s.enter(self, me)
	defer s.leave(self, me)
	err = s.sendJoined(c, m.ID, self)
	me.mu.Unlock()
	if err != nil {
		return err
	}
	return s.serveChanges(c, self, me, offering)
}

// enter makes me the registration connection of a context, in place of an earlier one. If the end
// of that one is deleting the context's resources, enter waits for it: the context offers again
// what it has.
func (s *Server) enter(self resource.GID, me *registrationServer) {
	s.mu.Lock()
	old := s.contexts[self]
	for old != nil && old.leaving != nil {
		s.mu.Unlock()
		<-old.leaving
		s.mu.Lock()
		old = s.contexts[self]
	}
	if old != nil {
		old.superseded = true
	}
	s.contexts[self] = me
	s.mu.Unlock()
	s.count.add(&s.count.Joined, 1)
}

// hasJoined reports whether a context has joined and not ended.
func (s *Server) hasJoined(self resource.GID) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.contexts[self] != nil
}

// leave undoes enter when the connection has ended. It deletes the context's resources, unless the
// context has another registration connection or the server is closed.
func (s *Server) leave(self resource.GID, me *registrationServer) {
	s.mu.Lock()
	if me.superseded || s.closed || planted.Is(planted.DeadContext) {
		if s.contexts[self] == me {
			delete(s.contexts, self)
		}
		s.mu.Unlock()
		return
	}
	me.leaving = make(chan struct{})
	s.mu.Unlock()
	_, known := s.db.Get(self)
	n := s.db.DeleteOwner(self)
	s.mu.Lock()
	delete(s.contexts, self)
	close(me.leaving)
	s.mu.Unlock()
	s.count.add(&s.count.Lapsed, n)
	s.count.add(&s.count.Ended, 1) // last: who sees the end sees the rest
	if known {
		n-- // the context itself
	}
	s.tellEnd(self, me, n)
}

// tell logs that a program has come, when its context registers its first resource besides itself.
// Contexts that only ask come and go without a line. Those that offer again what they had before
// come without one.
func (s *Server) tell(self resource.GID, me *registrationServer, again bool) {
	if !me.isTold {
		me.isTold = true
		me.pid, me.program = node.Process(me.out.Conn)
		if again {
			return
		}
		s.log.Info("directory: program", "event", "joined", "program", me.program, "pid", me.pid, "context", self)
	}
}

// tellEnd logs that a program has gone, which had n resources besides its context.
func (s *Server) tellEnd(self resource.GID, me *registrationServer, n int) {
	level, event := slog.LevelInfo, "lost"
	if me.hasLeft {
		event = "left"
	}
	if !me.isTold {
		level = slog.LevelDebug
	} else if !me.hasLeft {
		s.noteLost(LostProgram{Program: me.program, PID: me.pid, Resources: n})
	}
	// Cause (info): `event` is left if the program has closed its context, and lost if its process
	// has ended without. Remedy: if it is lost, see to the program.
	s.log.Log(context.Background(), level, "directory: program", "event", event, "program", me.program, "pid", me.pid, "context", self, "resources", n)
}

// sendJoined sends the answer to the join of a context: its identifier and token, and the terms.
func (s *Server) sendJoined(c *wire.Conn, id uint64, self resource.GID) error {
	c.Begin(wire.MsgJoined, id)
	c.GID(self)
	token, terms := s.id.Token(self), s.currentTerms()
	sent := terms.list()
	c.Append(token[:])
	c.Append(sent.Wire())
	return c.Send()
}

// serveChanges carries out the changes that a context asks for, until it leaves or the connection
// ends. offering is what the context offers again; nil: nothing.
func (s *Server) serveChanges(c *wire.Conn, self resource.GID, me *registrationServer, offering *offer) error {
	for {
		m, err := c.ReadMessage()
		if err != nil {
			return err
		}
		if m.Type == wire.MsgLeave {
			me.hasLeft = true
			return nil
		}
		rev, err := s.change(self, &m)
		if p := m.Parser(); m.Type == wire.MsgRegister && err == nil && p.GID() != self {
			s.tell(self, me, offering != nil)
		}
		s.count.change(m.Type, err)
		if offering != nil && m.Type == wire.MsgRegister && !s.offers.heard(offering, offering.left-1) {
			offering = nil
		}
		if errors.Is(err, ErrProtocol) {
			_ = c.SendError(m.ID, err)
			return err
		}
		if err != nil {
			err = c.SendError(m.ID, err)
		} else {
			c.Begin(wire.MsgDone, m.ID)
			c.U64(rev)
			err = c.Send()
		}
		if err != nil {
			return err
		}
	}
}

// join returns the context that joins with m. offers is the number of resources that a context
// announces which had its identifier before. l is the list of the join, a view of m.
func (s *Server) join(m *wire.Message) (g resource.GID, offers uint64, l resource.List, err error) {
	p := m.Parser()
	g, token := p.GID(), p.Take(32)
	l, err = p.List()
	if err != nil || m.Type != wire.MsgJoin {
		return g, 0, l, fmt.Errorf("%w: not a join", ErrProtocol)
	}
	if g.IsZero() {
		g, err = s.id.Next()
		return g, 0, l, err
	}
	if want := s.id.Token(g); !hmac.Equal(want[:], token) || g != g.Context() {
		// Cause: the node's files were deleted, and another server was started. Remedy: restart the
		// program.
		return g, 0, l, fmt.Errorf("%w: it does not know the context %v", ErrDenied, g)
	}
	if b, _ := l.Get(wire.JoinOffers); len(b) == 8 {
		offers = binary.LittleEndian.Uint64(b)
	}
	return g, offers, l, nil
}

// change carries out a change that a context asks for in one of its own resources.
func (s *Server) change(self resource.GID, m *wire.Message) (rev uint64, err error) {
	p := m.Parser()
	id := p.GID()
	if id.Context() != self && !p.IsShort() {
		return 0, fmt.Errorf("%w: %v is not of context %v", ErrNotOwner, id, self)
	}
	switch m.Type {
	case wire.MsgRegister:
		rev = p.U64()
		l, err := p.List()
		if err != nil {
			return 0, err
		}
		if rev == 0 {
			return s.db.Put(id, self, &l)
		}
		return rev, s.db.Offer(id, self, rev, &l)
	case wire.MsgUpdate:
		expect := p.U64()
		l, err := p.List()
		if err != nil {
			return 0, err
		}
		return s.db.Update(id, expect, &l)
	case wire.MsgDelete:
		if err := p.End(); err != nil {
			return 0, err
		}
		return 0, s.db.Delete(id)
	}
	return 0, fmt.Errorf("%w: message type %d", ErrProtocol, m.Type)
}

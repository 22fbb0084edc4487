// SPDX-License-Identifier: Apache-2.0

package directory

import (
	"context"
	"fmt"

	"github.com/rocl-go/rocl/directory/internal/database"
	"github.com/rocl-go/rocl/directory/internal/wire"
	"github.com/rocl-go/rocl/resource"
)

// watch begins a watch of this node's resources. Resources that are being offered again come before
// Synced.
func (s *Server) watch(pattern *resource.List) *database.Watch {
	recovered := s.Recovered()
	w := s.db.Watch(pattern)
	if !recovered {
		w.Hold()
		s.busy.Go(func() {
			_ = s.awaitRecovery(s.lifetime)
			w.Release()
		})
	}
	return w
}

// serveWatch serves a connection of one watch until the connection ends.
func (s *Server) serveWatch(c *wire.Conn) error {
	m, err := c.ReadMessage()
	if err != nil {
		return err
	}
	p := m.Parser()
	l, err := p.List()
	if err != nil || m.Type != wire.MsgWatch {
		return fmt.Errorf("%w: not a watch", ErrProtocol)
	}
	l = l.Clone()
	w := s.watch(&l)
	s.count.add(&s.count.Watched, 1)
	end := s.attach(w, &l)
	ctx, cancel := context.WithCancel(s.lifetime)
	s.busy.Go(func() { // the client sends nothing more: the read ends when the client hangs up
		_, _ = c.ReadMessage()
		cancel()
	})
	defer func() {
		end()
		w.Close()
		c.Close()
		cancel()
	}()
	out := wire.NewConn(c.Conn)
	for {
		ev, err := w.Next(ctx)
		if err != nil {
			return nil
		}
		out.Event(m.ID, &ev, &l)
		if err := out.Send(); err != nil {
			return err
		}
	}
}

// attached is a watch of a context, with the part of it on other nodes.
type attached struct {
	w       *database.Watch
	pattern *resource.List
	end     func() // ends the part on other nodes; nil if there is none
}

// attach extends a watch to the resources of other nodes, through the Remote that is attached now
// or later. end must be called when the watch ends.
func (s *Server) attach(w *database.Watch, pattern *resource.List) (end func()) {
	a := &attached{w: w, pattern: pattern}
	s.wmu.Lock()
	defer s.wmu.Unlock()
	s.watches[a] = struct{}{}
	if remote := s.attachedRemote(); remote != nil {
		a.end = remote.Watch(pattern, w)
	}
	return func() {
		s.wmu.Lock()
		defer s.wmu.Unlock()
		delete(s.watches, a)
		if a.end != nil {
			a.end()
		}
	}
}

// reattach moves the watches to r, which takes the place of the former Remote.
func (s *Server) reattach(r Remote) {
	s.wmu.Lock()
	defer s.wmu.Unlock()
	for a := range s.watches {
		before := a.end
		a.end = r.Watch(a.pattern, a.w) // r holds Synced of a.w before the former Remote releases it
		if before != nil {
			before()
		}
	}
}

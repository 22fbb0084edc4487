// SPDX-License-Identifier: Apache-2.0

package directory

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/rocl-go/rocl/directory/internal/wire"
	"github.com/rocl-go/rocl/resource"
)

// serveAsk answers the questions of one ask connection, one at a time, until the connection ends.
func (s *Server) serveAsk(c *wire.Conn) error {
	ctx, gone := context.WithCancel(s.life) // ends when the asking end hangs up
	defer gone()
	var cur cursor
	defer cur.stop()
	var pattern resource.List
	for {
		m, err := c.ReadMessage()
		if err != nil {
			return err
		}
		begun := time.Now()
		p := m.Parser()
		var rec resource.Record
		var ok bool
		var uncertain error // the question was valid, and has no certain answer
		answered := false   // the answer is sent, or none is due
		l := pattern
		stop := func() {}
		if s.attachedRemote() != nil {
			stop = onHangup(c.Conn, gone)
		}
		switch m.Type {
		case wire.MsgFind:
			if l, err = p.Pattern(); err == nil {
				rec, ok, uncertain = s.find(ctx, &l)
			}
		case wire.MsgLookup:
			id := p.GID()
			if l, err = p.List(); err == nil {
				rec, ok, uncertain = s.lookup(ctx, id, &l)
			}
		case wire.MsgStart:
			if l, err = p.List(); err == nil {
				pattern = l.Clone()
				cur.stop()
				s.awaitRecovery() // a cursor may miss what is offered again after the cursor began
				cur = cursor{here: s.db.Cursor(&pattern)}
				rec, ok, uncertain = cur.next(ctx, s, &pattern)
			}
		case wire.MsgNext:
			if cur.here == nil {
				err = fmt.Errorf("%w: next before start", ErrProtocol)
			} else {
				rec, ok, uncertain = cur.next(ctx, s, &pattern)
			}
		case wire.MsgList, wire.MsgMore:
			if m.Type == wire.MsgList {
				if l, err = p.Pattern(); err == nil {
					pattern = l.Clone()
					cur.stop()
					s.awaitRecovery()
					cur = cursor{here: s.db.Cursor(&pattern)}
				}
			} else if cur.here == nil {
				err = fmt.Errorf("%w: more before list", ErrProtocol)
			}
			if err == nil {
				var n int
				n, uncertain = cur.batch(ctx, s, c, m.ID, &pattern)
				ok = n > 0
			}
		case wire.MsgTrace:
			answered, err = true, s.trace(ctx, c, &m)
		case wire.MsgStop:
			cur.stop()
			cur, pattern, answered = cursor{}, resource.List{}, true
		default:
			err = fmt.Errorf("%w: message type %d", ErrProtocol, m.Type)
		}
		stop()
		if answered && err == nil {
			continue
		}
		// The question is counted before the answer is sent, so that a client with the answer finds
		// it in the figures.
		s.count.question(m.Type, ok, errors.Join(err, uncertain), time.Since(begun))
		switch {
		case err != nil:
			_ = c.SendError(m.ID, err)
			return err
		case s.life.Err() != nil:
			return nil // cut short by the end of this server: the client asks the next one
		case uncertain != nil:
			err = c.SendError(m.ID, uncertain)
		case !ok && (m.Type == wire.MsgStart || m.Type == wire.MsgNext || m.Type == wire.MsgList || m.Type == wire.MsgMore):
			err = c.SendEnd(m.ID, cur.cov.Covered, cur.cov.Failed)
		case !ok:
			err = c.SendError(m.ID, ErrNotFound)
		case m.Type == wire.MsgList || m.Type == wire.MsgMore:
			err = c.Send()
		default:
			c.Begin(wire.MsgAnswer, m.ID)
			c.Record(&rec, &l)
			err = c.Send()
		}
		if err != nil {
			return err
		}
	}
}

// find searches this node, then the other members. An error says that there is no certain answer.
func (s *Server) find(ctx context.Context, pattern *resource.List) (r resource.Record, ok bool, err error) {
	recovered := s.Recovered() // read before the question: what was offered by then is found
	if r, ok = s.db.Find(pattern); !ok && !recovered {
		// A resource of another node is found without waiting for this node's contexts.
		if remote := s.attachedRemote(); remote != nil {
			if r, err = remote.Find(ctx, pattern); err == nil {
				return r, true, nil
			}
		}
		r, ok, err = s.untilRecovered(ctx, func() (resource.Record, bool) { return s.db.Find(pattern) })
	}
	if ok || err != nil {
		return r, ok, err
	}
	remote := s.attachedRemote()
	if remote == nil {
		return r, false, nil
	}
	r, err = remote.Find(ctx, pattern)
	return certain(r, err)
}

// lookup is find by identifier. An identifier that this node gave is on no other node.
func (s *Server) lookup(ctx context.Context, id resource.GID, pattern *resource.List) (r resource.Record, ok bool, err error) {
	if id.Node() == s.id.Node {
		return s.untilRecovered(ctx, func() (resource.Record, bool) { return s.db.Get(id) })
	}
	if r, ok = s.db.Get(id); ok {
		return r, true, nil
	}
	remote := s.attachedRemote()
	if remote == nil {
		return r, false, nil
	}
	r, err = remote.Lookup(ctx, id, pattern)
	return certain(r, err)
}

// certain turns the result of a Remote into that of find: ErrNotFound is a certain no, not an
// error.
func certain(r resource.Record, err error) (resource.Record, bool, error) {
	if errors.Is(err, ErrNotFound) {
		return r, false, nil
	}
	return r, err == nil, err
}

// direct asks for a client in the same process and returns a copy of the answer. ErrClosed says
// that the server has ended and that the client must ask the next one.
func (s *Server) direct(ctx context.Context, pattern *resource.List, ask func() (resource.Record, bool, error)) (resource.Record, error) {
	r, ok, err := ask()
	switch {
	case s.life.Err() != nil:
		return resource.Record{}, ErrClosed
	case err != nil:
		return resource.Record{}, err
	case !ok:
		return resource.Record{}, ErrNotFound
	case r.ID.Node() != s.id.Node: // it was decoded for this call, so nothing shares its memory
	case pattern.Complete():
		r.Attrs = r.Attrs.Clone()
	default:
		r.Attrs = pattern.Answer(&r.Attrs)
	}
	return r, nil
}

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
	ctx, gone := context.WithCancel(s.lifetime) // ends when the asking end hangs up
	defer gone()
	a := askServer{s: s, c: c, ctx: ctx}
	defer a.cur.stop()
	for {
		m, err := c.ReadMessage()
		if err != nil {
			return err
		}
		begun := time.Now()
		stop := func() {}
		if s.attachedRemote() != nil {
			stop = onHangup(c.Conn, gone)
		}
		r, err := a.answer(&m)
		stop()
		if r.isSent && err == nil {
			continue
		}
		// The question is counted before the answer is sent, so that a client with the answer finds
		// it in the figures.
		s.count.question(m.Type, r.ok, errors.Join(err, r.uncertain), time.Since(begun))
		if err != nil {
			_ = c.SendError(m.ID, err)
			return err
		}
		if s.lifetime.Err() != nil {
			return nil // cut short by the end of this server: the client asks the next one
		}
		if err := a.send(&m, &r); err != nil {
			return err
		}
	}
}

// An askServer is the server's end of an ask connection.
type askServer struct {
	s       *Server
	c       *wire.Conn
	ctx     context.Context // ends when the asking end hangs up
	cur     cursor          // of the question with several answers that is under way
	pattern resource.List   // of that question
}

// A result is what the server has found for a question.
type result struct {
	rec       resource.Record // the answer of a question with one
	attrs     resource.List   // the pattern, which says which attributes of rec are sent
	ok        bool            // there is an answer
	uncertain error           // the question was valid, and has no certain answer
	isSent    bool            // the answer is sent, or none is due
}

// answer finds the answer to a question. An error says that the question was invalid.
func (a *askServer) answer(m *wire.Message) (r result, err error) {
	p := m.Parser()
	r.attrs = a.pattern
	switch m.Type {
	case wire.MsgFind:
		if r.attrs, err = p.Pattern(); err == nil {
			r.rec, r.ok, r.uncertain = a.s.find(a.ctx, &r.attrs)
		}
	case wire.MsgLookup:
		id := p.GID()
		if r.attrs, err = p.List(); err == nil {
			r.rec, r.ok, r.uncertain = a.s.lookup(a.ctx, id, &r.attrs)
		}
	case wire.MsgList:
		if r.attrs, err = p.Pattern(); err == nil {
			a.begin(&r.attrs)
			r.ok, r.uncertain = a.batch(m.ID)
		}
	case wire.MsgMore:
		if a.cur.here == nil {
			return r, fmt.Errorf("%w: more before list", ErrProtocol)
		}
		r.ok, r.uncertain = a.batch(m.ID)
	case wire.MsgTrace:
		r.isSent, err = true, a.s.trace(a.ctx, a.c, m)
	case wire.MsgSum:
		r.isSent, err = true, a.summaryOf(m)
	case wire.MsgStop:
		a.cur.stop()
		a.cur, a.pattern, r.isSent = cursor{}, resource.List{}, true
	default:
		err = fmt.Errorf("%w: message type %d", ErrProtocol, m.Type)
	}
	return r, err
}

// begin begins a question with several answers, in place of the one before.
func (a *askServer) begin(pattern *resource.List) {
	a.pattern = pattern.Clone()
	a.cur.stop()
	_ = a.s.awaitRecovery(a.s.lifetime) // a cursor may miss what is offered again after the cursor began
	a.cur = cursor{here: a.s.db.Cursor(&a.pattern)}
}

// batch writes the next answers without sending them, and reports whether there are any.
func (a *askServer) batch(id uint64) (ok bool, uncertain error) {
	n, uncertain := a.cur.batch(a.ctx, a.s, a.c, id, &a.pattern)
	return n > 0, uncertain
}

// send sends the result of the valid question m.
func (a *askServer) send(m *wire.Message, r *result) error {
	isBatch := m.Type == wire.MsgList || m.Type == wire.MsgMore
	switch {
	case r.uncertain != nil:
		return a.c.SendError(m.ID, r.uncertain)
	case !r.ok && isBatch:
		return a.c.SendEnd(m.ID, a.cur.cov.Covered, a.cur.cov.Failed)
	case !r.ok:
		return a.c.SendError(m.ID, ErrNotFound)
	case isBatch: // cursor.batch has written the answers
		return a.c.Send()
	}
	a.c.Begin(wire.MsgAnswer, m.ID)
	a.c.Record(&r.rec, &r.attrs)
	return a.c.Send()
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
	return fromRemote(r, err)
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
	return fromRemote(r, err)
}

// fromRemote turns the result of a Remote into that of find: ErrNotFound is a certain no, not an
// error.
func fromRemote(r resource.Record, err error) (resource.Record, bool, error) {
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
	case s.lifetime.Err() != nil:
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

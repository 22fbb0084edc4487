// SPDX-License-Identifier: Apache-2.0

package directory

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"slices"
	"time"

	"github.com/rocl-go/rocl/directory/database"
	"github.com/rocl-go/rocl/resource"
)

// serveAsk answers the questions of one ask connection, one at a time, until the connection ends.
func (s *Server) serveAsk(c *codec) error {
	ctx, gone := context.WithCancel(s.life) // ends when the asking end hangs up
	defer gone()
	var cur cursor
	defer cur.stop()
	var pattern resource.List
	for {
		m, err := c.read()
		if err != nil {
			return err
		}
		begun := time.Now()
		p := parser{b: m.body}
		var rec resource.Record
		var ok bool
		var far error // the question was valid, and has no certain answer
		told := false // the answer is sent, or none is due
		l := pattern
		stop := func() {}
		if s.rest() != nil {
			stop = onHangup(c.nc, gone)
		}
		switch m.typ {
		case msgFind:
			if l, err = p.pattern(); err == nil {
				rec, ok, far = s.find(ctx, &l)
			}
		case msgLookup:
			id := p.gid()
			if l, err = p.list(); err == nil {
				rec, ok, far = s.lookup(ctx, id, &l)
			}
		case msgStart:
			if l, err = p.list(); err == nil {
				pattern = l.Clone()
				cur.stop()
				s.settle() // a cursor may miss what is offered again after the cursor began
				cur = cursor{here: s.db.Cursor(&pattern)}
				rec, ok, far = cur.next(ctx, s, &pattern)
			}
		case msgNext:
			if cur.here == nil {
				err = fmt.Errorf("%w: next before start", ErrProtocol)
			} else {
				rec, ok, far = cur.next(ctx, s, &pattern)
			}
		case msgList, msgMore:
			if m.typ == msgList {
				if l, err = p.pattern(); err == nil {
					pattern = l.Clone()
					cur.stop()
					s.settle()
					cur = cursor{here: s.db.Cursor(&pattern)}
				}
			} else if cur.here == nil {
				err = fmt.Errorf("%w: more before list", ErrProtocol)
			}
			if err == nil {
				var n int
				n, far = cur.batch(ctx, s, c, m.id, &pattern)
				ok = n > 0
			}
		case msgTrace:
			told, err = true, s.trace(ctx, c, &m)
		case msgStop:
			cur.stop()
			cur, pattern, told = cursor{}, resource.List{}, true
		default:
			err = fmt.Errorf("%w: message type %d", ErrProtocol, m.typ)
		}
		stop()
		if told && err == nil {
			continue
		}
		// The question is counted before the answer is sent, so that a client with the answer finds
		// it in the figures.
		s.count.question(m.typ, ok, errors.Join(err, far), time.Since(begun))
		switch {
		case err != nil:
			_ = c.sendError(m.id, err)
			return err
		case s.life.Err() != nil:
			return nil // cut short by the end of this server: the client asks the next one
		case far != nil:
			err = c.sendError(m.id, far)
		case !ok && (m.typ == msgStart || m.typ == msgNext || m.typ == msgList || m.typ == msgMore):
			err = c.sendEnd(m.id, &cur.cov)
		case !ok:
			err = c.sendError(m.id, ErrNotFound)
		case m.typ == msgList || m.typ == msgMore:
			err = c.send()
		default:
			c.begin(msgAnswer, m.id)
			c.out = AppendAnswer(c.out, &rec, &l)
			err = c.send()
		}
		if err != nil {
			return err
		}
	}
}

// cursor is the position of a question with several answers: first those of this node, then those
// of the other members.
type cursor struct {
	here  *database.Cursor
	there func() (resource.Record, error, bool) // returns the next answer of other members; nil before
	end   func()                                // releases there; nil while there is nil
	cov   Coverage
	begun bool // a batch has been sent
}

// next returns the next answer. ok is false when there are no more. An error says that there is no
// certain answer.
func (k *cursor) next(ctx context.Context, s *Server, pattern *resource.List) (r resource.Record, ok bool, err error) {
	if k.there == nil {
		if r, ok = k.here.Next(); ok {
			return r, true, nil
		}
		remote := s.rest()
		k.cov.Covered = 1
		if remote == nil {
			return r, false, nil
		}
		k.there, k.end = iter.Pull2(remote.All(ctx, pattern, &k.cov))
	}
	r, err, ok = k.there()
	return r, ok && err == nil, err
}

// stop releases what the cursor holds.
func (k *cursor) stop() {
	if k.end != nil {
		k.end()
	}
}

// AppendAnswer appends a resource to b in the form of the body of an answer. The body has the
// pattern with its wanted values filled in, or all attributes if the pattern wants none.
func AppendAnswer(b []byte, r *resource.Record, pattern *resource.List) []byte {
	k := codec{out: slices.Grow(b, 40+len(r.Attrs.Wire()))}
	k.gid(r.ID)
	k.gid(r.Owner)
	k.u64(r.Revision)
	if pattern.Complete() {
		k.bytes(r.Attrs.Wire())
		return k.out
	}
	l := pattern.Answer(&r.Attrs)
	k.bytes(l.Wire())
	return k.out
}

// find searches this node, then the other members. An error says that there is no certain answer.
func (s *Server) find(ctx context.Context, pattern *resource.List) (r resource.Record, ok bool, err error) {
	settled := s.Settled() // read before the question: what was offered by then is found
	if r, ok = s.db.Find(pattern); !ok && !settled {
		// A resource of another node is found without waiting for this node's contexts.
		if remote := s.rest(); remote != nil {
			if r, err = remote.Find(ctx, pattern); err == nil {
				return r, true, nil
			}
		}
		r, ok, err = s.patiently(ctx, func() (resource.Record, bool) { return s.db.Find(pattern) })
	}
	if ok || err != nil {
		return r, ok, err
	}
	remote := s.rest()
	if remote == nil {
		return r, false, nil
	}
	r, err = remote.Find(ctx, pattern)
	return certain(r, err)
}

// lookup is find by identifier. An identifier that this node gave is on no other node.
func (s *Server) lookup(ctx context.Context, id resource.GID, pattern *resource.List) (r resource.Record, ok bool, err error) {
	if id.Node() == s.id.Node {
		return s.patiently(ctx, func() (resource.Record, bool) { return s.db.Get(id) })
	}
	if r, ok = s.db.Get(id); ok {
		return r, true, nil
	}
	remote := s.rest()
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

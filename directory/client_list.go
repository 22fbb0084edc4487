// SPDX-License-Identifier: Apache-2.0

package directory

import (
	"context"
	"errors"
	"iter"
	"slices"
	"sync"

	"github.com/rocl-go/rocl/directory/internal/index"
	"github.com/rocl-go/rocl/directory/internal/wire"
	"github.com/rocl-go/rocl/resource"
)

// directBatch is how many records are taken at a time from a database in this process.
const directBatch = 64

// listing is one FindAll.
type listing struct {
	c       *Client
	pattern *resource.List
	yield   func(resource.Record, error) bool
	seen    map[resource.GID]bool // answers that were yielded before the server was lost
	got     []resource.GID        // answers that were yielded
	stopped bool                  // the caller's loop has ended
	asked   bool                  // a batch was asked for and has not been read
}

// deliver yields an answer, unless it has been yielded before. It reports false if the caller's
// loop has ended.
func (l *listing) deliver(ans *resource.Record) (more bool) {
	if len(l.seen) > 0 && l.seen[ans.ID] {
		return true
	}
	l.got = append(l.got, ans.ID)
	l.stopped = !l.yield(*ans, nil)
	return !l.stopped
}

// run lists until there are no more answers and returns the end.
func (l *listing) run(ctx context.Context) (end *endError, err error) {
	s := l.c.localServer(ctx)
	for {
		if s != nil {
			err = l.fromLocalServer(ctx, s)
		} else if end, err = l.fromIndex(ctx); end == nil && err == nil && !l.stopped {
			err = l.fromServer(ctx)
		}
		switch {
		case l.stopped || end != nil || errors.As(err, &end):
			return end, nil
		case !errors.Is(err, errLost):
			return nil, err
		}
		s = nil
		l.note()
	}
}

// note copies got to seen, so that these answers are not yielded again.
func (l *listing) note() {
	l.seen = make(map[resource.GID]bool, len(l.got))
	for _, id := range l.got {
		l.seen[id] = true
	}
}

// fromIndex lists from the index. It returns neither an end nor an error in two cases: the caller's
// loop has ended, or the index cannot tell all answers. Then the server is asked.
func (l *listing) fromIndex(ctx context.Context) (*endError, error) {
	r := l.c.index.Load()
	if r == nil || !r.Alone() {
		return nil, nil
	}
	in, v := r.List(l.pattern)
	if v == index.Found {
		some := make([]resource.Record, 0, min(in.Left(), directBatch))
		for v == index.Found {
			some, v = in.Next(some[:0])
			for i := range some {
				if ctx.Err() != nil {
					return nil, context.Cause(ctx)
				}
				if !l.deliver(&some[i]) {
					l.c.fromIndex.Add(1)
					return nil, nil
				}
			}
			if v == index.Found && in.Left() == 0 {
				l.c.fromIndex.Add(1)
				return &endError{Coverage{Covered: 1}}, nil
			}
		}
		l.note()
	}
	if v == index.Ended {
		l.c.dropEndedIndex(r)
	}
	return nil, nil
}

// fromServer lists over an ask connection.
func (l *listing) fromServer(ctx context.Context) error {
	l.c.countQuestion()
	a, err := l.c.borrow(ctx, wire.KindAsk)
	if err != nil {
		return err
	}
	l.asked = false
	err = l.batches(ctx, a)
	var end *endError
	switch {
	case l.stopped && !l.asked:
		a.c.Begin(wire.MsgStop, 0)
		if a.c.Send() == nil && ctx.Err() == nil {
			l.c.giveBack(a)
			return nil
		}
	case errors.As(err, &end) && ctx.Err() == nil:
		l.c.giveBack(a)
		return err
	}
	a.c.Close()
	return err
}

// batches lists batch by batch. It asks for the next batch before it yields one, so that the server
// works meanwhile. It does not do so before the first batch is yielded, which may be enough.
func (l *listing) batches(ctx context.Context, a *askConn) error {
	defer a.endWith(ctx)()
	typ, body := byte(wire.MsgList), func(b *wire.Builder) { b.Append(l.pattern.Wire()) }
	for first := true; ; first = false {
		if !l.asked {
			if err := a.sendQuestion(ctx, typ, body); err != nil {
				return err
			}
		}
		b, err := a.readAnswer(ctx, wire.MsgBatch)
		if l.asked = false; err != nil {
			return err
		}
		if typ, body = wire.MsgMore, nil; !first {
			if err := a.sendQuestion(ctx, typ, nil); err != nil {
				return err
			}
			l.asked = true
		}
		for ans, err := range wire.Batch(b) {
			if err == nil && ctx.Err() != nil {
				err = context.Cause(ctx)
			}
			if err != nil {
				return err
			}
			if !l.deliver(&ans) {
				return nil
			}
		}
	}
}

// fromLocalServer lists through a server in this process: its own resources, then those of other
// members.
func (l *listing) fromLocalServer(ctx context.Context, s *Server) error {
	if err := s.awaitRecovery(ctx); s.lifetime.Err() != nil {
		return errLost
	} else if err != nil {
		return err
	}
	cur := cursor{here: s.db.Cursor(l.pattern)}
	defer cur.stop()
	some := make([]resource.Record, 0, min(cur.here.Left(), directBatch))
	var room wire.Slab
	all := l.pattern.Complete()
	for more := true; more; {
		some = some[:0]
		cur.here.Take(func(r resource.Record) bool { // the caller's loop must not run under the database's lock
			some = append(some, r)
			return len(some) < directBatch
		})
		more = len(some) > 0
		for i := range some {
			ans := &some[i]
			if all {
				w := ans.Attrs.Wire()
				ans.Attrs, _ = resource.View(room.Clone(w, len(w)*(len(some)-i)))
			} else {
				ans.Attrs = l.pattern.Answer(&ans.Attrs)
			}
			if err := l.answer(ctx, s, ans); err != nil || l.stopped {
				return err
			}
		}
	}
	for {
		r, ok, err := cur.next(ctx, s, l.pattern)
		switch {
		case s.lifetime.Err() != nil:
			return errLost
		case err != nil:
			return err
		case !ok:
			return &endError{cur.cov}
		}
		ans := r // it was decoded for this call, so nothing shares its memory
		if err := l.answer(ctx, s, &ans); err != nil || l.stopped {
			return err
		}
	}
}

// answer yields an answer of s, unless s or ctx has ended.
func (l *listing) answer(ctx context.Context, s *Server, ans *resource.Record) error {
	switch {
	case ctx.Err() != nil:
		return context.Cause(ctx)
	case s.lifetime.Err() != nil:
		return errLost
	}
	l.deliver(ans)
	return nil
}

// listed has memory for the identifiers that a listing has yielded.
var listed = sync.Pool{New: func() any { return new([]resource.GID) }}

// maxListed is the capacity above which such memory is not used again.
const maxListed = 1 << 14

// list asks a question with several answers and yields them as they come. With cov, nodes that
// could not be asked are reported there; without it, by an error.
func (c *Client) list(ctx context.Context, pattern *resource.List, cov *Coverage, yield func(resource.Record, error) bool) {
	got := listed.Get().(*[]resource.GID)
	l := listing{c: c, pattern: pattern, yield: yield, got: (*got)[:0]}
	defer func() {
		if *got = l.got; cap(*got) <= maxListed {
			listed.Put(got)
		}
	}()
	end, err := l.run(ctx)
	switch {
	case l.stopped:
		return
	case err == nil && cov != nil:
		*cov = end.Coverage
		return
	case err == nil:
		err = end.Err()
	}
	if err != nil {
		yield(resource.Record{}, err)
	}
}

// FindAll yields each matching resource once. The server keeps the position (paper, section 3.4)
// until the loop ends, and sends answers in batches. A resource may have changed, or gone, since
// its batch was sent.
//
// If the server is lost, FindAll asks the next one and goes on with the answers that it has not
// yielded. If some node could not be asked, the last error matches ErrPartial.
//
// If the pattern has an order, FindAll waits for all answers and yields them in that order.
func (c *Client) FindAll(ctx context.Context, pattern *resource.List) iter.Seq2[resource.Record, error] {
	return c.FindCovering(ctx, pattern, nil)
}

// FindCovering is FindAll, except that it reports in cov at the end which nodes were asked. Nodes
// that could not be asked are then no error.
func (c *Client) FindCovering(ctx context.Context, pattern *resource.List, cov *Coverage) iter.Seq2[resource.Record, error] {
	return func(yield func(resource.Record, error) bool) {
		if _, _, ordered := pattern.Order(); ordered {
			c.inOrder(ctx, pattern, cov, yield)
			return
		}
		c.list(ctx, pattern, cov, yield)
	}
}

// ranked is a pattern with an order, which asks for the value that the order needs.
type ranked struct {
	pattern resource.List
	name    string
	most    bool
	added   bool // the caller did not ask for name
}

// newRanked returns pattern as a ranked. It adds the value to what the pattern asks for if
// necessary.
func newRanked(pattern *resource.List) (k ranked, err error) {
	k.pattern = pattern.Clone()
	k.name, k.most, _ = pattern.Order()
	k.added, err = wantToo(&k.pattern, k.name)
	return k, err
}

// wantToo adds name to what answers to pattern have. added is false if they have it anyway.
func wantToo(pattern *resource.List, name string) (added bool, err error) {
	if _, known := pattern.Get(name); known || pattern.Complete() || slices.Contains(slices.Collect(pattern.Wanted()), name) {
		return false, nil
	}
	return true, pattern.Want(name)
}

// takeRank returns the rank of an answer, and removes the value from the answer if the caller did
// not ask for it.
func (k *ranked) takeRank(ans *resource.Record) resource.Rank {
	r := resource.RankOf(&ans.Attrs, k.name, k.most)
	if k.added {
		ans.Attrs.Remove(k.name)
	}
	return r
}

// inOrder yields all that matches, in the pattern's order.
func (c *Client) inOrder(ctx context.Context, pattern *resource.List, cov *Coverage, yield func(resource.Record, error) bool) {
	k, err := newRanked(pattern)
	if err != nil {
		yield(resource.Record{}, err)
		return
	}
	type one struct {
		resource.Record
		rank resource.Rank
	}
	var all []one
	k.pattern = k.pattern.WithoutOrder()
	c.list(ctx, &k.pattern, cov, func(ans resource.Record, e error) bool {
		if err = e; err == nil {
			o := one{Record: ans}
			o.rank = k.takeRank(&o.Record)
			all = append(all, o)
		}
		return true
	})
	if err != nil && !errors.Is(err, ErrPartial) {
		yield(resource.Record{}, err)
		return
	}
	slices.SortStableFunc(all, func(a, b one) int { return a.rank.Compare(&b.rank) })
	for i := range all {
		if !yield(all[i].Record, nil) {
			return
		}
	}
	if err != nil {
		yield(resource.Record{}, err)
	}
}

// Best returns the first resource in the order of the pattern. It asks each node for the node's
// first one and returns the first among the answers. Nodes that could not be asked are left out,
// and are in cov unless that is nil.
//
// It returns ErrNotFound if nothing matches. It returns ErrPartial if nothing was found and some
// nodes could not be asked. Best waits some seconds for nodes that do not answer and are not known
// to be dead.
func (c *Client) Best(ctx context.Context, pattern *resource.List, cov *Coverage) (best resource.Record, err error) {
	k, err := newRanked(pattern)
	if err != nil {
		return resource.Record{}, err
	}
	if cov == nil {
		cov = new(Coverage)
	}
	var rank resource.Rank
	found := false
	c.list(ctx, &k.pattern, cov, func(ans resource.Record, e error) bool {
		if err = e; err != nil {
			return false
		}
		if r := k.takeRank(&ans); !found || r.Compare(&rank) < 0 {
			best, rank, found = ans, r, true
		}
		return true
	})
	switch {
	case err != nil:
		return resource.Record{}, err
	case found:
		return best, nil
	}
	if err := cov.Err(); err != nil {
		return resource.Record{}, err
	}
	return resource.Record{}, ErrNotFound
}

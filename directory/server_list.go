// SPDX-License-Identifier: Apache-2.0

package directory

import (
	"context"
	"iter"

	"github.com/rocl-go/rocl/directory/internal/database"
	"github.com/rocl-go/rocl/directory/internal/wire"
	"github.com/rocl-go/rocl/resource"
)

const (
	// A batch ends with the answer that makes it so many bytes. The first batch is short, because
	// the caller may need only a few answers.
	firstBatch = 4 << 10
	batchBytes = 48 << 10
)

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
		remote := s.attachedRemote()
		k.cov.Covered = 1
		if remote == nil {
			return r, false, nil
		}
		k.there, k.end = iter.Pull2(remote.All(ctx, pattern, &k.cov))
	}
	r, err, ok = k.there()
	return r, ok && err == nil, err
}

// batch writes the next answers to c.out without sending them, and returns how many there are.
// uncertain is an error that says that there is no certain answer.
func (k *cursor) batch(ctx context.Context, s *Server, c *wire.Conn, id uint64, pattern *resource.List) (n int, uncertain error) {
	most := batchBytes
	if !k.begun {
		k.begun, most = true, firstBatch
	}
	c.Begin(wire.MsgBatch, id)
	put := func(r *resource.Record) (full bool) {
		c.BatchRecord(r, pattern)
		n++
		return c.Len() >= most
	}
	if k.there == nil {
		k.here.Take(func(r resource.Record) bool { return !put(&r) })
	}
	if n == 0 { // answers of other members come one by one: the first does not wait for the last
		r, ok, uncertain := k.next(ctx, s, pattern)
		if s.lifetime.Err() != nil {
			uncertain = ErrClosed
		}
		if uncertain != nil || !ok {
			return 0, uncertain
		}
		put(&r)
	}
	return n, nil
}

// stop releases what the cursor holds.
func (k *cursor) stop() {
	if k.end != nil {
		k.end()
	}
}

// SPDX-License-Identifier: Apache-2.0

package bulk

import (
	"context"

	"github.com/rocl-go/rocl"
)

// An offer is a push without the bytes. The target exposes its slices for the time of the push, and
// sends two requests in one message: what the origin is to write, and how it reads the bytes from
// the target. The origin reads them into its own memory as a pull does, so neither side copies
// them.

// offerLeast is the least size of a push over a stream for which an offer costs less processor time
// than two copies. An offer takes two messages and a goroutine more.
const offerLeast = 1 << 20

// pushByOffer makes a push by offers, from the bytes at from. It returns what runTransfer
// returns. It waits until nothing reads the local memory any more, or until ctx ends.
func (ep *Endpoint) pushByOffer(ctx context.Context, mv *move, from int64) (int64, error) {
	r := &Region{ep: ep, rights: ReadOnly, mem: *mv.local, idle: make(chan struct{})}
	if !ep.add(r) {
		return from, rocl.ErrClosed
	}
	defer func() {
		r.Release()
		select {
		case <-r.idle:
		case <-ctx.Done():
		}
	}()
	h := r.Handle()
	source := move{h: &h, off: mv.at}
	return ep.each(ctx, mv, from, ep.cfg.large, mv.pieces, patient(func(ctx context.Context, at, n int64) error {
		m, err := ep.ask(ctx, mv.h.origin, tagOffer, nil, mv.request(at, n), source.request(at, n))
		if err != nil {
			return err
		}
		return done(m)
	}))
}

// accept reads the bytes of an offer into a region: see answer.
func (ep *Endpoint) accept(m *rocl.Message, q *request, data []byte) error {
	source, rest, err := parseRequest(data)
	h := Handle(source.Handle)
	if err != nil || len(rest) > 0 || source.Len != q.Len || h.origin != m.From() {
		return errProtocol
	}
	r, off, err := ep.admit(q, WriteOnly)
	if err != nil {
		return err
	}
	ep.server.Go(func() {
		ep.flight.begin()
		_, err := ep.pullByMessages(ep.life, &move{&h, int64(source.Off), &r.mem, off, int64(q.Len)}, 0, tagFetch)
		ep.flight.end()
		ep.written(m, q, r, err)
	})
	return nil
}

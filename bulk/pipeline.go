// SPDX-License-Identifier: Apache-2.0

package bulk

import (
	"context"
	"iter"

	"github.com/rocl-go/rocl"
)

// A Piece is a part of the bytes that a handle names, as [Pipeline] hands it over.
type Piece struct {
	Off int64 // from the beginning of what the handle names
	// Message has the bytes. The pipeline releases it when the loop goes on. What is to stay
	// longer is copied, or kept by Message.Buffer. It is nil where the bytes came in an [Argument].
	Message *rocl.Message
	bytes   []byte // instead of the message
}

// Bytes returns the bytes of the piece, to be read until the loop goes on.
func (p Piece) Bytes() []byte {
	if p.Message == nil {
		return p.bytes
	}
	return p.Message.Bytes()
}

// Pipeline yields all bytes that h names, in pieces of a given size ([PieceSize], 1 MiB by
// default) and in order. While the loop works on one piece the next ones are on their way, so that there
// are up to [Depth] pieces at a time, that one included. Pieces are views (see [Endpoint.View]).
//
// The first error ends the loop, as does the end of ctx: see [Endpoint.Pull].
func Pipeline(ctx context.Context, ep *Endpoint, h Handle, opts ...Option) iter.Seq2[Piece, error] {
	return func(yield func(Piece, error) bool) {
		cfg, err := newConfig(opts)
		if err != nil {
			yield(Piece{}, failed("pipeline", &h, 0, h.Len(), err))
			return
		}
		ctx, cancel := context.WithCancelCause(ctx)
		l := pipeline{ctx: ctx, ep: ep, h: &h, piece: int64(cfg.piece), depth: cfg.depth}
		ep.flight.begin()
		defer ep.flight.end()
		defer l.close()
		defer cancel(nil)
		l.run(yield)
	}
}

// A pipeline is one loop over Pipeline.
type pipeline struct {
	ctx   context.Context
	ep    *Endpoint
	h     *Handle
	piece int64
	depth int

	started int64         // bytes that were asked for
	queue   []chan answer // of what is under way, in order
}

// An answer is what became of one piece.
type answer struct {
	m   *rocl.Message
	err error
}

// fill asks for pieces until as many are under way as may be now.
func (l *pipeline) fill() {
	for len(l.queue) < l.ep.depth(l.h, l.piece, l.depth) && l.started < l.h.Len() {
		off := l.started
		n := min(l.piece, l.h.Len()-off)
		a := make(chan answer, 1)
		go func() {
			m, err := l.ep.view(l.ctx, l.h, off, n)
			a <- answer{m, err}
		}()
		l.queue = append(l.queue, a)
		l.started += n
	}
}

func (l *pipeline) run(yield func(Piece, error) bool) {
	for off := int64(0); off < l.h.Len(); {
		l.fill()
		a := <-l.queue[0]
		l.queue = l.queue[1:]
		if a.err != nil {
			yield(Piece{}, failed("pipeline", l.h, off, min(l.piece, l.h.Len()-off), a.err))
			return
		}
		n := a.m.Len()
		if !l.hand(a.m, off, yield) {
			return
		}
		off += int64(n)
	}
}

// hand gives a piece to the loop, which may panic.
func (l *pipeline) hand(m *rocl.Message, off int64, yield func(Piece, error) bool) bool {
	defer m.Release()
	return yield(Piece{Off: off, Message: m}, nil)
}

// close waits for what is under way, which has been cancelled.
func (l *pipeline) close() {
	for _, a := range l.queue {
		if a := <-a; a.m != nil {
			a.m.Release()
		}
	}
}

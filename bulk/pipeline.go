// SPDX-License-Identifier: Apache-2.0

package bulk

import (
	"context"
	"errors"
	"iter"

	"github.com/rocl-go/rocl"
)

// A Piece is a part of the bytes that a handle names. [Pipeline] yields pieces.
type Piece struct {
	Off int64 // from the beginning of the bytes that the handle names
	// Message has the bytes. The pipeline releases it when the loop goes on. Copy bytes that are
	// needed longer, or keep them by Message.Buffer. Message is nil if the bytes came in an
	// [Argument].
	Message *rocl.Message
	bytes   []byte // the bytes if Message is nil
}

// Bytes returns the bytes of the piece. They may be read until the loop goes on.
func (p Piece) Bytes() []byte {
	if p.Message == nil {
		return p.bytes
	}
	return p.Message.Bytes()
}

// Pipeline yields all bytes that h names in order, in pieces of a given size ([PieceSize], 1 MiB by
// default). While the loop works on one piece, it fetches the next ones: up to [Depth] pieces at a
// time, including the current one. Pieces are views (see [Endpoint.View]).
//
// The first error ends the loop, as does the end of ctx: see [Endpoint.Pull].
func Pipeline(ctx context.Context, ep *Endpoint, h Handle, opts ...Option) iter.Seq2[Piece, error] {
	return func(yield func(Piece, error) bool) {
		cfg, err := newConfig(opts)
		if err != nil {
			yield(Piece{}, wrapTransfer("pipeline", &h, 0, h.Len(), err))
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

	started int64      // bytes requested so far
	queue   []waitFunc // of the requests in progress, in order
}

// A waitFunc waits for a piece that was requested. It is called once.
type waitFunc func() (*rocl.Message, error)

// fill starts requests until the allowed number is in progress, or all bytes are requested. No
// goroutine waits for a reply until the loop comes to the piece. The endpoint's own goroutine,
// which waits for messages, makes progress.
func (l *pipeline) fill() {
	for len(l.queue) < l.ep.pipelineDepth(l.h, l.piece, l.depth) && l.started < l.h.Len() {
		off := l.started
		n := min(l.piece, l.h.Len()-off)
		l.queue = append(l.queue, l.ep.startView(l.ctx, l.h, off, n))
		l.started += n
	}
}

func (l *pipeline) run(yield func(Piece, error) bool) {
	for off := int64(0); off < l.h.Len(); {
		l.fill()
		wait := l.queue[0]
		l.queue = l.queue[1:]
		m, err := wait()
		switch {
		case errors.Is(err, rocl.ErrTooLarge) && l.piece > pieceLeast: // the memory of one side never holds the piece
			l.restart(off)
			l.piece /= 4
			continue
		case isBusy(err): // the origin has no time, or the later pieces use the memory that it needs for this one
			l.restart(off)
			l.depth = max(l.depth/2, 1)
			n := min(l.piece, l.h.Len()-off)
			m, err = l.ep.view(l.ctx, l.h, off, n) // waits until the origin has time
			l.started = off + n
		}
		if err != nil {
			yield(Piece{}, wrapTransfer("pipeline", l.h, off, min(l.piece, l.h.Len()-off), err))
			return
		}
		n := m.Len()
		if !l.hand(m, off, yield) {
			return
		}
		off += int64(n)
	}
}

// hand yields a piece to the loop, whose body may panic, and releases the message.
func (l *pipeline) hand(m *rocl.Message, off int64, yield func(Piece, error) bool) bool {
	defer m.Release()
	return yield(Piece{Off: off, Message: m}, nil)
}

// restart gives up the requests in progress, so that the next one is for the bytes from off.
func (l *pipeline) restart(off int64) {
	l.close()
	l.queue, l.started = nil, off
}

// close waits for the requests in progress, and releases their messages.
func (l *pipeline) close() {
	for _, wait := range l.queue {
		if m, err := wait(); err == nil {
			m.Release()
		}
	}
}

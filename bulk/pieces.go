// SPDX-License-Identifier: Apache-2.0

package bulk

import (
	"context"
	"errors"
	"sync"

	"github.com/rocl-go/rocl"
)

// A pieceFunc moves the n bytes from at of a transfer.
type pieceFunc func(ctx context.Context, at, n int64) error

// patient returns a function that calls one again while the origin is too busy.
func patient(one pieceFunc) pieceFunc {
	return func(ctx context.Context, at, n int64) error {
		return patiently(ctx, func() error { return one(ctx, at, n) })
	}
}

// A cutFunc returns the length of the piece that begins at an offset.
type cutFunc func(at int64) int64

// every returns the function that cuts n bytes into pieces of one size.
func every(size, n int64) cutFunc { return func(at int64) int64 { return min(size, n-at) } }

// pieces returns the function that cuts a transfer into pieces of one size.
func (mv *move) pieces(size int) cutFunc { return every(int64(size), mv.n) }

// inPlacePieces is pieces for memory that is read where it lies. No piece is smaller than
// inPlaceLeast: the last one may be larger by as much.
func (mv *move) inPlacePieces(size int) cutFunc {
	return func(at int64) int64 {
		if left := mv.n - at; left < int64(size)+inPlaceLeast {
			return left
		}
		return int64(size)
	}
}

// segments returns the function that cuts a transfer into pieces of up to size bytes. A piece that
// begins in a large segment of local memory ends with it, so that its bytes are received there.
func (mv *move) segments(size int) cutFunc {
	return func(at int64) int64 { return mv.local.run(mv.at+at, min(int64(size), mv.n-at)) }
}

// pieceLeast is the size below which pieces are not made smaller because the memory of one side is
// small.
const pieceLeast = 32 << 10

// each calls one for each piece of a transfer from the byte at from. size is the largest piece. If
// the memory of one side never holds such a piece, each goes on with smaller ones. It returns how
// many bytes of the transfer precede the first piece that failed.
func (ep *Endpoint) each(ctx context.Context, mv *move, from int64, size int, cut func(size int) cutFunc, one pieceFunc) (int64, error) {
	for {
		done, err := inPieces(ctx, from, mv.n, cut(size), ep.depth(mv.h, int64(size), ep.cfg.depth), one)
		if !errors.Is(err, rocl.ErrTooLarge) || size <= pieceLeast {
			return done, err
		}
		from, size = done, size/4
	}
}

// inPieces calls do for each piece of the bytes from from to end, depth of them at a time. After a
// failure it starts no further piece. It returns the offset of the first piece that failed, or end,
// and the error that occurred first.
func inPieces(ctx context.Context, from, end int64, cut cutFunc, depth int, do pieceFunc) (int64, error) {
	if n := cut(from); n == end-from {
		if err := do(ctx, from, n); err != nil {
			return from, err
		}
		return end, nil
	}
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	p := &progress{next: from, end: end, done: end, cut: cut}
	var workers sync.WaitGroup
	for range min(int64(depth), end-from) {
		workers.Go(func() {
			for at, n := p.take(); n > 0; at, n = p.take() {
				err := context.Cause(ctx)
				if err == nil {
					err = do(ctx, at, n)
				}
				if err != nil {
					p.fail(at, err)
					cancel(err)
					return
				}
			}
		})
	}
	workers.Wait()
	return p.done, p.err
}

// A progress says which bytes of a transfer its workers have taken, and which piece failed.
type progress struct {
	end int64
	cut cutFunc

	mu   sync.Mutex
	next int64 // the first byte that no worker has taken
	done int64 // the offset of the first piece that failed, or end
	err  error // the error that occurred first
}

// take returns the next piece. n is 0 if none is left.
func (p *progress) take() (at, n int64) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if at = p.next; at < p.end {
		n = p.cut(at)
		p.next += n
	}
	return at, n
}

// fail records that the piece at an offset has failed.
func (p *progress) fail(at int64, err error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.done = min(p.done, at); p.err == nil {
		p.err = err
	}
}

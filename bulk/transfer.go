// SPDX-License-Identifier: Apache-2.0

package bulk

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"

	"github.com/rocl-go/rocl"
	"github.com/rocl-go/rocl/codec"
)

// Pull copies bytes that h names, from off, to the slices of dst, one after another, until all are
// full. It returns how many bytes from the first one were copied: all of them, unless it fails. If
// it fails, bytes after those may have been written too.
//
// When ctx ends, Pull returns its cause at once. It writes to dst only before it returns.
//
// Pull fails with ErrRights, ErrRange, ErrRevoked or ErrKey, which the origin checks. It fails with
// rocl.ErrGone as soon as the origin has ended, with rocl.ErrUnreachable if the origin is out of
// reach, and with rocl.ErrClosed. A connection that breaks is no error: rocl resumes it.
func (ep *Endpoint) Pull(ctx context.Context, h Handle, off int64, dst ...[]byte) (int64, error) {
	return ep.transfer(ctx, &h, "pull", ReadOnly, off, dst)
}

// Push copies the bytes of all slices of src to the memory that h names, from off. It returns and
// fails as Pull does. If it fails, bytes after those that it counts may have been written. The
// origin may even serve one of their requests later.
func (ep *Endpoint) Push(ctx context.Context, h Handle, off int64, src ...[]byte) (int64, error) {
	return ep.transfer(ctx, &h, "push", WriteOnly, off, src)
}

// View returns n bytes that h names, from off, as a message. View makes no copy if the origin is in
// this process, or if the memory is registered, lies in one segment and is shared with this
// process. Otherwise the bytes are received into a buffer of this context. The caller may read the
// bytes, but not write them: see [rocl.Message.Writable]. The caller should release the message
// soon, because the origin's Revoke waits for that.
//
// View fails as Pull does, and with rocl.ErrTooLarge if n is more than rocl.MaxMessage.
func (ep *Endpoint) View(ctx context.Context, h Handle, off int64, n int) (*rocl.Message, error) {
	m, err := ep.view(ctx, &h, off, int64(n))
	if err != nil {
		return nil, failed("view", &h, off, int64(n), err)
	}
	return m, nil
}

func failed(what string, h *Handle, off, n int64, err error) error {
	return fmt.Errorf("bulk: %s %d bytes at %d of %v: %w", what, n, off, h, err)
}

// check returns the error that the origin would return, as far as the handle itself shows it.
func (h *Handle) check(want Rights, off, n int64) error {
	switch s := h.last(); {
	case s.Rights&want == 0:
		return ErrRights
	case !isWithin(off, n, int64(s.Len)):
		return ErrRange
	}
	return nil
}

func (ep *Endpoint) view(ctx context.Context, h *Handle, off, n int64) (m *rocl.Message, err error) {
	if err := h.check(ReadOnly, off, n); err != nil {
		return nil, err
	}
	if n > rocl.MaxMessage {
		return nil, rocl.ErrTooLarge
	}
	err = patiently(ctx, func() error {
		m, err = ep.fetch(ctx, h, off, n, nil)
		return err
	})
	return m, err
}

// fetch sends one request for the n bytes from off. It returns them as a message, which lies in dst
// unless dst is nil.
func (ep *Endpoint) fetch(ctx context.Context, h *Handle, off, n int64, dst []byte) (*rocl.Message, error) {
	m, err := ep.ask(ctx, h, tagRead, off, n, dst)
	if err != nil {
		return nil, err
	}
	return granted(m, n)
}

// ask sends a request about the n bytes from off, and returns the reply. The reply lies in dst if
// dst is not nil and large enough.
func (ep *Endpoint) ask(ctx context.Context, h *Handle, tag uint64, off, n int64, dst []byte) (*rocl.Message, error) {
	q := request{rawHandle(*h), uint64(off), uint64(n)}
	p, err := codec.Append(make([]byte, 0, requestLen), &q)
	if err != nil {
		return nil, err
	}
	ep.counts.transfers.Add(1)
	if dst == nil {
		return ep.r.CallBytes(ctx, h.origin, tag, p)
	}
	return ep.r.CallInto(ctx, h.origin, tag, p, dst)
}

// granted returns m, the reply to a request, if it has n bytes. Otherwise it releases m and returns
// the error in it.
func granted(m *rocl.Message, n int64) (*rocl.Message, error) {
	if int64(m.Len()) == n {
		return m, nil
	}
	defer m.Release()
	return nil, parseError(m.Bytes())
}

// transfer implements Pull and Push.
func (ep *Endpoint) transfer(ctx context.Context, h *Handle, what string, want Rights, off int64, local [][]byte) (int64, error) {
	mem, n := newLocal(local)
	err := h.check(want, off, n)
	if err == nil {
		err = context.Cause(ctx)
	}
	done := int64(0)
	if err == nil && n > 0 {
		done, err = ep.moved(ctx, h, want, off, &mem, n)
	}
	if err != nil {
		return done, failed(what, h, off, n, err)
	}
	return n, nil
}

// A pieceFunc moves n bytes between the memory that a handle names, from off, and local memory,
// from at.
type pieceFunc func(ctx context.Context, h *Handle, off int64, local *memory, at, n int64) error

// moved splits a transfer into pieces, Depth of which are in progress at a time. It returns how
// many bytes precede the first missing one.
func (ep *Endpoint) moved(ctx context.Context, h *Handle, want Rights, off int64, local *memory, n int64) (done int64, err error) {
	ep.flight.begin()
	defer ep.flight.end()
	in := func(piece int, one pieceFunc) error {
		from := done
		more, err := inPieces(ctx, n-from, int64(piece), ep.depth(h, int64(piece), ep.cfg.depth), func(ctx context.Context, at, n int64) error {
			return patiently(ctx, func() error { return one(ctx, h, off+from+at, local, from+at, n) })
		})
		done += more
		return err
	}
	if one := ep.placed(h, want, local, n); one != nil {
		if err = in(ep.cfg.placed, one); !errors.Is(err, errElsewhere) {
			return done, err
		}
	}
	one, piece := ep.pullPiece, ep.cfg.piece
	if want == WriteOnly {
		one = ep.pushPiece
	}
	if isShared, _ := ep.sharing.with(ep.c, h.origin); isShared || want == ReadOnly && len(local.parts) == 1 {
		piece = ep.cfg.large
	}
	err = in(piece, one)
	return done, err
}

// newLocal returns the target's slices as a memory, and their size. The size is -1 if an int64 does
// not hold it.
func newLocal(parts [][]byte) (mem memory, n int64) {
	mem, ok := newMemory(parts)
	if !ok {
		return mem, -1
	}
	return mem, mem.size()
}

// pullPiece copies n bytes from off to local memory.
func (ep *Endpoint) pullPiece(ctx context.Context, h *Handle, off int64, local *memory, at, n int64) error {
	dst := local.slice(at, n)
	m, err := ep.fetch(ctx, h, off, n, dst)
	if err != nil {
		return err
	}
	defer m.Release()
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	if dst != nil {
		return nil
	}
	return ep.copyOut(ctx, local, at, m.Bytes())
}

// pushPiece copies n bytes of local memory to the origin.
func (ep *Endpoint) pushPiece(ctx context.Context, h *Handle, off int64, local *memory, at, n int64) error {
	b, err := ep.c.BufferWait(ctx, requestLen+int(n))
	if err != nil {
		return err
	}
	q := request{rawHandle(*h), uint64(off), uint64(n)}
	if _, err := codec.Append(b.Bytes()[:0], &q); err != nil {
		b.Release()
		return err
	}
	local.read(b.Bytes()[requestLen:], at)
	ep.counts.transfers.Add(1)
	m, err := ep.r.Call(ctx, h.origin, tagWrite, b)
	if err != nil {
		b.Release()
		return err
	}
	if m, err = granted(m, 0); err != nil {
		return err
	}
	m.Release()
	return nil
}

// inPieces calls do for each piece of n bytes, depth of them at a time. After a failure it starts
// no further piece. It returns how many bytes precede the first piece that failed, and the error
// that occurred first.
func inPieces(ctx context.Context, n, piece int64, depth int, do func(ctx context.Context, at, n int64) error) (int64, error) {
	if n <= piece {
		return 0, do(ctx, 0, n)
	}
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	var (
		workers sync.WaitGroup
		next    atomic.Int64
		mu      sync.Mutex
		done    = n
		first   error
	)
	pieces := (n-1)/piece + 1
	for range min(int64(depth), pieces) {
		workers.Go(func() {
			for {
				at := next.Add(1) - 1
				if at >= pieces {
					return
				}
				at *= piece
				err := context.Cause(ctx)
				if err == nil {
					err = do(ctx, at, min(piece, n-at))
				}
				if err == nil {
					continue
				}
				mu.Lock()
				if done = min(done, at); first == nil {
					first = err
				}
				mu.Unlock()
				cancel(err)
				return
			}
		})
	}
	workers.Wait()
	return done, first
}

// A Transfer is a Pull or a Push in progress.
type Transfer struct {
	done   chan struct{}
	cancel context.CancelFunc
	n      int64
	err    error
}

// StartPull is Pull that does not wait. dst belongs to the transfer until it has ended.
func (ep *Endpoint) StartPull(ctx context.Context, h Handle, off int64, dst ...[]byte) *Transfer {
	return start(ctx, func(ctx context.Context) (int64, error) { return ep.Pull(ctx, h, off, dst...) })
}

// StartPush is Push that does not wait. src must not be changed until the transfer has ended.
func (ep *Endpoint) StartPush(ctx context.Context, h Handle, off int64, src ...[]byte) *Transfer {
	return start(ctx, func(ctx context.Context) (int64, error) { return ep.Push(ctx, h, off, src...) })
}

func start(ctx context.Context, do func(context.Context) (int64, error)) *Transfer {
	t := &Transfer{done: make(chan struct{})}
	ctx, t.cancel = context.WithCancel(ctx)
	go func() {
		defer close(t.done)
		defer t.cancel()
		t.n, t.err = do(ctx)
	}()
	return t
}

// Done returns a channel that is closed when the transfer has ended and does not use the local
// memory any more.
func (t *Transfer) Done() <-chan struct{} { return t.done }

// Cancel ends the transfer, without waiting. The transfer fails with context.Canceled unless it has
// ended already.
func (t *Transfer) Cancel() { t.cancel() }

// Wait waits for the end of the transfer and returns what Pull or Push returned. If ctx ends first,
// Wait returns its cause, and the transfer goes on.
func (t *Transfer) Wait(ctx context.Context) (int64, error) {
	select {
	case <-t.done:
		return t.n, t.err
	case <-ctx.Done():
		return 0, context.Cause(ctx)
	}
}

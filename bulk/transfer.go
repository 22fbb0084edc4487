// SPDX-License-Identifier: Apache-2.0

package bulk

import (
	"context"
	"errors"
	"fmt"

	"github.com/rocl-go/rocl"
	"github.com/rocl-go/rocl/codec"
)

// Pull copies bytes that h names, from off, to the slices of dst, one after another, until all are
// full. It returns how many bytes from the first one were copied: all of them, unless it fails. If
// it fails, bytes after those may have been written too.
//
// When ctx ends, Pull returns its cause at once. It writes to dst only before it returns. If ctx
// never ends and the transport accesses remote memory, the transport may write to dst itself, and
// Pull waits until it has ended that.
//
// Pull fails with ErrRights, ErrRange, ErrRevoked or ErrKey, which the origin checks. It fails with
// rocl.ErrGone as soon as the origin has ended, with rocl.ErrUnreachable if the origin is out of
// reach, and with rocl.ErrClosed. A connection that breaks is no error: rocl resumes it.
func (ep *Endpoint) Pull(ctx context.Context, h Handle, off int64, dst ...[]byte) (int64, error) {
	return ep.transfer(ctx, &h, "pull", ReadOnly, off, dst)
}

// Push copies the bytes of all slices of src to the memory that h names, from off. It returns and
// fails as Pull does. If it fails, the origin's bytes after those that it counts are undefined. The
// origin may even serve a request for them later.
//
// Large slices are sent from where they lie. Nothing reads them any more when Push returns, unless
// ctx has ended: then bytes that are being sent may be read later.
func (ep *Endpoint) Push(ctx context.Context, h Handle, off int64, src ...[]byte) (int64, error) {
	return ep.transfer(ctx, &h, "push", WriteOnly, off, src)
}

// View returns n bytes that h names, from off, as a message. View makes no copy if the origin is in
// this process, or if the memory is registered, lies in one segment and is shared with this
// process. Otherwise the bytes are received into a buffer of this context. The caller may read the
// bytes, but not write them: see [rocl.Message.Writable]. The caller should release the message
// soon, because the origin's Revoke waits for that.
//
// View fails as Pull does, and with rocl.ErrTooLarge if n is more than rocl.MaxMessage, more than
// three quarters of this context's memory (rocl.WithMemory), or, where the origin copies the bytes,
// more than an eighth of the origin's.
func (ep *Endpoint) View(ctx context.Context, h Handle, off int64, n int) (*rocl.Message, error) {
	m, err := ep.view(ctx, &h, off, int64(n))
	if err != nil {
		return nil, wrapTransfer("view", &h, off, int64(n), err)
	}
	return m, nil
}

func wrapTransfer(what string, h *Handle, off, n int64, err error) error {
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

// view is View. Its error does not name the transfer.
func (ep *Endpoint) view(ctx context.Context, h *Handle, off, n int64) (m *rocl.Message, err error) {
	err = patiently(ctx, func() error {
		m, err = ep.startView(ctx, h, off, n)()
		return err
	})
	return m, err
}

// startView sends the request of a view.
func (ep *Endpoint) startView(ctx context.Context, h *Handle, off, n int64) waitFunc {
	p, err := ep.requestView(ctx, h, off, n)
	return func() (m *rocl.Message, _ error) {
		if err == nil {
			m, err = p.Wait(ctx)
		}
		if err == nil {
			m, err = granted(m, n)
		}
		return m, err
	}
}

func (ep *Endpoint) requestView(ctx context.Context, h *Handle, off, n int64) (p rocl.Pending, err error) {
	if err := h.check(ReadOnly, off, n); err != nil {
		return p, err
	}
	if n > rocl.MaxMessage {
		return p, rocl.ErrTooLarge
	}
	q, err := encodeRequests(request{rawHandle(*h), uint64(off), uint64(n)})
	if err != nil {
		return p, err
	}
	ep.counts.transfers.Add(1)
	return ep.r.StartCallBytes(ctx, h.origin, tagRead, q)
}

// encodeRequests returns the message with requests.
func encodeRequests(requests ...request) (p []byte, err error) {
	p = make([]byte, 0, len(requests)*requestLen)
	for i := range requests {
		if p, err = codec.Append(p, &requests[i]); err != nil {
			return nil, err
		}
	}
	return p, nil
}

// ask sends requests in one message, and returns the reply. The reply lies in dst if dst is not nil
// and large enough.
func (ep *Endpoint) ask(ctx context.Context, to rocl.GID, tag uint64, dst []byte, requests ...request) (*rocl.Message, error) {
	p, err := encodeRequests(requests...)
	if err != nil {
		return nil, err
	}
	ep.counts.transfers.Add(1)
	if dst == nil {
		return ep.r.CallBytes(ctx, to, tag, p)
	}
	return ep.r.CallInto(ctx, to, tag, p, dst)
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
		done, err = ep.runTransfer(ctx, want, &move{h: h, off: off, local: &mem, n: n})
	}
	if err != nil {
		err = wrapTransfer(what, h, off, n, err)
	} else {
		done = n
	}
	if f := ep.cfg.done; f != nil {
		f(ctx, Transferred{what, h.origin, done, err})
	}
	return done, err
}

// A move is a transfer of n bytes between the memory that h names, from off, and local memory, from
// at.
type move struct {
	h     *Handle
	off   int64
	local *memory
	at    int64
	n     int64
}

// request returns the request for the n bytes from at of a transfer.
func (mv *move) request(at, n int64) request {
	return request{rawHandle(*mv.h), uint64(mv.off + at), uint64(n)}
}

// runTransfer makes a transfer. It returns how many bytes precede the first missing one.
func (ep *Endpoint) runTransfer(ctx context.Context, want Rights, mv *move) (done int64, err error) {
	ep.flight.begin()
	defer ep.flight.end()
	if one, cut := ep.oneSided(ctx, want, mv); one != nil {
		done, err = ep.each(ctx, mv, 0, ep.cfg.inPlace, cut, one)
		if !errors.Is(err, errElsewhere) {
			return done, err
		}
	} else if one := ep.inPlace(want, mv); one != nil {
		done, err = ep.each(ctx, mv, 0, min(ep.cfg.inPlace, rocl.MaxMessage-inPlaceLeast), mv.inPlacePieces, patient(one))
		if !errors.Is(err, errElsewhere) {
			return done, err
		}
	}
	if want == ReadOnly {
		return ep.pullByMessages(ctx, mv, done, tagPull)
	}
	return ep.pushByMessages(ctx, mv, done)
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

// pullByMessages copies the bytes of a transfer from the origin, from those at from. It returns
// what runTransfer returns.
func (ep *Endpoint) pullByMessages(ctx context.Context, mv *move, from int64, tag uint64) (done int64, err error) {
	size := ep.cfg.piece
	if len(mv.local.parts) == 1 || ep.sharing.route(ep.c, mv.h.origin) == shared {
		size = ep.cfg.large
	}
	return ep.each(ctx, mv, from, size, mv.segments, func(ctx context.Context, at, n int64) error {
		return ep.pullPiece(ctx, mv, at, n, tag)
	})
}

// pullPiece copies n bytes from the origin. It sends a request for each part of them that the
// origin sends at once.
func (ep *Endpoint) pullPiece(ctx context.Context, mv *move, at, n int64, tag uint64) error {
	for end := at + n; at < end; {
		err := patiently(ctx, func() error {
			n, err := ep.pullPart(ctx, mv, at, end-at, tag)
			at += n
			return err
		})
		if err != nil {
			return err
		}
	}
	return nil
}

// pullPart copies the first of n bytes from the origin, and returns how many the origin has sent.
func (ep *Endpoint) pullPart(ctx context.Context, mv *move, at, n int64, tag uint64) (int64, error) {
	dst := mv.local.slice(mv.at+at, n)
	m, err := ep.ask(ctx, mv.h.origin, tag, dst, mv.request(at, n))
	if err != nil {
		return 0, err
	}
	defer m.Release()
	switch k := int64(m.Len()); {
	case k != n && (k < partLeast || k > n):
		return 0, parseError(m.Bytes())
	case ctx.Err() != nil:
		return 0, context.Cause(ctx)
	case dst != nil:
		return k, nil
	default:
		return k, ep.copyOut(ctx, mv.local, mv.at+at, m.Bytes())
	}
}

// pushByMessages copies the bytes of a transfer to the origin, from those at from. It returns
// what runTransfer returns.
func (ep *Endpoint) pushByMessages(ctx context.Context, mv *move, from int64) (done int64, err error) {
	size := ep.cfg.piece
	switch route := ep.sharing.route(ep.c, mv.h.origin); {
	case route == shared:
		size = ep.cfg.large
	case route == remote && mv.n-from >= offerLeast:
		return ep.pushByOffer(ctx, mv, from)
	}
	return ep.each(ctx, mv, from, min(size, ep.copyMost()), mv.pieces, patient(func(ctx context.Context, at, n int64) error {
		return ep.pushPiece(ctx, mv, at, n)
	}))
}

// pushPiece copies n bytes of local memory to the origin, in the request.
func (ep *Endpoint) pushPiece(ctx context.Context, mv *move, at, n int64) error {
	b, err := ep.c.BufferWait(ctx, requestLen+int(n))
	if err != nil {
		return err
	}
	q := mv.request(at, n)
	if _, err := codec.Append(b.Bytes()[:0], &q); err != nil {
		b.Release()
		return err
	}
	ep.counts.copiedBytes.Add(uint64(n))
	mv.local.read(b.Bytes()[requestLen:], mv.at+at)
	ep.counts.transfers.Add(1)
	m, err := ep.r.Call(ctx, mv.h.origin, tagWrite, b)
	if err != nil {
		b.Release()
		return err
	}
	return done(m)
}

// done returns the error in m, the reply to a write, and releases m.
func done(m *rocl.Message) error {
	m, err := granted(m, 0)
	if err == nil {
		m.Release()
	}
	return err
}

// A Transfer is a Pull or a Push in progress.
type Transfer struct {
	ep     *Endpoint
	origin rocl.GID
	done   chan struct{}
	cancel context.CancelFunc
	n      int64
	err    error
}

// StartPull is Pull that does not wait. dst belongs to the transfer until it has ended.
func (ep *Endpoint) StartPull(ctx context.Context, h Handle, off int64, dst ...[]byte) *Transfer {
	return ep.start(ctx, &h, func(ctx context.Context) (int64, error) { return ep.Pull(ctx, h, off, dst...) })
}

// StartPush is Push that does not wait. src must not be changed until the transfer has ended, and
// is read as Push says.
func (ep *Endpoint) StartPush(ctx context.Context, h Handle, off int64, src ...[]byte) *Transfer {
	return ep.start(ctx, &h, func(ctx context.Context) (int64, error) { return ep.Push(ctx, h, off, src...) })
}

func (ep *Endpoint) start(ctx context.Context, h *Handle, do func(context.Context) (int64, error)) *Transfer {
	t := &Transfer{ep: ep, origin: h.origin, done: make(chan struct{})}
	ctx, t.cancel = context.WithCancel(ctx)
	go func() {
		defer close(t.done)
		defer t.cancel()
		t.n, t.err = do(ctx)
	}()
	return t
}

// Done returns a channel that is closed when the transfer has ended, as Pull or Push would have
// returned.
func (t *Transfer) Done() <-chan struct{} { return t.done }

// Cancel ends the transfer, without waiting. The transfer fails with context.Canceled unless it has
// ended already.
func (t *Transfer) Cancel() { t.cancel() }

// Wait waits for the end of the transfer and returns what Pull or Push returned. If ctx ends first,
// Wait returns its cause, with the reason if there is no connection (rocl.NoConnectionError), and
// the transfer goes on.
func (t *Transfer) Wait(ctx context.Context) (int64, error) {
	select {
	case <-t.done:
		return t.n, t.err
	case <-ctx.Done():
		return 0, t.ep.c.Explain(context.Cause(ctx), t.origin)
	}
}

// SPDX-License-Identifier: Apache-2.0

package rpc

import (
	"cmp"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"iter"
	"math"
	"reflect"
	"slices"
	"sync"

	"github.com/rocl-go/rocl"
	"github.com/rocl-go/rocl/bulk"
)

// The results of a stream come in batches. The first batch is the reply to the request that begins
// the stream, and each further one is the reply to a message with tagNext. So a caller that takes
// no results gets none, and each side learns of the other's death as in any call. The body of such
// a reply:
//
//	0  1  1 if the stream ends with this batch, else 0
//	1     results, each after its length in four bytes; with flagElsewhere: where they are, see elsewhere
//
// The batch that ends a stream is never elsewhere. So a request for the next batch says that the
// last one has been pulled.
const (
	streamHead = replyHead + 1
	itemHead   = 4
	aheadItems = 256       // most results that a provider makes ahead of the caller
	aheadBytes = 256 << 10 // most bytes of results that a provider makes ahead of the caller
)

// mostItem is the largest size of a result in bytes. It is a variable for tests.
var mostItem uint64 = math.MaxUint32

// RegisterStream makes a server answer calls of a name with the results that f yields, which
// [Stream] receives. f's iterator runs in the goroutine of the handler, ahead of the caller by at
// most 256 results or 256 KiB. When the caller stops or ends, f's ctx ends, and yield reports
// false. An error that the iterator yields ends the stream, after the results before it. So does a
// result of 4 GiB or more, with ErrTooLarge. The options are those of [Register]. A stream cannot
// be [Inline].
func RegisterStream[In, Out any](s *Server, name string, f func(ctx context.Context, in In) iter.Seq2[Out, error], opts ...Option) error {
	if f == nil {
		return fmt.Errorf("rpc: register %q: no function", name)
	}
	cfg := newConfig(opts)
	in, out := formatOf[In](cfg.in), formatOf[Out](cfg.out)
	m := newMethod[In, Out](s, name, FormStream, &cfg)
	m.serve = func(r *request) (*rocl.Buffer, error) {
		in := formatFor(r, in)
		arg, err := in.decode(r.args)
		if err = r.decoded(err); err != nil {
			return nil, err
		}
		return nil, serveStream(r, out, &arg, func(ctx context.Context) iter.Seq2[Out, error] { return f(ctx, arg) })
	}
	return s.register(m)
}

// serveStream puts the results that f yields. in is for interceptors.
func serveStream[Out any](r *request, out format[Out], in any, f func(context.Context) iter.Seq2[Out, error]) error {
	out = formatFor(r, out)
	return intercept(r.ctx, r.s.around, &Invocation{Info: r.ctx.info, In: in}, func(ctx context.Context) error {
		for v, err := range f(ctx) {
			if err == nil {
				err = r.put(ctx, func(p []byte) ([]byte, error) { return out.append(p, v) })
			}
			if err != nil {
				return err
			}
		}
		return nil
	})
}

// put adds a result.
func (r *request) put(ctx context.Context, encode func([]byte) ([]byte, error)) error {
	if r.nested != nil {
		return r.nested.put(ctx, encode)
	}
	return r.results.put(ctx, encode)
}

// results has the results of one stream that the caller has not received yet.
type results struct {
	r *request

	mu        sync.Mutex
	ready     []byte // encoded results
	n         int
	waiting   *rocl.Message // the request that the next batch answers; nil: the caller has not asked yet
	isEnded   bool          // no further result is added
	err       error         // error that ends the stream
	isEndSent bool          // the end was sent, or nothing can be sent any more
	taken     chan struct{} // has an element when a batch was sent
	held      *exposed      // the batch that was sent last, if it is elsewhere
}

// put adds a result. It waits while too many results are ready that the caller has not taken.
func (s *results) put(ctx context.Context, encode func([]byte) ([]byte, error)) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	for !s.isEndSent && (s.n >= aheadItems || len(s.ready) >= aheadBytes) {
		if err := s.awaitTakenLocked(ctx); err != nil {
			return err
		}
	}
	if s.isEndSent { // a batch could not be sent
		return cmp.Or(s.err, context.Canceled)
	}
	p, err := appendItem(s.ready, encode)
	if err != nil {
		return fmt.Errorf("a result of %q: %w", s.r.method.name, err)
	}
	s.ready, s.n = p, s.n+1
	s.sendLocked()
	return context.Cause(ctx)
}

// awaitTakenLocked waits until the caller has taken a batch. mu must be held, and is released
// meanwhile.
func (s *results) awaitTakenLocked(ctx context.Context) error {
	s.mu.Unlock()
	defer s.mu.Lock()
	select {
	case <-s.taken:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// finish ends the stream, and waits until the caller has taken all of it.
func (s *results) finish(ctx context.Context, err error) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.isEnded, s.err = true, cmp.Or(s.err, err)
	s.sendLocked()
	for !s.isEndSent {
		if err := s.awaitTakenLocked(ctx); err != nil {
			return err
		}
	}
	return s.err
}

// next answers a request for more results. It owns m.
func (s *results) next(m *rocl.Message) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.waiting != nil || s.isEndSent {
		err := s.err
		if s.waiting != nil || err == nil {
			err = fmt.Errorf("%w: the stream has ended, or another request waits for its results", ErrProtocol)
		}
		s.r.s.refuse(m, s.r.h.flags, err)
		return
	}
	s.dropLocked()
	s.waiting = m
	s.sendLocked()
}

// dropLocked releases the last batch, which the caller has pulled or does not want. mu must be
// held.
func (s *results) dropLocked() {
	if s.held != nil {
		s.held.Release()
		s.held = nil
	}
}

// close ends a stream that has failed with err, if its end has not been sent.
func (s *results) close(err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if m := s.waiting; m != nil {
		s.r.s.fail(ended, m, s.r.status(), s.r.h.flags, err)
		s.repliedLocked(m)
	}
	s.dropLocked()
	s.err, s.isEndSent = cmp.Or(s.err, err), true
}

// repliedLocked records that m, the waiting request, has its reply. mu must be held.
func (s *results) repliedLocked(m *rocl.Message) {
	if s.waiting = nil; m != s.r.m { // the request releases its own message
		m.Release()
	}
	select {
	case s.taken <- struct{}{}:
	default:
	}
}

// sendLocked replies to the waiting request if there is something to send. mu must be held.
func (s *results) sendLocked() {
	m := s.waiting
	if m == nil || s.isEndSent || s.n == 0 && !s.isEnded {
		return
	}
	err := s.err
	if s.n > 0 || err == nil { // results come before an error
		isElsewhere := len(s.ready) > s.r.s.overflow.limit
		isLast := s.isEnded && err == nil && !isElsewhere
		if isElsewhere {
			err = s.sendElsewhereLocked(m)
		} else {
			err = s.sendBatchLocked(m, isLast)
		}
		if err == nil {
			s.ready, s.n, s.isEndSent = s.ready[:0], 0, isLast
		}
	}
	if err != nil {
		s.r.s.fail(s.r.ctx, m, s.r.status(), s.r.h.flags, err)
		s.err, s.isEndSent = err, true
	}
	s.repliedLocked(m)
}

// sendBatchLocked sends all ready results. mu must be held.
func (s *results) sendBatchLocked(m *rocl.Message, isLast bool) error {
	r := s.r
	n := streamHead + len(s.ready)
	b, err := r.s.overflow.buffer(n)
	if errors.Is(err, errEnded) {
		b, err = r.s.overflow.lend(make([]byte, n), streamHead)
	}
	if err != nil {
		return err
	}
	p := b.Bytes()
	p[replyHead] = 0
	if isLast {
		p[replyHead] = 1
	}
	copy(p[streamHead:], s.ready)
	return s.reply(m, b, 0)
}

// reply sends the batch in b.
func (s *results) reply(m *rocl.Message, b *rocl.Buffer, flags byte) error {
	r := s.r
	putReply(b.Bytes(), statusResult, flags|r.h.flags&flagChecksum)
	err := r.s.r.Reply(r.ctx, m, b)
	if err != nil {
		b.Release()
	}
	return err
}

// sendElsewhereLocked is sendBatchLocked for results that are too large for a message. mu must be
// held.
func (s *results) sendElsewhereLocked(m *rocl.Message) error {
	r := s.r
	e, err := r.s.overflow.expose(r.ctx, &unsent{s.ready, bulk.Bytes(s.ready), nil})
	if err != nil {
		return err
	}
	b, err := e.message(r.s.c, streamHead, r.h.flags, 0)
	if err != nil {
		return err
	}
	r.method.stats.overflows.Add(1)
	s.held, s.ready = e, nil // the caller pulls it
	b.Bytes()[replyHead] = 0
	return s.reply(m, b, flagElsewhere)
}

// Stream calls a name that [RegisterStream] has registered, and yields its results as they arrive.
// It asks for the next batch while the loop body works on the current one. Leaving the loop ends
// the handler's context. An error ends the loop: an error of [Call], or the error that the
// handler's iterator yielded. An error of an interceptor after the loop was left is dropped.
func Stream[In, Out any](ctx context.Context, c *Client, provider rocl.GID, name string, in In, opts ...Option) iter.Seq2[Out, error] {
	return loop(ctx, c, provider, name, &in, opts, func(ctx context.Context, cfg *config, yield func(Out) bool) error {
		return stream(ctx, c, provider, name, in, cfg, nil, yield)
	})
}

// loop returns the loop over the results of a stream, which run yields. in is for interceptors.
func loop[Out any](ctx context.Context, c *Client, provider rocl.GID, name string, in any, opts []Option, run func(context.Context, *config, func(Out) bool) error) iter.Seq2[Out, error] {
	return func(yield func(Out, error) bool) {
		cfg := newConfig(opts)
		isLeft := false // an interceptor may go on after that: it may fail, or call next again
		err := c.around(ctx, &Invocation{Info: Info{Name: name, Provider: provider}, In: in}, &cfg, func(ctx context.Context, cfg *config) error {
			return run(ctx, cfg, func(v Out) bool {
				isLeft = isLeft || !yield(v, nil)
				return !isLeft
			})
		})
		if err != nil && !isLeft {
			var zero Out
			yield(zero, c.wrap(name, provider, err))
		}
	}
}

// stream is Stream with a function yield that reports whether it wants more. out, if it is not nil,
// has the stream of arguments.
func stream[In, Out any](ctx context.Context, c *Client, provider rocl.GID, name string, in In, cfg *config, out *outgoing, yield func(Out) bool) error {
	if s := nestedServer(ctx, provider); s != nil {
		return streamNested(ctx, c, s, name, in, cfg, out, yield)
	}
	ctx, end := context.WithCancelCause(ctx)
	defer end(nil)
	h := requestHeader{flags: flagStream | out.flags()}
	b, err := encodeRequest(ctx, c, in, cfg, &h)
	if err != nil {
		return err
	}
	defer h.release()
	s := &incoming{c: c, provider: provider, name: name, h: &h, in: argumentType[In](cfg)}
	if s.pending, err = c.batch(ctx, provider, c.names.id(name), b, out != nil); err != nil {
		return err
	}
	if out != nil {
		s.in = nil
		defer out.start(ctx, end, out.toRemote(c, provider, name, &h))()
	}
	defer s.leave(ctx, func() { end(nil) }) // before the iterator of the arguments ends
	for {
		got, err := s.receive(ctx)
		if err != nil {
			return err
		}
		wantsMore, err := eachResult(got.bytes, formatOf[Out](cfg.out), yield)
		got.release()
		if err != nil || !wantsMore || s.isEndReceived {
			return err
		}
	}
}

// An incoming is a stream at its caller.
type incoming struct {
	c             *Client
	provider      rocl.GID
	name          string
	h             *requestHeader
	in            reflect.Type // see argumentType
	pending       chan batch   // gets the next batch; nil: none was asked for
	hasBegun      bool         // a batch has come
	isEndReceived bool         // the provider has ended the stream
}

// receive waits for the next batch of results, and asks for the one after it.
func (s *incoming) receive(ctx context.Context) (*pulled, error) {
	a := <-s.pending
	if s.pending = nil; a.err != nil {
		return nil, a.err
	}
	s.h.release()
	s.hasBegun = true
	body, err := s.parse(a.m)
	if err != nil {
		a.m.Release()
		return nil, err
	}
	isLast := body[0] != 0
	got, err := s.c.batchOf(ctx, s.provider, a.m, body, s.h.flags)
	if err != nil {
		return nil, err
	}
	if !isLast {
		if s.pending, err = s.more(ctx, got); err != nil {
			got.release()
			return nil, err
		}
	}
	s.isEndReceived = isLast
	return got, nil
}

// parse returns the body of the batch in m, or the error that ends the stream.
func (s *incoming) parse(m *rocl.Message) ([]byte, error) {
	status, body, err := parseReply(m.Bytes(), s.h.flags)
	switch {
	case err != nil:
		return nil, err
	case status != statusResult:
		s.isEndReceived = true
		return nil, withType(s.c.remote(s.name, s.provider, status, body), s.in)
	case len(body) < 1:
		return nil, fmt.Errorf("%w: the batch has no head", ErrProtocol)
	}
	return body, nil
}

// more requests the next results. got has the present ones. If no memory is free, more moves them
// out of it: the next ones may need it, and so may the loop body.
func (s *incoming) more(ctx context.Context, got *pulled) (chan batch, error) {
	b, err := s.c.c.Buffer(controlLen)
	if errors.Is(err, rocl.ErrLimit) {
		p := slices.Clone(got.bytes)
		got.release()
		got.bytes, got.release = p, func() {}
		b, err = lend(s.c.c, make([]byte, controlLen)), nil
	}
	if err != nil {
		return nil, err
	}
	putControl(b.Bytes(), s.h.number, s.h.flags)
	return s.c.batch(ctx, s.provider, tagNext, b, false)
}

// leave ends the stream for the caller. It calls end, which ends ctx.
func (s *incoming) leave(ctx context.Context, end func()) {
	why := byte(whyCancelled)
	if ctx.Err() == context.DeadlineExceeded {
		why = whyDeadline
	}
	end()
	if s.pending != nil {
		if a := <-s.pending; a.m != nil {
			a.m.Release()
		}
	}
	if s.hasBegun && !s.isEndReceived { // otherwise the end of its first call tells the provider
		s.c.tell(s.provider, tagCancel, s.h.number, why)
	}
}

// A batch is a reply with results.
type batch struct {
	m   *rocl.Message
	err error
}

// batch makes a call from a goroutine of its own. If the request must be accepted when batch
// returns, batch waits for that, and fails if it is not.
func (c *Client) batch(ctx context.Context, provider rocl.GID, tag uint64, b *rocl.Buffer, isFirst bool) (chan batch, error) {
	ch := make(chan batch, 1)
	start := func() (rocl.Pending, error) {
		p, err := c.r.StartCall(ctx, provider, tag, b)
		if err != nil {
			b.Release()
			err = notSent(err, provider)
		}
		return p, err
	}
	wait := func(p rocl.Pending, err error) {
		var m *rocl.Message
		if err == nil {
			if m, err = p.Wait(ctx); err != nil {
				err = sendError{err, provider}
			}
		}
		ch <- batch{m, err}
	}
	if !isFirst {
		go func() { wait(start()) }()
		return ch, nil
	}
	p, err := start()
	if err != nil {
		return nil, err
	}
	go wait(p, nil)
	return ch, nil
}

// batchOf returns the results that m has, or that are in memory of the provider. body is the body
// of m with the head. It owns m.
func (c *Client) batchOf(ctx context.Context, provider rocl.GID, m *rocl.Message, body []byte, flags byte) (*pulled, error) {
	if m.Bytes()[1]&flagElsewhere == 0 {
		return &pulled{bytes: body[1:], release: m.Release}, nil
	}
	defer m.Release()
	return c.overflow.pull(ctx, provider, body[1:], flags)
}

// eachResult yields the results of a batch.
func eachResult[Out any](p []byte, f format[Out], yield func(Out) bool) (wantsMore bool, err error) {
	for len(p) > 0 {
		var item []byte
		if item, p, err = cutItem(p); err != nil {
			return false, err
		}
		v, err := f.decode(item)
		if err != nil {
			return false, fmt.Errorf("a result: %w", err)
		}
		if !yield(v) {
			return false, nil
		}
	}
	return true, nil
}

// cutItem returns the first item of a batch, and the bytes behind it.
func cutItem(p []byte) (item, rest []byte, err error) {
	if len(p) < itemHead || uint64(len(p)-itemHead) < uint64(binary.LittleEndian.Uint32(p)) {
		return nil, nil, fmt.Errorf("%w: the batch is truncated", ErrProtocol)
	}
	n := itemHead + int(binary.LittleEndian.Uint32(p))
	return p[itemHead:n], p[n:], nil
}

// appendItem appends an item that encode appends to a batch.
func appendItem(batch []byte, encode func([]byte) ([]byte, error)) ([]byte, error) {
	at := len(batch)
	p, err := encode(append(batch, make([]byte, itemHead)...))
	if err != nil {
		return batch, err
	}
	n := len(p) - at - itemHead
	if uint64(n) > mostItem {
		return batch, fmt.Errorf("%w: %d bytes, at most %d", ErrTooLarge, n, mostItem)
	}
	binary.LittleEndian.PutUint32(p[at:], uint32(n))
	return p, nil
}

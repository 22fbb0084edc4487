// SPDX-License-Identifier: Apache-2.0

package rpc

import (
	"context"
	"errors"
	"fmt"
	"io"
	"iter"
	"sync"

	"github.com/rocl-go/rocl"
	"github.com/rocl-go/rocl/bulk"
)

// The arguments of a stream come in batches, each a call with tagItems. The server replies to it
// when the handler begins to read the batch: that is the caller's credit for the next one. So a
// handler that reads nothing gets one batch, and each side learns of the other's death as in any
// call. The body of such a call, behind the head of a request with the number of the stream:
//
//	0  1  1 if the stream ends with this batch, else 0
//	1     arguments, each after its length in four bytes; with flagElsewhere: where they are, see elsewhere
//
// The request that begins the stream has no arguments. The batches travel behind it, because a
// caller sends them after the request was accepted.

// items has the arguments of one stream that the handler has not read yet.
type items struct {
	r     *request
	came  chan struct{}   // has an element when next has come
	local chan localBatch // batches of a nested call, in place of next

	mu       sync.Mutex
	next     *rocl.Message // the batch that the handler has not begun to read; nil: none
	isClosed bool          // the handler has returned

	// Used by the handler's goroutine only.
	batch   []byte // what is left of the batch that the handler reads
	release func() // releases the memory of that batch; nil: there is none
	isLast  bool   // no batch follows
}

// A localBatch is a batch of a nested call. The caller goes on when the handler has taken it.
type localBatch struct {
	p      []byte
	isLast bool
}

// items takes a batch. It owns m. The receiving goroutine calls it.
func (s *Server) items(m *rocl.Message) {
	h, body, err := parseRequest(m.Bytes())
	if err == nil && len(body) < 1 {
		err = fmt.Errorf("%w: the batch has no head", ErrProtocol)
	}
	if err == nil {
		switch r := s.callers.withItems(m.From(), h.number); {
		case r != nil:
			err = r.items.put(m)
		case s.life.Err() == nil && s.callers.isLost(m.From(), h.number):
			err = errLost
		default:
			err = errStreamEnded
		}
	}
	if err != nil {
		s.refuse(m, flagsOf(m.Bytes()), err)
	}
}

// withItems returns the request of a stream of arguments, or nil.
func (c *callers) withItems(from rocl.GID, number uint64) *request {
	c.mu.Lock()
	defer c.mu.Unlock()
	of := c.all[from]
	if of == nil || of.requests[number] == nil || of.requests[number].items == nil {
		return nil
	}
	return of.requests[number]
}

// put stores a batch. If it fails, it does not own m.
func (a *items) put(m *rocl.Message) error {
	a.mu.Lock()
	defer a.mu.Unlock()
	switch {
	case a.isClosed:
		return errStreamEnded
	case a.next != nil:
		return fmt.Errorf("%w: a batch without credit", ErrProtocol)
	}
	a.next = m
	select {
	case a.came <- struct{}{}:
	default:
	}
	return nil
}

// give gives the handler a batch of a nested call, and waits until it is taken.
func (a *items) give(ctx context.Context, p []byte, isLast bool) error {
	select {
	case a.local <- localBatch{append([]byte(nil), p...), isLast}:
		return nil
	case <-a.r.ctx.Done():
	case <-ctx.Done():
	}
	return errStreamEnded
}

// read returns the next encoded argument, or io.EOF after the last one. The bytes are valid until
// the next read.
func (a *items) read(ctx context.Context) (item []byte, err error) {
	for len(a.batch) == 0 {
		a.releaseBatch()
		if a.isLast {
			return nil, io.EOF
		}
		if err := a.take(ctx); err != nil {
			return nil, err
		}
	}
	item, a.batch, err = cutItem(a.batch)
	return item, err
}

// take waits for the next batch, and gives the caller credit for one more.
func (a *items) take(ctx context.Context) error {
	var m *rocl.Message
	for m == nil {
		select {
		case b := <-a.local:
			a.batch, a.isLast = b.p, b.isLast
			return nil
		case <-a.came:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
		a.mu.Lock()
		if a.isClosed {
			a.mu.Unlock()
			return errStreamEnded
		}
		m, a.next = a.next, nil
		a.mu.Unlock()
	}
	s := a.r.s
	h, body, err := parseRequest(m.Bytes())
	if err == nil && h.flags&flagElsewhere != 0 {
		var got *pulled
		if got, err = s.overflow.pull(ctx, m.From(), body[1:], h.flags); err == nil {
			a.r.method.stats.overflows.Add(1)
			a.batch, a.release = got.bytes, got.release
		}
	} else if err == nil {
		a.batch, a.release = body[1:], m.Release
	}
	if err != nil {
		s.refuse(m, flagsOf(m.Bytes()), err)
		return fmt.Errorf("the arguments of %q: %w", a.r.method.name, err)
	}
	a.isLast = body[0] != 0
	b := lend(s.c, make([]byte, replyHead))
	putReply(b.Bytes(), statusResult, h.flags&flagChecksum)
	if err := s.r.Reply(ctx, m, b); err != nil {
		b.Release() // the caller has ended, and with it ctx
	}
	if h.flags&flagElsewhere != 0 {
		m.Release()
	}
	return nil
}

func (a *items) releaseBatch() {
	if a.release != nil {
		a.release()
		a.release = nil
	}
}

// close ends the stream when its handler has returned, or does not run.
func (a *items) close() {
	a.mu.Lock()
	a.isClosed = true
	m := a.next
	a.next = nil
	a.mu.Unlock()
	if m != nil {
		a.r.s.refuse(m, flagsOf(m.Bytes()), errStreamEnded)
	}
	a.batch = nil
	a.releaseBatch()
}

var (
	errStreamEnded = fmt.Errorf("%w: the stream has ended", context.Canceled)
	errLost        = fmt.Errorf("the server has given up its caller: %w", rocl.ErrUnreachable)
)

// argumentsOf returns the iterator that a handler gets.
func argumentsOf[In any](r *request, ctx context.Context, in format[In]) iter.Seq2[In, error] {
	return func(yield func(In, error) bool) {
		for {
			var v In
			p, err := r.items.read(ctx)
			if err == io.EOF {
				return
			}
			if err == nil {
				if v, err = in.decode(p); err != nil {
					err = fmt.Errorf("an argument of %q: %w", r.method.name, err)
				}
			}
			if !yield(v, err) || err != nil {
				return
			}
		}
	}
}

// RegisterClientStream makes a server answer calls of a name with the result that f makes of a
// stream of arguments, which [ClientStream] sends. The iterator in belongs to f until f returns. It
// yields an error, and ends, if ctx ends or an argument does not fit its type. The caller is ahead
// of f by at most three batches of 256 arguments or 256 KiB: one that f reads, one that waits here,
// and one at the caller. f may return before it has read all: then the caller's iterator ends too.
// A caller that ends, cancels, or whose iterator fails, ends ctx. The options are those of
// [Register]. A stream cannot be [Inline].
func RegisterClientStream[In, Out any](s *Server, name string, f func(ctx context.Context, in iter.Seq2[In, error]) (Out, error), opts ...Option) error {
	if f == nil {
		return fmt.Errorf("rpc: register %q: no function", name)
	}
	cfg := newConfig(opts)
	in, out := formatOf[In](cfg.in), formatOf[Out](cfg.out)
	m := newMethod[In, Out](s, name, FormClientStream, &cfg)
	m.serve = func(r *request) (*rocl.Buffer, error) {
		r.hasRun = true
		var result Out
		err := intercept(r.ctx, s.around, &Invocation{Info: r.ctx.info, Out: &result}, func(ctx context.Context) (err error) {
			result, err = f(ctx, argumentsOf(r, ctx, formatFor(r, in)))
			return err
		})
		if err != nil {
			return nil, err
		}
		return replyWith(r, formatFor(r, out), result)
	}
	return s.register(m)
}

// RegisterTwoWay makes a server answer calls of a name with a stream of results, made of a stream
// of arguments: the two-way stream of [TwoWay]. Each direction is as [RegisterClientStream] and
// [RegisterStream] say. The stream ends when f's iterator ends.
func RegisterTwoWay[In, Out any](s *Server, name string, f func(ctx context.Context, in iter.Seq2[In, error]) iter.Seq2[Out, error], opts ...Option) error {
	if f == nil {
		return fmt.Errorf("rpc: register %q: no function", name)
	}
	cfg := newConfig(opts)
	in, out := formatOf[In](cfg.in), formatOf[Out](cfg.out)
	m := newMethod[In, Out](s, name, FormTwoWay, &cfg)
	m.serve = func(r *request) (*rocl.Buffer, error) {
		r.hasRun = true
		return nil, serveStream(r, out, nil, func(ctx context.Context) iter.Seq2[Out, error] {
			return f(ctx, argumentsOf(r, ctx, formatFor(r, in)))
		})
	}
	return s.register(m)
}

// ClientStream calls a name that [RegisterClientStream] has registered, sends it what the iterator
// of in yields, and returns the result.
//
// The iterator runs in a goroutine of its own. It waits in yield while the handler is too far
// behind. yield reports false, and the ctx of in ends, as soon as no more arguments are wanted:
// because the handler has returned, or the call has ended. If the iterator waits for anything else,
// it must watch that ctx, because ClientStream returns after the iterator. An error that it yields,
// or its panic, ends the call with that error, and the handler's context with context.Canceled.
//
// The errors are those of [Call].
func ClientStream[In, Out any](ctx context.Context, c *Client, provider rocl.GID, name string, in func(ctx context.Context) iter.Seq2[In, error], opts ...Option) (result Out, err error) {
	cfg := newConfig(opts)
	err = c.around(ctx, &Invocation{Info: Info{Name: name, Provider: provider}, Out: &result}, &cfg, func(ctx context.Context, cfg *config) error {
		out := newOutgoing(in, cfg)
		r, err := clientStream[Out](ctx, c, provider, name, out.config, out)
		result = r
		return err
	})
	return result, c.wrap(name, provider, err)
}

// clientStream makes the call of ClientStream.
func clientStream[Out any](ctx context.Context, c *Client, provider rocl.GID, name string, cfg *config, out *outgoing) (none Out, err error) {
	ctx, end := context.WithCancelCause(ctx)
	defer end(nil)
	if s := nestedServer(ctx, provider); s != nil {
		n, err := nest(ctx, c, s, name, []byte(nil), cfg, out.flags())
		if err != nil {
			return none, err
		}
		defer n.r.stop(context.Canceled)
		n.r.items = &items{r: n.r, local: make(chan localBatch)}
		defer out.start(ctx, end, n.r.items.give)()
		go n.r.run()
		return nestedResult[Out](n, name, n.wait(), cfg.out, nil)
	}
	h := requestHeader{flags: out.flags()}
	b, err := encodeRequest(ctx, c, []byte(nil), cfg, &h)
	if err != nil {
		return none, err
	}
	p, err := c.r.StartCall(ctx, provider, c.names.id(name), b)
	if err != nil {
		b.Release()
		return none, notSent(err, provider)
	}
	defer out.start(ctx, end, out.toRemote(c, provider, name, &h))()
	m, err := p.Wait(ctx)
	if err != nil {
		return none, sendError{err, provider}
	}
	return result[Out](ctx, c, provider, name, m, h.number, h.flags, cfg.out, nil)
}

// TwoWay calls a name that [RegisterTwoWay] has registered, sends it what the iterator of in
// yields, and yields its results as they arrive. The iterator of in is that of [ClientStream], and
// the loop that of [Stream]: leaving it ends the iterator and the handler's context. The loop ends
// when the handler's iterator has ended, or with an error.
func TwoWay[In, Out any](ctx context.Context, c *Client, provider rocl.GID, name string, in func(ctx context.Context) iter.Seq2[In, error], opts ...Option) iter.Seq2[Out, error] {
	return loop(ctx, c, provider, name, nil, opts, func(ctx context.Context, cfg *config, yield func(Out) bool) error {
		out := newOutgoing(in, cfg)
		return stream(ctx, c, provider, name, []byte(nil), out.config, out, yield)
	})
}

// An outgoing is the stream of arguments at its caller. One goroutine runs the program's iterator,
// and another one sends.
type outgoing struct {
	config *config // of the request, which has no arguments itself
	// run runs the iterator, with a function that adds an encoded argument, and reports false if no
	// more are wanted.
	run func(ctx context.Context, put func(encode func([]byte) ([]byte, error)) (bool, error)) error

	came  chan struct{} // has an element when something is to be sent
	taken chan struct{} // has an element when ready was taken

	mu      sync.Mutex
	ready   []byte // encoded arguments
	n       int
	isEnded bool // the iterator has ended
}

// newOutgoing returns the stream of what the iterator of in yields.
func newOutgoing[In any](in func(context.Context) iter.Seq2[In, error], cfg *config) *outgoing {
	own := *cfg
	own.in = nil
	o := &outgoing{config: &own, came: make(chan struct{}, 1), taken: make(chan struct{}, 1)}
	f := formatOf[In](cfg.in)
	o.run = func(ctx context.Context, put func(func([]byte) ([]byte, error)) (bool, error)) error {
		if in == nil {
			return nil
		}
		for v, err := range in(ctx) {
			wantsMore := false
			if err == nil {
				wantsMore, err = put(func(p []byte) ([]byte, error) { return f.append(p, v) })
			}
			if err != nil || !wantsMore {
				return err
			}
		}
		return nil
	}
	return o
}

// flags returns the flags of the request. o may be nil: the call has no stream of arguments.
func (o *outgoing) flags() byte {
	if o == nil {
		return 0
	}
	return flagItems
}

// start begins to send, by send, which returns when there is credit for another batch. It fails
// with errStreamEnded if no more is wanted. Another error is the end of the call: fail ends ctx
// with it. stop ends the stream, and waits for its goroutines.
func (o *outgoing) start(ctx context.Context, fail context.CancelCauseFunc, send func(ctx context.Context, p []byte, isLast bool) error) (stop func()) {
	ctx, end := context.WithCancel(ctx)
	var running sync.WaitGroup
	running.Go(func() {
		if err := o.produce(ctx); err != nil {
			fail(err)
		}
	})
	running.Go(func() {
		defer end() // ends the iterator
		if err := o.sendAll(ctx, send); err != nil && !errors.Is(err, errStreamEnded) {
			fail(err)
		}
	})
	return func() {
		end()
		running.Wait()
	}
}

// produce runs the iterator.
func (o *outgoing) produce(ctx context.Context) (err error) {
	hasReturned := false
	defer func() {
		if !hasReturned {
			err = fmt.Errorf("%w: the iterator of the arguments: %v", ErrPanic, recover())
		}
	}()
	err = o.run(ctx, func(encode func([]byte) ([]byte, error)) (bool, error) { return o.put(ctx, encode) })
	hasReturned = true
	if err != nil {
		return fmt.Errorf("an argument: %w", err)
	}
	o.mu.Lock()
	o.isEnded = true
	o.mu.Unlock()
	wake(o.came)
	return nil
}

// put adds an argument. It waits while too many are ready.
func (o *outgoing) put(ctx context.Context, encode func([]byte) ([]byte, error)) (wantsMore bool, err error) {
	for {
		if ctx.Err() != nil {
			return false, nil
		}
		o.mu.Lock()
		if o.n < aheadItems && len(o.ready) < aheadBytes {
			break
		}
		o.mu.Unlock()
		select {
		case <-o.taken:
		case <-ctx.Done():
		}
	}
	defer o.mu.Unlock()
	if o.ready, err = appendItem(o.ready, encode); err != nil {
		return false, err
	}
	o.n++
	wake(o.came)
	return true, nil
}

func wake(ch chan struct{}) {
	select {
	case ch <- struct{}{}:
	default:
	}
}

// sendAll sends what is ready until the last batch is sent.
func (o *outgoing) sendAll(ctx context.Context, send func(ctx context.Context, p []byte, isLast bool) error) error {
	var sent []byte // memory of the batch that was sent last
	for {
		select {
		case <-o.came:
		case <-ctx.Done():
			return nil
		}
		o.mu.Lock()
		p, isLast, isEmpty := o.ready, o.isEnded, o.n == 0
		o.ready, o.n = sent[:0], 0
		o.mu.Unlock()
		wake(o.taken)
		if sent = p; isEmpty && !isLast {
			continue
		}
		if err := send(ctx, p, isLast); err != nil || isLast {
			return err
		}
	}
}

// toRemote returns a function that sends batches to a provider, for start. h is the header of the
// request.
func (o *outgoing) toRemote(c *Client, provider rocl.GID, name string, h *requestHeader) func(context.Context, []byte, bool) error {
	return func(ctx context.Context, p []byte, isLast bool) error {
		own := requestHeader{flags: h.flags & flagChecksum, number: h.number}
		b, release, err := c.itemsMessage(ctx, &own, p, isLast)
		if err != nil {
			return fmt.Errorf("the arguments: %w", err)
		}
		defer release()
		pending, err := c.r.StartCall(ctx, provider, tagItems, b)
		if err != nil {
			b.Release()
			return errStreamEnded // the call has the reason too
		}
		m, err := pending.Wait(ctx)
		if err != nil {
			return errStreamEnded
		}
		defer m.Release()
		status, body, err := parseReply(m.Bytes(), own.flags)
		if err == nil && status != statusResult {
			if err = c.remote(name, provider, status, body); errors.Is(err, context.Canceled) {
				err = errStreamEnded // the handler has returned
			}
		}
		return err
	}
}

// itemsMessage returns the message with a batch, and a function that releases its memory after the
// reply.
func (c *Client) itemsMessage(ctx context.Context, h *requestHeader, p []byte, isLast bool) (b *rocl.Buffer, release func(), err error) {
	release = func() {}
	head := h.size() + 1
	if len(p) > c.overflow.limit {
		e, err := c.overflow.expose(ctx, &unsent{p, bulk.Bytes(p), nil})
		if err != nil {
			return nil, release, err
		}
		if b, err = e.message(c.c, head, h.flags, 0); err != nil {
			return nil, release, err
		}
		h.flags |= flagElsewhere
		release = e.Release
	} else {
		b, err = c.overflow.buffer(head + len(p))
		if errors.Is(err, errEnded) {
			b, err = c.overflow.lend(make([]byte, head+len(p)), head)
		}
		if err != nil {
			return nil, release, err
		}
		copy(b.Bytes()[head:], p)
	}
	b.Bytes()[head-1] = 0
	if isLast {
		b.Bytes()[head-1] = 1
	}
	h.put(b.Bytes())
	return b, release, nil
}

// SPDX-License-Identifier: Apache-2.0

package rpc

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math"
	"slices"
	"sync/atomic"
	"time"

	"github.com/cespare/xxhash/v2"

	"github.com/rocl-go/rocl"
	"github.com/rocl-go/rocl/bulk"
	"github.com/rocl-go/rocl/codec"
)

// DefaultOverflow is the size in bytes up to which arguments and results travel in messages, unless
// [WithOverflow] or [CallOverflow] sets another one.
const DefaultOverflow = 1 << 20

// WithOverflow sets the encoded size in bytes up to which a result travels in the reply. A larger
// result stays in the server's memory until the caller has pulled it by package bulk, and Close of
// the server waits for that. The default is [DefaultOverflow]. With a negative limit all results
// travel in replies, and a result that is too large for a message fails with ErrTooLarge.
func WithOverflow(limit int) ServerOption { return func(s *Server) { s.overflow.setLimit(limit) } }

// CallOverflow is [WithOverflow] for the arguments of a client's calls. Larger arguments stay in
// the client's memory until the handler's turn has come. Then the server pulls them. Until then
// they use no memory of the server.
func CallOverflow(limit int) ClientOption { return func(c *Client) { c.overflow.setLimit(limit) } }

// An overflow moves arguments and results that are too large for messages, or larger than the
// limit.
type overflow struct {
	c       *rocl.Context
	limit   int // most bytes that travel in a message; unlimited: any number
	inPool  int // most bytes of a message in the context's memory
	most    int // most bytes that are pulled into a buffer: rocl.MaxMessage, except in tests
	numbers atomic.Uint64
	log     *slog.Logger                  // nil: nothing is logged
	opening chan struct{}                 // has an element while no goroutine opens or closes the endpoint
	ep      atomic.Pointer[bulk.Endpoint] // nil until the first value is moved

	isClosed bool // guarded by opening
}

// unlimited is the limit of an overflow that is disabled.
const unlimited = math.MaxInt

func (o *overflow) init(c *rocl.Context) {
	o.c, o.limit, o.most, o.opening = c, DefaultOverflow, rocl.MaxMessage, make(chan struct{}, 1)
	o.opening <- struct{}{}
	o.inPool = math.MaxInt
	if c == nil {
		return // Register refuses it
	}
	if most := c.Stats().Buffers.Limit; most > 0 {
		o.inPool = int(min(most/16, math.MaxInt))
	}
}

// buffer returns a buffer of the context's memory for a message of n bytes. It does not wait. It
// fails with errEnded if the message is to be in plain memory instead. That is so if no memory is
// free: what uses it may be a request or a batch that is released only after the message. It is
// also so if the message is large beside the limit of the memory: two contexts whose memory is full
// of large messages to each other would let none of them in.
func (o *overflow) buffer(n int) (*rocl.Buffer, error) {
	if n > o.inPool && n <= rocl.MaxMessage {
		return nil, errEnded
	}
	return o.c.BufferWait(ended, n)
}

// lend returns the message p, which is in plain memory. It fails with rocl.ErrTooLarge if the value
// after head is too large for a message.
func (o *overflow) lend(p []byte, head int) (*rocl.Buffer, error) {
	if len(p)-head > o.limit || len(p) > rocl.MaxMessage {
		return nil, fmt.Errorf("%w: %d bytes", rocl.ErrTooLarge, len(p)-head)
	}
	return lend(o.c, p), nil
}

// lend returns p as a buffer, which needs none of the context's memory.
func lend(c *rocl.Context, p []byte) *rocl.Buffer { return c.Lend(p, func() {}) }

func (o *overflow) setLimit(limit int) {
	if o.limit = limit; limit < 0 {
		o.limit = unlimited
	}
}

// endpoint returns the endpoint that moves the data. It opens the endpoint on first use.
func (o *overflow) endpoint(ctx context.Context) (*bulk.Endpoint, error) {
	if ep := o.ep.Load(); ep != nil {
		return ep, nil
	}
	select {
	case <-o.opening:
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
	defer func() { o.opening <- struct{}{} }()
	if o.isClosed {
		return nil, rocl.ErrClosed
	}
	if ep := o.ep.Load(); ep != nil {
		return ep, nil
	}
	ep, err := bulk.Open(ctx, o.c, bulk.WithLogger(o.log))
	if err == nil {
		o.ep.Store(ep)
	}
	return ep, err
}

// transfersMost is how long Close waits for transfers in progress.
const transfersMost = 5 * time.Second

// close ends the endpoint.
func (o *overflow) close() error {
	ctx, end := context.WithTimeoutCause(context.Background(), transfersMost, fmt.Errorf("transfers go on after %v", transfersMost))
	defer end()
	<-o.opening
	defer func() { o.opening <- struct{}{} }()
	o.isClosed = true
	if ep := o.ep.Load(); ep != nil {
		return ep.Close(ctx)
	}
	return nil
}

// An unsent is an encoded value that does not travel in a message. expose owns it.
type unsent struct {
	bytes   []byte
	segment bulk.Segment
	buffer  *rocl.Buffer // with the bytes; nil: they are in plain memory
}

// unsentOf returns a value that is too large for a message. If err is nil, v is in b after head
// bytes. Otherwise err is the error of encoding v into a buffer; if it is ErrTooLarge, v is encoded
// into plain memory. unsentOf owns b. It does not wait.
func unsentOf[T any](o *overflow, f format[T], head int, v T, b *rocl.Buffer, err error) (*unsent, error) {
	if err == nil {
		defer b.Release()
		part := b.Slice(head, b.Len()-head)
		return &unsent{part.Bytes(), bulk.Buffer(part), part}, nil
	}
	if !errors.Is(err, rocl.ErrTooLarge) || o.limit == unlimited {
		return nil, err
	}
	p, err := f.append(nil, v)
	return &unsent{p, bulk.Bytes(p), nil}, err
}

// exposed is memory with a value that the other side pulls.
type exposed struct {
	*bulk.Region
	bytes []byte
}

// expose exposes a value as memory.
func (o *overflow) expose(ctx context.Context, v *unsent) (*exposed, error) {
	if v.buffer != nil {
		defer v.buffer.Release() // the region has a reference of its own
	}
	ep, err := o.endpoint(ctx)
	if err != nil {
		return nil, err
	}
	r, err := ep.Expose(bulk.ReadOnly, v.segment)
	if err != nil {
		return nil, err
	}
	return &exposed{r, v.bytes}, nil
}

// An elsewhere is sent in place of a value that stays in memory of the sender.
type elsewhere struct {
	Memory bulk.Handle
	Sum    uint64 // xxhash of the bytes if the flags ask for it; else 0
	Number uint64 // in a reply: number of the call, for the receipt
}

// message returns a buffer with the elsewhere of the value after head free bytes. It needs no
// memory of the context, which may be full of the value. If it fails, it releases the memory.
func (e *exposed) message(c *rocl.Context, head int, flags byte, number uint64) (*rocl.Buffer, error) {
	at := elsewhere{Memory: e.Handle(), Number: number}
	if flags&flagChecksum != 0 {
		at.Sum = xxhash.Sum64(e.bytes)
	}
	p, err := codec.Append(make([]byte, head), &at)
	if err != nil {
		e.Release()
		return nil, err
	}
	return lend(c, p), nil
}

// pulled is a value that was pulled from elsewhere.
type pulled struct {
	bytes   []byte
	release func()
	number  uint64
}

// pull pulls a value. p is the elsewhere of the value, from another resource.
func (o *overflow) pull(ctx context.Context, from rocl.GID, p []byte, flags byte) (*pulled, error) {
	var at elsewhere
	if err := codec.Decode(p, &at); err != nil {
		return nil, fmt.Errorf("%w: %w", ErrProtocol, err)
	}
	got := &pulled{number: at.Number, release: func() {}}
	if at.Memory.Origin().Context() != from.Context() || at.Memory.Len() < 0 {
		return got, fmt.Errorf("%w: %v, which is not memory of %v", ErrProtocol, at.Memory, from)
	}
	ep, err := o.endpoint(ctx)
	if err == nil {
		err = o.pullInto(ctx, got, ep, at.Memory)
	}
	if err == nil && flags&flagChecksum != 0 && xxhash.Sum64(got.bytes) != at.Sum {
		got.release()
		err = fmt.Errorf("%w: of %d bytes that were pulled", ErrChecksum, len(got.bytes))
	}
	return got, err
}

// pullInto pulls the memory of h.
func (o *overflow) pullInto(ctx context.Context, got *pulled, ep *bulk.Endpoint, h bulk.Handle) error {
	n := h.Len()
	switch {
	case n > int64(o.most):
		return o.pullGrowing(ctx, got, ep, h)
	case ep.InPlace(h):
		m, err := ep.View(ctx, h, 0, int(n))
		if err == nil {
			got.bytes, got.release = m.Bytes(), m.Release
		}
		return err
	}
	b, err := o.c.BufferWait(ctx, int(n))
	if err != nil {
		return err
	}
	if _, err := ep.Pull(ctx, h, 0, b.Bytes()); err != nil {
		b.Release()
		return err
	}
	got.bytes, got.release = b.Bytes(), b.Release
	return nil
}

// pullGrowing pulls a value that is too large for a buffer. The sender may claim any length, so
// memory is allocated step by step, in proportion to what has arrived.
func (o *overflow) pullGrowing(ctx context.Context, got *pulled, ep *bulk.Endpoint, h bulk.Handle) error {
	if h.Len() > math.MaxInt {
		return ErrTooLarge
	}
	for p := []byte(nil); ; {
		left := int(h.Len()) - len(p)
		if left == 0 {
			got.bytes = p
			return nil
		}
		p = slices.Grow(p, min(left, max(len(p), o.most/64)))
		next := p[len(p) : len(p)+min(left, cap(p)-len(p))]
		if _, err := ep.Pull(ctx, h, int64(len(p)), next); err != nil {
			return err
		}
		p = p[:len(p)+len(next)]
	}
}

// argumentsElsewhere exposes the arguments, and returns the message with their elsewhere.
func (c *Client) argumentsElsewhere(ctx context.Context, v *unsent, isOneWay bool, h *requestHeader) (*rocl.Buffer, error) {
	e, err := c.overflow.expose(ctx, v)
	if err != nil {
		return nil, err
	}
	h.flags |= flagElsewhere
	if isOneWay {
		h.flags |= flagTaken
	}
	h.region = e.Region
	return e.message(c.c, h.size(), h.flags, 0)
}

// pulledResult pulls and decodes a result that is elsewhere. number is that of the request.
func pulledResult[Out any](ctx context.Context, c *Client, provider rocl.GID, number uint64, body []byte, flags byte, f format[Out]) (out Out, err error) {
	got, err := c.overflow.pull(ctx, provider, body, flags)
	if number == 0 && got != nil {
		number = got.number
	}
	c.gotResult(provider, number)
	if err != nil {
		return out, err
	}
	defer got.release()
	return f.decode(got.bytes)
}

// gotResult sends a provider the receipt for the result of a call, which the caller has or cannot
// have. So the provider need not hold it any more. number is 0 if the caller does not know the
// number of the call.
func (c *Client) gotResult(provider rocl.GID, number uint64) {
	if number != 0 {
		c.tell(provider, tagReceipt, number, 0)
	}
}

// sendElsewhere sends the request of a one-way call whose arguments are elsewhere. It waits until
// the provider has pulled them.
func (c *Client) sendElsewhere(ctx context.Context, provider rocl.GID, name string, b *rocl.Buffer, h *requestHeader) error {
	defer h.release()
	m, err := c.r.Call(ctx, provider, c.names.id(name), b)
	if err != nil {
		b.Release()
		return sendError{err, provider}
	}
	defer m.Release()
	status, body, err := parseReply(m.Bytes(), h.flags)
	if err == nil && status != statusResult {
		err = c.remote(name, provider, status, body)
	}
	return err
}

// isElsewhere reports whether the arguments still have to be pulled.
func (r *request) isElsewhere() bool { return r.h.flags&flagElsewhere != 0 && r.pulled == nil }

// pull pulls the arguments.
func (r *request) pull() error {
	r.method.stats.overflows.Add(1)
	got, err := r.s.overflow.pull(r.ctx, r.m.From(), r.args, r.h.flags)
	if err != nil {
		return fmt.Errorf("the arguments of %q: %w", r.method.name, err)
	}
	r.pulled, r.args = got, got.bytes
	if r.h.flags&flagTaken != 0 {
		r.taken()
	}
	return nil
}

// pullAndStart pulls the arguments of a request with an Inline handler, and starts it.
func (r *request) pullAndStart() {
	err := r.pull()
	if err == nil {
		err = context.Cause(r.ctx)
	}
	if err != nil {
		r.refuseUntil(r.ctx, err)
		r.end()
		return
	}
	r.start()
}

// taken replies that the arguments have been pulled. A caller that gets no reply has ended.
func (r *request) taken() {
	b := lend(r.s.c, make([]byte, replyHead))
	putReply(b.Bytes(), statusResult, r.h.flags&flagChecksum)
	if err := r.s.r.Reply(r.ctx, r.m, b); err != nil {
		b.Release()
	}
}

// wantsReply reports whether the caller waits for the result.
func (r *request) wantsReply() bool {
	return r.h.flags&flagTaken == 0 && (r.nested != nil || r.m.IsCall())
}

// decoded releases the memory into which the arguments were pulled, and records that the handler
// runs now. If err, the error of decoding them, is not nil, the handler does not run.
func (r *request) decoded(err error) error {
	if r.pulled != nil {
		r.releaseArgs()
	}
	if r.hasRun = err == nil; r.hasRun {
		return nil
	}
	return fmt.Errorf("the arguments of %q: %w", r.method.name, err)
}

func (r *request) releaseArgs() {
	if r.pulled != nil && r.args != nil {
		r.args = nil
		r.pulled.release()
	}
}

// A held is a result that stays in the server's memory until the caller's receipt comes, or until
// the call has ended in another way.
type held struct {
	*exposed
	until context.Context // ends with the receipt, or with the call
}

// resultElsewhere exposes a result, and returns the reply with its elsewhere.
func (r *request) resultElsewhere(v *unsent) (*rocl.Buffer, error) {
	var b *rocl.Buffer
	e, err := r.s.overflow.expose(r.ctx, v)
	if err == nil {
		b, err = r.keepUntilPulled(e)
	}
	if err != nil {
		return nil, fmt.Errorf("the result of %q: %w", r.method.name, err)
	}
	putReply(b.Bytes(), statusResult, flagElsewhere|r.h.flags&flagChecksum)
	return b, nil
}

// keepUntilPulled keeps the request until the caller has pulled the result, and returns the message
// with the result's elsewhere.
func (r *request) keepUntilPulled(e *exposed) (*rocl.Buffer, error) {
	r.method.stats.overflows.Add(1)
	if r.h.number == 0 {
		r.h.number = ownNumber | r.s.overflow.numbers.Add(1)
		r.s.callers.begin(r)
	}
	b, err := e.message(r.s.c, replyHead, r.h.flags, r.h.number)
	if err == nil {
		until, received := context.WithCancel(r.ctx)
		r.held = &held{e, until}
		r.s.callers.hold(r, received)
	}
	return b, err
}

// ownNumber is a bit in the numbers that a server gives to requests without a number of their
// caller.
const ownNumber = 1 << 63

// endLater ends the request when the result is no longer held.
func (r *request) endLater() {
	h := r.held
	r.held = nil
	context.AfterFunc(h.until, func() {
		h.Release()
		r.end()
	})
}

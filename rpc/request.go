// SPDX-License-Identifier: Apache-2.0

package rpc

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"runtime/debug"
	"sync/atomic"
	"time"

	"github.com/rocl-go/rocl"
	"github.com/rocl-go/rocl/internal/os/clock"
)

// A request is one call at the server. The receiving goroutine begins it. Then it belongs to the
// goroutine that runs the handler.
type request struct {
	s       *Server
	m       *rocl.Message // nil: the call is nested
	method  *method
	h       requestHeader
	args    []byte
	ctx     *handlerContext
	came    time.Time               // zero: the call is not timed
	stop    context.CancelCauseFunc // ends ctx; nil: only the end of the caller ends it
	unwatch func()                  // ends the watch for the caller's cancellation; nil: there is none
	caller  *caller
	nested  *nestedCall // nil: the request came in a message, m
	// results of a stream that came in a message; nil for other calls.
	results *results
	items   *items                 // the stream of arguments; nil for other calls
	pulled  *pulled                // the arguments, if they were elsewhere
	hasRun  bool                   // the handler has begun
	running atomic.Pointer[method] // the call while its handler runs, if the request can be cancelled
	held    *held                  // the result, if it is elsewhere
	receipt func()                 // ends the hold of the result; set and called while callers.mu is held, or by the handler's goroutine

	toExpose *unsent // the result of an Inline handler that is to be exposed, which may wait
}

// A handlerContext is the context of a handler, which may keep it after it has returned. Requests
// of one caller and call that have no limits and no metadata share one.
type handlerContext struct {
	context.Context
	info   Info
	method *method
	outer  *handlerContext // of the handler that makes the call; nil: the call is not nested
}

// Value returns the value of a key. The key of InfoFrom gives the Info of the call.
func (c *handlerContext) Value(key any) any {
	switch key {
	case infoKey{}:
		return &c.info
	case handlerKey{}:
		return c
	}
	return c.Context.Value(key)
}

// Info describes a call to its handler and to interceptors. It must not be changed.
type Info struct {
	Name     string
	Caller   rocl.GID // the resource that calls
	Provider rocl.GID // the server's resource
	Metadata Metadata // from the caller
	Server   *Server  // that runs the handler; nil at a client
}

type infoKey struct{}

// InfoFrom returns the Info of the call whose handler got ctx. It returns nil if ctx is not the
// context of a handler.
func InfoFrom(ctx context.Context) *Info {
	i, _ := ctx.Value(infoKey{}).(*Info)
	return i
}

// begin handles the request in m. It owns m. The receiving goroutine calls it. If the handler has a
// goroutine of its own, begin returns the request, for the caller to run. If the pool of the call
// waits for room, begin returns a context that ends when the pool no longer waits.
func (s *Server) begin(m *rocl.Message) (own *request, waits context.Context) {
	if !s.running.begin() {
		s.refuse(m, flagsOf(m.Bytes()), ErrClosed)
		return nil, nil
	}
	r := s.requests.Get().(*request)
	r.m = m
	if err := r.parse(); err != nil {
		s.fail(ended, m, statusRefused, flagsOf(m.Bytes()), err)
		r.free()
		s.running.end()
		return nil, nil
	}
	r.limit()
	switch p := &r.method.executor; {
	case !p.isInline && p.pool == nil:
		return r, nil
	case r.isElsewhere() && p.isReceiver():
		s.receiver.Go(r.pullAndStart)
		return nil, nil
	}
	return nil, r.start()
}

// parse reads the message and sets the method, the caller and the context.
func (r *request) parse() (err error) {
	var meta Metadata
	if r.h, r.args, err = parseRequest(r.m.Bytes()); err == nil {
		meta, err = parseMetadata(r.h.meta)
	}
	if err != nil {
		// Cause: `from` is no client of this version. Remedy: upgrade it.
		r.s.log.Warn("rpc: a request cannot be read", "server", r.s.ID(), "from", r.m.From(), "err", err)
		return err
	}
	form := formOf(r.h.flags)
	m, err := r.s.offered(r.m.Tag(), form)
	if err != nil {
		return err
	}
	if form != FormCall && (r.h.number == 0 || !r.m.IsCall()) {
		return fmt.Errorf("%w: the stream has no number, or its caller waits for no reply", ErrProtocol)
	}
	r.method = m
	if form.hasResults() {
		r.results = &results{r: r, waiting: r.m, taken: make(chan struct{}, 1)}
	}
	if form.hasItems() {
		r.items = &items{r: r, came: make(chan struct{}, 1)}
	}
	r.time()
	r.caller = r.s.callers.of(r.s, r.m.From())
	if meta == nil && !r.isLimited() {
		r.ctx = r.caller.plain(r.s, m)
	} else {
		r.ctx = &handlerContext{Context: r.caller.ctx, info: Info{m.name, r.m.From(), r.s.ID(), meta, r.s}, method: m}
	}
	return nil
}

// time notes when the request came, unless it is one of many Inline ones.
func (r *request) time() {
	if !r.method.executor.isInline || r.method.stats.begun.Load()%timeOne == 0 {
		r.came = time.Now()
	}
}

// isLimited reports whether the request has a deadline, or can be cancelled.
func (r *request) isLimited() bool { return r.h.number != 0 || r.h.left != 0 }

// age returns for how long the request has been on its way, and in the mailbox. If the caller's
// clock is another one, only the time in the mailbox is known.
func (r *request) age() time.Duration {
	age := r.m.Waited()
	if c := clock.Own(); r.h.flags&flagClock != 0 && r.h.clock == c.ID {
		age = max(age, time.Duration(c.Now()-r.h.made))
	}
	return age
}

// limit gives the handler a context that ends with the caller's deadline, and when the caller
// cancels.
func (r *request) limit() {
	if !r.isLimited() {
		return
	}
	ctx, stop := context.WithCancelCause(r.ctx.Context)
	if r.stop = stop; r.h.left > 0 {
		timed, end := context.WithTimeout(ctx, r.h.left-r.age())
		ctx = timed
		r.stop = func(cause error) { stop(cause); end() }
	}
	r.ctx.Context = ctx
	if r.h.number != 0 {
		r.s.callers.begin(r)
		r.unwatch = r.m.OnCancel(r.stop)
		if r.age() > old {
			r.s.catchUp()
		}
	}
}

// drop refuses and ends a request whose handler has not begun.
func (r *request) drop(err error) {
	r.refuse(err)
	r.end()
}

// run runs the handler and replies.
func (r *request) run() {
	isHanded := false // another goroutine replies and ends the request
	defer func() {
		if !isHanded {
			r.end()
		}
	}()
	if (r.stop != nil || !r.method.executor.isInline) && r.ctx.Err() != nil { // the call ended while the request waited for a worker, or before it came
		r.refuse(context.Cause(r.ctx))
		return
	}
	if r.isElsewhere() {
		if err := r.pull(); err != nil {
			r.refuseWaiting(err)
			return
		}
	}
	r.begin()
	b, err := r.serve()
	if r.results != nil {
		r.endStream(err)
		return
	}
	r.ended(err)
	if r.nested != nil {
		r.nested.end(err)
		return
	}
	if err != nil {
		b = r.s.errorReply(r.status(), r.h.flags, err)
	}
	if b == nil && r.toExpose == nil {
		return
	}
	if b != nil {
		if err := r.s.r.Reply(ended, r.m, b); err == nil {
			return
		} else if !errors.Is(err, errEnded) {
			r.notSent(b, err)
			return
		}
	}
	// The caller's context has no room for replies, or this one no memory.
	if !r.method.executor.isReceiver() {
		r.replyWaiting(b)
		return
	}
	isHanded = true // the receiving goroutine does not wait
	go func() {
		defer r.end()
		r.replyLate(b)
	}()
}

// replyLate sends b, or if it is nil, the reply with the result in toExpose.
func (r *request) replyLate(b *rocl.Buffer) {
	if b == nil {
		var err error
		if b, err = r.resultElsewhere(r.toExpose); err != nil {
			b = r.s.errorReply(r.status(), r.h.flags, err)
		}
	}
	r.replyWaiting(b)
}

// endStream ends a stream whose handler has returned err. It waits until the caller has all results
// and the error.
func (r *request) endStream(err error) {
	err = r.results.finish(r.ctx, err)
	r.ended(err)
	r.results.close(err)
}

// ended is the context of replies that do not wait.
var ended, errEnded = func() (context.Context, error) {
	err := errors.New("rpc: the reply would wait")
	ctx, end := context.WithCancelCause(context.Background())
	end(err)
	return ctx, err
}()

// replyWaiting sends b. It waits for room until the call has ended.
func (r *request) replyWaiting(b *rocl.Buffer) {
	if err := r.s.r.Reply(r.ctx, r.m, b); err != nil {
		r.notSent(b, err)
	}
}

// notSent releases a reply that could not be sent. If the reply is too large, the caller is told.
func (r *request) notSent(b *rocl.Buffer, err error) {
	b.Release()
	if r.held != nil {
		r.receipt()
	}
	r.s.log.Debug("rpc: a reply could not be sent", "call", r.method.name, "server", r.s.ID(), "to", r.m.From(), "err", err)
	if errors.Is(err, rocl.ErrTooLarge) {
		r.refuseWaiting(fmt.Errorf("the result of %q: %w", r.method.name, err))
	}
}

// status returns the status of a reply with an error, which tells whether the handler has run.
func (r *request) status() byte {
	if r.hasRun {
		return statusError
	}
	return statusRefused
}

// serve runs the handler. It returns an error if the handler panics. A handler that ends its
// goroutine gets its error reply here.
func (r *request) serve() (b *rocl.Buffer, err error) {
	hasReturned := false
	defer func() {
		if hasReturned {
			return
		}
		v := recover()
		// Cause: as it says, with the stack. Remedy: correct the handler.
		r.s.log.Error("rpc: a handler panicked", "call", r.method.name, "server", r.s.ID(), "from", r.ctx.info.Caller, "request", RequestID(r.ctx), "panic", v, "stack", string(debug.Stack()))
		b, err = nil, fmt.Errorf("%w: the handler of %q", ErrPanic, r.method.name)
		if v == nil { // runtime.Goexit: only deferred functions still run
			if r.results != nil {
				r.endStream(err)
				return
			}
			r.ended(err)
			r.refuse(err)
		}
	}()
	b, err = r.method.serve(r)
	hasReturned = true
	return b, err
}

// end releases what the request holds. If the result is held, endLater does so.
func (r *request) end() {
	if r.items != nil {
		r.items.close()
	}
	if r.held != nil {
		r.endLater()
		return
	}
	if r.h.number != 0 {
		r.s.callers.end(r)
	}
	if r.unwatch != nil {
		r.unwatch()
	}
	if r.stop != nil {
		r.stop(nil)
	}
	s := r.s
	r.free()
	s.running.end()
}

// free releases the message, and reuses the request if nothing else refers to it.
func (r *request) free() {
	if r.pulled != nil {
		r.releaseArgs()
	}
	if r.nested != nil { // its caller refers to it
		return
	}
	r.m.Release()
	if r.h.number != 0 { // a message that cancels it, or asks for results, may still refer to it
		return
	}
	s := r.s
	*r = request{s: s}
	s.requests.Put(r)
}

// refuse replies with an error, without waiting.
func (r *request) refuse(err error) { r.refuseUntil(ended, err) }

// refuseWaiting is refuse for the goroutine that runs the handler. Unless that is the receiving
// goroutine, it waits for memory and room until the call has ended.
func (r *request) refuseWaiting(err error) {
	ctx := context.Context(r.ctx)
	if r.method.executor.isReceiver() {
		ctx = ended
	}
	r.refuseUntil(ctx, err)
}

// refuseUntil is refuse that waits until ctx ends.
func (r *request) refuseUntil(ctx context.Context, err error) {
	switch {
	case r.nested != nil:
		r.nested.end(err)
	case r.results != nil:
		r.results.close(err)
	default:
		r.s.fail(ctx, r.m, r.status(), r.h.flags, err)
	}
}

// refuse replies, without waiting, that a request is not handled. If the caller's context has no
// room for replies, the caller gets rocl.ErrNoReply. refuse owns m.
func (s *Server) refuse(m *rocl.Message, flags byte, err error) {
	s.fail(ended, m, statusRefused, flags, err)
	m.Release()
}

// fail replies to m that the call has failed.
func (s *Server) fail(ctx context.Context, m *rocl.Message, status, flags byte, err error) {
	if !m.IsCall() {
		return
	}
	b := s.errorReply(status, flags, err)
	if err := s.r.Reply(ctx, m, b); err != nil {
		b.Release()
		s.log.Debug("rpc: an error could not be sent", "server", s.ID(), "to", m.From(), "err", err)
	}
}

// errorReply returns a reply with an error. It needs no memory of the context.
func (s *Server) errorReply(status, flags byte, err error) *rocl.Buffer {
	var scratch [256]byte
	p := s.errorNames.errorBody(scratch[:replyHead], err)
	putReply(p, status, flags&flagChecksum)
	return lend(s.c, bytes.Clone(p))
}

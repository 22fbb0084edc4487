// SPDX-License-Identifier: Apache-2.0

package rpc

import (
	"context"
	"fmt"
	"maps"
	"reflect"
	"sync"

	"github.com/rocl-go/rocl"
)

// A nestedCall is a call to a server of this process that a handler makes with its own context,
// while the handler keeps others from running: it has a worker of a pool, or is Inline. The called
// handler runs in the calling goroutine. So it waits for no worker, and nested calls do not wait
// for each other. Arguments and results are encoded, but no message travels.
//
// A Future of a call in a pool may get a worker, until a goroutine waits for the Future. If the
// handler has not begun by then, that goroutine runs it. The handler of a stream has a goroutine of
// its own.
type nestedCall struct {
	c      *Client
	r      *request
	ctx    context.Context // of the call
	queued *queued         // in the queue of its pool; nil: the call is no Future of a call in a pool

	result []byte           // set by the handler's goroutine before it replies
	items  chan []byte      // results of a stream
	reply  chan nestedReply // has room for the reply
}

// A nestedReply has the status and the body of a reply.
type nestedReply struct {
	status byte
	body   []byte
}

// localServers has the servers of this process by identifier.
var localServers sync.Map

type handlerKey struct{}

// handlerOf returns the context of the handler that got ctx, or nil.
func handlerOf(ctx context.Context) *handlerContext {
	c, _ := ctx.Value(handlerKey{}).(*handlerContext)
	return c
}

// keepsOthers reports whether the handler, or another one that waits for it, has a worker of a pool
// or is Inline.
func (c *handlerContext) keepsOthers() bool {
	for ; c != nil; c = c.outer {
		if e := &c.method.executor; e.pool != nil || e.isInline {
			return true
		}
	}
	return false
}

// isInlineOf reports whether the handler, or another one that waits for it, is an Inline handler of
// a server.
func (c *handlerContext) isInlineOf(s *Server) bool {
	for ; c != nil; c = c.outer {
		if c.info.Server == s && c.method.executor.isReceiver() {
			return true
		}
	}
	return false
}

// nestedServer returns the provider if a call with ctx to it is nested, and otherwise nil.
func nestedServer(ctx context.Context, provider rocl.GID) *Server {
	if !handlerOf(ctx).keepsOthers() {
		return nil
	}
	s, _ := localServers.Load(provider)
	server, _ := s.(*Server)
	return server
}

// nest returns the nested call of a name with the arguments in.
func nest[In any](ctx context.Context, c *Client, s *Server, name string, in In, cfg *config, flags byte) (*nestedCall, error) {
	if ctx.Err() != nil {
		return nil, context.Cause(ctx)
	}
	if _, err := cfg.meta.encode(); err != nil { // it is too long
		return nil, err
	}
	args, err := formatOf[In](cfg.in).append(nil, in)
	if err != nil {
		return nil, fmt.Errorf("the arguments: %w", err)
	}
	if cfg.isJSON {
		flags |= flagJSON
	}
	r := &request{s: s, args: args, h: requestHeader{flags: flags}}
	n := &nestedCall{c: c, r: r, ctx: ctx, items: make(chan []byte), reply: make(chan nestedReply, 1)}
	if err := n.admit(name, maps.Clone(cfg.meta)); err != nil {
		return nil, c.remote(name, s.ID(), statusRefused, s.errorNames.errorBody(nil, err))
	}
	return n, nil
}

// admit makes the server begin the request, whose handler gets a context that ends with that of the
// call, with the lifetime of the client and with that of the server.
func (n *nestedCall) admit(name string, meta Metadata) error {
	r, s := n.r, n.r.s
	m, err := s.offered(callID(name), formOf(r.h.flags))
	if err != nil {
		return err
	}
	if !s.running.begin() {
		return ErrClosed
	}
	r.method, r.nested = m, n
	r.time()
	own, stop := context.WithCancelCause(s.life)
	r.ctx = &handlerContext{Context: own, info: Info{m.name, n.c.ID(), s.ID(), meta, s}, method: m, outer: handlerOf(n.ctx)}
	r.stop = stop
	if d, ok := n.ctx.Deadline(); ok {
		timed, end := context.WithDeadline(own, d)
		r.ctx.Context = timed
		r.stop = func(cause error) { stop(cause); end() }
	}
	unwatch := context.AfterFunc(n.ctx, func() { stop(n.ctx.Err()) })
	unwatchClient := context.AfterFunc(n.c.life, func() { stop(rocl.ErrGone) })
	r.unwatch = func() { unwatch(); unwatchClient() }
	return nil
}

// run runs the handler in the calling goroutine.
func (n *nestedCall) run() {
	r := n.r
	if r.method.executor.isReceiver() && !r.ctx.outer.isInlineOf(r.s) {
		if err := r.s.lockInline(r.ctx); err != nil {
			r.drop(err)
			return
		}
		defer r.s.inline.Unlock()
	}
	r.run()
}

// lockInline waits until no Inline handler of the server runs, and keeps others from beginning. It
// gives up when ctx ends.
func (s *Server) lockInline(ctx context.Context) error {
	if s.inline.TryLock() {
		return nil
	}
	locked := make(chan struct{})
	go func() {
		s.inline.Lock()
		select {
		case locked <- struct{}{}:
		case <-ctx.Done():
			s.inline.Unlock()
		}
	}()
	select {
	case <-locked:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// begin lets the handler of a Future begin. An Inline handler has returned when begin returns.
func (n *nestedCall) begin() {
	switch p := &n.r.method.executor; {
	case p.isReceiver():
		n.run()
	case p.pool != nil:
		n.queued = &queued{r: n.r}
		n.queued.ctx, n.queued.leave = context.WithCancel(n.r.ctx)
		n.queued.enqueue()
	default:
		go n.r.run()
	}
}

// wait returns the reply to a Future, or none if the call's context or its client ends first. It
// runs the handler if that has not begun.
func (n *nestedCall) wait() nestedReply {
	if n.queued != nil && n.queued.takeBack() {
		n.run()
	}
	select {
	case reply := <-n.reply:
		return reply
	case <-n.ctx.Done():
	case <-n.c.life.Done():
	}
	return nestedReply{status: statusRefused} // failure has the error
}

// end gives the caller the reply: err, or the result.
func (n *nestedCall) end(err error) {
	reply := nestedReply{statusResult, n.result}
	if err != nil {
		reply = nestedReply{n.r.status(), n.r.s.errorNames.errorBody(nil, err)}
	}
	n.reply <- reply
}

// put gives a result of a stream to the caller.
func (n *nestedCall) put(ctx context.Context, encode func([]byte) ([]byte, error)) error {
	p, err := encode(nil)
	if err != nil {
		return fmt.Errorf("a result of %q: %w", n.r.method.name, err)
	}
	select {
	case n.items <- p:
		return context.Cause(ctx)
	case <-n.r.ctx.Done():
		return context.Cause(n.r.ctx)
	}
}

// callNested is call for a nested call.
func callNested[In, Out any](ctx context.Context, c *Client, s *Server, name string, in In, cfg *config) (out Out, err error) {
	n, err := nest(ctx, c, s, name, in, cfg, 0)
	if err != nil {
		return out, c.wrap(name, s.ID(), err)
	}
	n.run()
	return nestedResult[Out](n, name, <-n.reply, cfg.out, argumentType[In](cfg))
}

// nestedResult returns the result or the error in a reply. own and in are those of result.
func nestedResult[Out any](n *nestedCall, name string, reply nestedReply, own any, in reflect.Type) (out Out, err error) {
	if err = n.failure(name, reply, in); err == nil {
		if out, err = formatOf[Out](own).decode(reply.body); err != nil {
			err = fmt.Errorf("the result: %w", err)
		}
	}
	return out, n.c.wrap(name, n.r.s.ID(), err)
}

// failure returns the error in a reply, or nil. If the call's context or its client has ended, that
// is the error of the call.
func (n *nestedCall) failure(name string, reply nestedReply, in reflect.Type) error {
	switch {
	case reply.status == statusResult:
		return nil
	case n.ctx.Err() != nil:
		return context.Cause(n.ctx)
	case n.c.life.Err() != nil:
		return rocl.ErrClosed
	}
	return withType(n.c.remote(name, n.r.s.ID(), reply.status, reply.body), in)
}

// streamNested is stream for a nested call. The handler runs in a goroutine of its own.
func streamNested[In, Out any](ctx context.Context, c *Client, s *Server, name string, in In, cfg *config, out *outgoing, yield func(Out) bool) error {
	ctx, end := context.WithCancelCause(ctx)
	defer end(nil)
	n, err := nest(ctx, c, s, name, in, cfg, flagStream|out.flags())
	if err != nil {
		return err
	}
	defer n.r.stop(context.Canceled)
	if out != nil {
		n.r.items = &items{r: n.r, local: make(chan localBatch)}
		defer out.start(ctx, end, n.r.items.give)()
	}
	go n.r.run()
	for {
		select {
		case p := <-n.items:
			v, err := formatOf[Out](cfg.out).decode(p)
			if err != nil {
				return fmt.Errorf("a result: %w", err)
			}
			if !yield(v) {
				return nil
			}
			if ctx.Err() != nil { // also if the handler has ended since
				return context.Cause(ctx)
			}
		case reply := <-n.reply:
			return n.failure(name, reply, argumentType[In](cfg))
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}

// sendNested sends arguments that are too large for a message to a server of this process, in the
// memory of the process. It reports false, and sends nothing, if they are small. It does not wait
// for the handler.
func sendNested[In any](ctx context.Context, c *Client, s *Server, name string, in In, cfg *config) (isSent bool, err error) {
	args, err := formatOf[In](cfg.in).append(nil, in)
	if err != nil || len(args) <= c.overflow.limit {
		return false, nil // the ordinary way has the error too
	}
	encoded := *cfg
	encoded.in = nil
	n, err := nest(context.WithoutCancel(ctx), c, s, name, args, &encoded, flagTaken)
	if err != nil {
		return true, err
	}
	n.r.ctx.outer = nil // no handler waits for this one
	go n.r.start()
	return true, nil
}

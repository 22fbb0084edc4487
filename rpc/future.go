// SPDX-License-Identifier: Apache-2.0

package rpc

import (
	"context"
	"reflect"
	"sync"
	"sync/atomic"

	"github.com/rocl-go/rocl"
	"github.com/rocl-go/rocl/bulk"
)

// A Future is a call in progress, or its result. Its methods may be called concurrently.
//
//	open ──takes──► taken ──Done──► watched
//	                  │ end            │ end
//	                  └────► ended ◄───┘
type Future[T any] struct {
	c     *Client
	name  string
	to    rocl.GID
	p     rocl.Pending
	own   *ownFuture   // nil if the request has no number, package codec decodes the result, the arguments are in the request, and the call is not nested
	in    reflect.Type // see argumentType
	flags byte         // of the request
	state atomic.Uint32
	mu    sync.Mutex    // guards the creation of done
	done  chan struct{} // nil: Done was not called yet
	v     T             // v and err are set before the state becomes ended
	err   error
}

// States of a Future.
const (
	futureOpen    = iota
	futureTaken   // a goroutine waits for the reply
	futureWatched // the same, and done must be closed
	futureEnded
)

// An ownFuture has the fields that only some futures need.
type ownFuture struct {
	ctx    context.Context
	number uint64       // of the request
	codec  any          // codec of the result; nil: package codec
	nested *nestedCall  // nil: the call is not nested
	region *bulk.Region // memory with the arguments; nil: they are in the request
	stop   func() bool  // ends the watch of ctx; nil: ctx does not end
}

// Go is [Call] that does not wait for the result. It sends the request before it returns, and waits
// as Call does while the provider has no room for it. In this way a goroutine may have any number
// of calls in flight. Their requests and replies travel in batches. With [CallInterceptors] another
// goroutine makes the call, and Go may return before the request is sent.
//
// Wait, Done or WaitAny must be called for each Future. Otherwise its result stays in memory.
func Go[In, Out any](ctx context.Context, c *Client, provider rocl.GID, name string, in In, opts ...Option) *Future[Out] {
	f := &Future[Out]{c: c, name: name, to: provider}
	if len(c.interceptors) > 0 { // interceptors wait for the call
		f.state.Store(futureTaken)
		go func() { f.end(Call[In, Out](ctx, c, provider, name, in, opts...)) }()
		return f
	}
	var cfg config
	if len(opts) > 0 {
		cfg = newConfig(opts)
	}
	if err := start(ctx, f, in, &cfg); err != nil {
		f.err = c.wrap(name, provider, err)
		f.state.Store(futureEnded)
	}
	return f
}

// start sends the request of f.
func start[In, Out any](ctx context.Context, f *Future[Out], in In, cfg *config) error {
	f.in = argumentType[In](cfg)
	if s := nestedServer(ctx, f.to); s != nil {
		n, err := nest(ctx, f.c, s, f.name, in, cfg, 0)
		if err == nil {
			f.own = &ownFuture{ctx: ctx, codec: cfg.out, nested: n}
			n.begin()
		}
		return err
	}
	var h requestHeader
	b, err := encodeRequest(ctx, f.c, in, cfg, &h)
	if err != nil {
		return err
	}
	if f.p, err = f.c.r.StartCall(ctx, f.to, f.c.names.id(f.name), b); err != nil {
		b.Release()
		h.release()
		return notSent(err, f.to)
	}
	f.flags = h.flags
	if h.number != 0 || cfg.out != nil || h.region != nil {
		f.own = &ownFuture{ctx: ctx, number: h.number, codec: cfg.out, region: h.region}
		if ctx.Done() != nil {
			f.own.stop = context.AfterFunc(ctx, f.cancel)
		}
	}
	return nil
}

// cancel ends the call because its context has ended.
func (f *Future[T]) cancel() {
	f.p.Cancel(context.Cause(f.own.ctx))
	f.own.release()
}

// release releases the memory of the arguments.
func (o *ownFuture) release() {
	if o.region != nil {
		o.region.Release()
	}
}

// takes makes the caller the goroutine that waits for the reply. It reports false if another
// goroutine does, or the call has ended.
func (f *Future[T]) takes() bool { return f.state.CompareAndSwap(futureOpen, futureTaken) }

// receive waits for the reply. The caller must have taken f.
func (f *Future[T]) receive() {
	if f.own != nil && f.own.nested != nil {
		n := f.own.nested
		f.end(nestedResult[T](n, f.name, n.wait(), f.own.codec, f.in))
		return
	}
	m, err := f.p.Wait(context.Background()) // cancel ends the wait
	var codec any
	var number uint64
	ctx := context.Background()
	if f.own != nil {
		ctx, number, codec = f.own.ctx, f.own.number, f.own.codec
		f.own.release()
		if f.own.stop != nil {
			f.own.stop()
		}
	}
	if err != nil {
		var none T
		f.end(none, f.c.wrap(f.name, f.to, sendError{err, f.to}))
		return
	}
	f.end(result[T](ctx, f.c, f.to, f.name, m, number, f.flags, codec, f.in))
}

// end sets the result and the state.
func (f *Future[T]) end(v T, err error) {
	f.v, f.err = v, err
	if f.state.Swap(futureEnded) == futureWatched {
		close(f.done)
	}
}

// Done returns a channel that is closed when the call has ended.
func (f *Future[T]) Done() <-chan struct{} {
	if f.takes() {
		go f.receive()
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.done == nil {
		f.done = make(chan struct{})
		if !f.state.CompareAndSwap(futureTaken, futureWatched) {
			close(f.done)
		}
	}
	return f.done
}

// Wait waits for the end of the call and returns what Call would have returned. If ctx ends first,
// Wait returns its cause, with the reason if there is no connection (rocl.NoConnectionError), and
// the call goes on.
func (f *Future[T]) Wait(ctx context.Context) (T, error) {
	done := ctx.Done()
	if (done == nil || f.own != nil && done == f.own.ctx.Done()) && f.takes() { // ctx does not end before the call's context
		f.receive()
	}
	if f.state.Load() == futureEnded {
		return f.v, f.err
	}
	select {
	case <-f.Done():
		return f.v, f.err
	case <-done:
		var zero T
		return zero, f.c.c.Explain(context.Cause(ctx), f.to)
	}
}

// WaitAny waits until one of several calls has ended, and returns its index. If ctx ends first, it
// returns -1 and the cause, with the reason if one of the providers has no connection.
func WaitAny[T any](ctx context.Context, futures ...*Future[T]) (int, error) {
	cases := make([]reflect.SelectCase, 0, len(futures)+1)
	for i, f := range futures {
		if f.state.Load() == futureEnded {
			return i, nil
		}
		cases = append(cases, reflect.SelectCase{Dir: reflect.SelectRecv, Chan: reflect.ValueOf(f.Done())})
	}
	cases = append(cases, reflect.SelectCase{Dir: reflect.SelectRecv, Chan: reflect.ValueOf(ctx.Done())})
	if i, _, _ := reflect.Select(cases); i < len(futures) {
		return i, nil
	}
	err := context.Cause(ctx)
	for _, f := range futures {
		if explained := f.c.c.Explain(err, f.to); explained != err {
			return -1, explained
		}
	}
	return -1, err
}

// SPDX-License-Identifier: Apache-2.0

package rpc

import (
	"context"
	"reflect"
	"sync"

	"github.com/rocl-go/rocl"
)

// A Future is a call that is under way, or its result. Its methods may be called concurrently.
type Future[T any] struct {
	c        *Client
	provider rocl.GID
	name     string
	p        rocl.Pending
	ctx      context.Context // of the call
	number   uint64          // of the request
	flags    byte            // likewise
	codec    any             // of the result; nil: package codec
	stop     func() bool     // ends the watch of ctx; nil: ctx does not end

	mu      sync.Mutex
	isTaken bool          // a goroutine waits for the reply, or has
	hasDone bool          // v and err are set
	done    chan struct{} // closed when hasDone is set; nil: nobody has asked for it
	v       T
	err     error
}

// Go is [Call] that does not wait for the result. It sends the request before it returns, and waits as
// Call does while the provider has no room for it. A goroutine may have any number of calls in
// flight so; their requests and replies travel in batches.
//
// Wait, Done or WaitAny must be called for each Future: a result that nobody asks for stays in memory.
func Go[In, Out any](ctx context.Context, c *Client, provider rocl.GID, name string, in In, opts ...Option) *Future[Out] {
	f := &Future[Out]{c: c, provider: provider, name: name, ctx: ctx}
	if len(c.interceptors) > 0 { // which wait
		f.isTaken, f.done = true, make(chan struct{})
		go func() { f.end(Call[In, Out](ctx, c, provider, name, in, opts...)) }()
		return f
	}
	var cfg config
	if len(opts) > 0 {
		cfg = newConfig(opts)
	}
	if err := start(f, in, &cfg); err != nil {
		f.err, f.isTaken, f.hasDone = c.failed(name, provider, err), true, true
	}
	return f
}

// start sends the request of f.
func start[In, Out any](f *Future[Out], in In, cfg *config) error {
	var h requestHeader
	b, err := encodeRequest(f.ctx, f.c, in, cfg, &h)
	if err != nil {
		return err
	}
	f.number, f.flags, f.codec = h.number, h.flags, cfg.out
	if f.p, err = f.c.r.StartCall(f.ctx, f.provider, callID(f.name), b); err != nil {
		b.Release()
		f.c.cancelEnded(f.ctx, f.provider, f.number)
		return err
	}
	if f.ctx.Done() != nil {
		f.stop = context.AfterFunc(f.ctx, f.cancel)
	}
	return nil
}

// cancel ends the call because its context has ended.
func (f *Future[T]) cancel() {
	f.p.Cancel(context.Cause(f.ctx))
	f.c.cancelEnded(f.ctx, f.provider, f.number)
}

// takes makes the caller the goroutine that waits for the reply, unless another one is.
func (f *Future[T]) takes() bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	isMine := !f.isTaken
	f.isTaken = true
	return isMine
}

// receive waits for the reply. The caller must have taken f.
func (f *Future[T]) receive() {
	m, err := f.p.Wait(context.Background()) // cancel ends it
	if f.stop != nil {
		f.stop()
	}
	if err != nil {
		var none T
		f.end(none, f.c.failed(f.name, f.provider, err))
		return
	}
	f.end(result[T](f.c, f.provider, f.name, m, f.flags, f.codec))
}

// end sets the result.
func (f *Future[T]) end(v T, err error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.v, f.err, f.hasDone = v, err, true; f.done != nil {
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
		if f.done = make(chan struct{}); f.hasDone {
			close(f.done)
		}
	}
	return f.done
}

// Wait returns what Call would have returned, or the cause of ctx's end, which does not end the call.
func (f *Future[T]) Wait(ctx context.Context) (T, error) {
	if done := ctx.Done(); (done == nil || done == f.ctx.Done()) && f.takes() {
		f.receive()
		return f.v, f.err
	}
	done := f.Done()
	select {
	case <-done:
		return f.v, f.err
	default:
	}
	select {
	case <-done:
		return f.v, f.err
	case <-ctx.Done():
		var zero T
		return zero, context.Cause(ctx)
	}
}

// WaitAny waits until one of several calls has ended, and returns its index, or until ctx ends: -1, and the cause.
func WaitAny[T any](ctx context.Context, futures ...*Future[T]) (int, error) {
	cases := make([]reflect.SelectCase, 0, len(futures)+1)
	for i, f := range futures {
		select {
		case <-f.Done():
			return i, nil
		default:
		}
		cases = append(cases, reflect.SelectCase{Dir: reflect.SelectRecv, Chan: reflect.ValueOf(f.Done())})
	}
	cases = append(cases, reflect.SelectCase{Dir: reflect.SelectRecv, Chan: reflect.ValueOf(ctx.Done())})
	if i, _, _ := reflect.Select(cases); i < len(futures) {
		return i, nil
	}
	return -1, context.Cause(ctx)
}

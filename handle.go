// SPDX-License-Identifier: Apache-2.0

package rocl

import (
	"context"
	"errors"
	"fmt"
	"runtime/debug"
	"sync"
	"sync/atomic"

	"github.com/rocl-go/rocl/dispatch"
)

// ErrWorkers is returned by [Resource.Handle] when the number of [Workers] is less than 1.
//
// Cause: `Workers(n)` with n below 1. Remedy: give a positive number.
var ErrWorkers = errors.New("rocl: Workers must be at least 1")

// A HandleOption changes a default of [Resource.Handle].
type HandleOption func(*handleConfig)

// handleConfig is what the options of Handle set.
type handleConfig struct {
	workers int // number of goroutines; 0: one for each message; less: invalid
	sel     []Select
	onPanic func(*Message, any)
}

// Workers makes [Resource.Handle] handle up to n messages at the same time, in n goroutines. They
// receive the messages in order, but calls of the function that overlap have no order. Further
// messages wait in the mailbox, whose limit stops senders. Handle fails with ErrWorkers if n is
// less than 1.
func Workers(n int) HandleOption {
	return func(c *handleConfig) {
		if c.workers = n; n < 1 {
			c.workers = -1
		}
	}
}

// EachInOwn makes [Resource.Handle] handle each message in a new goroutine. The number of
// goroutines has no limit. Messages are received as they come, so the mailbox's limit does not stop
// senders. [Workers] limits both.
func EachInOwn() HandleOption { return func(c *handleConfig) { c.workers = 0 } }

// Handling makes [Resource.Handle] handle only the messages that match every selector.
func Handling(sel ...Select) HandleOption {
	return func(c *handleConfig) { c.sel = append(c.sel, sel...) }
}

// OnPanic makes [Resource.Handle] call f when its function panics, with the message and the value
// of the panic, in the goroutine that panicked. f may reply to the message, and must not release
// it. Then Handle goes on with the next message. Without OnPanic the panic and its stack are logged
// at level error, which is seen only with [WithLogger]. Stats.HandlerPanics counts panics in either
// case.
//
// A panic of f itself is not contained: it ends the program.
func OnPanic(f func(m *Message, value any)) HandleOption {
	return func(c *handleConfig) { c.onPanic = f }
}

// Handle calls f for each message to the resource, until ctx ends or the resource is closed. Then
// it waits for the calls under way, and returns nil. It does not interrupt them: an f that takes
// long must watch ctx itself. Handle fails with ErrWorkers or ErrSelect if the options
// are invalid. If receiving fails for another reason, such as ErrGone or ErrStuck with
// [Handling], no goroutine receives any more: Handle waits for the calls under way and returns that
// error. See [Resource.Recv].
//
// By default the calling goroutine makes the calls, one after another, in the order of the
// messages. That is the fastest. With [Workers] and [EachInOwn] other goroutines make them, so that
// a message that takes long does not delay those behind it.
//
// The message belongs to f until f returns. Handle releases it, so f must neither release it nor
// put it back. To keep the payload longer, f copies it or takes it by Message.Buffer. f replies to
// a request before it returns. Without a reply, even after a panic, the caller's Call fails with
// ErrNoReply.
//
// No lock is held while f runs. f may send, call, receive, register and close, even this resource
// and its context. A slow f delays no messages of other resources. f must not wait for a message
// that only this Handle could handle. By default, a call by f to its own resource, or to a resource
// whose handler calls back, waits until its ctx ends. With Workers that happens when all workers
// wait; with EachInOwn the call is answered.
//
// A panic of f ends that call of f and nothing else; see [OnPanic]. An f that ends its goroutine
// (runtime.Goexit, as testing.T.FailNow does) ends that call of f too. If the goroutine is the
// caller's, Handle does not return.
func (r *Resource) Handle(ctx context.Context, f func(*Message), opts ...HandleOption) error {
	cfg := handleConfig{workers: 1}
	apply(&cfg, opts)
	if f == nil {
		return fmt.Errorf("rocl: handle messages to %v: no function", r.id)
	}
	if cfg.workers < 0 {
		return fmt.Errorf("rocl: handle messages to %v: %w", r.id, ErrWorkers)
	}
	h := &handler{r: r, f: f, handleConfig: cfg}
	if !r.handled.isUsed.Swap(true) {
		r.showActivity()
	}
	if cfg.workers == 1 {
		return h.loop(ctx, h.call)
	}
	var calls sync.WaitGroup
	defer calls.Wait()
	if cfg.workers == 0 {
		return h.loop(ctx, func(m *Message) { calls.Go(func() { h.call(m) }) })
	}
	ctx, h.endWorkers = context.WithCancel(ctx)
	defer h.endWorkers()
	for range cfg.workers {
		h.work(ctx, &calls)
	}
	calls.Wait()
	return h.err
}

// handled counts the calls of the functions of Handle.
type handled struct {
	isUsed               atomic.Bool // Handle has been called
	begun, ended, panics atomic.Uint64
}

// A handler is one call of Resource.Handle.
type handler struct {
	handleConfig
	r *Resource
	f func(*Message)

	endWorkers context.CancelFunc
	failed     sync.Once // guards err
	err        error     // of the first worker that could not receive
}

// loop receives messages and calls do with each, until ctx ends or the resource is closed.
func (h *handler) loop(ctx context.Context, do func(*Message)) error {
	for {
		m, err := h.r.box.Recv(ctx, h.sel...)
		switch {
		case err == nil:
			do(m)
		case ctx.Err() != nil, errors.Is(err, dispatch.ErrClosed):
			return nil
		default:
			return err
		}
	}
}

// work runs loop in a new goroutine. An error of loop ends the other workers. If the function ends
// the goroutine by runtime.Goexit, work starts another one.
func (h *handler) work(ctx context.Context, calls *sync.WaitGroup) {
	calls.Go(func() {
		hasReturned := false
		defer func() {
			if !hasReturned {
				h.work(ctx, calls)
			}
		}()
		err := h.loop(ctx, h.call)
		hasReturned = true
		if err != nil {
			h.failed.Do(func() { h.err = err })
			h.endWorkers()
		}
	})
}

// call calls the function with one message, contains a panic, and releases the message.
func (h *handler) call(m *Message) {
	h.r.handled.begun.Add(1)
	defer func() {
		h.r.handled.ended.Add(1)
		m.Release()
	}()
	defer func() {
		v := recover()
		if v == nil {
			return
		}
		h.r.handled.panics.Add(1)
		h.r.c.handlerPanics.Add(1)
		switch {
		case h.onPanic != nil:
			h.onPanic(m, v)
		default:
			// Cause: the function of `Handle` panicked. Remedy: correct it.
			h.r.c.cfg.Logger.Error("rocl: a handler has panicked", "resource", h.r.id, "from", m.From(), "tag", m.Tag(), "panic", v, "stack", string(debug.Stack()))
		}
	}()
	h.f(m)
}

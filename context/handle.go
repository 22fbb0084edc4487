// SPDX-License-Identifier: Apache-2.0

package context

import (
	stdctx "context"
	"errors"
	"fmt"
	"runtime/debug"
	"sync"

	"github.com/rocl-go/rocl/dispatch"
)

// A HandleOption changes one default of Resource.Handle.
type HandleOption func(*handleConfig)

type handleConfig struct {
	workers int // 0: a goroutine for each message
	sel     []dispatch.Select
	onPanic func(*dispatch.Message, any)
}

// Workers has up to n messages handled at the same time, by n goroutines. They receive the
// messages in order; calls of the function that overlap have no order. Further messages wait
// in the mailbox, whose limit stops senders. Handle fails if n is less than 1.
func Workers(n int) HandleOption {
	return func(c *handleConfig) {
		if c.workers = n; n < 1 {
			c.workers = -1
		}
	}
}

// EachInOwn has each message handled by a goroutine of its own. The number of goroutines has
// no limit: messages are received as they come, and so the mailbox's limit does not stop
// senders. Workers limits the number.
func EachInOwn() HandleOption { return func(c *handleConfig) { c.workers = 0 } }

// Handling has only the messages handled that every selector wants.
func Handling(sel ...dispatch.Select) HandleOption {
	return func(c *handleConfig) { c.sel = append(c.sel, sel...) }
}

// OnPanic has f called where the function of [Resource.Handle] panics, with the message and
// the value of the panic, by the goroutine that panicked. f may reply to the message, and must
// not release it. Then Handle goes on with the next message. Without OnPanic the panic and its
// stack are logged at level error, which is seen only with [WithLogger]. Stats.HandlerPanics
// counts panics in either case.
//
// A panic of f itself is not contained. Like any panic it ends the program.
func OnPanic(f func(m *dispatch.Message, value any)) HandleOption {
	return func(c *handleConfig) { c.onPanic = f }
}

// Handle calls f for each message to the resource, until ctx ends or the resource is closed.
// Then it waits for the calls under way, and returns nil. It does not interrupt them: an f that
// takes long looks at ctx itself. Handle returns an error where the options make no sense, and
// where receiving fails for another reason, such as rocl.ErrGone or rocl.ErrStuck with
// [Handling]: see [Resource.Recv].
//
// By default the calling goroutine makes the calls, one after another, in the order of the
// messages: that is the quickest. With Workers and EachInOwn other goroutines do, so that a
// message that takes long does not delay those behind it.
//
// The message is f's until f returns: Handle releases it, so f must neither release it nor put
// it back. What is to stay longer is copied, or kept by Message.Buffer. f replies to a request
// before it returns: without a reply, also where f has panicked, the caller's Call fails with
// rocl.ErrNoReply.
//
// No lock is held while f runs: f may send, call, receive, register and close, this resource
// and its context too. A slow f delays no messages of other resources. f must not wait for what
// only this Handle could handle. By default a call of f to its own resource, or to one whose
// handler calls back, waits until its ctx ends. With Workers it does so when all workers wait;
// with EachInOwn it is answered.
//
// A panic of f ends that call of f and nothing else; see [OnPanic]. An f that ends its goroutine
// (runtime.Goexit, as testing.T.FailNow does) ends that call of f too; where the goroutine is
// the caller's, Handle does not return.
func (r *Resource) Handle(ctx stdctx.Context, f func(*dispatch.Message), opts ...HandleOption) error {
	cfg := handleConfig{workers: 1}
	for _, o := range opts {
		o(&cfg)
	}
	if cfg.workers < 0 {
		return fmt.Errorf("rocl: handling messages to %v: Workers must be at least 1", r.id)
	}
	h := &handler{r: r, f: f, handleConfig: cfg}
	if cfg.workers == 1 {
		return h.loop(ctx, h.call)
	}
	var calls sync.WaitGroup
	defer calls.Wait()
	if cfg.workers == 0 {
		return h.loop(ctx, func(m *dispatch.Message) { calls.Go(func() { h.call(m) }) })
	}
	failed := make([]error, cfg.workers)
	for i := range failed {
		h.work(ctx, &calls, &failed[i])
	}
	calls.Wait()
	return errors.Join(failed...)
}

// A handler is one call of Resource.Handle.
type handler struct {
	handleConfig
	r *Resource
	f func(*dispatch.Message)
}

// loop gives each message to do until ctx ends or the resource is closed.
func (h *handler) loop(ctx stdctx.Context, do func(*dispatch.Message)) error {
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

// work runs loop in a goroutine, and in another one where the function ends that one by
// runtime.Goexit.
func (h *handler) work(ctx stdctx.Context, calls *sync.WaitGroup, failed *error) {
	calls.Go(func() {
		hasReturned := false
		defer func() {
			if !hasReturned {
				h.work(ctx, calls, failed)
			}
		}()
		*failed = h.loop(ctx, h.call)
		hasReturned = true
	})
}

// call calls the function with one message.
func (h *handler) call(m *dispatch.Message) {
	defer m.Release()
	defer func() {
		v := recover()
		if v == nil {
			return
		}
		h.r.c.handlerPanics.Add(1)
		switch {
		case h.onPanic != nil:
			h.onPanic(m, v)
		default:
			h.r.c.cfg.logger.Error("rocl: a handler has panicked", "resource", h.r.id, "from", m.From(), "tag", m.Tag(), "panic", v, "stack", string(debug.Stack()))
		}
	}()
	h.f(m)
}

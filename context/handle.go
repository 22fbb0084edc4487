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

// Workers has up to n messages handled at the same time, by n goroutines. Calls of the
// function begin in the order of the messages. Handle fails if n is less than 1.
func Workers(n int) HandleOption {
	return func(c *handleConfig) {
		if c.workers = n; n < 1 {
			c.workers = -1
		}
	}
}

// EachInOwn has each message handled by a goroutine of its own. There is no limit to how
// many there are: a limit is what Workers is for.
func EachInOwn() HandleOption { return func(c *handleConfig) { c.workers = 0 } }

// Handling has only the messages handled that every selector wants.
func Handling(sel ...dispatch.Select) HandleOption {
	return func(c *handleConfig) { c.sel = append(c.sel, sel...) }
}

// OnPanic has f called where the function panics, with the message and the value of the
// panic, by the goroutine that panicked. Handle goes on with the next message. Without
// OnPanic the panic and its stack are logged at level error.
func OnPanic(f func(m *dispatch.Message, value any)) HandleOption {
	return func(c *handleConfig) { c.onPanic = f }
}

// Handle calls f for each message to the resource, until ctx ends or the resource is closed.
// Then it waits for the calls under way, and returns nil. It returns an error where receiving
// fails for another reason, or the options make no sense.
//
// By default the calling goroutine makes the calls, one after another, in the order of the
// messages: that is the quickest. With Workers and EachInOwn other goroutines do, so that a
// message that takes long does not delay those behind it.
//
// The message is f's until f returns: Handle releases it, so f must neither release it nor put
// it back. What is to stay longer is copied, or kept by Message.Buffer. No lock is held while f
// runs: f may send, call, receive, register and close, this resource and its context too. A
// slow f delays no messages of other resources. A panic of f ends that call of f and nothing
// else; see OnPanic. A request whose f has panicked before it replied is released like any
// other: the caller's Call fails with rocl.ErrNoReply. An f that ends its goroutine
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
			return fmt.Errorf("rocl: handling messages to %v: %w", h.r.id, err)
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

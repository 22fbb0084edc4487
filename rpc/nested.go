// SPDX-License-Identifier: Apache-2.0

package rpc

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"

	"github.com/rocl-go/rocl"
	"github.com/rocl-go/rocl/pool"
)

// A nested call is one that a handler makes, with its own context, to a server of this process. The
// handler keeps its place until the call ends: a worker of a pool, or the goroutine that receives
// requests. So a nested request does not wait for a worker that could wait for it: one of the same
// pool, or of a pool whose handlers wait for that pool (see waitGraph). It runs at once, in place
// of the handler that waits for it.
type nested struct {
	key  nestedKey
	id   uint64          // of the call's name
	from *handlerContext // of the handler that makes the call

	// The handler waits for the call when awaited ends. A Future may not be waited for yet. The
	// cause is errCallEnded if the handler has never waited.
	awaited context.Context
	await   context.CancelCauseFunc

	// The handler waits for a worker of to, and keeps workers of the other pools; guarded by
	// nestedWaits.mu.
	kept []*pool.Pool // nil: it does not wait
	to   *pool.Pool
}

var errCallEnded = errors.New("rpc: the call has ended")

type nestedKey struct {
	caller rocl.GID
	number uint64 // of the request at its caller
}

// What this process has, for nested calls.
var (
	nestedCalls  sync.Map // *nested in progress, by nestedKey
	localServers sync.Map // *Server by identifier
)

type handlerKey struct{}

// handlerOf returns the context of the handler that got ctx, or nil.
func handlerOf(ctx context.Context) *handlerContext {
	c, _ := ctx.Value(handlerKey{}).(*handlerContext)
	return c
}

// nest returns the nested call that a request with a number makes, or nil if it is not nested. It
// fails with ErrDeadlock if the provider's receiving goroutine would wait for the call.
func (c *Client) nest(ctx context.Context, provider rocl.GID, name string, number uint64) (*nested, error) {
	if number == 0 {
		return nil, nil
	}
	from := handlerOf(ctx)
	if from == nil {
		return nil, nil
	}
	if _, isLocal := localServers.Load(provider); !isLocal {
		return nil, nil
	}
	if from.isReceiverOf(provider) {
		return nil, fmt.Errorf("%w: an Inline handler of the provider waits for it", ErrDeadlock)
	}
	n := &nested{key: nestedKey{c.ID(), number}, id: callID(name), from: from}
	n.awaited, n.await = context.WithCancelCause(context.Background())
	nestedCalls.Store(n.key, n)
	return n, nil
}

// tagOf returns the tag of the request for a call.
func (n *nested) tagOf(name string) uint64 {
	if n == nil {
		return callID(name)
	}
	return tagNested
}

// waitFor records that the handler waits for the call.
func (n *nested) waitFor() {
	if n != nil {
		n.await(nil)
	}
}

// end records that the call has ended for its caller.
func (n *nested) end() {
	if n != nil {
		n.await(errCallEnded)
		nestedCalls.Delete(n.key)
	}
}

// nestedIn returns the nested call whose request a message has.
func nestedIn(m *rocl.Message, number uint64) (*nested, error) {
	n, ok := nestedCalls.Load(nestedKey{m.From(), number})
	if !ok {
		return nil, fmt.Errorf("%w: a nested call", context.Canceled)
	}
	return n.(*nested), nil
}

// isReceiverOf reports whether the handler, or another one that waits for it, runs in the receiving
// goroutine of a server.
func (c *handlerContext) isReceiverOf(server rocl.GID) bool {
	for ; c != nil; c = c.outer {
		if c.info.Provider == server && c.method.executor.isReceiver() {
			return true
		}
	}
	return false
}

// pools returns the pools of which the handler, and those that wait for it, may have a worker. The
// request of a handler may have been moved to the pool that its call has now.
func (c *handlerContext) pools() (all []*pool.Pool) {
	add := func(p *pool.Pool) {
		if p != nil && !slices.Contains(all, p) {
			all = append(all, p)
		}
	}
	for ; c != nil; c = c.outer {
		add(c.method.executor.pool)
		if now := c.method.now(); now != nil {
			add(now.executor.pool)
		}
	}
	return all
}

// submitUnawaited gives a nested request to a pool before its handler waits for it. When the
// handler does, and could wait for ever, the request runs in place of the handler.
func (q *queued) submitUnawaited(n *nested, p *pool.Pool) {
	q.r.s.receiver.Go(func() {
		t, err := q.submit(n.awaited, p)
		switch {
		case err == nil:
			context.AfterFunc(n.awaited, func() { q.runIfStuck(n, t) })
		case n.awaited.Err() != nil:
			q.r.submit()
		default:
			q.r.retryAfterMove(err)
		}
	})
}

// runIfStuck runs a nested request in place of the handler that now waits for it, if the handler
// could wait for ever.
func (q *queued) runIfStuck(n *nested, t *pool.Ticket) {
	if context.Cause(n.awaited) == errCallEnded {
		return
	}
	switch isStuck := !nestedWaits.add(n, t.Pool()); {
	case isStuck && t.Cancel():
		q.run(q.ctx)
	case !isStuck && !t.Waits(): // a worker has taken the request, perhaps before add
		nestedWaits.remove(n)
	}
}

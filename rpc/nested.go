// SPDX-License-Identifier: Apache-2.0

package rpc

import (
	"context"
	"fmt"
	"sync"

	"github.com/rocl-go/rocl"
	"github.com/rocl-go/rocl/pool"
)

// A nested call is one that a handler makes, with its own context, to a server of this process. The
// handler keeps its place until the call ends: a worker of a pool, or the goroutine that receives
// requests. So a nested request does not wait for a worker of the same pool. It runs at once, in
// place of the handler that waits for it.
type nested struct {
	key  nestedKey
	id   uint64          // of the call's name
	from *handlerContext // of the handler that makes the call

	// The handler waits for the call when awaited ends. A Future may not be waited for yet.
	awaited context.Context
	await   context.CancelFunc
}

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
	n.awaited, n.await = context.WithCancel(context.Background())
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
		n.await()
	}
}

// end records that the call has ended for its caller.
func (n *nested) end() {
	if n != nil {
		n.await()
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
		if c.info.Provider == server && c.method.place.isReceiver() {
			return true
		}
	}
	return false
}

// occupies reports whether the handler, or another one that waits for it, has a worker of the pool of
// the call m, or is a handler of m itself, which may have been moved to the pool meanwhile.
func (c *handlerContext) occupies(p *pool.Pool, m *method) bool {
	for ; c != nil; c = c.outer {
		if c.method.place.pool == p || c.method.stats == m.stats {
			return true
		}
	}
	return false
}

// runNested runs a nested request in place of the handler that waits for it. Until the handler does
// so, the request waits for a worker like any other request.
func (q *queued) runNested(n *nested, p *pool.Pool) {
	if n.awaited.Err() != nil {
		go q.r.run()
		return
	}
	q.r.s.receiver.Go(func() {
		t, err := q.submit(n.awaited, p)
		switch {
		case err == nil:
			context.AfterFunc(n.awaited, func() {
				if t.Cancel() {
					q.run(q.ctx)
				}
			})
		case n.awaited.Err() != nil:
			q.r.run()
		default:
			q.r.retryAfterMove(err)
		}
	})
}

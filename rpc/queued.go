// SPDX-License-Identifier: Apache-2.0

package rpc

import (
	"context"
	"errors"
	"sync"

	"github.com/rocl-go/rocl/pool"
)

// A queued request is a unit of a pool. If its context ends while it waits in the queue, it leaves
// the queue.
type queued struct {
	r     *request // belongs to the goroutine that has taken the request
	ctx   context.Context
	leave func() // ends ctx; nil: the request is not that of a Future

	mu      sync.Mutex
	isTaken bool         // the following fields do not change any more
	ticket  *pool.Ticket // nil: the request is not in the queue
	unwatch func() bool  // ends the watch of ctx
}

// take reports whether the caller is the first to take the request. A worker does, the goroutine
// that waits for a Future, or that which ends the request.
func (q *queued) take() bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	isFirst := !q.isTaken
	q.isTaken = true
	return isFirst
}

// takeBack is take for the goroutine that waits for a Future. The request leaves the queue.
func (q *queued) takeBack() bool {
	if !q.take() {
		return false
	}
	if q.ticket != nil {
		q.ticket.Cancel()
	}
	q.leave()
	return true
}

// enqueue gives the request to the pool of its call. If the pool waits for room, enqueue returns a
// context that ends when the pool no longer waits.
func (q *queued) enqueue() (waits context.Context) {
	p := q.r.method.executor.pool
	err := q.submit(ended, p)
	if errors.Is(err, context.Canceled) { // the pool would wait
		waits, done := context.WithCancel(context.Background())
		q.r.s.receiver.Go(func() {
			err := q.submit(q.ctx, p)
			done()
			if err != nil && q.take() {
				q.r.retryAfterMove(err)
			}
		})
		return waits
	}
	if err != nil && q.take() {
		return q.r.retryAfterMove(err)
	}
	return nil
}

// submit gives the request to a pool, which may wait for room until ctx ends.
func (q *queued) submit(ctx context.Context, p *pool.Pool) error {
	t, err := p.SubmitTicket(ctx, q.unit())
	if err == nil && t.Waits() {
		q.watch(t)
	}
	return err
}

func (q *queued) unit() pool.Unit {
	id := q.r.ctx.info.Caller
	u := pool.Unit{Run: q.run, Key: uint64(id.Serial())<<32 ^ id.Ctx() ^ uint64(id.Node())}
	u.Priority = q.r.method.executor.priority
	u.Deadline, _ = q.ctx.Deadline()
	return u
}

// watch makes the request leave the queue when its context ends.
func (q *queued) watch(t *pool.Ticket) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.isTaken {
		t.Cancel() // a worker has taken it already, or none is to run it
		return
	}
	q.ticket = t
	q.unwatch = context.AfterFunc(q.ctx, func() {
		if t.Cancel() && q.take() {
			q.r.drop(context.Cause(q.r.ctx))
		}
	})
}

// run is the unit.
func (q *queued) run(context.Context) {
	if !q.take() {
		return
	}
	if q.unwatch != nil {
		q.unwatch()
	}
	q.r.runInPlace()
}

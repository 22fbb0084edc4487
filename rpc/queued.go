// SPDX-License-Identifier: Apache-2.0

package rpc

import (
	"context"
	"sync"

	"github.com/rocl-go/rocl/pool"
)

// A queued request is a unit of a pool. If its context ends while it waits in the queue, it leaves
// the queue.
type queued struct {
	r   *request // belongs to the worker once a worker has taken the unit
	ctx context.Context

	mu      sync.Mutex
	isTaken bool
	unwatch func() bool // ends the watch of ctx; nil: ctx is not watched
}

// submit gives the request to a pool, which may wait for room until ctx ends.
func (q *queued) submit(ctx context.Context, p *pool.Pool) (*pool.Ticket, error) {
	t, err := p.SubmitTicket(ctx, q.unit())
	if err == nil && t.Waits() {
		q.watch(t)
	}
	return t, err
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
		return
	}
	q.unwatch = context.AfterFunc(q.ctx, func() {
		if t.Cancel() {
			q.r.leave()
		}
	})
}

// run is the unit.
func (q *queued) run(context.Context) {
	q.mu.Lock()
	q.isTaken = true
	unwatch := q.unwatch
	q.mu.Unlock()
	if unwatch != nil {
		unwatch()
	}
	nestedWaits.remove(q.r.nested)
	q.r.run()
}

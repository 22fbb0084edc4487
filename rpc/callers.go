// SPDX-License-Identifier: Apache-2.0

package rpc

import (
	"context"
	"slices"
	"sync"

	"github.com/rocl-go/rocl"
)

// A caller is a resource from which requests have come, until it ends.
type caller struct {
	id       rocl.GID
	ctx      context.Context // of handlers; ends when the caller does
	end      context.CancelCauseFunc
	requests map[uint64]*request // that can be cancelled, by number; guarded by callers.mu
	early    []uint64            // requests that were cancelled before they came, the latest mostEarly; likewise

	// Of the receiving goroutine: the context of handlers without limits and metadata, and of which call.
	last   *handlerContext
	method *method
}

// plain returns the context of a handler of m for a request without limits and metadata. Called by the receiving goroutine.
func (c *caller) plain(s *Server, m *method) *handlerContext {
	if c.method != m {
		c.last, c.method = &handlerContext{c.ctx, Info{Name: m.name, Caller: c.id, Provider: s.ID()}}, m
	}
	return c.last
}

// mostEarly is how many numbers of requests are kept that were cancelled and are not known: their
// requests may come over another lane, or have been answered.
const mostEarly = 64

// Callers are all callers of a server.
type callers struct {
	mu  sync.Mutex
	all map[rocl.GID]*caller

	last *caller // of the receiving goroutine: of the request before
}

// of returns the caller with an identifier. Called by the receiving goroutine.
func (c *callers) of(s *Server, id rocl.GID) *caller {
	if c.last != nil && c.last.id == id && c.last.ctx.Err() == nil {
		return c.last
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	from := c.all[id]
	if from == nil {
		from = &caller{id: id, requests: map[uint64]*request{}}
		from.ctx, from.end = context.WithCancelCause(s.life)
		if c.all == nil {
			c.all = map[rocl.GID]*caller{}
		}
		c.all[id] = from
		s.receiver.Go(func() { c.watch(s, id) })
	}
	c.last = from
	return from
}

// watch asks rocl to tell the server when a caller has ended: by a message that Server.receive gets.
func (c *callers) watch(s *Server, id rocl.GID) {
	if _, err := s.r.Monitor(s.life, id, 0); err != nil { // such as rocl.ErrGone: there will be no message
		c.gone(id)
	}
}

// begin lists r, so that its caller can cancel it.
func (c *callers) begin(r *request) {
	c.mu.Lock()
	defer c.mu.Unlock()
	from := r.caller
	from.requests[r.h.number] = r
	if i := slices.Index(from.early, r.h.number); i >= 0 {
		from.early = slices.Delete(from.early, i, i+1)
		r.stop(context.Canceled)
	}
}

// end takes r from the list.
func (c *callers) end(r *request) {
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(r.caller.requests, r.h.number)
}

// cancel ends the context of the request that the message m names. Called by the receiving goroutine.
func (c *callers) cancel(s *Server, m *rocl.Message) {
	number, why, ok := parseControl(m.Bytes())
	if !ok {
		return
	}
	from := c.of(s, m.From()) // its first request may come later
	c.mu.Lock()
	defer c.mu.Unlock()
	if r := from.requests[number]; r != nil {
		cause := context.Canceled
		if why == whyDeadline {
			cause = context.DeadlineExceeded
		}
		r.stop(cause)
		return
	}
	if from.early = append(from.early, number); len(from.early) > mostEarly {
		from.early = slices.Delete(from.early, 0, 1)
	}
}

// stream returns the request whose stream a message with tagNext asks for.
func (c *callers) stream(from rocl.GID, number uint64) *request {
	c.mu.Lock()
	defer c.mu.Unlock()
	of := c.all[from]
	if of == nil || of.requests[number] == nil || of.requests[number].results == nil {
		return nil
	}
	return of.requests[number]
}

// gone ends the contexts of the handlers of a caller that has ended.
func (c *callers) gone(id rocl.GID) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if from := c.all[id]; from != nil {
		from.end(rocl.ErrGone)
		delete(c.all, id)
	}
}

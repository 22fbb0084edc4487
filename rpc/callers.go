// SPDX-License-Identifier: Apache-2.0

package rpc

import (
	"context"
	"sync"

	"github.com/rocl-go/rocl"
)

// A caller is a resource that has sent requests, until it ends.
type caller struct {
	id       rocl.GID
	ctx      context.Context // of handlers; ends when the caller does
	end      context.CancelCauseFunc
	requests map[uint64]*request // requests that can be cancelled, by number; guarded by callers.mu
	first    uint64              // the lowest number of its requests; guarded by callers.mu

	// The last context of handlers without limits and metadata, and its call. Used by the receiving
	// goroutine only.
	last   *handlerContext
	method *method
}

// plain returns the context of a handler of m for a request without limits and metadata. The
// receiving goroutine calls it.
func (c *caller) plain(s *Server, m *method) *handlerContext {
	if c.method != m {
		c.last, c.method = &handlerContext{Context: c.ctx, info: Info{Name: m.name, Caller: c.id, Provider: s.ID(), Server: s}, method: m}, m
	}
	return c.last
}

// callers has all callers of a server.
type callers struct {
	mu  sync.Mutex
	all map[rocl.GID]*caller

	last *caller // caller of the last request; used by the receiving goroutine only
}

// of returns the caller with an identifier. The receiving goroutine calls it.
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

// watch arranges that rocl sends the server a message when a caller has ended. Server.receive gets
// it.
func (c *callers) watch(s *Server, id rocl.GID) {
	if _, err := s.r.Monitor(s.life, id, 0); err != nil { // such as rocl.ErrGone: no message will come
		c.gone(id, err)
	}
}

// begin records r, so that its caller can cancel it.
func (c *callers) begin(r *request) {
	c.mu.Lock()
	defer c.mu.Unlock()
	from := r.caller
	from.requests[r.h.number] = r
	if from.first == 0 || r.h.number < from.first {
		from.first = r.h.number
	}
}

// end removes r.
func (c *callers) end(r *request) {
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(r.caller.requests, r.h.number)
}

// cancel ends the contexts of the requests that the message m names. The receiving goroutine calls
// it.
func (c *callers) cancel(m *rocl.Message) {
	c.each(m, func(r *request, why byte) {
		switch {
		case r.stop == nil: // only the server has a number for it
		case why == whyDeadline:
			r.stop(context.DeadlineExceeded)
		default:
			r.stop(context.Canceled)
		}
	})
}

// hold makes the receipt for the result of r call received.
func (c *callers) hold(r *request, received func()) {
	c.mu.Lock()
	defer c.mu.Unlock()
	r.receipt = received
}

// receipt releases the results of the requests that the message m names. The receiving goroutine
// calls it.
func (c *callers) receipt(m *rocl.Message) {
	c.each(m, func(r *request, _ byte) {
		if r.receipt != nil {
			r.receipt()
		}
	})
}

// each calls f for the requests that the message m names, while mu is held.
func (c *callers) each(m *rocl.Message, f func(r *request, more byte)) {
	c.mu.Lock()
	defer c.mu.Unlock()
	from := c.all[m.From()]
	if from == nil {
		return
	}
	for p := m.Bytes(); len(p) >= controlLen; p = p[controlLen:] {
		number, more, _ := parseControl(p[:controlLen])
		if r := from.requests[number]; r != nil {
			f(r, more)
		}
	}
}

// stream returns the request of a stream that a message with tagNext names, or nil.
func (c *callers) stream(from rocl.GID, number uint64) *request {
	c.mu.Lock()
	defer c.mu.Unlock()
	of := c.all[from]
	if of == nil || of.requests[number] == nil || of.requests[number].results == nil {
		return nil
	}
	return of.requests[number]
}

// isLost reports whether the server has given up a caller since it got the caller's request with a
// number.
func (c *callers) isLost(from rocl.GID, number uint64) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	of := c.all[from]
	return of == nil || number < of.first
}

// streams returns the requests of all streams in progress.
func (c *callers) streams() (all []*request) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, from := range c.all {
		for _, r := range from.requests {
			if r.results != nil {
				all = append(all, r)
			}
		}
	}
	return all
}

// gone ends the contexts of the handlers of a caller that has ended, or is out of reach. err says
// which.
func (c *callers) gone(id rocl.GID, err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if from := c.all[id]; from != nil {
		from.end(err)
		delete(c.all, id)
	}
}

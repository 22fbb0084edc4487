// SPDX-License-Identifier: Apache-2.0

package rpc

import (
	"context"
	"errors"
	"fmt"
	"maps"

	"github.com/rocl-go/rocl"
	"github.com/rocl-go/rocl/pool"
)

// An Option changes one default of [Register] or of a call.
type Option func(*config)

type config struct {
	place    place
	in, out  any // rocl.Codec of the arguments and the result; nil: package codec
	meta     Metadata
	checksum bool
	isJSON   bool
	isOneWay bool

	find      []rocl.FindOption // of providers
	isNearest bool
}

func newConfig(opts []Option) (c config) {
	for _, o := range opts {
		o(&c)
	}
	return c
}

// Inline has Register run the handler in the goroutine that receives requests: the quickest, for
// handlers that return at once. A handler that waits delays all requests to its server, and one
// that calls its own server waits for ever. It is not for streams.
func Inline() Option {
	return func(c *config) { c.place = place{isInline: true} }
}

// InPool has Register run the handlers of a call in a pool: so many at a time, in the order of its policy.
// A request for which the pool has no room fails with ErrBusy. A pool that waits when it is full
// (pool.WaitWhenFull) holds up all requests to the server instead, also those of other calls; then its mailbox fills, and
// callers wait. The deadline of a unit is that of the caller. Its key, for a pool of policy pool.Keyed, is the
// caller: the calls of one client run one after another, in order. The pool must not be closed before the
// server. It cannot be removed while the call is registered: pool.Set.RemovePool names the call. A pool of policy
// pool.Inline is as [Inline].
func InPool(p *pool.Pool) Option { return InPoolAt(p, 0) }

// InPoolAt is [InPool] for handlers whose units have a priority, in a pool of policy pool.Priority.
func InPoolAt(p *pool.Pool, priority int) Option {
	at := place{pool: p, priority: priority}
	at.isInline = p != nil && p.Config().Policy == pool.Inline
	return func(c *config) { c.place = at }
}

// A place is where handlers run; the zero place is a goroutine for each.
type place struct {
	isInline bool
	pool     *pool.Pool
	priority int
	leave    func() // ends the use of the pool; nil without pool
}

// enter makes a call of a server a user of its pool.
func (p *place) enter(s *Server, call string) {
	if p.pool != nil {
		p.leave = p.pool.Use(fmt.Sprintf("call %s of server %v", call, s.ID()))
	}
}

// exit ends what enter began.
func (p *place) exit() {
	if p.leave != nil {
		p.leave()
	}
}

// start runs the request where the place of its method says. If a pool waits for room, it returns a context
// that ends when it no longer does.
func (r *request) start() (waits context.Context) {
	switch p := &r.method.place; {
	case p.pool != nil:
		return r.submit()
	case p.isInline:
		r.run()
	default:
		go r.run()
	}
	return nil
}

// isReceiver reports whether handlers run in the goroutine that receives requests.
func (p *place) isReceiver() bool {
	return p.isInline || p.pool != nil && p.pool.Policy() == pool.Inline
}

// submit gives the request to a pool, as start says.
func (r *request) submit() (waits context.Context) {
	id := r.ctx.info.Caller
	u := pool.Unit{Run: func(context.Context) { r.run() }, Key: uint64(id.Serial())<<32 ^ id.Ctx() ^ uint64(id.Node())}
	u.Priority = r.method.place.priority
	u.Deadline, _ = r.ctx.Deadline()
	p := r.method.place.pool
	err := p.Submit(ended, u)
	if errors.Is(err, context.Canceled) { // it would wait
		waits, done := context.WithCancel(context.Background())
		ctx := r.ctx
		r.s.receiver.Go(func() {
			defer done()
			if err := p.Submit(ctx, u); err != nil {
				r.startElsewhere(err)
			}
		})
		return waits
	}
	if err != nil {
		return r.startElsewhere(err)
	}
	return nil
}

// startElsewhere runs a request that its pool has refused in the place that its call has by now, if the pool was
// removed because the call was moved, and otherwise refuses it.
func (r *request) startElsewhere(err error) (waits context.Context) {
	m := (*r.s.names.Load())[r.method.id]
	if !errors.Is(err, pool.ErrClosed) || m == nil || m.place.pool == r.method.place.pool {
		r.busy(err)
		return nil
	}
	r.method = m
	return r.start()
}

// busy refuses a request for which a pool has no room.
func (r *request) busy(err error) {
	r.method.stats.refused.Add(1)
	if cause := context.Cause(r.ctx); cause != nil {
		r.refuse(cause)
	} else {
		r.refuse(fmt.Errorf("%w: %w", ErrBusy, err))
	}
	r.end()
}

// InGoroutine has Register run each handler in a goroutine of its own: the default.
func InGoroutine() Option { return func(c *config) { c.place = place{} } }

// Place changes where the handlers of a call run, by Inline, InPool or InGoroutine. Requests that the server has
// received run where they would have, or, where that pool is removed before, in the new place. It fails with ErrUnknownCall if the name is not registered, and with
// errors.ErrUnsupported for a stream that would be Inline.
func (s *Server) Place(name string, o Option) error {
	id := callID(name)
	s.mu.Lock()
	defer s.mu.Unlock()
	names := maps.Clone(*s.names.Load())
	m := names[id]
	if m == nil {
		return fmt.Errorf("rpc: place %q: %w", name, ErrUnknownCall)
	}
	moved := *m
	moved.place = newConfig([]Option{o}).place
	if err := moved.check(); err != nil {
		return fmt.Errorf("rpc: place %q: %w", name, err)
	}
	moved.place.enter(s, name)
	names[id] = &moved
	s.names.Store(&names)
	m.place.exit()
	return nil
}

// WithCodecs has the arguments and the result encoded by the program's own codecs; nil stands for
// package codec. Server and caller give the same ones.
func WithCodecs[In, Out any](in rocl.Codec[In], out rocl.Codec[Out]) Option {
	return func(c *config) {
		if in != nil {
			c.in = in
		}
		if out != nil {
			c.out = out
		}
	}
}

// WithMetadata adds names and values that travel with a call; see [Info].
func WithMetadata(m Metadata) Option {
	return func(c *config) {
		if c.meta == nil {
			c.meta = Metadata{}
		}
		maps.Copy(c.meta, m)
	}
}

// WithChecksum has a request and its reply carry checksums of all their bytes, and of those that are pulled. Where one does not fit,
// the call fails with ErrChecksum. The transports of rocl have checksums of their own where a
// network can damage bytes (TCP) and where others could (TLS).
func WithChecksum() Option { return func(c *config) { c.checksum = true } }

// An Invocation is one call, as interceptors see it.
type Invocation struct {
	Info
	In  any // *In: the arguments
	Out any // *Out: the result, after next has returned
}

// An Interceptor is called instead of a call: at a server instead of the handler, at a client instead
// of sending the request. It calls next to go on, as often as it wants, with ctx or a context
// made from it, and returns the error of the call. It may change what In and Out point to.
type Interceptor func(ctx context.Context, i *Invocation, next func(context.Context) error) error

// intercept calls the first of around, and so the others, and at last f.
func intercept(ctx context.Context, around []Interceptor, i *Invocation, f func(context.Context) error) error {
	if len(around) == 0 {
		return f(ctx)
	}
	return around[0](ctx, i, func(ctx context.Context) error { return intercept(ctx, around[1:], i, f) })
}

// WithInterceptors has a server call its handlers through interceptors, the first one outermost.
func WithInterceptors(i ...Interceptor) ServerOption {
	return func(s *Server) { s.around = append(s.around, i...) }
}

// WithErrors gives errors of the program names on the wire, so that they match, with errors.Is, at
// the caller too. Server and client give the same names.
func WithErrors(errs map[string]error) ServerOption {
	return func(s *Server) { s.words = errs }
}

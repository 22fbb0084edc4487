// SPDX-License-Identifier: Apache-2.0

package rpc

import (
	"context"
	"fmt"
	"maps"

	"github.com/rocl-go/rocl"
	"github.com/rocl-go/rocl/pool"
)

// An Option changes one default of [Register] or of a call.
type Option func(*config)

type config struct {
	place    runner
	in, out  any // rocl.Codec of the arguments and the result; nil: package codec
	meta     Metadata
	checksum bool

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
// that calls its own server waits for ever.
func Inline() Option {
	return func(c *config) { c.place = func(r *request) error { r.run(); return nil } }
}

// InPool has Register run the handlers of a call in a pool: so many at a time, in the order of its policy.
// A request for which the pool has no room fails with ErrBusy. A pool that waits when it is full
// (pool.WaitWhenFull) holds up all requests to the server instead, whose mailbox then fills, so that
// callers wait. The deadline of a unit is that of the caller. Its key, for a pool of policy pool.Keyed, is the
// caller: the calls of one client run one after another, in order. The pool must not be closed before the
// server.
func InPool(p *pool.Pool) Option {
	return func(c *config) {
		c.place = func(r *request) error {
			u := pool.Unit{Run: func(context.Context) { r.run() }, Key: uint64(r.ctx.info.Caller.Serial())<<32 ^ r.ctx.info.Caller.Ctx() ^ uint64(r.ctx.info.Caller.Node())}
			u.Deadline, _ = r.ctx.Deadline()
			return p.Submit(r.ctx, u)
		}
	}
}

// InGoroutine has Register run each handler in a goroutine of its own: the default.
func InGoroutine() Option { return func(c *config) { c.place = nil } }

// Place changes where the handlers of a call run, by Inline, InPool or InGoroutine. Requests that the server has
// received run where they would have. It fails with ErrUnknownCall where the name is not registered.
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
	names[id] = &moved
	s.names.Store(&names)
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

// WithChecksum has a request and its reply carry checksums of all their bytes. Where one does not fit,
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

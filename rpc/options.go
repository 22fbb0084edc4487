// SPDX-License-Identifier: Apache-2.0

package rpc

import (
	"cmp"
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
	executor    executor
	hasExecutor bool // an option sets executor
	in, out     any  // rocl.Codec of the arguments and the result; nil: package codec
	meta        Metadata
	checksum    bool
	isJSON      bool
	isOneWay    bool

	find      []rocl.FindOption // options of the search for providers
	isNearest bool
	policy    *Policy // nil: that of the client
	pick      Picker  // nil: the directory is asked
}

func newConfig(opts []Option) (c config) {
	for _, o := range opts {
		if o != nil {
			o(&c)
		}
	}
	return c
}

// Inline makes the goroutine that receives requests run the handler. This is the quickest way, for
// handlers that return at once. A handler that waits delays all requests to its server. One Inline
// handler of a server runs at a time, whichever goroutine runs it: arguments that are pulled, and
// nested calls, have another one. Inline is not for streams.
func Inline() Option {
	return withExecutor(executor{isInline: true})
}

// InPool makes the handlers of a call run in a pool, which limits how many run at a time and sets
// their order. A request for which the pool has no room fails with ErrBusy. A pool that waits when
// it is full (pool.WaitWhenFull) delays all requests to the server instead, also those of other
// calls. Then the server's mailbox fills, and callers wait. A request leaves the queue as soon as
// its caller cancels or ends, or its deadline is over.
//
// A handler keeps its worker while it waits for a call. If a handler in a pool, or an [Inline] one,
// calls a server of its own process, with its own context, the call is nested: the called handler
// runs in the calling goroutine. It needs no worker, and the limit and the order of its own pool do
// not apply to it. So a pool of one worker may call itself, and handlers of several pools may call
// each other. An Inline handler runs in the calling goroutine while no other one of its server
// does. The handlers that a nested call's handler calls are nested too.
//
// [Call] then returns when the called handler has returned, and that should watch its context. The
// call of a [Future] waits for a worker, until a goroutine waits for the Future. If the handler has
// not begun by then, that goroutine runs it. The handler of a [Stream] has a goroutine of its own.
//
// Calls that come back by way of another process, or that a handler makes with another context, can
// wait for their own end, until their deadlines. So can Inline handlers of two servers that call
// each other.
//
// The deadline of a unit is the caller's. Its key, for a pool of policy pool.Keyed, is the caller:
// the calls of one client run one after another, in order. The pool must not be closed before the
// server, and must not be nil: then Register fails. It cannot be removed while the call is
// registered: the error of pool.Set.RemovePool names the call. A pool of policy pool.Inline has the
// effect of [Inline].
func InPool(p *pool.Pool) Option { return InPoolAt(p, 0) }

// InPoolAt is [InPool] for handlers whose units have a priority, in a pool of policy pool.Priority.
func InPoolAt(p *pool.Pool, priority int) Option {
	at := executor{pool: p, priority: priority, lacksPool: p == nil}
	at.isInline = p != nil && p.Config().Policy == pool.Inline
	return withExecutor(at)
}

func withExecutor(e executor) Option {
	return func(c *config) { c.executor, c.hasExecutor = e, true }
}

// An executor says where the handlers of a call run. The zero executor runs each in a goroutine of
// its own.
type executor struct {
	isInline  bool
	pool      *pool.Pool
	lacksPool bool // InPool was given nil
	priority  int
	leave     func() // ends the use of the pool; nil without pool
}

// enter records a call of a server as a user of its pool.
func (p *executor) enter(s *Server, call string) {
	if p.pool != nil {
		p.leave = p.pool.Use(fmt.Sprintf("call %s of server %v", call, s.ID()))
	}
}

// exit ends the use that enter recorded.
func (p *executor) exit() {
	if p.leave != nil {
		p.leave()
	}
}

// start runs the request in the place of its method. If a pool waits for room, start returns a
// context that ends when the pool no longer waits.
func (r *request) start() (waits context.Context) {
	switch p := &r.method.executor; {
	case p.pool != nil:
		q := &queued{r: r, ctx: r.ctx}
		return q.enqueue()
	case p.isInline:
		r.runInPlace()
	default:
		go r.run()
	}
	return nil
}

// isReceiver reports whether handlers run in the goroutine that receives requests.
func (p *executor) isReceiver() bool {
	return p.isInline || p.pool != nil && p.pool.Policy() == pool.Inline
}

// runInPlace runs the request, and no other Inline handler of the server meanwhile if the handler
// is one.
func (r *request) runInPlace() {
	if r.method.executor.isReceiver() {
		r.s.inline.Lock()
		defer r.s.inline.Unlock()
	}
	r.run()
}

// retryAfterMove handles a request that its pool has refused. If the pool was removed because the
// call was moved, the request runs in the call's new place. Otherwise it is refused.
func (r *request) retryAfterMove(err error) (waits context.Context) {
	m := r.method.now()
	if !errors.Is(err, pool.ErrClosed) || m == nil || m.executor.pool == r.method.executor.pool {
		r.busy(err)
		return nil
	}
	moved := *r.ctx
	moved.method = m
	if r.method, r.ctx = m, &moved; r.nested != nil {
		go r.nested.run()
		return nil
	}
	return r.start()
}

// busy refuses a request for which a pool has no room.
func (r *request) busy(err error) {
	r.method.stats.refused.Add(1)
	r.drop(cmp.Or(context.Cause(r.ctx), fmt.Errorf("%w: %w", ErrBusy, err)))
}

// InGoroutine makes each handler run in a goroutine of its own, which is the default.
func InGoroutine() Option { return withExecutor(executor{}) }

// Place changes where the handlers of a call run, by Inline, InPool or InGoroutine. Requests that
// the server has already received run in the old place, or in the new one if the old pool is
// removed before. Place fails with ErrUnknownCall if the name is not registered, with ErrClosed
// after Close, and with errors.ErrUnsupported for another option and for a stream that would be
// Inline.
func (s *Server) Place(name string, o Option) error {
	id := callID(name)
	s.mu.Lock()
	defer s.mu.Unlock()
	names := maps.Clone(*s.names.Load())
	m := names[id]
	to := newConfig([]Option{o})
	switch {
	case s.hasLeftPools:
		return fmt.Errorf("rpc: place %q: %w", name, ErrClosed)
	case m == nil:
		return fmt.Errorf("rpc: place %q: %w", name, ErrUnknownCall)
	case !to.hasExecutor:
		return fmt.Errorf("rpc: place %q: %w: the option sets no place", name, errors.ErrUnsupported)
	}
	moved := *m
	moved.executor = to.executor
	if err := moved.check(); err != nil {
		return fmt.Errorf("rpc: place %q: %w", name, err)
	}
	moved.executor.enter(s, name)
	names[id] = &moved
	s.names.Store(&names)
	m.executor.exit()
	return nil
}

// WithCodecs sets the program's own codecs of the arguments and the result. nil stands for package
// codec. Server and caller must give the same ones.
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

// WithChecksum adds checksums of all bytes to a request and its reply, and to the bytes that are
// pulled. If a checksum does not fit, the call fails with ErrChecksum. The transports of rocl have
// checksums of their own if a network can damage bytes (TCP), or an attacker could (TLS).
func WithChecksum() Option { return func(c *config) { c.checksum = true } }

// An Invocation describes one call to interceptors.
type Invocation struct {
	Info
	In  any // *In: the arguments
	Out any // *Out: the result, after next has returned
}

// An Interceptor runs in place of a call: at a server in place of the handler, at a client in place
// of sending the request. It calls next to make the call, any number of times, with ctx or a
// context derived from it, and returns the error of the call. It may change the values that In and
// Out point to.
type Interceptor func(ctx context.Context, i *Invocation, next func(context.Context) error) error

// intercept calls f through the interceptors around, the first one outermost.
func intercept(ctx context.Context, around []Interceptor, i *Invocation, f func(context.Context) error) error {
	if len(around) == 0 {
		return f(ctx)
	}
	return around[0](ctx, i, func(ctx context.Context) error { return intercept(ctx, around[1:], i, f) })
}

// appendInterceptors appends those of more that are not nil to all.
func appendInterceptors(all, more []Interceptor) []Interceptor {
	for _, i := range more {
		if i != nil {
			all = append(all, i)
		}
	}
	return all
}

// WithInterceptors makes a server call its handlers through interceptors, the first one outermost.
func WithInterceptors(i ...Interceptor) ServerOption {
	return func(s *Server) { s.around = appendInterceptors(s.around, i) }
}

// WithErrors gives names on the wire to errors of the program, so that errors.Is finds them at the
// caller too. Server and client must give the same names.
func WithErrors(errs map[string]error) ServerOption {
	return func(s *Server) { s.errorNames = errs }
}

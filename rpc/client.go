// SPDX-License-Identifier: Apache-2.0

package rpc

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"reflect"
	"sync"
	"sync/atomic"
	"time"

	"github.com/rocl-go/rocl"
)

// A Client makes calls. It is a resource of rocl to which replies come. One client serves any
// number of goroutines. Its methods may be called concurrently.
type Client struct {
	c            *rocl.Context
	r            *rocl.Resource
	errorNames   errorNames
	interceptors []Interceptor
	numbers      atomic.Uint64
	overflow     overflow
	life         context.Context // ends with Close
	end          context.CancelFunc
	registration []rocl.RegisterOption
	policies     map[string]*Policy // of CallPolicies
	circuits     circuits
	names        callNames

	mu       sync.Mutex
	isClosed bool            // no goroutine of telling may begin
	untold   map[told][]byte // payloads of messages that wait; while a provider and tag is in it, one goroutine tells it
	telling  sync.WaitGroup  // these goroutines; begun with mu held
}

// A ClientOption changes one default of [NewClient].
type ClientOption func(*Client)

// CallInterceptors makes a client call through interceptors, the first one outermost. They also
// apply to [Send] and [Stream], whose Invocation has no Out. The call of a stream ends with the
// loop.
func CallInterceptors(i ...Interceptor) ClientOption {
	return func(c *Client) { c.interceptors = appendInterceptors(c.interceptors, i) }
}

// CallErrors is [WithErrors] for a client.
func CallErrors(errs map[string]error) ClientOption { return func(c *Client) { c.errorNames = errs } }

// CallRegister is [WithRegister] for the resource of a client.
func CallRegister(opts ...rocl.RegisterOption) ClientOption {
	return func(c *Client) { c.registration = append(c.registration, opts...) }
}

// NewClient registers a resource that makes calls. It fails as [rocl.Context.Register] does.
func NewClient(ctx context.Context, c *rocl.Context, opts ...ClientOption) (*Client, error) {
	cl := &Client{c: c}
	cl.life, cl.end = context.WithCancel(context.Background())
	cl.overflow.init(c)
	for _, o := range opts {
		if o != nil {
			o(cl)
		}
	}
	var err error
	if cl.r, err = c.Register(ctx, rocl.Attrs{"rpc": "client"}, cl.registration...); err != nil {
		return nil, fmt.Errorf("rpc: new client: %w", err)
	}
	cl.r.SetActivity(rocl.Activity{CallName: cl.names.of})
	return cl, nil
}

// ID returns the identifier of the client's resource.
func (c *Client) ID() rocl.GID { return c.r.ID() }

// Close ends the client. Waiting calls fail with rocl.ErrClosed, and the contexts of their handlers
// end.
func (c *Client) Close() error {
	c.mu.Lock()
	c.isClosed = true
	c.mu.Unlock()
	c.end()
	err := c.r.Close()
	c.telling.Wait()
	if e := c.overflow.close(); err == nil {
		err = e
	}
	return err
}

// Call calls the name at a provider with the arguments in, and returns the result. The deadline of
// ctx applies to the handler too. When ctx ends before the reply has come, Call returns its cause
// at once, and the handler's context ends.
//
// Call fails with rocl.ErrGone, within milliseconds on one node, when the provider's process has
// ended. It fails with rocl.ErrUnreachable if the provider is out of reach, with ErrUnknownCall if
// the provider does not offer the name, with ErrBusy if the provider has no room, and with
// rocl.ErrValue if the types do not fit. If the handler returned an error, Call returns an [Error]
// with its text. After any error the handler may have run, unless [MayRetry] reports true.
//
// A handler's call, with its own context, to a server of its own process may run in the calling
// goroutine: see [InPool]. Then Call returns when the called handler has returned.
//
// While it waits, Call holds no goroutine but the caller's. The encoded request belongs to rocl.
// Larger arguments (see [CallOverflow]) are encoded into memory of this process, from which the
// server pulls them; in itself is not used after Call has encoded it. That memory is released when
// Call returns. If the server reads it just then, it is released when the server has read it.
func Call[In, Out any](ctx context.Context, c *Client, provider rocl.GID, name string, in In, opts ...Option) (Out, error) {
	if len(c.interceptors) == 0 && len(opts) == 0 {
		return call[In, Out](ctx, c, provider, name, in, &config{})
	}
	cfg := newConfig(opts)
	return callWith[In, Out](ctx, c, provider, name, in, &cfg)
}

// callWith is Call with a config.
func callWith[In, Out any](ctx context.Context, c *Client, provider rocl.GID, name string, in In, cfg *config) (Out, error) {
	if len(c.interceptors) == 0 {
		return call[In, Out](ctx, c, provider, name, in, cfg)
	}
	return callAround[In, Out](ctx, c, provider, name, in, cfg)
}

func callAround[In, Out any](ctx context.Context, c *Client, provider rocl.GID, name string, in In, cfg *config) (out Out, err error) {
	i := &Invocation{Info: Info{Name: name, Provider: provider}, In: &in, Out: &out}
	err = c.around(ctx, i, cfg, func(ctx context.Context, cfg *config) (err error) {
		out, err = call[In, Out](ctx, c, provider, name, in, cfg)
		return err
	})
	return out, err
}

// around calls f through the interceptors, with the metadata as the interceptors have changed it.
func (c *Client) around(ctx context.Context, i *Invocation, cfg *config, f func(context.Context, *config) error) error {
	if len(c.interceptors) == 0 {
		return f(ctx, cfg)
	}
	i.Caller, i.Metadata = c.ID(), maps.Clone(cfg.meta)
	return intercept(ctx, c.interceptors, i, func(ctx context.Context) error {
		own := *cfg
		own.meta = i.Metadata
		return f(ctx, &own)
	})
}

func call[In, Out any](ctx context.Context, c *Client, provider rocl.GID, name string, in In, cfg *config) (out Out, err error) {
	if s := nestedServer(ctx, provider); s != nil {
		return callNested[In, Out](ctx, c, s, name, in, cfg)
	}
	var h requestHeader
	b, err := encodeRequest(ctx, c, in, cfg, &h)
	if err != nil {
		return out, c.wrap(name, provider, err)
	}
	p, err := c.r.StartCall(ctx, provider, c.names.id(name), b)
	if err != nil {
		b.Release()
		h.release()
		return out, c.wrap(name, provider, notSent(err, provider))
	}
	m, err := p.Wait(ctx)
	h.release()
	if err != nil {
		return out, c.wrap(name, provider, sendError{err, provider})
	}
	return result[Out](ctx, c, provider, name, m, h.number, h.flags, cfg.out, argumentType[In](cfg))
}

// result returns the result or the error in m, the reply to a request with a number and flags, and
// releases m. own is the codec of the result, and in is the result of argumentType.
func result[Out any](ctx context.Context, c *Client, provider rocl.GID, name string, m *rocl.Message, number uint64, flags byte, own any, in reflect.Type) (out Out, err error) {
	status, body, err := parseReply(m.Bytes(), flags)
	switch {
	case err != nil:
		c.gotResult(provider, number) // the provider may hold one
	case status != statusResult:
		err = withType(c.remote(name, provider, status, body), in)
	default:
		if m.Bytes()[1]&flagElsewhere == 0 {
			out, err = formatOf[Out](own).decode(body)
		} else {
			out, err = pulledResult(ctx, c, provider, number, body, flags, formatOf[Out](own))
		}
		if err != nil {
			err = fmt.Errorf("the result: %w", err)
		}
	}
	m.Release()
	return out, c.wrap(name, provider, err)
}

// encodeRequest returns the message of a request, and fills in its header.
func encodeRequest[In any](ctx context.Context, c *Client, in In, cfg *config, h *requestHeader) (b *rocl.Buffer, err error) {
	if ctx.Done() != nil {
		if err := context.Cause(ctx); err != nil {
			return nil, err
		}
		h.number = c.numbers.Add(1)
		if !cfg.isOneWay {
			h.stamp()
		}
	} else if cfg.checksum {
		h.number = c.numbers.Add(1) // a damaged reply does not name the result that the provider holds
	}
	if cfg.checksum {
		h.flags |= flagChecksum
	}
	if cfg.isJSON {
		h.flags |= flagJSON
	}
	if h.meta, err = cfg.meta.encode(); err != nil {
		return nil, err
	}
	b, err = formatOf[In](cfg.in).encode(&c.overflow, h.size(), in)
	if err != nil || b.Len()-h.size() > c.overflow.limit {
		var v *unsent
		if v, err = unsentOf(&c.overflow, formatOf[In](cfg.in), h.size(), in, b, err); err == nil {
			b, err = c.argumentsElsewhere(ctx, v, cfg.isOneWay, h)
		}
	}
	if err != nil {
		return nil, fmt.Errorf("the arguments: %w", err)
	}
	if d, ok := ctx.Deadline(); ok {
		if h.left = time.Until(d); h.left <= 0 {
			b.Release()
			h.release()
			return nil, context.DeadlineExceeded
		}
	}
	if cfg.isOneWay {
		h.left = 0
		if h.region == nil { // otherwise the caller waits for the pull, and can give up
			h.number = 0
		}
	}
	h.put(b.Bytes())
	return b, nil
}

// A sendError is an error of rocl that names the provider: its request was not sent, or its reply
// has not come.
type sendError struct {
	error
	provider rocl.GID
}

func (e sendError) Unwrap() error { return e.error }

// wrap returns err with the call and the provider, each named once, unless it is nil or an *Error.
func (c *Client) wrap(name string, provider rocl.GID, err error) error {
	if _, isNamed := err.(*Error); isNamed || err == nil {
		return err
	}
	if e := (sendError{}); errors.As(err, &e) && e.provider == provider {
		return fmt.Errorf("rpc: call %q: %w", name, err)
	}
	return fmt.Errorf("rpc: call %q of %v: %w", name, provider, err)
}

// remote returns the error that a provider has sent.
func (c *Client) remote(name string, provider rocl.GID, status byte, body []byte) error {
	e, err := c.errorNames.parseError(body)
	if err != nil {
		return err
	}
	e.Call, e.Provider, e.Ran = name, provider, status == statusError
	return e
}

// tellMost is how many bytes one message with tagCancel or tagReceipt has at most.
const tellMost = 1000 * controlLen

// A told names a provider, and the tag of the messages that tell it something.
type told struct {
	provider rocl.GID
	tag      uint64
}

// tell tells a provider, with tagCancel, that a stream has ended for the caller, or, with
// tagReceipt, that the provider need not hold a result any more. It does not wait. One goroutine
// for each provider and tag sends what waits. That is bounded: the provider has replied to each of
// these requests.
func (c *Client) tell(provider rocl.GID, tag, number uint64, why byte) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.isClosed { // the end of the resource tells the provider
		return
	}
	var p [controlLen]byte
	putControl(p[:], number, why)
	to := told{provider, tag}
	waiting, isTelling := c.untold[to]
	if c.untold == nil {
		c.untold = map[told][]byte{}
	}
	if c.untold[to] = append(waiting, p[:]...); !isTelling {
		c.telling.Go(func() { c.tellAll(to) })
	}
}

// tellAll sends what waits for a provider with a tag, until nothing waits.
func (c *Client) tellAll(to told) {
	for {
		c.mu.Lock()
		p := c.untold[to]
		n := min(len(p), tellMost)
		if n == 0 {
			delete(c.untold, to)
			c.mu.Unlock()
			return
		}
		c.mu.Unlock()
		err := c.r.SendAndForget(c.life, to.provider, to.tag, p[:n])
		if errors.Is(err, rocl.ErrLimit) { // wait until there is memory again
			b, err := c.c.BufferWait(c.life, n)
			if err != nil {
				return // the client is closed
			}
			b.Release()
			continue
		}
		c.mu.Lock() // an error says that the provider has ended, or that the client is closed
		c.untold[to] = c.untold[to][n:]
		c.mu.Unlock()
	}
}

// Send calls a name without waiting for the result. It returns when the request is accepted, as
// [rocl.Resource.Send] does. The handler's result and error are dropped, and the end of ctx does
// not end the handler's context. If the arguments are larger than the limit (see [CallOverflow]),
// Send returns when the server has pulled them.
func Send[In any](ctx context.Context, c *Client, provider rocl.GID, name string, in In, opts ...Option) error {
	cfg := newConfig(opts)
	cfg.isOneWay = true
	return c.around(ctx, &Invocation{Info: Info{Name: name, Provider: provider}, In: &in}, &cfg, func(ctx context.Context, cfg *config) error {
		if s := nestedServer(ctx, provider); s != nil {
			if isSent, err := sendNested(ctx, c, s, name, in, cfg); isSent {
				return c.wrap(name, provider, err)
			}
		}
		var h requestHeader
		b, err := encodeRequest(ctx, c, in, cfg, &h)
		switch {
		case err != nil:
		case h.region != nil:
			err = c.sendElsewhere(ctx, provider, name, b, &h)
		default:
			if err = c.r.Send(ctx, provider, callID(name), b); err != nil {
				b.Release()
				err = notSent(err, provider)
			}
		}
		return c.wrap(name, provider, err)
	})
}

// SPDX-License-Identifier: Apache-2.0

package bench

import (
	"context"
	"fmt"
	netrpc "net/rpc"
	"sync/atomic"

	"github.com/rocl-go/rocl"
	"github.com/rocl-go/rocl/rpc"
)

const (
	rpcInFlight = 64
	rpcCalls    = "bench.null" // the name of the call
)

var rpcCases = []comparison{
	{bench: "rpc", name: "rpc inline", set: rpcTrips, unit: "µs", goal: 1.2, bare: messages("echo"), ours: rpcTrip("calls-inline"), finish: rpcTripsSize},
	{bench: "rpc", name: "rpc goroutine", set: rpcTrips, unit: "µs", goal: 3, bare: messages("echo"), ours: rpcTrip("calls-goroutine"), finish: rpcTripsSize},
	{bench: "rpc", name: "rpc calls", transport: "shm", set: rpcMany, what: "net/rpc over TCP", unit: "calls/s", goal: 1_500_000, bare: netFutures, ours: rpcFutures, finish: rpcLeast},
	{bench: "rpc", name: "rpc calls", transport: "tcp", set: rpcMany, what: "net/rpc over TCP", unit: "calls/s", goal: 400_000, bare: netFutures, ours: rpcFutures, finish: rpcLeast},
	{bench: "rpc", name: "rpc calls of goroutines", set: rpcMany, what: "net/rpc over TCP", unit: "calls/s", bare: netCalls, ours: rpcGoroutines, finish: rpcLeast},
}

func rpcTrips(o *options) { o.poll = "always" }

func rpcMany(o *options) {
	o.poll, o.count, o.inFlight = "adaptive", 10*o.count, rpcInFlight
}

func rpcTripsSize(p *pair, r *Result, t []*times) []*Result {
	r.Size, r.What = 0, fmt.Sprintf("a message of %d bytes there and back", p.Size)
	return nil
}

func rpcLeast(p *pair, r *Result, t []*times) []*Result {
	if r.Size = 0; r.Target > 0 {
		r.Extra = fmt.Sprintf("one goroutine; at least %.0f calls a second are required", r.Target)
		r.Target /= r.Raw
	}
	return nil
}

// serveCalls answers n calls of rpcCalls with a server of its own.
func (a *answerer) serveCalls(n int, inline bool) error {
	var opts []rpc.Option
	if inline {
		opts = append(opts, rpc.Inline())
	}
	var count atomic.Int64
	served := make(chan struct{})
	s, err := rpc.NewServer(a.ctx, a.c, rocl.Attrs{"bench": "calls"}, rpc.WithCalls(func(s *rpc.Server) error {
		return rpc.Register(s, rpcCalls, func(context.Context, struct{}) (struct{}, error) {
			if count.Add(1) == int64(n) {
				close(served)
			}
			return struct{}{}, nil
		}, opts...)
	}))
	if err != nil {
		return err
	}
	select {
	case <-served:
	case <-a.ctx.Done():
		err = context.Cause(a.ctx)
	}
	if e := s.Close(context.WithoutCancel(a.ctx)); err == nil {
		err = e
	}
	return err
}

// A caller makes empty calls of the peer's server. As with net/rpc, its calls use a context that
// does not end.
type caller struct {
	ctx    context.Context
	client *rpc.Client
	server rocl.GID
}

func (c *caller) once() error {
	_, err := rpc.Call[struct{}, struct{}](c.ctx, c.client, c.server, rpcCalls, struct{}{})
	return err
}

// futures makes n calls, rpcInFlight at a time.
func (c *caller) futures(n int) error {
	var window [rpcInFlight]*rpc.Future[struct{}]
	for i := range n + rpcInFlight {
		f := &window[i%rpcInFlight]
		if i >= rpcInFlight {
			if _, err := (*f).Wait(c.ctx); err != nil {
				return err
			}
		}
		if i < n {
			*f = rpc.Go[struct{}, struct{}](c.ctx, c.client, c.server, rpcCalls, struct{}{})
		}
	}
	return nil
}

// calling returns a loop that calls a server of the peer.
func (p *pair) calling(task string, f func(c *caller, n int, t *times) error) loop {
	return p.with(task, func(n int, t *times) error {
		client, err := rpc.NewClient(p.ctx, p.c)
		if err != nil {
			return err
		}
		defer client.Close()
		found, err := p.c.Await(p.ctx, rocl.Match{"bench": "calls"}, 1)
		if err != nil {
			return err
		}
		return f(&caller{p.free, client, found[0].ID}, n, t)
	})
}

func rpcTrip(task string) side {
	return func(p *pair) loop {
		return p.calling(task, func(c *caller, n int, t *times) error { return t.round(n, c.once) })
	}
}

func rpcFutures(p *pair) loop {
	return p.calling("calls-inline", func(c *caller, n int, t *times) error {
		return t.rate(float64(n), func() error { return c.futures(n) })
	})
}

func rpcGoroutines(p *pair) loop {
	return p.calling("calls-inline", func(c *caller, n int, t *times) error {
		return t.rate(float64(n), func() error {
			return concurrently(rpcInFlight, func(i int) error { return repeat((n+i)/rpcInFlight, c.once) })
		})
	})
}

// Echo is the service of net/rpc that is called.
type Echo struct{}

// Bytes replies with the request.
func (Echo) Bytes(in []byte, out *[]byte) error { *out = in; return nil }

// serveNetRPC serves a separate connection with net/rpc until it ends.
func (a *answerer) serveNetRPC() error {
	nc, done, err := a.accept()
	if err != nil {
		return err
	}
	defer done()
	s := netrpc.NewServer()
	err = s.Register(Echo{})
	if err == nil {
		s.ServeConn(nc)
	}
	return err
}

// netCalling returns a loop that calls the peer with net/rpc over a separate connection.
func (p *pair) netCalling(f func(client *netrpc.Client, n int) error) loop {
	return func(n int, t *times) error {
		if p.o.bench == "rpc" {
			n /= 10 // takes as long as the library's calls
		}
		n = max(n, p.o.inFlight)
		if err := p.begin("serve-rpc", 1); err != nil {
			return err
		}
		nc, done, err := p.dial()
		if err != nil {
			return err
		}
		defer done()
		client := netrpc.NewClient(nc)
		err = t.rate(float64(n), func() error { return f(client, n) })
		client.Close()
		if err != nil {
			return err
		}
		return p.wait()
	}
}

func netCalls(p *pair) loop {
	in := make([]byte, p.Size)
	return p.netCalling(func(client *netrpc.Client, n int) error {
		return concurrently(p.o.inFlight, func(i int) error {
			return repeat((n+i)/p.o.inFlight, func() error {
				var out []byte
				err := client.Call("Echo.Bytes", in, &out)
				if err == nil && len(out) != p.Size {
					err = fmt.Errorf("net/rpc replies with %d bytes to %d", len(out), p.Size)
				}
				return err
			})
		})
	})
}

func netFutures(p *pair) loop {
	in := make([]byte, p.Size)
	return p.netCalling(func(client *netrpc.Client, n int) error {
		done := make(chan *netrpc.Call, rpcInFlight)
		for i := range n + rpcInFlight {
			if i >= rpcInFlight {
				if c := <-done; c.Error != nil {
					return c.Error
				}
			}
			if i < n {
				client.Go("Echo.Bytes", in, new([]byte), done)
			}
		}
		return nil
	})
}

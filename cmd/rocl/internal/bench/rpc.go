// SPDX-License-Identifier: Apache-2.0

package bench

import (
	"context"
	"fmt"
	"net"
	netrpc "net/rpc"
	"sync/atomic"
	"time"

	"github.com/rocl-go/rocl"
	"github.com/rocl-go/rocl/rpc"
)

// The targets of the rows of rpc.
const (
	rpcMost          = 1.2 // times a message there and back, for an empty call
	rpcGoroutineMost = 3   // the same if a goroutine runs each handler
	rpcInFlight      = 64
	rpcCalls         = "bench.null" // the name of the call
)

// rpcLeast is the least number of calls a second with rpcInFlight calls under way, by transport.
var rpcLeast = map[string]float64{"shm": 1_500_000, "tcp": 400_000}

// rpcBench measures package rpc, row by row.
func rpcBench(ctx context.Context, o *options) (*Result, error) {
	var all []*Result
	for _, transport := range []string{"shm", "tcp"} {
		for _, row := range []struct {
			poll string
			f    func(*pair, *options) (*Result, error)
		}{
			{"always", func(p *pair, o *options) (*Result, error) { return rpcTrips(p, o, "inline", rpcMost) }},
			{"always", func(p *pair, o *options) (*Result, error) { return rpcTrips(p, o, "goroutine", rpcGoroutineMost) }},
			{"adaptive", func(p *pair, o *options) (*Result, error) { return rpcRate(p, o, oneCaller) }},
			{"adaptive", func(p *pair, o *options) (*Result, error) { return rpcRate(p, o, callers) }},
		} {
			own := *o
			own.transport, own.poll = transport, row.poll
			r, err := between(ctx, &own, func(p *pair) (*Result, error) { return row.f(p, &own) })
			if err != nil {
				return nil, err
			}
			all = append(all, r)
		}
	}
	for i := range all[1:] {
		all[i].Also = all[i+1]
	}
	return all[0], nil
}

// serveCalls answers n calls of rpcCalls with a server of its own.
func serveCalls(ctx context.Context, c *rocl.Context, n int, where string) error {
	var opts []rpc.Option
	if where == "inline" {
		opts = append(opts, rpc.Inline())
	}
	var count atomic.Int64
	served := make(chan struct{})
	s, err := rpc.NewServer(ctx, c, rocl.Attrs{"bench": "calls"}, rpc.WithCalls(func(s *rpc.Server) error {
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
	case <-ctx.Done():
		err = context.Cause(ctx)
	}
	if e := s.Close(context.WithoutCancel(ctx)); err == nil {
		err = e
	}
	return err
}

// A caller makes empty calls of the peer's server.
type caller struct {
	ctx    context.Context
	client *rpc.Client
	server rocl.GID
}

func (c *caller) once() error {
	_, err := rpc.Call[struct{}, struct{}](c.ctx, c.client, c.server, rpcCalls, struct{}{})
	return err
}

// rate returns how many calls a second one goroutine makes, with n calls in all.
func (c *caller) rate(n int) (float64, error) {
	var window [rpcInFlight]*rpc.Future[struct{}]
	start := time.Now()
	for i := range n + rpcInFlight {
		f := &window[i%rpcInFlight]
		if i >= rpcInFlight {
			if _, err := (*f).Wait(c.ctx); err != nil {
				return 0, err
			}
		}
		if i < n {
			*f = rpc.Go[struct{}, struct{}](c.ctx, c.client, c.server, rpcCalls, struct{}{})
		}
	}
	return float64(n) / time.Since(start).Seconds(), nil
}

// calls makes the peer serve n calls, and runs f with their caller.
func (p *pair) calls(n int, where string, f func(*caller) error) error {
	if err := p.begin("calls-"+where, n); err != nil {
		return err
	}
	client, err := rpc.NewClient(p.ctx, p.c)
	if err != nil {
		return err
	}
	defer client.Close()
	found, err := p.c.Await(p.ctx, rocl.Match{"bench": "calls"}, 1)
	if err != nil {
		return err
	}
	// As with a message there and back, these calls use a context that does not end; closing rocl's
	// context ends them.
	free, stop := context.WithoutCancel(p.ctx), context.AfterFunc(p.ctx, func() { _ = p.c.Close() })
	defer stop()
	if err := f(&caller{free, client, found[0].ID}); err != nil {
		return err
	}
	return p.wait()
}

// rpcTrips measures one call at a time.
func rpcTrips(p *pair, o *options, where string, most float64) (*Result, error) {
	var messages, calls *times
	var allocs float64
	for i := -1; i < o.rounds; i++ {
		n := o.count
		if i < 0 {
			n = min(n, 500) // warm up
		}
		if i <= 0 {
			messages, calls = newTimes(), newTimes()
		}
		if err := p.round("echo", n, messages, func() error { return pingPong(p.ctx, p.c, p.me, p.peer, o.size) }); err != nil {
			return nil, err
		}
		before := mallocs()
		if err := p.calls(n, where, func(c *caller) error { return calls.round(n, c.once) }); err != nil {
			return nil, err
		}
		allocs = (mallocs() - before) / float64(n)
	}
	r := &Result{Bench: "rpc " + where, Transport: o.transport, Poll: o.poll, Count: o.count * o.rounds, Unit: "µs", Allocs: allocs,
		What: fmt.Sprintf("a message of %d bytes there and back", o.size), P50: calls.p50(), P99: calls.p99(), Raw: messages.p50(), RawP99: messages.p99(), Target: most}
	r.Ratio = r.P50 / r.Raw
	return r, nil
}

// A form is a way to have rpcInFlight calls under way.
type form struct {
	name string
	ours func(c *caller, n int) (float64, error)
	bare func(client *netrpc.Client, size, n int) (float64, error)
	must bool // rpcLeast is required for this form
}

var (
	oneCaller = form{"rpc calls", (*caller).rate, netRPCRate, true}
	callers   = form{"rpc calls of goroutines", func(c *caller, n int) (float64, error) { return inFlightRate(rpcInFlight, n, c.once) },
		func(client *netrpc.Client, size, n int) (float64, error) {
			return inFlightRate(rpcInFlight, n, callRPC(client, size))
		}, false}
)

// netRPCRate returns how many calls a second one goroutine makes with net/rpc, with n calls in all.
func netRPCRate(client *netrpc.Client, size, n int) (float64, error) {
	in, done := make([]byte, size), make(chan *netrpc.Call, rpcInFlight)
	start := time.Now()
	for i := range n + rpcInFlight {
		if i >= rpcInFlight {
			if c := <-done; c.Error != nil {
				return 0, c.Error
			}
		}
		if i < n {
			client.Go("Echo.Bytes", in, new([]byte), done)
		}
	}
	return float64(n) / time.Since(start).Seconds(), nil
}

// rpcRate measures many calls at the same time, beside those of net/rpc.
func rpcRate(p *pair, o *options, how form) (*Result, error) {
	var bare, ours []float64
	var allocs float64
	for round := -1; round < o.rounds; round++ {
		n := 10 * o.count
		if round < 0 {
			n = o.count
		}
		raw, err := p.bareCalls(func(client *netrpc.Client) (float64, error) { return how.bare(client, o.size, max(n/10, rpcInFlight)) })
		if err != nil {
			return nil, err
		}
		var rate float64
		before := mallocs()
		if err := p.calls(n, "inline", func(c *caller) (err error) { rate, err = how.ours(c, n); return err }); err != nil {
			return nil, err
		}
		allocs = (mallocs() - before) / float64(n)
		if round >= 0 {
			bare, ours = append(bare, raw), append(ours, rate)
		}
	}
	r := &Result{Bench: how.name, Transport: o.transport, Poll: o.poll, InFlight: rpcInFlight, Count: 10 * o.count * o.rounds, Unit: "calls/s",
		What: "net/rpc over TCP", Rate: median(ours), Raw: median(bare), AtLeast: true, Allocs: allocs}
	r.Ratio = r.Rate / r.Raw
	if how.must {
		r.Target = rpcLeast[o.transport] / r.Raw
		r.Extra = fmt.Sprintf("one goroutine; at least %.0f calls a second are required", rpcLeast[o.transport])
	}
	return r, nil
}

// bareCalls runs f with a connection of net/rpc to the peer.
func (p *pair) bareCalls(f func(*netrpc.Client) (float64, error)) (rate float64, err error) {
	if err := p.begin("serve-rpc", 1); err != nil {
		return 0, err
	}
	var d net.Dialer
	c, err := d.DialContext(p.ctx, "tcp", p.bulk)
	if err != nil {
		return 0, err
	}
	client := netrpc.NewClient(c)
	closes := context.AfterFunc(p.ctx, func() { client.Close() })
	rate, err = f(client)
	closes()
	client.Close()
	if err == nil {
		err = p.wait()
	}
	return rate, err
}

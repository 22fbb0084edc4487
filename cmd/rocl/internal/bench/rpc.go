// SPDX-License-Identifier: Apache-2.0

package bench

import (
	"context"
	"fmt"
	"net"
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
	{bench: "rpc", name: "rpc inline", transport: "shm", set: one, unit: "µs", limits: []Limit{ifNear(atMost("excess", 0.3, 0.15)), noAllocs}, bare: messages("echo"), ours: rpcTrip("calls-inline"), finish: besideMessage},
	{bench: "rpc", name: "rpc inline", transport: "tcp", set: one, unit: "µs", limits: []Limit{atMost("ratio", 1.2), noAllocs}, bare: messages("echo"), ours: rpcTrip("calls-inline"), finish: besideMessage},
	{bench: "rpc", name: "rpc goroutine", transport: "shm", set: one, unit: "µs", limits: []Limit{atMost("ratio", 3), atMost("p99", 12, 6)}, bare: messages("echo"), ours: rpcTrip("calls-goroutine"), finish: besideMessage},
	{bench: "rpc", name: "rpc goroutine", transport: "tcp", set: one, unit: "µs", limits: []Limit{atMost("ratio", 3)}, bare: messages("echo"), ours: rpcTrip("calls-goroutine"), finish: besideMessage},
	{bench: "rpc", name: "rpc calls", transport: "shm", set: many, what: "net/rpc over TCP", unit: "calls/s", limits: []Limit{atLeast("rate", 1_500_000)}, bare: netFutures, ours: rpcRate(futures), finish: leastRPC},
	{bench: "rpc", name: "rpc calls", transport: "tcp", set: many, what: "net/rpc over TCP", unit: "calls/s", limits: []Limit{atLeast("rate", 400_000)}, bare: netFutures, ours: rpcRate(futures), finish: leastRPC},
	{bench: "rpc", name: "rpc calls of goroutines", set: many, what: "net/rpc over TCP", unit: "calls/s", bare: netCalls, ours: rpcRate(fromGoroutines), finish: leastRPC},
}

func one(o *options) { o.poll = "always" }

func many(o *options) { o.poll, o.count, o.inFlight = "adaptive", 10*o.count, rpcInFlight }

func besideMessage(p *pair, r *Result, _ []*times) []*Result {
	r.Size, r.What = 0, fmt.Sprintf("a message of %d bytes there and back", p.Size)
	return nil
}

// leastRPC says what the limit is of.
func leastRPC(_ *pair, r *Result, _ []*times) []*Result {
	if r.Size = 0; r.Limits != nil {
		r.Extra = "one goroutine"
	}
	return nil
}

// serveCalls answers n calls with a server of its own: empty ones in the receiving goroutine or in
// others, or transfers.
func (a *answerer) serveCalls(n int, task string) {
	var opts []rpc.Option
	if task == "calls-inline" {
		opts = append(opts, rpc.Inline())
	}
	var count atomic.Int64
	served := make(chan struct{})
	done := func() {
		if count.Add(1) == int64(n) {
			close(served)
		}
	}
	s := must(rpc.NewServer(a.ctx, a.c, rocl.Attrs{"bench": "calls"}, rpc.WithCalls(func(s *rpc.Server) error {
		if task == "calls-bulk" {
			return a.offerTransfers(s, done)
		}
		return rpc.Register(s, rpcCalls, func(context.Context, struct{}) (struct{}, error) {
			done()
			return struct{}{}, nil
		}, opts...)
	})))
	select {
	case <-served:
	case <-a.ctx.Done():
	}
	check(s.Close(context.WithoutCancel(a.ctx)))
	proceed(a.ctx)
}

// A caller makes empty calls of the peer's server. As with net/rpc, its calls use a context that
// does not end.
type caller struct {
	ctx    context.Context
	client *rpc.Client
	server rocl.GID
}

func (c *caller) once() {
	must(rpc.Call[struct{}, struct{}](c.ctx, c.client, c.server, rpcCalls, struct{}{}))
}

// futures makes n calls, rpcInFlight at a time.
func futures(c *caller, n int) {
	var window [rpcInFlight]*rpc.Future[struct{}]
	for i := range n + rpcInFlight {
		f := &window[i%rpcInFlight]
		if i >= rpcInFlight {
			must((*f).Wait(c.ctx))
		}
		if i < n {
			*f = rpc.Go[struct{}, struct{}](c.ctx, c.client, c.server, rpcCalls, struct{}{})
		}
	}
}

func fromGoroutines(c *caller, n int) { share(rpcInFlight, n, c.once) }

// calling returns a loop that calls a server of the peer.
func (p *pair) calling(task string, f func(c *caller, n int, t *times)) loop {
	return p.with(task, func(n int, t *times) {
		client := must(rpc.NewClient(p.ctx, p.c))
		defer client.Close()
		f(&caller{p.free, client, must(p.c.Await(p.ctx, rocl.Match{"bench": "calls"}, 1))[0].ID}, n, t)
	})
}

func rpcTrip(task string) side {
	return func(p *pair) loop {
		return p.calling(task, func(c *caller, n int, t *times) { t.round(n, c.once) })
	}
}

func rpcRate(f func(c *caller, n int)) side {
	return func(p *pair) loop {
		return p.calling("calls-inline", func(c *caller, n int, t *times) { t.rate(n, func() { f(c, n) }) })
	}
}

// Echo is the service of net/rpc that is called.
type Echo struct{}

// Bytes replies with the request.
func (Echo) Bytes(in []byte, out *[]byte) error { *out = in; return nil }

// serveNetRPC serves a connection with net/rpc until it ends.
func serveNetRPC(nc net.Conn) {
	s := netrpc.NewServer()
	check(s.Register(Echo{}))
	s.ServeConn(nc)
}

// netCalling returns a loop that calls the peer with net/rpc over a separate connection.
func (p *pair) netCalling(f func(client *netrpc.Client, n int)) loop {
	return func(n int, t *times) {
		n = max(n/10, p.o.inFlight) // takes as long as the library's calls
		p.with("serve-rpc", func(n int, t *times) {
			p.dialled(func(nc net.Conn) {
				client := netrpc.NewClient(nc)
				defer client.Close()
				t.rate(n, func() { f(client, n) })
			})
		})(n, t)
	}
}

func netCalls(p *pair) loop {
	in := make([]byte, p.Size)
	return p.netCalling(func(client *netrpc.Client, n int) {
		share(p.o.inFlight, n, func() { check(client.Call("Echo.Bytes", in, new([]byte))) })
	})
}

func netFutures(p *pair) loop {
	in := make([]byte, p.Size)
	return p.netCalling(func(client *netrpc.Client, n int) {
		done := make(chan *netrpc.Call, rpcInFlight)
		for i := range n + rpcInFlight {
			if i >= rpcInFlight {
				check((<-done).Error)
			}
			if i < n {
				client.Go("Echo.Bytes", in, new([]byte), done)
			}
		}
	})
}

// SPDX-License-Identifier: Apache-2.0

package bench

import (
	"context"
	"fmt"
	"net"
	"net/rpc"
	"sync"
	"time"

	"github.com/rocl-go/rocl"
	"github.com/rocl-go/rocl/cmd/rocl/internal/cli"
)

// callMost is the greatest ratio of the time of a call to that of a message there and back.
const callMost = 1.1

// callsLeast is the least number of calls a second with 32 goroutines in flight, by transport.
var callsLeast = map[string]float64{"shm": 1_000_000, "tcp": 400_000}

// rpcThere is the mean number of calls a second of net/rpc on the machine for which callsLeast was
// set.
const rpcThere = 57_500.0

// mostInFlight limits how many goroutines call at the same time.
const mostInFlight = 1024

func (o *options) checkInFlight(bench string) error {
	if o.inFlight < 0 || o.inFlight > mostInFlight || o.inFlight > 0 && bench != "call" || o.inFlight > o.count {
		return cli.Usagef("--inflight is for call, and up to %d, and not more than --count", mostInFlight)
	}
	return nil
}

// call measures calls: one at a time beside a message there and back, or those of many goroutines
// beside those of net/rpc.
func call(ctx context.Context, o *options) (*Result, error) {
	if o.transport == "inproc" {
		return callInproc(ctx, o)
	}
	return between(ctx, o, func(p *pair) (*Result, error) {
		if o.inFlight > 1 {
			return callsBetween(p, o)
		}
		return callBetween(p, o)
	})
}

// callOnce makes one call, whose request is in a new buffer like the messages of pingPong.
func callOnce(ctx context.Context, c *rocl.Context, me *rocl.Resource, peer rocl.GID, size int) error {
	b, err := c.Buffer(size)
	if err != nil {
		return err
	}
	m, err := me.Call(ctx, peer, 0, b)
	if err != nil {
		b.Release()
		return err
	}
	m.Release()
	return nil
}

// reply replies to n requests in a loop, with a new buffer for each.
func reply(ctx context.Context, c *rocl.Context, me *rocl.Resource, n int) error {
	for range n {
		m, err := me.Recv(ctx)
		if err != nil {
			return err
		}
		b, err := c.Buffer(m.Len())
		if err == nil {
			if err = me.Reply(ctx, m, b); err != nil {
				b.Release()
			}
		}
		m.Release()
		if err != nil {
			return err
		}
	}
	return nil
}

// result returns the result of a measurement of single calls.
func (o *options) result(messages, calls *times, allocs float64) *Result {
	r := &Result{Bench: "call", Transport: o.transport, Size: o.size, Poll: o.poll, Count: o.count * o.rounds, Unit: "µs",
		What: "a message there and back", P50: calls.p50(), P99: calls.p99(), Raw: messages.p50(), RawP99: messages.p99(), Target: callMost, Allocs: allocs}
	r.Ratio = r.P50 / r.Raw
	return r
}

func callBetween(p *pair, o *options) (*Result, error) {
	messages, calls := newTimes(), newTimes()
	var allocs float64
	for i := -1; i < o.rounds; i++ {
		n := o.count
		if i < 0 {
			n = min(n, 500) // warm up
		}
		if i == 0 {
			messages, calls = newTimes(), newTimes()
		}
		if err := p.round("echo", n, messages, func() error { return pingPong(p.ctx, p.c, p.me, p.peer, o.size) }); err != nil {
			return nil, err
		}
		before := mallocs()
		if err := p.round("reply", n, calls, func() error { return callOnce(p.ctx, p.c, p.me, p.peer, o.size) }); err != nil {
			return nil, err
		}
		allocs = (mallocs() - before) / float64(n)
	}
	return o.result(messages, calls, allocs), nil
}

// Echo is the service of net/rpc that is called.
type Echo struct{}

// Bytes replies with the request.
func (Echo) Bytes(in []byte, out *[]byte) error { *out = in; return nil }

// serveRPC serves one connection with net/rpc until it ends.
func serveRPC(c net.Conn) error {
	s := rpc.NewServer()
	if err := s.Register(Echo{}); err != nil {
		c.Close()
		return err
	}
	s.ServeConn(c)
	return nil
}

// acceptRPC serves the next connection with net/rpc.
func acceptRPC(ctx context.Context, l net.Listener) error {
	c, err := l.Accept()
	if err != nil {
		return err
	}
	defer context.AfterFunc(ctx, func() { c.Close() })()
	return serveRPC(c)
}

// inFlightRate returns how many times a second the goroutines call f together, with count calls in
// all.
func inFlightRate(goroutines, count int, f func() error) (float64, error) {
	failed := make(chan error, goroutines)
	start := time.Now()
	for i := range goroutines {
		go func() {
			n := (count + i) / goroutines // the sum over all goroutines is count
			for range n {
				if err := f(); err != nil {
					failed <- err
					return
				}
			}
			failed <- nil
		}()
	}
	var first error
	for range goroutines {
		if err := <-failed; err != nil && first == nil {
			first = err
		}
	}
	return float64(count) / time.Since(start).Seconds(), first
}

// callRPC returns a function that makes a call of net/rpc.
func callRPC(client *rpc.Client, size int) func() error {
	in := make([]byte, size)
	return func() error {
		var out []byte
		if err := client.Call("Echo.Bytes", in, &out); err != nil {
			return err
		}
		if len(out) != size {
			return fmt.Errorf("net/rpc replies with %d bytes to %d", len(out), size)
		}
		return nil
	}
}

// ratesOf returns the result of a measurement of calls in flight.
func (o *options) ratesOf(bare, ours []float64, allocs float64) *Result {
	r := &Result{Bench: "call", Transport: o.transport, Size: o.size, Poll: o.poll, InFlight: o.inFlight, Count: o.count * o.rounds, Unit: "calls/s",
		What: "net/rpc over TCP", Rate: median(ours), Raw: median(bare), AtLeast: true, Allocs: allocs}
	r.Ratio = r.Rate / r.Raw
	if least := callsLeast[o.transport]; least > 0 && o.inFlight == 32 {
		r.Target = least / r.Raw
		r.Extra = fmt.Sprintf("at least %.0f are required, where net/rpc makes %.0f: %.1f times as many", least, rpcThere, least/rpcThere)
	}
	return r
}

// callsBetween measures calls of many goroutines at the same time.
func callsBetween(p *pair, o *options) (*Result, error) {
	var bare, ours []float64
	var allocs float64
	for round := -1; round < o.rounds; round++ {
		n := o.count
		if round < 0 {
			n = max(min(n, 500), o.inFlight) // warm up
			bare, ours = nil, nil
		}
		rate, err := p.bareCalls(func(client *rpc.Client) (float64, error) { return inFlightRate(o.inFlight, n, callRPC(client, o.size)) })
		if err != nil {
			return nil, err
		}
		bare = append(bare, rate)
		if err := p.begin("reply", n); err != nil {
			return nil, err
		}
		// A call of net/rpc cannot be cancelled. For comparison the library's calls use a context
		// that does not end; closing rocl's context ends them.
		free, stop := context.WithoutCancel(p.ctx), context.AfterFunc(p.ctx, func() { _ = p.c.Close() })
		before := mallocs()
		rate, err = inFlightRate(o.inFlight, n, func() error { return callOnce(free, p.c, p.me, p.peer, o.size) })
		stop()
		if err == nil {
			err = p.wait()
		}
		if err != nil {
			return nil, err
		}
		allocs = (mallocs() - before) / float64(n)
		ours = append(ours, rate)
		if round < 0 {
			bare, ours = nil, nil
		}
	}
	return o.ratesOf(bare, ours, allocs), nil
}

// callInproc measures calls between two contexts of this process.
func callInproc(ctx context.Context, o *options) (*Result, error) {
	p, err := openInproc(ctx, o)
	if err != nil {
		return nil, err
	}
	defer p.close()
	defer context.AfterFunc(ctx, p.close)() // ends both sides
	// As in rtt, a call is not cancelled: closing the contexts ends it.
	free := context.Background()
	answered := func(answer func() error, measure func() error) error {
		failed := make(chan error, 1)
		go func() { failed <- answer() }()
		err := measure()
		if err != nil {
			p.close()
		}
		if other := <-failed; err == nil {
			err = other
		}
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		return err
	}
	replies := func() error { return reply(free, p.b, p.peer, o.count) }
	once := func() error { return callOnce(free, p.a, p.me, p.peer.ID(), o.size) }
	messages, calls := newTimes(), newTimes()
	var bare, ours []float64
	var allocs float64
	for range o.rounds {
		if o.inFlight <= 1 {
			err := answered(func() error { return echo(free, p.b, p.peer, counted(o.count), nil) }, func() error {
				return messages.batch(ctx, o.count, func() error { return pingPong(free, p.a, p.me, p.peer.ID(), o.size) })
			})
			if err != nil {
				return nil, err
			}
			before := mallocs()
			if err := answered(replies, func() error { return calls.batch(ctx, o.count, once) }); err != nil {
				return nil, err
			}
			allocs = (mallocs() - before) / float64(o.count)
			continue
		}
		rate, err := rpcInproc(ctx, o)
		if err != nil {
			return nil, err
		}
		bare = append(bare, rate)
		before := mallocs()
		err = answered(replies, func() (err error) { rate, err = inFlightRate(o.inFlight, o.count, once); return err })
		if err != nil {
			return nil, err
		}
		allocs = (mallocs() - before) / float64(o.count)
		ours = append(ours, rate)
	}
	if o.inFlight <= 1 {
		return o.result(messages, calls, allocs), nil
	}
	r := o.ratesOf(bare, ours, allocs)
	r.What = "net/rpc over a pipe"
	return r, nil
}

// rpcInproc returns the rate of net/rpc between two goroutines of this process.
func rpcInproc(ctx context.Context, o *options) (float64, error) {
	a, b := net.Pipe()
	var wg sync.WaitGroup
	defer wg.Wait()
	wg.Go(func() { _ = serveRPC(b) })
	client := rpc.NewClient(a)
	defer client.Close()
	defer context.AfterFunc(ctx, func() { client.Close() })()
	rate, err := inFlightRate(o.inFlight, o.count, callRPC(client, o.size))
	if ctx.Err() != nil {
		err = context.Cause(ctx)
	}
	return rate, err
}

// SPDX-License-Identifier: Apache-2.0

package bench

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"

	"github.com/rocl-go/rocl"
	"github.com/rocl-go/rocl/cmd/rocl/internal/cli"
)

// servers are the values of --server: how the peer of rtt handles what it receives. The server that
// answers each message before it receives the next is the one with which the others are compared.
var servers = []string{"inline", "goroutine", "receivers"}

// receivers is how many goroutines of a server receive at one resource.
const receivers = 4

// serverMost is how many microseconds a round trip may take with any server. It applies even if
// that is more than three times the time with the server that answers in its loop.
const serverMost = 5

func (o *options) checkServer() error {
	if o.server == "" || slices.Contains(servers, o.server) {
		return nil
	}
	return cli.Usagef("--server is one of %s, not %q", strings.Join(servers, ", "), o.server)
}

// rttServer measures a round trip with a server of another structure, beside the server that
// answers in its loop.
func rttServer(p *pair, o *options) (*Result, error) {
	trip := func() error { return pingPong(p.ctx, p.c, p.me, p.peer, o.size) }
	inline, other := newTimes(), newTimes()
	for i := -1; i < o.rounds; i++ {
		n := o.count
		if i < 0 {
			n = min(n, 500) // warm up
		}
		if i == 0 {
			inline, other = newTimes(), newTimes()
		}
		if err := p.round("echo", n, inline, trip); err != nil {
			return nil, err
		}
		if err := p.round("echo-"+o.server, n, other, trip); err != nil {
			return nil, err
		}
	}
	r := &Result{Bench: "rtt server=" + o.server, Transport: o.transport, Size: o.size, Poll: o.poll, Count: o.count * o.rounds, Unit: "µs",
		What: "a server that answers in its loop", P50: other.p50(), P99: other.p99(), Raw: inline.p50(), RawP99: inline.p99(), Target: 3}
	r.Target = max(r.Target, serverMost/r.Raw)
	r.Ratio = r.P50 / r.Raw
	return r, nil
}

// echoConcurrently echoes n messages with a server that answers each in a new goroutine, or with
// one whose several goroutines receive and answer.
func echoConcurrently(ctx context.Context, c *rocl.Context, me *rocl.Resource, n int, server string) error {
	answer := func(m *rocl.Message) error {
		b, err := c.Buffer(m.Len())
		if err != nil {
			return err
		}
		to, tag := m.From(), m.Tag()
		m.Release()
		if err := me.Send(ctx, to, tag, b); err != nil {
			b.Release()
			return err
		}
		return nil
	}
	switch server {
	case "goroutine":
		failed := make(chan error, 1)
		var wg sync.WaitGroup
		for range n {
			m, err := me.Recv(ctx)
			if err != nil {
				return err
			}
			wg.Go(func() {
				if err := answer(m); err != nil {
					select {
					case failed <- err:
					default:
					}
				}
			})
		}
		wg.Wait()
		select {
		case err := <-failed:
			return err
		default:
			return nil
		}
	case "receivers":
		ctx, cancel := context.WithCancel(ctx)
		defer cancel()
		var answered atomic.Int64
		failed := make(chan error, receivers)
		for range receivers {
			go func() {
				for {
					m, err := me.Recv(ctx)
					if answered.Load() == int64(n) {
						failed <- nil
						return
					}
					if err == nil {
						last := answered.Add(1) == int64(n) // before the answer, because afterwards the next task could have begun
						if last {
							cancel()
						}
						err = answer(m)
					}
					if err != nil {
						failed <- err
						return
					}
				}
			}()
		}
		var first error
		for range receivers {
			if err := <-failed; err != nil && first == nil {
				first = err
			}
		}
		return first
	}
	return fmt.Errorf("unknown server %q", server)
}

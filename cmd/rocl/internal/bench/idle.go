// SPDX-License-Identifier: Apache-2.0

package bench

import (
	"context"
	"fmt"

	"github.com/rocl-go/rocl"
	"github.com/rocl-go/rocl/subsys"
)

// rttIdle measures what unused links cost a link in use: round trips of a pair alone, then beside
// o.idle other links of this context, and alone again.
func rttIdle(p *pair, o *options) (*Result, error) {
	alone, beside := newTimes(), newTimes()
	trip := func() error { return pingPong(p.ctx, p.c, p.me, p.peer, o.size) }
	rounds := func(t *times) error {
		if err := p.round("echo", min(o.count, 500), newTimes(), trip); err != nil { // warm up
			return err
		}
		for range o.rounds {
			if err := p.round("echo", o.count, t, trip); err != nil {
				return err
			}
		}
		return nil
	}
	if err := rounds(alone); err != nil {
		return nil, err
	}
	if err := p.begin("idle", o.idle); err != nil {
		return nil, err
	}
	for range o.idle {
		m, err := p.me.Recv(p.ctx)
		if err != nil {
			return nil, err
		}
		m.Release()
	}
	if err := p.wait(); err != nil {
		return nil, err
	}
	if err := rounds(beside); err != nil {
		return nil, err
	}
	if err := p.begin("idle", 0); err != nil {
		return nil, err
	}
	if err := p.wait(); err != nil {
		return nil, err
	}
	if err := rounds(alone); err != nil {
		return nil, err
	}
	r := &Result{Bench: "rtt", Transport: o.transport, Size: o.size, Poll: o.poll, Idle: o.idle, Count: o.count * o.rounds, Unit: "µs",
		What: "without the idle links, before and after", P50: beside.p50(), P99: beside.p99(), Raw: alone.p50(), RawP99: alone.p99(), Target: 1.1}
	r.Ratio = r.P50 / r.Raw
	return r, nil
}

// idlers are contexts that have each sent one message and do nothing more.
type idlers []*rocl.Context

// open opens contexts, each with a link to the resource to, until there are n.
func (s *idlers) open(ctx context.Context, n int, sock string, tr subsys.Transport, to rocl.GID) error {
	for len(*s) < n {
		c, err := rocl.Open(ctx, rocl.WithSocket(sock), rocl.JoinOnly(), rocl.WithTransports(tr))
		if err != nil {
			return fmt.Errorf("context %d of %d: %w", len(*s), n, err)
		}
		*s = append(*s, c)
		r, err := c.Register(ctx, rocl.Attrs{"bench": "idle"})
		if err != nil {
			return err
		}
		if err := r.SendBytes(ctx, to, 0, []byte{1}); err != nil {
			return err
		}
	}
	return nil
}

func (s *idlers) close() {
	for _, c := range *s {
		c.Close()
	}
	*s = nil
}

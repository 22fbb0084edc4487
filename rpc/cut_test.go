// SPDX-License-Identifier: Apache-2.0

package rpc_test

import (
	"bytes"
	"context"
	"errors"
	"io"
	"iter"
	"net"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/rocl-go/rocl"
	"github.com/rocl-go/rocl/internal/testkit/relay"
	"github.com/rocl-go/rocl/internal/testkit/try"
	"github.com/rocl-go/rocl/rocltest"
	"github.com/rocl-go/rocl/rpc"
	"github.com/rocl-go/rocl/subsys"
	"github.com/rocl-go/rocl/subsys/tcp"
)

// A breakable transport is TCP through relays whose connections the test breaks.
type breakable struct {
	subsys.Transport
	mu    sync.Mutex
	conns []net.Conn
}

func newBreakable() *breakable {
	f := &breakable{}
	f.Transport = relay.New(tcp.New(), func(accepted net.Conn) func(to, from net.Conn) {
		f.mu.Lock()
		f.conns = append(f.conns, accepted)
		f.mu.Unlock()
		return func(to, from net.Conn) { _, _ = io.Copy(to, from) }
	})
	return f
}

// cut breaks all connections, and returns how many there were.
func (f *breakable) cut() int {
	f.mu.Lock()
	defer f.mu.Unlock()
	n := len(f.conns)
	for _, c := range f.conns {
		c.Close()
	}
	f.conns = nil
	return n
}

// Connections that break during calls, calls with large values, and streams are resumed. Each call
// has its result, and each handler has run once.
//
// Promise (Package rpc): When connections break, each call has its result and each handler runs
// once.
func TestConnectionCut(t *testing.T) {
	f := newBreakable()
	cl := rocltest.Cluster(t, 1)
	s := serve(t, cl.Open(0, rocl.WithTransports(f)), rpc.WithOverflow(limit))
	c := client(t, cl.Open(0, rocl.WithTransports(f)), rpc.CallOverflow(limit))
	var ran atomic.Int64
	try.OK(t,
		errors.Join(rpc.Register(s, "echo", func(_ context.Context, p []byte) ([]byte, error) { ran.Add(1); return p, nil }),
			rpc.RegisterStream(s, "count", func(ctx context.Context, n int64) iter.Seq2[int64, error] { ran.Add(1); return count(ctx, n) }),
		))
	const rounds = 30
	var calls sync.WaitGroup
	for _, n := range []int{10, limit / 2, 100 * limit} {
		calls.Go(func() {
			for range rounds {
				if got, err := rpc.Call[[]byte, []byte](deadline(t), c, s.ID(), "echo", random(n), rpc.WithChecksum()); err != nil || !bytes.Equal(got, random(n)) {
					t.Errorf("%d bytes: %d bytes, %v", n, len(got), err)
				}
				if n == limit/2 {
					f.cut()
				}
			}
		})
	}
	calls.Go(func() {
		for range rounds {
			next := int64(0)
			for v, err := range rpc.Stream[int64, int64](deadline(t), c, s.ID(), "count", 2000) {
				if err != nil || v != next {
					t.Errorf("result %d is %d, %v", next, v, err)
					return
				}
				next++
			}
		}
	})
	calls.Wait()
	try.Works(rpc.Call[[]byte, []byte](deadline(t), c, s.ID(), "echo", random(10)))(t) // connects, if the last cut was the last event
	if f.cut() == 0 {
		t.Error("there is no connection to cut")
	}
	try.Equal(t, ran.Load(), 4*rounds+1, "handlers run")
}

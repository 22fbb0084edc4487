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

// Listen returns a port that is reached through a relay.
func (f *breakable) Listen(addr string, cfg subsys.Config) (subsys.Port, error) {
	p, err := f.Transport.Listen(addr, cfg)
	if err != nil {
		return nil, err
	}
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, errors.Join(err, p.Close())
	}
	r := &relay{Port: p, f: f, ln: ln}
	r.done.Go(r.accept)
	return r, nil
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

type relay struct {
	subsys.Port
	f    *breakable
	ln   net.Listener
	done sync.WaitGroup
}

func (r *relay) Addr() string { return "tcp://" + r.ln.Addr().String() }

func (r *relay) Close() error {
	r.ln.Close()
	err := r.Port.Close()
	r.done.Wait()
	return err
}

func (r *relay) accept() {
	for {
		a, err := r.ln.Accept()
		if err != nil {
			return
		}
		b, err := net.Dial("tcp", r.Port.Addr()[len("tcp://"):])
		if err != nil {
			a.Close()
			continue
		}
		r.f.mu.Lock()
		r.f.conns = append(r.f.conns, a)
		r.f.mu.Unlock()
		for _, x := range [][2]net.Conn{{a, b}, {b, a}} {
			r.done.Go(func() {
				defer x[0].Close()
				defer x[1].Close()
				_, _ = io.Copy(x[0], x[1])
			})
		}
	}
}

// Connections that break during calls, calls with large values, and streams are resumed. Each call
// has its result, and each handler has run once.
func TestConnectionCut(t *testing.T) {
	f := &breakable{Transport: tcp.New()}
	cl := rocltest.Cluster(t, 1)
	s, err := rpc.NewServer(deadline(t), cl.Open(0, rocl.WithTransports(f)), nil, rpc.WithOverflow(limit))
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close(deadline(t))
	c, err := rpc.NewClient(deadline(t), cl.Open(0, rocl.WithTransports(f)), rpc.CallOverflow(limit))
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	var ran atomic.Int64
	if err := errors.Join(
		rpc.Register(s, "echo", func(_ context.Context, p []byte) ([]byte, error) { ran.Add(1); return p, nil }),
		rpc.RegisterStream(s, "count", func(ctx context.Context, n int64) iter.Seq2[int64, error] { ran.Add(1); return count(ctx, n) }),
	); err != nil {
		t.Fatal(err)
	}
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
	if f.cut() == 0 {
		t.Error("there is no connection to cut")
	}
	if n := ran.Load(); n != 4*rounds {
		t.Errorf("%d handlers ran for %d calls", n, 4*rounds)
	}
}

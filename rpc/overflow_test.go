// SPDX-License-Identifier: Apache-2.0

package rpc_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"iter"
	"math/rand/v2"
	"sync"
	"testing"

	"github.com/rocl-go/rocl"
	"github.com/rocl-go/rocl/pool"
	"github.com/rocl-go/rocl/rocltest"
	"github.com/rocl-go/rocl/rpc"
	"github.com/rocl-go/rocl/subsys/shm"
)

// limit is from what size on values of these tests are moved by package bulk.
const limit = 1000

// over runs f with a server and a client whose limit is limit, over each transport.
func over(t *testing.T, f func(t *testing.T, s *rpc.Server, c *rpc.Client)) {
	for name, opts := range map[string][]rocl.Option{"self": nil, "inproc": nil, "tcp": {rocltest.TCP()}, "shm": {rocl.WithTransports(shm.New())}} {
		t.Run(name, func(t *testing.T) {
			n := rocltest.Cluster(t, 1)
			at := n.Open(0, opts...)
			from := at
			if name != "self" {
				from = n.Open(0, opts...)
			}
			s, err := rpc.NewServer(deadline(t), at, rocl.Attrs{"type": "test"}, rpc.WithOverflow(limit))
			if err != nil {
				t.Fatal(err)
			}
			c, err := rpc.NewClient(deadline(t), from, rpc.CallOverflow(limit))
			if err != nil {
				t.Fatal(err)
			}
			f(t, s, c)
			if err := c.Close(); err != nil {
				t.Error(err)
			}
			if err := s.Close(deadline(t)); err != nil {
				t.Error(err)
			}
		})
	}
}

func echo(_ context.Context, p []byte) ([]byte, error) { return p, nil }

// random returns n bytes.
func random(n int) []byte {
	p := make([]byte, n)
	_, _ = rand.NewChaCha8([32]byte{byte(n)}).Read(p)
	return p
}

// Arguments and results of more than the limit come as they were, whether a checksum goes with them or not, and in any place.
// The figures count those above the limit alone.
func TestOverflow(t *testing.T) {
	set, err := pool.Load([]byte(`{"pools": [{"name": "workers", "workers": 2}, {"name": "inline", "policy": "inline"}]}`))
	if err != nil {
		t.Fatal(err)
	}
	defer set.Close(deadline(t))
	workers, e1 := set.Pool("workers")
	inline, e2 := set.Pool("inline")
	if err := errors.Join(e1, e2); err != nil {
		t.Fatal(err)
	}
	places := map[string]rpc.Option{"goroutine": rpc.InGoroutine(), "inline": rpc.Inline(), "workers": rpc.InPool(workers), "inline pool": rpc.InPool(inline)}
	over(t, func(t *testing.T, s *rpc.Server, c *rpc.Client) {
		for name, place := range places {
			if err := rpc.Register(s, name, echo, place); err != nil {
				t.Fatal(err)
			}
			for _, n := range []int{0, 1, limit - 1, limit, limit + 1, 2 * limit, 3 << 20} {
				for _, opts := range [][]rpc.Option{nil, {rpc.WithChecksum()}} {
					p := random(n)
					ctx := context.Background()
					if n%2 == 0 {
						ctx = deadline(t)
					}
					if got, err := rpc.Call[[]byte, []byte](ctx, c, s.ID(), name, p, opts...); err != nil || !bytes.Equal(got, p) {
						t.Errorf("%s, %d bytes: %d bytes, %v", name, n, len(got), err)
					}
				}
			}
		}
		for _, m := range s.Stats() {
			if m.Calls != 14 || m.Errors != 0 || m.Overflows != 12 {
				t.Errorf("%+v", m)
			}
		}
	})
}

// Many calls at once, of sizes around the limit, and of values whose length is not known before they are encoded.
func TestOverflowMany(t *testing.T) {
	over(t, func(t *testing.T, s *rpc.Server, c *rpc.Client) {
		if err := rpc.Register(s, "echo", func(_ context.Context, d text) (text, error) { return d, nil }); err != nil {
			t.Fatal(err)
		}
		var calls sync.WaitGroup
		for g := range 8 {
			calls.Go(func() {
				for range 50 {
					d := text{string(random(rand.IntN(3 * limit))), []string{fmt.Sprint(g)}}
					if got, err := rpc.Call[text, text](deadline(t), c, s.ID(), "echo", d); err != nil || got.Name != d.Name || got.Tags[0] != d.Tags[0] {
						t.Errorf("goroutine %d: %d bytes of %d, %v", g, len(got.Name), len(d.Name), err)
						return
					}
				}
			})
		}
		calls.Wait()
	})
}

// Send has its arguments taken before it returns: the memory is the program's again.
func TestOverflowOneWay(t *testing.T) {
	over(t, func(t *testing.T, s *rpc.Server, c *rpc.Client) {
		got := make(chan []byte, 1)
		if err := rpc.Register(s, "tell", func(_ context.Context, p []byte) ([]byte, error) {
			got <- p
			return p, nil // not sent
		}); err != nil {
			t.Fatal(err)
		}
		p := random(5 * limit)
		if err := rpc.Send(deadline(t), c, s.ID(), "tell", p); err != nil {
			t.Fatal(err)
		}
		clear(p)
		if !bytes.Equal(<-got, random(5*limit)) {
			t.Error("the handler has other bytes")
		}
		if err := rpc.Send(deadline(t), c, s.ID(), "nothing", p); !errors.Is(err, rpc.ErrUnknownCall) {
			t.Error(err)
		}
	})
}

// Streams have arguments and results above the limit.
func TestOverflowStream(t *testing.T) {
	over(t, func(t *testing.T, s *rpc.Server, c *rpc.Client) {
		if err := rpc.RegisterStream(s, "repeat", func(_ context.Context, p []byte) iter.Seq2[[]byte, error] {
			return func(yield func([]byte, error) bool) {
				for i := range 50 {
					if !yield(p[:len(p)*i/50], nil) {
						return
					}
				}
				yield(nil, rocl.ErrFull)
			}
		}); err != nil {
			t.Fatal(err)
		}
		p := random(20 * limit)
		for _, opts := range [][]rpc.Option{nil, {rpc.WithChecksum()}} {
			n := 0
			for got, err := range rpc.Stream[[]byte, []byte](deadline(t), c, s.ID(), "repeat", p, opts...) {
				if n == 50 && errors.Is(err, rocl.ErrFull) {
					n++
				} else if err != nil || !bytes.Equal(got, p[:len(p)*n/50]) {
					t.Fatalf("result %d: %d bytes, %v", n, len(got), err)
				} else {
					n++
				}
			}
			if n != 51 {
				t.Errorf("%d results", n)
			}
		}
		for range rpc.Stream[[]byte, []byte](deadline(t), c, s.ID(), "repeat", p) {
			break
		}
	})
}

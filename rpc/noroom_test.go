// SPDX-License-Identifier: Apache-2.0

package rpc_test

import (
	"context"
	"errors"
	"iter"
	"sync"
	"testing"

	"github.com/rocl-go/rocl"
	"github.com/rocl-go/rocl/internal/testkit/sharedmem"
	"github.com/rocl-go/rocl/internal/testkit/try"
	"github.com/rocl-go/rocl/rocltest"
	"github.com/rocl-go/rocl/rpc"
	"github.com/rocl-go/rocl/subsys/shm"
)

// A caller learns why the server could not take its arguments, also if the server has no memory for
// the reply when it finds out, or has to map memory for it.
func TestReasonWithoutMemory(t *testing.T) {
	for name, opts := range map[string]func() rocl.Option{"tcp": rocltest.TCP, "shm": func() rocl.Option { return rocl.WithTransports(shm.New()) }} {
		t.Run(name, func(t *testing.T) {
			if name == "shm" {
				sharedmem.Need(t)
			}
			n := rocltest.Cluster(t, 1)
			at, from := n.Open(0, opts(), rocl.WithMemory(1<<20)), n.Open(0, opts())
			s, c := serve(t, at), client(t, from)
			try.OK(t, rpc.Register(s, "len", func(_ context.Context, p []byte) (int, error) { return len(p), nil }))
			call := func() error {
				_, err := rpc.Call[[]byte, int](deadline(t), c, s.ID(), "len", make([]byte, 2<<20))
				return err
			}
			try.Fails(call())(t, rocl.ErrTooLarge)
			defer takeMemory(at)()
			try.Fails(call())(t, rocl.ErrTooLarge)
		})
	}
}

// A request that uses half of the memory of its server, which the handler holds until it has
// replied, gets its reply.
//
// Replies do not wait for memory of their own context, so requests that use
// all memory get their replies. See also TestReasonWithoutMemory.
func TestReplyBesideRequest(t *testing.T) {
	for _, place := range [][]rpc.Option{nil, {rpc.Inline()}} {
		n := rocltest.Cluster(t, 1)
		s, c := serve(t, n.Open(0, rocltest.TCP(), rocl.WithMemory(2<<20))), client(t, n.Open(0, rocltest.TCP()))
		try.OK(t, rpc.Register(s, "len", func(_ context.Context, p []byte) (int, error) { return len(p), nil }, place...))
		for range 3 {
			try.Get(rpc.Call[[]byte, int](deadline(t), c, s.ID(), "len", make([]byte, 1<<20-100)))(t)
		}
	}
}

// Large arguments are echoed between two contexts with little memory, or refused. Streams in both
// directions at once end too: what waits to be sent does not keep out what comes.
func TestBothWithLittleMemory(t *testing.T) {
	for name, opts := range map[string]func() rocl.Option{"tcp": rocltest.TCP, "shm": func() rocl.Option { return rocl.WithTransports(shm.New()) }} {
		t.Run(name, func(t *testing.T) {
			if name == "shm" {
				sharedmem.Need(t)
			}
			n := rocltest.Cluster(t, 1)
			ctx := deadline(t)
			var servers [2]*rpc.Server
			var clients [2]*rpc.Client
			for i := range servers {
				c := n.Open(0, opts(), rocl.WithMemory(1<<20))
				servers[i], clients[i] = serve(t, c), client(t, c)
				try.OK(t,
					errors.Join(rpc.Register(servers[i], "echo", echo),
						rpc.RegisterStream(servers[i], "stream", func(_ context.Context, n int) iter.Seq2[[]byte, error] {
							return func(yield func([]byte, error) bool) {
								for range 8 {
									if !yield(make([]byte, n), nil) {
										return
									}
								}
							}
						}),
					))
			}
			for _, size := range []int{1 << 18, 1<<19 - 1000, 1<<19 + 100, 3<<18 - 1000, 3<<18 + 1000, 1<<20 - 100} {
				got, err := rpc.Call[[]byte, []byte](ctx, clients[0], servers[1].ID(), "echo", make([]byte, size))
				if len(got) != size && !errors.Is(err, rocl.ErrTooLarge) {
					t.Fatalf("%d bytes: %v", size, err)
				}
			}
			for _, size := range []int{50_000, 300_000} {
				var streams sync.WaitGroup
				for i := range 4 {
					streams.Go(func() {
						try.Works(all(rpc.Stream[int, []byte](ctx, clients[i%2], servers[1-i%2].ID(), "stream", size)))(t)
					})
				}
				streams.Wait()
			}
		})
	}
}

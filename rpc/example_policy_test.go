// SPDX-License-Identifier: Apache-2.0

package rpc_test

import (
	"context"
	"fmt"
	"iter"
	"os"
	"path/filepath"
	"time"

	"github.com/rocl-go/rocl"
	"github.com/rocl-go/rocl/rpc"
)

// Two servers of which one drains: the policy makes another attempt, because the handler has surely
// not run.
func ExamplePolicy() {
	ctx := context.Background()
	c, end := exampleContext(ctx)
	defer end()
	cl, err := rpc.NewClient(ctx, c)
	if err != nil {
		panic(err)
	}
	defer cl.Close()

	policy := rpc.WithPolicy(rpc.Policy{
		Timeout:  5 * time.Second,                     // of the whole call
		Attempts: 4,                                   // at different servers
		Circuit:  rpc.Circuit{Failures: 5, Rest: 1e9}, // leaves a server alone for a second
	})
	sum, err := rpc.CallAny[[]int, int](ctx, cl, rocl.Match{"type": "adder"}, "sum", []int{40, 2}, policy)
	fmt.Println(sum.Value, err)
	// Output: 42 <nil>
}

// Policies for the calls of a client, in the form of gRPC's service configuration.
func ExampleParsePolicies() {
	policies, err := rpc.ParsePolicies([]byte(`{"methodConfig": [{
		"name": [{"method": "sum"}],
		"timeout": "5s",
		"hedgingPolicy": {"maxAttempts": 3, "hedgingDelay": "0.05s"}
	}]}`))
	fmt.Println(policies["sum"].Hedge, policies["sum"].Idempotent, err) // for rpc.CallPolicies
	_, err = rpc.ParsePolicies([]byte(`{"retryThrottling": {"maxTokens": 10}}`))
	fmt.Println(err)
	// Output:
	// 50ms true <nil>
	// rpc: the policy is invalid: retryThrottling: a circuit, for each provider, is in its place
}

// A caller sends numbers, and gets their sum so far after each.
func ExampleTwoWay() {
	ctx := context.Background()
	c, end := exampleContext(ctx)
	defer end()
	cl, err := rpc.NewClient(ctx, c)
	if err != nil {
		panic(err)
	}
	defer cl.Close()
	server, err := c.Find(ctx, rocl.Match{"type": "adder"})
	if err != nil {
		panic(err)
	}
	numbers := func(context.Context) iter.Seq2[int, error] {
		return func(yield func(int, error) bool) {
			for n := 10; n <= 30 && yield(n, nil); n += 10 {
			}
		}
	}
	for sum, err := range rpc.TwoWay[int, int](ctx, cl, server.ID, "sums", numbers) {
		fmt.Println(sum, err)
	}
	total, err := rpc.ClientStream[int, int](ctx, cl, server.ID, "total", numbers)
	fmt.Println(total, err)
	// Output:
	// 10 <nil>
	// 30 <nil>
	// 60 <nil>
	// 60 <nil>
}

// exampleContext returns a context with a server that adds.
func exampleContext(ctx context.Context) (c *rocl.Context, end func()) {
	dir, err := os.MkdirTemp("", "example")
	if err != nil {
		panic(err)
	}
	c, err = rocl.Open(ctx, rocl.WithSocket(filepath.Join(dir, "socket")))
	if err != nil {
		panic(err)
	}
	s, err := rpc.NewServer(ctx, c, rocl.Attrs{"type": "adder"}, rpc.WithCalls(func(s *rpc.Server) error {
		if err := rpc.RegisterTwoWay(s, "sums", runningSums); err != nil {
			return err
		}
		return rpc.RegisterClientStream(s, "total", sum)
	}), rpc.WithCall("sum", func(_ context.Context, in []int) (n int, err error) {
		for _, v := range in {
			n += v
		}
		return n, nil
	}))
	if err != nil {
		panic(err)
	}
	return c, func() {
		_ = s.Close(ctx)
		c.Close()
		os.RemoveAll(dir)
	}
}

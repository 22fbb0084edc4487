// SPDX-License-Identifier: Apache-2.0

package rpc_test

import (
	"context"
	"fmt"
	"os"
	"path/filepath"

	"github.com/rocl-go/rocl"
	"github.com/rocl-go/rocl/rpc"
)

// A server that adds, and a client that finds it by its attributes.
func Example() {
	ctx := context.Background()
	dir, err := os.MkdirTemp("", "example")
	if err != nil {
		panic(err)
	}
	defer os.RemoveAll(dir)
	c, err := rocl.Open(ctx, rocl.WithSocket(filepath.Join(dir, "socket"))) // a program needs no WithSocket
	if err != nil {
		panic(err)
	}
	defer c.Close()

	type addends struct{ A, B int }
	s, err := rpc.NewServer(ctx, c, rocl.Attrs{"type": "calculator"})
	if err != nil {
		panic(err)
	}
	defer s.Close(ctx)
	if err := rpc.Register(s, "add", func(_ context.Context, in addends) (int, error) { return in.A + in.B, nil }); err != nil {
		panic(err)
	}

	cl, err := rpc.NewClient(ctx, c)
	if err != nil {
		panic(err)
	}
	defer cl.Close()
	sum, err := rpc.CallAny[addends, int](ctx, cl, rocl.Match{"type": "calculator"}, "add", addends{40, 2})
	fmt.Println(sum.Value, err)
	// Output: 42 <nil>
}

// The call "greet" is registered before the server can be found.
func ExampleWithCalls() {
	ctx := context.Background()
	dir, err := os.MkdirTemp("", "example")
	if err != nil {
		panic(err)
	}
	defer os.RemoveAll(dir)
	c, err := rocl.Open(ctx, rocl.WithSocket(filepath.Join(dir, "socket")))
	if err != nil {
		panic(err)
	}
	defer c.Close()

	greet := func(_ context.Context, name string) (string, error) { return "hello, " + name, nil }
	s, err := rpc.NewServer(ctx, c, rocl.Attrs{"type": "greeter"}, rpc.WithCalls(func(s *rpc.Server) error {
		return rpc.Register(s, "greet", greet)
	}))
	if err != nil {
		panic(err)
	}
	defer s.Close(ctx)

	cl, err := rpc.NewClient(ctx, c)
	if err != nil {
		panic(err)
	}
	defer cl.Close()
	answer, err := rpc.CallAny[string, string](ctx, cl, rocl.Match{"type": "greeter"}, "greet", "gopher")
	fmt.Println(answer.Value, err)
	// Output: hello, gopher <nil>
}

// SPDX-License-Identifier: Apache-2.0

package rpc_test

import (
	"context"
	"errors"
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

// A server that runs until its context ends, and then drains. It publishes its load, by which
// callers choose.
func ExampleServe() {
	ctx, stop := context.WithCancel(context.Background()) // a program uses signal.NotifyContext
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
	served := make(chan error)
	go func() {
		served <- rpc.Serve(ctx, c, rocl.Attrs{"type": "greeter"}, rpc.WithCall("greet", greet), rpc.PublishLoad("load"))
	}()

	if _, err := c.Await(ctx, rocl.Match{"type": "greeter"}, 1); err != nil {
		panic(err)
	}
	cl, err := rpc.NewClient(ctx, c)
	if err != nil {
		panic(err)
	}
	defer cl.Close()
	least := rpc.Finding(rocl.Least("load"))
	answer, err := rpc.CallAny[string, string](ctx, cl, rocl.Match{"type": "greeter"}, "greet", "gopher", least)
	fmt.Println(answer.Value, err)
	stop()
	fmt.Println(<-served)
	_, err = rpc.CallAny[string, string](context.Background(), cl, rocl.Match{"type": "greeter"}, "greet", "gopher", least)
	fmt.Println(errors.Is(err, rocl.ErrNotFound), rpc.MayRetry(err))
	// Output:
	// hello, gopher <nil>
	// <nil>
	// true true
}

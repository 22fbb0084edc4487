// SPDX-License-Identifier: Apache-2.0

package work_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"

	"github.com/rocl-go/rocl"
	"github.com/rocl-go/rocl/work"
)

// A worker that divides, and a queue with its tasks. Worker and queue may be in different
// processes.
func Example() {
	ctx, stop := context.WithCancel(context.Background())
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

	type division struct{ A, B int }
	served := make(chan error)
	go func() {
		served <- work.Serve(ctx, c, rocl.Attrs{"job": "divide"}, func(_ context.Context, in division) (int, error) {
			if in.B == 0 {
				return 0, errors.New("division by zero")
			}
			return in.A / in.B, nil
		})
	}()

	q, err := work.Open[division, int](ctx, c, rocl.Match{"job": "divide"}, work.Ordered())
	if err != nil {
		panic(err)
	}
	defer q.Close()
	var failure *work.TaskError
	for r, err := range q.Do(ctx, slices.Values([]division{{42, 6}, {1, 0}, {8, 2}})) {
		switch {
		case err != nil:
			panic(err)
		case errors.As(r.Err, &failure):
			fmt.Println(r.Task, failure.Text)
		default:
			fmt.Println(r.Task, r.Out)
		}
	}
	stop() // the worker takes leave
	fmt.Println(<-served)
	// Output:
	// {42 6} 7
	// {1 0} division by zero
	// {8 2} 4
	// <nil>
}

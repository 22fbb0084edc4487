// SPDX-License-Identifier: Apache-2.0

package cookbook

import (
	"context"
	"errors"

	"github.com/rocl-go/rocl"
	"github.com/rocl-go/rocl/rpc"
)

// Work makes this process a worker, which squares numbers. The caller closes the server when the
// process has done enough.
func Work(ctx context.Context, c *rocl.Context) (*rpc.Server, error) {
	s, err := rpc.NewServer(ctx, c, rocl.Attrs{"worker": "square"})
	if err != nil {
		return nil, err
	}
	return s, rpc.Register(s, "square", func(ctx context.Context, n int) (int, error) {
		return n * n, nil
	})
}

// Distribute returns the squares of all tasks. Each worker has one task at a time. Workers may come
// and end while Distribute runs: another worker does the task of one that ends.
func Distribute(ctx context.Context, c *rocl.Context, tasks []int) ([]int, error) {
	ctx, stop := context.WithCancel(ctx)
	defer stop() // ends the goroutines below
	client, err := rpc.NewClient(ctx, c)
	if err != nil {
		return nil, err
	}
	defer client.Close()

	type result struct {
		task, square int
		err          error
	}
	results := make(chan result)
	waiting := make(chan int, len(tasks)) // the indexes of tasks that no worker has
	for i := range tasks {
		waiting <- i
	}
	employ := func(worker rocl.GID) {
		for {
			select {
			case i := <-waiting:
				n, err := rpc.Call[int, int](ctx, client, worker, "square", tasks[i])
				var failure *rpc.Error
				if err != nil && !(errors.As(err, &failure) && failure.Ran) {
					waiting <- i // the worker has ended: for another one
					return
				}
				select {
				case results <- result{i, n, err}: // err: the work itself has failed
				case <-ctx.Done():
					return
				}
			case <-ctx.Done():
				return
			}
		}
	}
	go func() {
		for event, err := range c.Watch(ctx, rocl.Match{"worker": "square"}) {
			if err != nil {
				select {
				case results <- result{err: err}:
				case <-ctx.Done():
				}
				return
			}
			if event.Kind == rocl.Appeared {
				go employ(event.ID)
			}
		}
	}()

	squares := make([]int, len(tasks))
	for range tasks {
		select {
		case r := <-results:
			if r.err != nil {
				return nil, r.err
			}
			squares[r.task] = r.square
		case <-ctx.Done():
			return nil, context.Cause(ctx)
		}
	}
	return squares, nil
}

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
	square := func(ctx context.Context, n int) (int, error) { return n * n, nil }
	return rpc.NewServer(ctx, c, rocl.Attrs{"worker": "square"},
		rpc.WithCalls(func(s *rpc.Server) error { return rpc.Register(s, "square", square) }))
}

// Distribute returns the squares of all tasks. Each worker has one task at a time. Workers may come
// and end while Distribute runs: another worker does the task of one that ends.
func Distribute(ctx context.Context, c *rocl.Context, tasks []int) ([]int, error) {
	ctx, stop := context.WithCancel(ctx)
	defer stop() // ends the goroutines of the queue
	client, err := rpc.NewClient(ctx, c)
	if err != nil {
		return nil, err
	}
	defer client.Close()

	q := &queue{tasks: tasks, waiting: make(chan int, len(tasks)), results: make(chan result)}
	for i := range tasks {
		q.waiting <- i
	}
	go q.employAll(ctx, c, client)

	squares := make([]int, len(tasks))
	for range tasks {
		select {
		case r := <-q.results:
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

// A queue has the tasks of Distribute.
type queue struct {
	tasks   []int
	waiting chan int // the indexes of tasks that no worker has
	results chan result
}

type result struct {
	task, square int
	err          error
}

// employAll employs the workers that are there, and those that come, until ctx ends.
func (q *queue) employAll(ctx context.Context, c *rocl.Context, client *rpc.Client) {
	for event, err := range c.Watch(ctx, rocl.Match{"worker": "square"}) {
		if err != nil {
			q.report(ctx, result{err: err})
			return
		}
		if event.Kind == rocl.Appeared {
			go q.employ(ctx, client, event.ID)
		}
	}
}

// employ gives one worker a task after another, until the worker or ctx ends.
func (q *queue) employ(ctx context.Context, client *rpc.Client, worker rocl.GID) {
	for {
		select {
		case i := <-q.waiting:
			n, err := rpc.Call[int, int](ctx, client, worker, "square", q.tasks[i])
			if hasEnded(err) {
				q.waiting <- i // for another worker
				return
			}
			q.report(ctx, result{i, n, err}) // any other error is one of the work
		case <-ctx.Done():
			return
		}
	}
}

// hasEnded reports whether err, the error of a call, says that the worker has ended. The handler's
// own errors do not say so.
func hasEnded(err error) bool {
	var failure *rpc.Error
	if errors.As(err, &failure) && failure.Ran {
		return false
	}
	return rocl.IsEnd(err) || errors.Is(err, rpc.ErrClosed)
}

// report gives Distribute a result, unless ctx ends.
func (q *queue) report(ctx context.Context, r result) {
	select {
	case q.results <- r:
	case <-ctx.Done():
	}
}

// SPDX-License-Identifier: Apache-2.0

package cookbook

import (
	"context"
	"errors"
	"slices"

	"github.com/rocl-go/rocl"
	"github.com/rocl-go/rocl/work"
)

// Work makes this process a worker, which squares numbers until ctx ends. Then it gives back what
// it has not begun.
func Work(ctx context.Context, c *rocl.Context) error {
	square := func(_ context.Context, n int) (int, error) { return n * n, nil }
	return work.Serve(ctx, c, rocl.Attrs{"worker": "square"}, square, work.Handlers(4))
}

// Distribute returns the squares of all tasks, in their order. Workers may come and end while
// Distribute runs: another worker does the tasks of one that ends.
func Distribute(ctx context.Context, c *rocl.Context, tasks []int) ([]int, error) {
	q, err := work.Open[int, int](ctx, c, rocl.Match{"worker": "square"}, work.Ordered())
	if err != nil {
		return nil, err
	}
	defer q.Close()
	var squares []int
	for r, err := range q.Do(ctx, slices.Values(tasks)) {
		if err = errors.Join(err, r.Err); err != nil { // the queue's, or the task's
			return nil, err
		}
		squares = append(squares, r.Out)
	}
	return squares, nil
}

// SPDX-License-Identifier: Apache-2.0

package cookbook

import (
	"context"

	"github.com/rocl-go/rocl"
	"github.com/rocl-go/rocl/group"
)

// Together runs the part of this process in a job of several processes. When one of them fails or
// is killed, the ctx of all parts ends, and Together returns the same error in all processes: which
// member was the first, and why.
func Together(ctx context.Context, c *rocl.Context, job, role string, part func(context.Context) error) error {
	g, err := group.Join(ctx, c, job, rocl.Attrs{"role": role})
	if err != nil {
		return err
	}
	g.Go(part)
	return g.Wait()
}

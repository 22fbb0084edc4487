// SPDX-License-Identifier: Apache-2.0

package context

import (
	stdctx "context"
	"fmt"

	"github.com/rocl-go/rocl/buffers"
)

// BufferWait is [Context.Buffer] that waits, until ctx ends, while the limit of
// [WithMemory] is reached: until enough buffers and messages of the context are released,
// by any goroutine. It fails with rocl.ErrLimit only where rocl.ErrTooLarge matches too,
// because so much is never given; with the cause of ctx's end; and otherwise as Buffer does.
func (c *Context) BufferWait(ctx stdctx.Context, n int) (*buffers.Buffer, error) {
	b, err := c.disp.BufferWait(ctx, n)
	if err != nil {
		return nil, fmt.Errorf("rocl: waiting for a buffer of %d bytes: %w", n, err)
	}
	return b, nil
}

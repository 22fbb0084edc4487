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

// Lend returns a buffer over memory of the program, which the library sends from where it
// lies. It can be read only. The library may read the memory until it calls back, once, after the last
// reference to the buffer has been released: when a message with it has been acknowledged,
// or, within the process, released by its receiver. back must not wait, because locks may be
// held. Over shared memory what is not registered is copied: [Context.Buffer] is for
// memory that other processes are to read in place.
func (c *Context) Lend(p []byte, back func()) *buffers.Buffer {
	return c.pool.Borrow(new(buffers.Buffer), p, lent(back))
}

// lent calls a program when nothing reads its memory any more.
type lent func()

// Return implements buffers.Lender.
func (f lent) Return(bool) { f() }

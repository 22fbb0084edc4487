// SPDX-License-Identifier: Apache-2.0

package rocl

import (
	"context"
	"fmt"
)

// BufferWait returns memory of n bytes, as [Context.Buffer] does, and waits until ctx ends while
// the limit of [WithMemory] is reached. The wait ends when enough buffers and messages of the
// context are released, by any goroutine. BufferWait fails with ErrLimit only if n bytes are
// never given; that error also matches ErrTooLarge. It fails with the cause of ctx's end, and
// otherwise as Buffer does.
func (c *Context) BufferWait(ctx context.Context, n int) (*Buffer, error) {
	b, err := c.disp.BufferWait(ctx, n)
	if err != nil {
		return nil, fmt.Errorf("rocl: wait for a buffer of %d bytes: %w", n, err)
	}
	return b, nil
}

// Lend returns a buffer over memory p of the program, which the library reads where it lies. The
// buffer is read-only. The library may read p until it calls back. It calls back once, after the
// last reference to the buffer has been released: when a message with it has been acknowledged or,
// within the process, when its receiver has released it. back must not wait, because locks may be
// held. Over shared memory p is copied, because it is not registered: use [Context.Buffer] for
// memory that other processes read in place.
func (c *Context) Lend(p []byte, back func()) *Buffer {
	return c.pool.Borrow(new(Buffer), p, lent(back))
}

// lent is a function of the program that is called when nothing reads its memory any more.
type lent func()

// Return calls the function. It implements buffers.Lender.
func (f lent) Return(bool) { f() }

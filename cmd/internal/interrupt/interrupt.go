// SPDX-License-Identifier: Apache-2.0

// Package interrupt ends a context when SIGINT or SIGTERM arrives, and what waits for input.
package interrupt

import (
	"context"
	"os"
	"os/signal"
	"sync"
	"syscall"
	"time"
)

// grace is how long after the first signal further signals are ignored. GNU timeout sends SIGTERM
// twice, to the process and to its group, and a terminal may send SIGINT twice.
const grace = time.Second

// Context returns a context that ends when SIGINT or SIGTERM arrives. A further signal ends the
// process at once if it arrives a second or more after the first. stop restores the default effect
// of the signals.
func Context(parent context.Context) (ctx context.Context, stop func()) {
	ctx, cancel := context.WithCancel(parent)
	signals := make(chan os.Signal, 1)
	signal.Notify(signals, os.Interrupt, syscall.SIGTERM)
	done := make(chan struct{})
	go func() {
		defer signal.Stop(signals)
		select {
		case <-signals:
		case <-done:
			return
		}
		cancel()
		select {
		case <-time.After(grace):
		case <-done:
		}
	}()
	return ctx, sync.OnceFunc(func() {
		close(done)
		cancel()
	})
}

// Read returns the result of read, or the cause of the end of ctx. In the second case read goes on:
// reading a file or a terminal cannot be interrupted.
func Read[T any](ctx context.Context, read func() (T, error)) (T, error) {
	type result struct {
		v   T
		err error
	}
	done := make(chan result, 1)
	go func() {
		v, err := read()
		done <- result{v, err}
	}()
	select {
	case r := <-done:
		return r.v, r.err
	case <-ctx.Done():
		var none T
		return none, context.Cause(ctx)
	}
}

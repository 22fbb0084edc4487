// SPDX-License-Identifier: Apache-2.0

// Package interrupt turns SIGINT and SIGTERM into the end of a context.
package interrupt

import (
	"context"
	"os"
	"os/signal"
	"sync"
	"syscall"
	"time"
)

// grace is how long after the first signal others are ignored. GNU timeout sends
// SIGTERM twice, to the process and to its group, and a terminal may too.
const grace = time.Second

// Context returns a context that ends when SIGINT or SIGTERM comes. A signal
// that comes a second later or more ends the process at once. stop gives the
// signals their usual effect again.
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

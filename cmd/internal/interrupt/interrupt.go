// SPDX-License-Identifier: Apache-2.0

// Package interrupt ends a context when SIGINT or SIGTERM arrives.
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

// SPDX-License-Identifier: Apache-2.0

package eventually

import (
	"testing"
	"time"
)

// Value returns the next value of ch. After Timeout without a value it ends the test with what,
// the name of the value.
func Value[T any](t testing.TB, what string, ch <-chan T) (v T) {
	t.Helper()
	select {
	case v = <-ch:
	case <-time.After(limit(t)):
		never(t, what)
	}
	return v
}

// Returns calls f in a goroutine of its own, and returns when f has returned. If f has not returned
// after Timeout, it ends the test with what, the name of the call.
func Returns(t testing.TB, what string, f func()) {
	t.Helper()
	done := make(chan struct{})
	go func() { defer close(done); f() }()
	Value(t, what, done)
}

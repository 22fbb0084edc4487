// SPDX-License-Identifier: Apache-2.0

package eventually

import (
	"context"
	"testing"
	"time"
)

// Context returns a context for calls that must succeed. It ends after Timeout, or after the
// cleanup functions of the test that were registered later. Functions that t.Cleanup registers may
// call Context too, whereas t.Context has ended by then.
func Context(t testing.TB) context.Context {
	ctx, name := ContextWithin(t, limit(t)), top(t)
	stop := context.AfterFunc(ctx, func() { spent.Store(name) })
	t.Cleanup(func() { stop() })
	return ctx
}

// ContextWithin is Context with d in place of Timeout.
func ContextWithin(t testing.TB, d time.Duration) context.Context {
	ctx, cancel := context.WithTimeout(context.Background(), d)
	t.Cleanup(cancel)
	return ctx
}

// SPDX-License-Identifier: Apache-2.0

package rpc

import (
	"context"
	"fmt"
	"math"
	"sync"
	"sync/atomic"
)

// A tally counts what is under way.
type tally struct {
	n    atomic.Int64  // less than 0 once close has been called: closing more than closing
	once sync.Once     // closes idle
	mu   sync.Mutex    // guards the making of idle
	idle chan struct{} // closed when nothing is left after close; nil before
}

const closing = math.MinInt64 / 2

// begin counts one more, unless close has been called.
func (t *tally) begin() bool {
	if t.n.Add(1) > 0 {
		return true
	}
	t.end()
	return false
}

func (t *tally) end() {
	if t.n.Add(-1) == closing {
		t.once.Do(func() { close(t.idle) })
	}
}

// close refuses more, and waits until none is left or ctx ends.
func (t *tally) close(ctx context.Context) error {
	t.mu.Lock()
	if t.idle == nil {
		t.idle = make(chan struct{})
		t.n.Add(closing + 1) // end, which looks at it, may run at once
		t.end()
	}
	t.mu.Unlock()
	select {
	case <-t.idle:
		return nil
	default:
	}
	select {
	case <-t.idle:
		return nil
	case <-ctx.Done():
		return fmt.Errorf("%d calls run: %w", t.n.Load()-closing, context.Cause(ctx))
	}
}

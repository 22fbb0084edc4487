// SPDX-License-Identifier: Apache-2.0

package rpc

import (
	"context"
	"fmt"
	"math"
	"sync"
	"sync/atomic"
)

// A tally counts what is in progress, such as requests.
type tally struct {
	n    atomic.Int64  // less than 0 after close: the count plus closing
	once sync.Once     // closes idle
	mu   sync.Mutex    // guards the creation of idle
	idle chan struct{} // closed when the count is 0 after close; nil before close

	changed chan struct{} // has an element when the count may have changed; nil: that is of no interest
}

const closing = math.MinInt64 / 2

// begin adds one. It reports false if close has been called.
func (t *tally) begin() bool {
	if t.n.Add(1) > 0 {
		t.tellChanged()
		return true
	}
	t.end()
	return false
}

func (t *tally) end() {
	if t.n.Add(-1) == closing {
		t.once.Do(func() { close(t.idle) })
	}
	t.tellChanged()
}

// tellChanged wakes the goroutine that waits for changed.
func (t *tally) tellChanged() {
	if t.changed == nil {
		return
	}
	select {
	case t.changed <- struct{}{}:
	default:
	}
}

// count returns how many are in progress.
func (t *tally) count() int64 {
	n := t.n.Load()
	if n < 0 {
		n -= closing
	}
	return max(n, 0)
}

// close makes begin report false, and waits until the count is 0 or ctx ends.
func (t *tally) close(ctx context.Context) error {
	t.mu.Lock()
	if t.idle == nil {
		t.idle = make(chan struct{})
		t.n.Add(closing + 1) // after idle is set, because end may run at once
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
		return fmt.Errorf("%d calls run: %w", t.count(), context.Cause(ctx))
	}
}

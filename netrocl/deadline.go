// SPDX-License-Identifier: Apache-2.0

package netrocl

import (
	"context"
	"os"
	"sync"
	"time"
)

// A deadline ends a context at a time that may be changed while an operation waits.
type deadline struct {
	life context.Context // ends with the connection
	wake func()          // called after ctx has ended, without locks

	mu    sync.Mutex
	ctx   context.Context // the context of the operations that wait now
	end   context.CancelCauseFunc
	timer *time.Timer
	calls uint64 // number of calls of set and stop; the timer of an earlier call does nothing
}

// init makes d a deadline that has no time, for operations of a connection with the context life.
func (d *deadline) init(life context.Context, wake func()) {
	d.life, d.wake = life, wake
	d.ctx, d.end = context.WithCancelCause(life)
}

// context returns the context of an operation that begins now.
func (d *deadline) context() context.Context {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.ctx
}

// set changes the deadline to t. The zero time removes it.
func (d *deadline) set(t time.Time) {
	d.mu.Lock()
	d.calls++
	if d.timer != nil {
		d.timer.Stop()
		d.timer = nil
	}
	if d.life.Err() != nil {
		d.mu.Unlock()
		return
	}
	left := time.Until(t)
	if !t.IsZero() && left <= 0 {
		d.end(os.ErrDeadlineExceeded)
		d.mu.Unlock()
		d.wake()
		return
	}
	if d.ctx.Err() != nil {
		d.ctx, d.end = context.WithCancelCause(d.life)
	}
	if !t.IsZero() {
		call := d.calls
		d.timer = time.AfterFunc(left, func() { d.pass(call) })
	}
	d.mu.Unlock()
}

// pass ends the context if no later call of set has changed the deadline. The timer of that call
// runs it.
func (d *deadline) pass(call uint64) {
	d.mu.Lock()
	isCurrent := d.calls == call
	if isCurrent {
		d.end(os.ErrDeadlineExceeded)
	}
	d.mu.Unlock()
	if isCurrent {
		d.wake()
	}
}

// stop stops the timer for good, when the connection has been closed.
func (d *deadline) stop() {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.calls++
	if d.timer != nil {
		d.timer.Stop()
	}
	d.end(nil)
}

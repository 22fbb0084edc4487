// SPDX-License-Identifier: Apache-2.0

// Package callqueue calls a function of the user from a goroutine of its own. The library may hold
// any locks when it queues a value. The function may block, and may call the library.
package callqueue

import (
	"context"
	"runtime"
	"strings"
	"sync"
	"time"
)

// grace is the least time that Drain waits.
const grace = time.Second

// A Queue calls Call with each value added, one call at a time, in the order of Add.
// Its goroutine is started when a value is added and ends when the queue is empty.
type Queue[T any] struct {
	Call func(T) // nil: values are ignored
	Most int     // number of values that may wait

	mu      sync.Mutex
	queue   []T
	waiting int           // values in queue, and those that the goroutine has taken and not begun
	ended   bool          // Drain has given up: values are dropped
	running chan struct{} // closed when the goroutine ends; nil if none runs
}

// Add queues a value. It reports false if the value was dropped. Add calls no function of the user
// and never blocks.
func (q *Queue[T]) Add(v T) bool {
	if q.Call == nil {
		return true
	}
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.ended || q.waiting >= q.Most {
		return false
	}
	q.queue = append(q.queue, v)
	q.waiting++
	if q.running == nil {
		q.running = make(chan struct{})
		go q.callUser()
	}
	return true
}

// callUser calls the function until the queue is empty. A panic in the function ends the program,
// as in any other goroutine of the program. After runtime.Goexit another goroutine continues.
func (q *Queue[T]) callUser() {
	var taken []T
	isEmpty := false
	defer func() {
		if !isEmpty {
			q.mu.Lock()
			q.queue = append(taken, q.queue...)
			q.mu.Unlock()
			go q.callUser()
		}
	}()
	for {
		q.mu.Lock()
		if q.waiting == 0 {
			isEmpty = true
			close(q.running)
			q.running = nil
			q.mu.Unlock()
			return
		}
		if len(taken) == 0 {
			taken, q.queue = q.queue, nil
		}
		v := taken[0]
		taken = taken[1:]
		q.waiting--
		q.mu.Unlock()
		q.Call(v)
	}
}

// Drain waits until the function has returned from the last value, but at most until ctx ends, or
// for a second if that is longer. Then it drops the waiting values and all later ones, and returns
// how many were waiting. If the function of any Queue calls Drain, it returns at once and drops
// nothing.
func (q *Queue[T]) Drain(ctx context.Context) (dropped int) {
	q.mu.Lock()
	running := q.running
	q.mu.Unlock()
	if running == nil || InCall() {
		return 0
	}
	least := time.NewTimer(grace)
	defer least.Stop()
	select {
	case <-running:
		return 0
	case <-ctx.Done():
	}
	select {
	case <-running:
		return 0
	case <-least.C:
	}
	q.mu.Lock()
	defer q.mu.Unlock()
	dropped, q.waiting, q.queue, q.ended = q.waiting, 0, nil, true
	return dropped
}

// InCall reports whether the calling goroutine is in the function of some Queue. A function that
// waits for the end of all calls must not wait for its own caller.
func InCall() bool {
	var pcs [64]uintptr
	for skip := 0; ; skip += len(pcs) {
		n := runtime.Callers(skip, pcs[:])
		frames := runtime.CallersFrames(pcs[:n])
		for more := n > 0; more; {
			var f runtime.Frame
			f, more = frames.Next()
			if strings.HasSuffix(f.Function, ").callUser") && strings.Contains(f.Function, "/internal/callqueue.(*Queue[") {
				return true
			}
		}
		if n < len(pcs) {
			return false
		}
	}
}

// SPDX-License-Identifier: Apache-2.0

package dispatch

import (
	"context"
	"runtime"
	"strings"
	"sync"
	"time"
)

const (
	reportsMost  = 1 << 20     // reports that may wait for the user's function
	reportsGrace = time.Second // Close waits at least as long for them
)

// reports is the queue between the dispatcher and the user's function for
// undelivered messages. add calls nothing and never blocks, so it may be called
// with any lock held. One goroutine calls the function, in the order of add. It
// is started when a report is queued and ends when the queue is empty.
type reports struct {
	call func(Undelivered) // nil: the user wants no reports
	most int               // reportsMost, but in tests

	mu      sync.Mutex
	queue   []Undelivered
	waiting int           // of queue, and those the goroutine has taken and not begun
	ended   bool          // Close waits no longer
	running chan struct{} // closed when the goroutine ends; nil: there is none
}

// add queues a report. It returns false if the report was dropped.
func (r *reports) add(u Undelivered) bool {
	if r.call == nil {
		return true
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.ended || r.waiting >= r.most {
		return false
	}
	r.queue = append(r.queue, u)
	r.waiting++
	if r.running == nil {
		r.running = make(chan struct{})
		go r.callUser()
	}
	return true
}

// callUser calls the function until the queue is empty. A panic in the function
// ends the program, as in any goroutine of the user's. After runtime.Goexit
// another goroutine continues.
func (r *reports) callUser() {
	var taken []Undelivered
	isEmpty := false
	defer func() {
		if !isEmpty {
			r.mu.Lock()
			r.queue = append(taken, r.queue...)
			r.mu.Unlock()
			go r.callUser()
		}
	}()
	for {
		r.mu.Lock()
		if r.waiting == 0 {
			isEmpty = true
			close(r.running)
			r.running = nil
			r.mu.Unlock()
			return
		}
		if len(taken) == 0 {
			taken, r.queue = r.queue, nil
		}
		u := taken[0]
		taken = taken[1:]
		r.waiting--
		r.mu.Unlock()
		r.call(u)
	}
}

// drain waits until the function has returned from the last report, but no
// longer than ctx lasts, or reportsGrace if that is longer. Then it drops the
// reports that wait and returns their number. Called by the function itself,
// drain returns at once and drops nothing.
func (r *reports) drain(ctx context.Context) (dropped int) {
	r.mu.Lock()
	running := r.running
	r.mu.Unlock()
	if running == nil || inReport() {
		return 0
	}
	grace := time.NewTimer(reportsGrace)
	defer grace.Stop()
	select {
	case <-running:
		return 0
	case <-ctx.Done():
	}
	select {
	case <-running:
		return 0
	case <-grace.C:
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	dropped, r.waiting, r.queue, r.ended = r.waiting, 0, nil, true
	return dropped
}

// inReport reports whether the calling goroutine is in a user's function that
// some dispatcher has called with a report. Close must not wait for its own
// caller.
func inReport() bool {
	var pcs [64]uintptr
	for skip := 0; ; skip += len(pcs) {
		n := runtime.Callers(skip, pcs[:])
		frames := runtime.CallersFrames(pcs[:n])
		for more := n > 0; more; {
			var f runtime.Frame
			if f, more = frames.Next(); strings.HasSuffix(f.Function, "dispatch.(*reports).callUser") {
				return true
			}
		}
		if n < len(pcs) {
			return false
		}
	}
}

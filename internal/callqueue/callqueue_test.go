// SPDX-License-Identifier: Apache-2.0

package callqueue

import (
	"context"
	"runtime"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// The number of waiting values is bounded, and dropped values are counted. runtime.Goexit in the
// function loses no other value.
func TestBounded(t *testing.T) {
	goOn := make(chan struct{})
	var called []int
	q := Queue[int]{Most: 10, Call: func(v int) {
		<-goOn
		if called = append(called, v); v%3 == 0 {
			runtime.Goexit()
		}
	}}
	queued := 0
	for i := range 100 {
		if q.Add(i) {
			queued++
		}
	}
	close(goOn)
	if dropped := q.Drain(t.Context()); dropped > 0 {
		t.Errorf("dropped %d", dropped)
	}
	if len(called) != queued || queued < 10 || queued > 11 { // one may have begun
		t.Errorf("%d queued, %v called", queued, called)
	}
	if !slices.IsSorted(called) {
		t.Errorf("out of order: %v", called)
	}
}

// Drain waits for a call that does not return until its context ends, or for a second. Within a
// call it does not wait.
func TestDrain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		goOn := make(chan struct{})
		var q Queue[int]
		q.Most = 10
		q.Call = func(int) {
			if !InCall() || q.Drain(t.Context()) > 0 {
				t.Error("a call does not know that it is one")
			}
			<-goOn
		}
		for i := range 3 {
			q.Add(i)
		}
		synctest.Wait()
		ended, cancel := context.WithCancel(t.Context())
		cancel()
		begun := time.Now()
		if n := q.Drain(ended); n != 2 || time.Since(begun) != grace || InCall() {
			t.Errorf("%d dropped after %v", n, time.Since(begun))
		}
		if q.Add(4) {
			t.Error("a value is taken after the end")
		}
		close(goOn)
	})
}

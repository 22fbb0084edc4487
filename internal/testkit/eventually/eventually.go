// SPDX-License-Identifier: Apache-2.0

// Package eventually waits, in tests, for states that other goroutines and processes reach.
package eventually

import (
	"strings"
	"sync/atomic"
	"testing"
	"time"
)

// Timeout is the longest wait for what must come. It is long, because a loaded machine runs a test
// many times slower: it ends only what hangs. When a wait of a test has taken so long, further
// waits of that test and its subtests take a second at most.
const Timeout = 5 * time.Minute

const (
	hurried = time.Second // the longest wait behind one that took Timeout
	first   = 10 * time.Microsecond
	longest = time.Millisecond
	counted = time.Second // the most that counts of the time between two calls of is
)

// spent is the name of the top-level test in which a wait has taken Timeout last.
var spent atomic.Value

func top(t testing.TB) string {
	name, _, _ := strings.Cut(t.Name(), "/")
	return name
}

// limit returns how long a wait of t may take.
func limit(t testing.TB) time.Duration {
	if spent.Load() == top(t) {
		return hurried
	}
	return Timeout
}

// never ends the test, in which a wait for what has taken too long.
func never(t testing.TB, what string) {
	t.Helper()
	spent.Store(top(t))
	t.Fatalf("never: %s", what)
}

// True returns when is returns true. After Timeout it ends the test with what, the name of the
// state. In a bubble of package testing/synctest the time is that of the bubble.
func True(t testing.TB, what string, is func() bool) {
	t.Helper()
	if !Within(limit(t), is) {
		never(t, what)
	}
}

// Within reports whether is returns true before d has passed, and returns as soon as it does.
// Within calls is at least once. Of the time between two calls it counts a second at most: a
// process that was stopped meanwhile, with those that it waits for, has not waited.
func Within(d time.Duration, is func() bool) bool {
	var waited time.Duration
	last := time.Now()
	for pause := first; !is(); pause = min(2*pause, longest) {
		now := time.Now()
		waited += min(now.Sub(last), counted)
		last = now
		if waited > d {
			return false
		}
		time.Sleep(pause)
	}
	return true
}

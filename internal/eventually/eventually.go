// SPDX-License-Identifier: Apache-2.0

// Package eventually waits, in tests, for states that other goroutines and processes reach.
package eventually

import (
	"testing"
	"time"
)

const (
	patience = 60 * time.Second // a loaded machine runs a test many times slower
	first    = 10 * time.Microsecond
	longest  = time.Millisecond
)

// True returns when is returns true. After a minute it ends the test with what, the name of the
// state. Within a bubble of package testing/synctest the minute is the bubble's.
func True(t testing.TB, what string, is func() bool) {
	t.Helper()
	end := time.Now().Add(patience)
	for pause := first; !is(); pause = min(2*pause, longest) {
		if time.Now().After(end) {
			t.Fatalf("never: %s", what)
		}
		time.Sleep(pause)
	}
}

// SPDX-License-Identifier: Apache-2.0

package lock

import (
	"sync"
	"testing"

	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

type outer struct{}

func (outer) Depth() (int, string) { return 1, "outer" }

type inner struct{}

func (inner) Depth() (int, string) { return 2, "inner" }

// Locks may be taken in their order, waited for with a condition, and read by many.
func TestInOrder(t *testing.T) {
	var a Mutex[outer]
	var b RWMutex[inner]
	var c RWMutex[outer]
	before := Taken()["inner"]
	a.Lock()
	b.RLock()
	first := Taken()["inner"] - before
	b.RUnlock()
	b.Lock()
	a.Unlock()
	b.Unlock()
	c.RLock()
	n := Taken()["inner"] - before
	c.RUnlock()
	if IsWatched && (first != 1 || n != 2) {
		t.Errorf("%d and %d inner locks were counted, want 1 and 2", first, n)
	}
	cond, woken := sync.NewCond(&a), false
	var waits sync.WaitGroup
	waits.Go(func() {
		a.Lock()
		defer a.Unlock()
		for !woken {
			cond.Wait()
		}
	})
	a.Lock()
	woken = true
	cond.Broadcast()
	a.Unlock()
	waits.Wait()
}

// A goroutine that only tries to take a lock may hold any other.
func TestTried(t *testing.T) {
	var a Mutex[outer]
	var b Mutex[inner]
	b.Lock()
	if !a.TryLock() || a.TryLock() {
		t.Error("a free lock is not had, or one that is taken")
	}
	a.Unlock()
	b.Unlock()
}

// An order of locks that could deadlock two goroutines panics, whether they deadlock or not.
func TestAgainstTheOrder(t *testing.T) {
	if !IsWatched {
		t.Skip("locks are watched in a build with the tag rocldebug")
	}
	var a, other Mutex[outer]
	var b Mutex[inner]
	var c RWMutex[inner]
	for what, wrong := range map[string]func(){
		"an outer one in an inner one": func() { b.Lock(); defer b.Unlock(); a.Lock() },
		"one of the same level":        func() { a.Lock(); defer a.Unlock(); other.Lock() },
		"the same one":                 func() { a.Lock(); defer a.Unlock(); a.Lock() },
		"one of the same, to read":     func() { b.Lock(); defer b.Unlock(); c.RLock() },
		"one that was tried":           func() { b.TryLock(); defer b.Unlock(); a.Lock() },
		"one that is not held":         func() { a.Unlock() },
	} {
		func() {
			defer func() {
				if recover() == nil {
					t.Errorf("%s: nothing was noticed", what)
				}
			}()
			wrong()
		}()
	}
	if !a.TryLock() || !b.TryLock() {
		t.Fatal("a lock is held after all that")
	}
	b.Unlock()
	a.Unlock()
}

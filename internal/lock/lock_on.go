// SPDX-License-Identifier: Apache-2.0

//go:build rocldebug

package lock

import (
	"fmt"
	"maps"
	"slices"
	"sync"
)

// IsWatched reports whether locks are checked and counted.
const IsWatched = true

// A Mutex is a [sync.Mutex] of level L.
type Mutex[L Level] struct{ mu sync.Mutex }

// Lock takes the lock. It panics if the goroutine holds a lock whose level is not above L.
func (m *Mutex[L]) Lock() {
	check[L]()
	m.mu.Lock()
	took[L](m)
}

// TryLock takes the lock if it is free, and reports whether it did. The goroutine may hold any
// locks: TryLock does not wait, so it cannot deadlock.
func (m *Mutex[L]) TryLock() bool {
	if !m.mu.TryLock() {
		return false
	}
	took[L](m)
	return true
}

// Unlock releases the lock. It panics if the goroutine does not hold it.
func (m *Mutex[L]) Unlock() {
	gave(m)
	m.mu.Unlock()
}

// A RWMutex is a [sync.RWMutex] of level L.
type RWMutex[L Level] struct{ mu sync.RWMutex }

// Lock takes the lock for writing. It panics as Mutex.Lock does.
func (m *RWMutex[L]) Lock() {
	check[L]()
	m.mu.Lock()
	took[L](m)
}

// Unlock releases the lock. It panics if the goroutine does not hold it.
func (m *RWMutex[L]) Unlock() {
	gave(m)
	m.mu.Unlock()
}

// RLock takes the lock for reading. It panics as Lock does.
func (m *RWMutex[L]) RLock() {
	check[L]()
	m.mu.RLock()
	took[L](m)
}

// RUnlock releases a lock that RLock took.
func (m *RWMutex[L]) RUnlock() {
	gave(m)
	m.mu.RUnlock()
}

// Taken returns how many times locks were taken in this process, by level.
func Taken() map[string]uint64 {
	count.Lock()
	defer count.Unlock()
	return maps.Clone(count.by)
}

var count struct {
	sync.Mutex
	by map[string]uint64
}

// held has the locks that goroutines hold, by goroutine, in the order in which they were taken.
var held [64]struct {
	sync.Mutex
	by map[uint64][]taken
}

type taken struct {
	lock  any
	depth int
	name  string
}

func check[L Level]() {
	var l L
	depth, name := l.Depth()
	id := goroutine()
	h := &held[id>>6%uint64(len(held))]
	h.Lock()
	defer h.Unlock()
	for _, t := range h.by[id] {
		if t.depth >= depth {
			panic(fmt.Sprintf("lock: %s (%d) is taken while %s (%d) is held", name, depth, t.name, t.depth))
		}
	}
}

func took[L Level](lock any) {
	var l L
	depth, name := l.Depth()
	id := goroutine()
	h := &held[id>>6%uint64(len(held))]
	h.Lock()
	if h.by == nil {
		h.by = map[uint64][]taken{}
	}
	h.by[id] = append(h.by[id], taken{lock, depth, name})
	h.Unlock()
	count.Lock()
	if count.by == nil {
		count.by = map[string]uint64{}
	}
	count.by[name]++
	count.Unlock()
}

func gave(lock any) {
	id := goroutine()
	h := &held[id>>6%uint64(len(held))]
	h.Lock()
	defer h.Unlock()
	all := h.by[id]
	i := slices.IndexFunc(all, func(t taken) bool { return t.lock == lock })
	switch {
	case i < 0:
		panic("lock: given up by a goroutine that does not hold it")
	case len(all) == 1:
		delete(h.by, id)
	default:
		h.by[id] = slices.Delete(all, i, i+1)
	}
}

// SPDX-License-Identifier: Apache-2.0

package dataflow

import (
	"sync"
	"sync/atomic"
)

// A mutex is a lock whose holder may wait for another process. A goroutine that wants the lock
// waits for a channel meanwhile, so that virtual time goes on in a bubble of testing/synctest. It
// would stand still while a goroutine waits for a sync.Mutex.
type mutex struct {
	mu      sync.Mutex
	waiting atomic.Int32
	free    chan struct{} // wakes one of those that wait
}

func newMutex() mutex { return mutex{free: make(chan struct{}, 1)} }

// TryLock takes the lock if it is free, and reports whether it has.
func (m *mutex) TryLock() bool { return m.mu.TryLock() }

// Lock takes the lock.
func (m *mutex) Lock() {
	if !m.mu.TryLock() {
		m.await()
	}
}

// await waits for the lock and takes it.
func (m *mutex) await() {
	m.waiting.Add(1)
	for !m.mu.TryLock() {
		<-m.free
	}
	m.waiting.Add(-1)
}

// Unlock releases the lock.
func (m *mutex) Unlock() {
	m.mu.Unlock()
	if m.waiting.Load() != 0 {
		select {
		case m.free <- struct{}{}:
		default:
		}
	}
}

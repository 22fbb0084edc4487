// SPDX-License-Identifier: Apache-2.0

package tpvm

import "sync"

// goroutines counts the goroutines of a task. Unlike a sync.WaitGroup, it may be asked to start one
// during and after Wait: it refuses.
type goroutines struct {
	mu     sync.Mutex
	closed bool
	all    sync.WaitGroup // Add is called with mu held, and before closed is set
}

// goes calls f in a goroutine of its own. It reports false, and does not call f, after Wait has
// been called.
func (g *goroutines) goes(f func()) bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	if !g.closed {
		g.all.Go(f)
	}
	return !g.closed
}

// Go calls f in a goroutine of its own, or not at all after Wait has been called. It is for an f
// that would return at once when the task has exited, and has nothing to clean up.
func (g *goroutines) Go(f func()) { g.goes(f) }

// Wait refuses further goroutines, and waits until all have returned.
func (g *goroutines) Wait() {
	g.mu.Lock()
	g.closed = true
	g.mu.Unlock()
	g.all.Wait()
}

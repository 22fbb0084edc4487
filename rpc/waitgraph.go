// SPDX-License-Identifier: Apache-2.0

package rpc

import (
	"slices"
	"sync"

	"github.com/rocl-go/rocl/pool"
)

// A waitGraph has the pools between which nested calls wait. An edge from one pool to another means
// that a handler keeps a worker of the first one while its call waits for a worker of the second
// one. The graph has no cycle. So in every set of pools there is one whose handlers wait for no
// worker of the set, and its workers become free.
//
// A request that the program moves to another pool while it waits still counts as one of the first
// pool.
type waitGraph struct {
	mu    sync.Mutex
	edges map[waitEdge]int // how many calls wait
}

type waitEdge struct{ from, to *pool.Pool }

// nestedWaits is the graph of this process.
var nestedWaits = waitGraph{edges: map[waitEdge]int{}}

// add records that the handler that makes a nested call waits for a worker of a pool. It reports
// false, and records nothing, if that would close a cycle.
func (g *waitGraph) add(n *nested, to *pool.Pool) bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	kept := n.from.pools()
	if g.leadsLocked(to, kept) {
		return false
	}
	n.kept, n.to = kept, to
	for _, p := range kept {
		g.edges[waitEdge{p, to}]++
	}
	return true
}

// remove records that a nested request has a worker, or has left the queue. n may be nil.
func (g *waitGraph) remove(n *nested) {
	if n == nil {
		return
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	for _, p := range n.kept {
		e := waitEdge{p, n.to}
		if g.edges[e]--; g.edges[e] == 0 {
			delete(g.edges, e)
		}
	}
	n.kept = nil
}

// leadsLocked reports whether edges lead from a pool to one of others. A stream is a worker of
// several pools, so each of them leads to the others.
func (g *waitGraph) leadsLocked(from *pool.Pool, to []*pool.Pool) bool {
	reached := []*pool.Pool{from}
	for i := 0; i < len(reached); i++ {
		if slices.Contains(to, reached[i]) {
			return true
		}
		for _, next := range g.afterLocked(reached[i]) {
			if !slices.Contains(reached, next) {
				reached = append(reached, next)
			}
		}
	}
	return false
}

// afterLocked returns the pools to which one pool leads directly.
func (g *waitGraph) afterLocked(p *pool.Pool) (after []*pool.Pool) {
	for e := range g.edges {
		if e.from == p {
			after = append(after, e.to)
		}
	}
	for _, s := range p.Streams() {
		after = append(after, s.Pools()...)
	}
	return after
}

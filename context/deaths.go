// SPDX-License-Identifier: Apache-2.0

package context

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"sync"
	"time"

	"github.com/rocl-go/rocl/directory"
	"github.com/rocl-go/rocl/resource"
)

// deaths has the directory's recent answers to the question whether a node is dead.
type deaths struct {
	self resource.NodeID
	dir  *Directory
	mu   sync.Mutex
	all  map[resource.NodeID]*death
}

// deathFor is how long an answer to the question whether a node is dead is used. Each attempt of
// each link with a context of the node asks the question.
const deathFor = 200 * time.Millisecond

// A death is the directory's answer to the question whether a node is dead.
type death struct {
	done   chan struct{} // closed when the other fields are set
	at     time.Time     // time of the answer; zero if the goroutine that asked has given up
	isDead bool
}

// isOld reports whether the directory must be asked again.
func (a *death) isOld() bool {
	select {
	case <-a.done:
		return time.Since(a.at) > deathFor
	default:
		return false
	}
}

// isDead reports whether the directory says that a node is dead. Concurrent calls for one node
// share one question. A call whose ctx ends reports false. If it was the one that asked, another
// call asks again.
func (k *deaths) isDead(ctx context.Context, node resource.NodeID) bool {
	for {
		k.mu.Lock()
		a := k.all[node]
		if a == nil || a.isOld() {
			a = k.newLocked(node)
			k.mu.Unlock()
			defer close(a.done)
			if a.isDead = k.ask(ctx, node); ctx.Err() == nil {
				a.at = time.Now()
			}
			return a.isDead
		}
		k.mu.Unlock()
		select {
		case <-a.done:
			if !a.at.IsZero() {
				return a.isDead
			}
		case <-ctx.Done():
			return false
		}
	}
}

// newLocked adds an entry for a question that the caller asks. mu must be held.
func (k *deaths) newLocked(node resource.NodeID) *death {
	if len(k.all) >= minSweep {
		maps.DeleteFunc(k.all, func(_ resource.NodeID, a *death) bool { return a.isOld() })
	}
	a := &death{done: make(chan struct{})}
	put(k.all, node, a)
	return a
}

// ask asks the directory whether a node is dead. The node is dead if the directory does not
// know it, and knows another node besides this one. A node that is suspected or away is not dead. A
// directory that reaches no other member is itself cut off, and cannot tell.
func (k *deaths) ask(ctx context.Context, node resource.NodeID) bool {
	it, err := resource.NewPattern(resource.Match{directory.AttrKind: "node", directory.AttrNode: fmt.Sprintf("%012x", uint64(node))})
	if err != nil {
		return false
	}
	if _, err = k.dir.Find(ctx, it, nil); !errors.Is(err, directory.ErrNotFound) {
		return false
	}
	all, err := resource.NewPattern(resource.Match{directory.AttrKind: "node"}, directory.AttrNode)
	if err != nil {
		return false
	}
	for n, err := range k.dir.FindAll(ctx, all, nil) { // this node comes first, then the others one after another
		if err != nil {
			return false
		}
		if n.ID.Node() != k.self {
			return true
		}
	}
	return false
}

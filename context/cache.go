// SPDX-License-Identifier: Apache-2.0

package context

import (
	"sync"
	"time"

	"github.com/rocl-go/rocl/directory"
	"github.com/rocl-go/rocl/dispatch"
	"github.com/rocl-go/rocl/resource"
)

// maxCache limits the entries of each cache. A new entry beyond it replaces some other one.
const maxCache = 1 << 16

// cache holds what this context knows of other contexts: the owners of resources, the flows to
// them, and the addresses of contexts (section 4.1 of the paper). mu guards all fields.
type cache struct {
	mu     sync.RWMutex
	owners map[resource.GID]resource.GID   // contexts that own resources, by resource
	flows  map[resource.GID]*dispatch.Flow // flows to resources
	addrs  map[resource.GID]*addresses     // addresses of contexts
	added  int                             // number of flows added since the last sweep
	gone   map[resource.GID]struct{}       // contexts whose links have ended since the last sweep
}

// minSweep is the least number of flows added, or of links ended, before a sweep.
const minSweep = 64

// ended notes that the link with the context peer has ended. The peer's addresses are dropped at
// once, and its other entries by a later sweep.
func (k *cache) ended(peer resource.GID) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.gone[peer] = struct{}{}
	delete(k.addrs, peer)
	if n := len(k.gone); n >= minSweep && n*minSweep >= len(k.flows)+len(k.owners) {
		k.sweepLocked()
	}
}

// addLocked keeps the flow to a resource. mu must be held for writing.
func (k *cache) addLocked(id resource.GID, f *dispatch.Flow) {
	put(k.flows, id, f)
	if k.added++; k.added >= minSweep && k.added >= len(k.flows)/2 {
		k.sweepLocked()
	}
}

// sweepLocked drops flows that have failed for good, and the owners of resources whose contexts'
// links have ended. The number of changes between two sweeps grows with the number of entries, so
// the cost for each change does not. mu must be held for writing.
func (k *cache) sweepLocked() {
	for id, f := range k.flows {
		if f.Dead() {
			delete(k.flows, id)
			delete(k.owners, id)
		}
	}
	if len(k.gone) > 0 {
		for id, owner := range k.owners {
			if _, ok := k.gone[owner]; ok && k.flows[id] == nil {
				delete(k.owners, id)
			}
		}
	}
	k.added = 0
	clear(k.gone)
}

// addresses are the addresses of one context.
type addresses struct {
	urls []string
	used time.Time // when a link was last given the addresses
}

// fresh is how long after their use addresses are not used again. A link that asks again so soon
// has found that they do not work.
const fresh = time.Second

// init makes the cache empty.
func (k *cache) init() {
	k.owners = map[resource.GID]resource.GID{}
	k.flows = map[resource.GID]*dispatch.Flow{}
	k.addrs = map[resource.GID]*addresses{}
	k.gone = map[resource.GID]struct{}{}
}

// put adds an entry to a cache. If the cache is full, the entry replaces another one.
func put[K comparable, V any](m map[K]V, key K, value V) {
	if _, known := m[key]; !known && len(m) >= maxCache {
		for k := range m {
			delete(m, k)
			break
		}
	}
	m[key] = value
}

// own keeps owner as the context that owns the resource id.
func (k *cache) own(id, owner resource.GID) {
	k.mu.RLock()
	same := k.owners[id] == owner
	k.mu.RUnlock()
	if same {
		return
	}
	k.mu.Lock()
	put(k.owners, id, owner)
	k.mu.Unlock()
}

// reach keeps and returns the addresses of the context peer, whose attributes are attrs. used is
// the time of their last use.
func (k *cache) reach(peer resource.GID, attrs *resource.List, used time.Time) []string {
	a := &addresses{used: used}
	for v := range attrs.Values(directory.AttrAddr) {
		a.urls = append(a.urls, string(v))
	}
	if len(a.urls) > 0 {
		k.mu.Lock()
		put(k.addrs, peer, a)
		k.mu.Unlock()
	}
	return a.urls
}

// forget drops the owner of the resource id and the flow to it.
func (k *cache) forget(id resource.GID) {
	k.mu.Lock()
	delete(k.owners, id)
	delete(k.flows, id)
	k.mu.Unlock()
}

// flow returns the flow to the resource id, or nil.
func (k *cache) flow(id resource.GID) *dispatch.Flow {
	k.mu.RLock()
	defer k.mu.RUnlock()
	return k.flows[id]
}

// SPDX-License-Identifier: Apache-2.0

package context

import (
	stdctx "context"
	"errors"
	"fmt"
	"maps"
	"sync"
	"time"

	"github.com/rocl-go/rocl/directory"
	"github.com/rocl-go/rocl/dispatch"
	"github.com/rocl-go/rocl/resource"
)

// cacheMost bounds each cache; beyond it some entry is dropped, and asked for
// again when needed.
const cacheMost = 1 << 16

// cache remembers which context owns a resource, the flow to it, and the
// addresses of contexts (paper, section 4.1).
type cache struct {
	mu     sync.RWMutex
	owners map[resource.GID]resource.GID
	flows  map[resource.GID]*dispatch.Flow
	addrs  map[resource.GID]*addresses
	added  int                       // flows, since the last sweep
	gone   map[resource.GID]struct{} // peers whose links have ended since
	deaths map[resource.NodeID]*death
}

// sweepLeast is how many flows are added, or links end, at least before a sweep.
const sweepLeast = 64

// ended notes that the link with a peer has ended: what leads to it is dropped soon.
func (k *cache) ended(peer resource.GID) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.gone[peer] = struct{}{}
	delete(k.addrs, peer)
	if n := len(k.gone); n >= sweepLeast && n*sweepLeast >= len(k.flows)+len(k.owners) {
		k.sweep()
	}
}

// add keeps the flow to a resource. mu must be held.
func (k *cache) add(id resource.GID, f *dispatch.Flow) {
	bound(k.flows)
	k.flows[id] = f
	if k.added++; k.added >= sweepLeast && k.added >= len(k.flows)/2 {
		k.sweep()
	}
}

// sweep drops flows that have failed for good, and what is known of contexts whose
// links have ended. It is called once for as many changes as there are entries, or a
// part of that, so that an entry costs the same however many there are. mu must be held.
func (k *cache) sweep() {
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

type addresses struct {
	urls []string
	used time.Time
}

// fresh is for how long after their use addresses are not trusted: who asks
// for them again so soon has found that they do not work.
const fresh = time.Second

func (k *cache) init() {
	k.owners = map[resource.GID]resource.GID{}
	k.flows = map[resource.GID]*dispatch.Flow{}
	k.addrs = map[resource.GID]*addresses{}
	k.gone = map[resource.GID]struct{}{}
	k.deaths = map[resource.NodeID]*death{}
}

func bound[K comparable, V any](m map[K]V) {
	if len(m) >= cacheMost {
		for k := range m {
			delete(m, k)
			return
		}
	}
}

func (k *cache) own(id, owner resource.GID) {
	k.mu.RLock()
	same := k.owners[id] == owner
	k.mu.RUnlock()
	if same {
		return
	}
	k.mu.Lock()
	bound(k.owners)
	k.owners[id] = owner
	k.mu.Unlock()
}

// reach keeps and returns the addresses of a context, which are among its
// attributes.
func (k *cache) reach(peer resource.GID, attrs *resource.List, used time.Time) []string {
	a := &addresses{used: used}
	for v := range attrs.Values(AttrAddr) {
		a.urls = append(a.urls, string(v))
	}
	if len(a.urls) > 0 {
		k.mu.Lock()
		bound(k.addrs)
		k.addrs[peer] = a
		k.mu.Unlock()
	}
	return a.urls
}

func (k *cache) forget(id resource.GID) {
	k.mu.Lock()
	delete(k.owners, id)
	delete(k.flows, id)
	k.mu.Unlock()
}

func (k *cache) flow(id resource.GID) *dispatch.Flow {
	k.mu.RLock()
	defer k.mu.RUnlock()
	return k.flows[id]
}

// flow finds the way to a resource, asking the directory at most once for its
// owner. The addresses of the owner are asked for when the link is made. In
// doubt, after a failure, nothing is taken for granted.
func (c *Context) flow(ctx stdctx.Context, to resource.GID, doubt bool) (*dispatch.Flow, error) {
	if f := c.cache.flow(to); f != nil {
		return f, nil
	}
	owner, isKnown, err := c.owner(to, doubt)
	if err != nil {
		return nil, err
	}
	if !isKnown {
		c.asked.Add(1)
		ans, err := c.dir.Lookup(ctx, to, AttrKind)
		if errors.Is(err, directory.ErrNotFound) {
			return nil, fmt.Errorf("%w: %v", dispatch.ErrGone, to)
		}
		if err != nil {
			return nil, c.wrap(err)
		}
		owner = ans.Owner
		c.cache.own(to, owner)
	}
	return c.flowOf(owner, to)
}

// isNode says whether id is of the resource that stands for a node, which
// receives no messages.
func isNode(id resource.GID) bool { return id == directory.NodeResource(id.Node()) }

// resolve implements dispatch.Resolver with the second cache.
func (c *Context) resolve(ctx stdctx.Context, peer resource.GID) ([]string, error) {
	c.cache.mu.Lock()
	var known []string
	if a := c.cache.addrs[peer]; a != nil {
		known = a.urls
		if time.Since(a.used) > fresh {
			a.used = time.Now()
			c.cache.mu.Unlock()
			return c.meant(peer, known), nil
		}
	}
	c.cache.mu.Unlock()
	c.asked.Add(1)
	ans, err := c.dir.Lookup(ctx, peer) // all attributes: addresses repeat
	if errors.Is(err, directory.ErrNotFound) {
		return nil, fmt.Errorf("%w: its context %v has ended", dispatch.ErrGone, peer)
	}
	if errors.Is(err, directory.ErrPartial) && c.isDead(ctx, peer.Node()) {
		return c.meant(peer, known), fmt.Errorf("%w: %v", dispatch.ErrNodeDead, peer)
	}
	if err != nil {
		return nil, err
	}
	return c.meant(peer, c.cache.reach(peer, &ans.Attrs, time.Now())), nil
}

// deathFor is how long an answer to the question whether a node is dead is used: each
// attempt of each link with a context of the node asks.
const deathFor = 200 * time.Millisecond

// A death is the directory's answer to the question whether a node is dead.
type death struct {
	done   chan struct{} // closed when the other fields are set
	at     time.Time     // zero if the goroutine that asked has given up
	isDead bool
}

// isOld reports whether the directory is to be asked again.
func (a *death) isOld() bool {
	select {
	case <-a.done:
		return time.Since(a.at) > deathFor
	default:
		return false
	}
}

// isDead reports whether the directory says that a node is dead. Calls for one node that
// come together put one question.
func (c *Context) isDead(ctx stdctx.Context, node resource.NodeID) bool {
	k := &c.cache
	k.mu.Lock()
	a := k.deaths[node]
	if a != nil && !a.isOld() {
		k.mu.Unlock()
		select {
		case <-a.done:
			return a.isDead
		case <-ctx.Done():
			return false
		}
	}
	if len(k.deaths) >= sweepLeast {
		maps.DeleteFunc(k.deaths, func(_ resource.NodeID, a *death) bool { return a.isOld() })
		bound(k.deaths)
	}
	a = &death{done: make(chan struct{})}
	k.deaths[node] = a
	k.mu.Unlock()
	defer close(a.done)
	if a.isDead = c.asksIfDead(ctx, node); ctx.Err() == nil {
		a.at = time.Now()
	}
	return a.isDead
}

// asksIfDead asks the directory whether a node is dead: it has no such node, and it has
// another one than this. A node that is suspected or away is not dead. A directory that
// reaches no other member is cut off itself, and cannot tell.
func (c *Context) asksIfDead(ctx stdctx.Context, node resource.NodeID) bool {
	it, err := c.pattern(resource.Match{AttrKind: "node", AttrNode: fmt.Sprintf("%012x", uint64(node))}, nil)
	if err != nil {
		return false
	}
	c.asked.Add(1)
	if _, err = c.dir.Find(ctx, it); !errors.Is(err, directory.ErrNotFound) {
		return false
	}
	all, err := c.pattern(resource.Match{AttrKind: "node"}, []FindOption{Want(AttrNode)})
	if err != nil {
		return false
	}
	c.asked.Add(1)
	for n, err := range c.dir.FindAll(ctx, all) { // this node comes first, then one after another
		if err != nil {
			return false
		}
		if n.ID.Node() != c.self.Node() {
			return true
		}
	}
	return false
}

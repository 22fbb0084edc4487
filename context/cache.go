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
	deaths map[resource.NodeID]*death      // recent answers to whether nodes are dead
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
	k.deaths = map[resource.NodeID]*death{}
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
	for v := range attrs.Values(AttrAddr) {
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

// flow returns the flow to a resource. It asks the directory at most once, for the owner and the
// lane; the owner's addresses are asked for when the link is made. With doubt, after a failure, it
// uses only what the directory has said.
func (c *Context) flow(ctx stdctx.Context, to resource.GID, doubt bool) (*dispatch.Flow, error) {
	if f := c.cache.flow(to); f != nil {
		return f, nil
	}
	owner, isKnown, err := c.owner(to, doubt)
	if err != nil {
		return nil, err
	}
	if isKnown {
		return c.flowOf(owner, to, nil)
	}
	names, _ := c.wanted(to)
	c.questions.Add(1)
	ans, err := c.dir.Lookup(ctx, to, names...)
	if errors.Is(err, directory.ErrNotFound) {
		return nil, dispatch.ErrGone
	}
	if err != nil {
		return nil, c.wrap(err)
	}
	c.cache.own(to, ans.Owner)
	return c.flowOf(ans.Owner, to, &ans)
}

// owner returns the context that owns a resource, if that and the lane to the resource are known
// without asking the directory. With doubt, after a failure, owner uses only what the directory has
// said. Without doubt it also takes the context that made the identifier for the owner, if that is
// this context or is linked. It fails for identifiers to which no message can be sent.
func (c *Context) owner(to resource.GID, doubt bool) (owner resource.GID, isKnown bool, err error) {
	switch {
	case to.IsZero():
		return owner, false, fmt.Errorf("%w: the target is the zero identifier", dispatch.ErrGone)
	case isNode(to):
		return owner, false, fmt.Errorf("%w: the target is a node: send to a resource there", dispatch.ErrGone)
	case to == to.Context():
		return owner, false, fmt.Errorf("%w: the target is a context: send to a resource of it", dispatch.ErrGone)
	}
	c.cache.mu.RLock()
	owner, isKnown = c.cache.owners[to]
	c.cache.mu.RUnlock()
	if !isKnown && !doubt && (to.Context() == c.self || c.disp.Linked(to.Context())) {
		owner, isKnown = to.Context(), true // the context that made the identifier, which is alive
	}
	if _, needed := c.wanted(to); needed && owner != c.self {
		isKnown = false
	}
	return owner, isKnown, nil
}

// isNode reports whether id identifies the resource that stands for a node. Such a resource
// receives no messages.
func isNode(id resource.GID) bool { return id == directory.NodeResource(id.Node()) }

// resolve returns the addresses of the context peer from the cache or the directory. It implements
// dispatch.Resolver.
func (c *Context) resolve(ctx stdctx.Context, peer resource.GID) ([]string, error) {
	c.cache.mu.Lock()
	var known []string
	if a := c.cache.addrs[peer]; a != nil {
		known = a.urls
		if time.Since(a.used) > fresh {
			a.used = time.Now()
			c.cache.mu.Unlock()
			return c.usableAddrs(peer, known), nil
		}
	}
	c.cache.mu.Unlock()
	c.questions.Add(1)
	ans, err := c.dir.Lookup(ctx, peer) // all attributes: addresses repeat
	if errors.Is(err, directory.ErrNotFound) {
		return nil, fmt.Errorf("%w: the context has ended", dispatch.ErrGone)
	}
	if errors.Is(err, directory.ErrPartial) && c.isDead(ctx, peer.Node()) {
		return c.usableAddrs(peer, known), dispatch.ErrNodeDead
	}
	if err != nil {
		return nil, err
	}
	return c.usableAddrs(peer, c.cache.reach(peer, &ans.Attrs, time.Now())), nil
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
func (c *Context) isDead(ctx stdctx.Context, node resource.NodeID) bool {
	k := &c.cache
	for {
		k.mu.Lock()
		a := k.deaths[node]
		if a == nil || a.isOld() {
			a = k.newDeathLocked(node)
			k.mu.Unlock()
			defer close(a.done)
			if a.isDead = c.asksIfDead(ctx, node); ctx.Err() == nil {
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

// newDeathLocked adds an entry for a question that the caller asks. mu must be held for writing.
func (k *cache) newDeathLocked(node resource.NodeID) *death {
	if len(k.deaths) >= minSweep {
		maps.DeleteFunc(k.deaths, func(_ resource.NodeID, a *death) bool { return a.isOld() })
	}
	a := &death{done: make(chan struct{})}
	put(k.deaths, node, a)
	return a
}

// asksIfDead asks the directory whether a node is dead. The node is dead if the directory does not
// know it, and knows another node besides this one. A node that is suspected or away is not dead. A
// directory that reaches no other member is itself cut off, and cannot tell.
func (c *Context) asksIfDead(ctx stdctx.Context, node resource.NodeID) bool {
	it, _, err := newPattern(resource.Match{AttrKind: "node", AttrNode: fmt.Sprintf("%012x", uint64(node))}, nil)
	if err != nil {
		return false
	}
	c.questions.Add(1)
	if _, err = c.dir.Find(ctx, it); !errors.Is(err, directory.ErrNotFound) {
		return false
	}
	all, _, err := newPattern(resource.Match{AttrKind: "node"}, []FindOption{Want(AttrNode)})
	if err != nil {
		return false
	}
	c.questions.Add(1)
	for n, err := range c.dir.FindAll(ctx, all) { // this node comes first, then the others one after another
		if err != nil {
			return false
		}
		if n.ID.Node() != c.self.Node() {
			return true
		}
	}
	return false
}

// SPDX-License-Identifier: Apache-2.0

package context

import (
	stdctx "context"

	"github.com/rocl-go/rocl/directory"
	"github.com/rocl-go/rocl/dispatch"
	"github.com/rocl-go/rocl/internal/os/cgroup"
	"github.com/rocl-go/rocl/resource"
	"github.com/rocl-go/rocl/subsys"
	"github.com/rocl-go/rocl/subsys/tls"
)

// DefaultMemory returns the default of WithMemory in control groups with these limits; 0 is no
// limit.
func DefaultMemory(l cgroup.Limits) int64 { return defaultMemory(l) }

// CacheMost is the limit of each cache.
const CacheMost = maxCache

// CacheSizes returns the numbers of entries of the caches: owners of resources, flows to resources,
// addresses of contexts.
func (c *Context) CacheSizes() (owners, flows, addrs int) {
	c.cache.mu.RLock()
	defer c.cache.mu.RUnlock()
	return len(c.cache.owners), len(c.cache.flows), len(c.cache.addrs)
}

// CacheOwner puts owner into the cache as the context that owns the resource id.
func (c *Context) CacheOwner(id, owner resource.GID) {
	c.cache.forget(id)
	c.cache.own(id, owner)
}

// CacheNewOwner is CacheOwner of a resource with an entry.
func (c *Context) CacheNewOwner(id, owner resource.GID) { c.cache.own(id, owner) }

// CacheFlow finds the flow to the resource id, as a send does, and keeps it in the cache.
func (c *Context) CacheFlow(id resource.GID) error {
	_, err := c.flow(stdctx.Background(), id, false)
	return err
}

// CacheAddrs puts urls into the cache as the addresses of the context peer.
func (c *Context) CacheAddrs(peer resource.GID, urls ...string) {
	c.cache.mu.Lock()
	c.cache.addrs[peer] = &addresses{urls: urls}
	c.cache.mu.Unlock()
}

// Resolve returns the addresses of a context, as it does for a link.
func (c *Context) Resolve(peer resource.GID) ([]string, error) {
	return c.resolve(stdctx.Background(), peer)
}

// IsDead reports whether the directory says that a node is dead.
func (c *Context) IsDead(ctx stdctx.Context, node resource.NodeID) bool { return c.isDead(ctx, node) }

// Deaths returns the number of nodes for which the context keeps an answer to whether they are
// dead.
func (c *Context) Deaths() int {
	c.cache.mu.RLock()
	defer c.cache.mu.RUnlock()
	return len(c.cache.deaths)
}

// UsableAddrs returns the addresses of peer that are usable from here.
func (c *Context) UsableAddrs(peer resource.GID, urls ...string) []string {
	return c.usableAddrs(peer, urls)
}

// ListenAddrs returns the addresses at which a context with these options would listen on the given
// terms.
func ListenAddrs(t directory.Terms, opts ...Option) (at []string) {
	cfg := defaults()
	for _, o := range opts {
		o(&cfg)
	}
	var sealer subsys.Transport
	if t.Sealed {
		sealer = tls.New(nil)
	}
	for _, p := range cfg.listenAddrs(&t, sealer) {
		at = append(at, p.key())
	}
	return at
}

// Answers returns how many answers are under way.
func (c *Context) Answers() (n int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, k := range c.answers {
		n += k
	}
	return n
}

// AskRoutes sends a question for routes and does not wait for the answer.
func (c *Context) AskRoutes(ctx stdctx.Context, of resource.GID, from *Resource) error {
	f, err := c.disp.Flow(of, 0)
	if err == nil {
		err = f.SendBytes(ctx, from.id.Serial(), tagRoutes, nil)
	}
	return err
}

// UseUpSerials lets the context have no serial number left.
func (c *Context) UseUpSerials() { c.serial.Store(dispatch.LastSerial) }

// BeginAnswers counts as many answers to the context asker as may be under way. end takes them
// back.
func (c *Context) BeginAnswers(asker resource.GID) (end func()) {
	set := func(n int) {
		c.mu.Lock()
		defer c.mu.Unlock()
		c.answers[asker] = n
	}
	set(maxAnswers)
	return func() { set(0) }
}

// AgeLookups makes the errors of lookups on behalf of TrySend old. It returns how many there were.
func (c *Context) AgeLookups() (n int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, a := range c.lookups {
		if !a.done.IsZero() {
			a.done = a.done.Add(-2 * lookupErrorFor)
			n++
		}
	}
	return n
}

// SPDX-License-Identifier: Apache-2.0

package context

import (
	stdctx "context"

	"github.com/rocl-go/rocl/directory"
	"github.com/rocl-go/rocl/resource"
	"github.com/rocl-go/rocl/subsys"
	"github.com/rocl-go/rocl/subsys/tls"
)

// CacheMost is the bound of each cache.
const CacheMost = cacheMost

// CacheSizes are the entries of the caches: owners of resources, flows to
// resources, addresses of contexts.
func (c *Context) CacheSizes() (owners, flows, addrs int) {
	c.cache.mu.RLock()
	defer c.cache.mu.RUnlock()
	return len(c.cache.owners), len(c.cache.flows), len(c.cache.addrs)
}

// CacheOwner makes the context believe that owner has the resource id.
func (c *Context) CacheOwner(id, owner resource.GID) {
	c.cache.forget(id)
	c.cache.own(id, owner)
}

// CacheFlow looks for the way to id, as a send does, and keeps it.
func (c *Context) CacheFlow(id resource.GID) error {
	_, err := c.flow(stdctx.Background(), id, false)
	return err
}

// CacheAddrs makes the context believe that peer is reached under urls.
func (c *Context) CacheAddrs(peer resource.GID, urls ...string) {
	c.cache.mu.Lock()
	c.cache.addrs[peer] = &addresses{urls: urls}
	c.cache.mu.Unlock()
}

// Resolve returns the addresses of a context, as a link asks for them.
func (c *Context) Resolve(peer resource.GID) ([]string, error) {
	return c.resolve(stdctx.Background(), peer)
}

// Deaths is the number of nodes of which the context remembers whether they are dead.
func (c *Context) Deaths() int {
	c.cache.mu.RLock()
	defer c.cache.mu.RUnlock()
	return len(c.cache.deaths)
}

// Meant is what is left of the addresses of peer.
func (c *Context) Meant(peer resource.GID, urls ...string) []string { return c.meant(peer, urls) }

// Places are the addresses at which a context with these options would listen
// on the given terms.
func Places(t directory.Terms, opts ...Option) (at []string) {
	cfg := defaults()
	for _, o := range opts {
		o(&cfg)
	}
	var sealer subsys.Transport
	if t.Sealed {
		sealer = tls.New(nil)
	}
	for _, p := range cfg.places(&t, sealer) {
		at = append(at, p.key())
	}
	return at
}

// Answers is how many answers are under way.
func (c *Context) Answers() (n int) {
	c.answering.mu.Lock()
	defer c.answering.mu.Unlock()
	for _, k := range c.answering.to {
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

// SPDX-License-Identifier: Apache-2.0

package context

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/rocl-go/rocl/directory"
	"github.com/rocl-go/rocl/dispatch"
	"github.com/rocl-go/rocl/resource"
)

// AttrOver is the attribute of a resource that was registered with Over: the transports, with
// commas.
const AttrOver = "rocl.over"

// Targets finds the flows to resources and the addresses of contexts, and caches both (section 4.1
// of the paper). Its methods may be called concurrently.
type Targets struct {
	self    resource.GID
	dir     *Directory
	disp    flows
	usable  func(peer resource.GID, urls []string) []string // the addresses of a context that are usable from here
	rules   *Rules
	cache   cache
	deaths  deaths
	lookups lookups
}

// flows is the part of the dispatcher that Targets use.
type flows interface {
	Flow(owner resource.GID, serial uint32) (*dispatch.Flow, error)
	FlowOver(owner resource.GID, serial uint32, lane dispatch.Lane) (*dispatch.Flow, error)
	LaneTo(owner resource.GID, serial uint32) (lane dispatch.Lane, isKnown bool)
	Linked(peer resource.GID) bool
}

// NewTargets returns the targets of a context, whose directory is dir and whose rules are rules.
// usable returns those of the addresses of a context that are usable from here. Before the first
// message UseFlows must be called.
func NewTargets(dir *Directory, rules *Rules, usable func(peer resource.GID, urls []string) []string) *Targets {
	t := &Targets{self: dir.Self(), dir: dir, usable: usable, rules: rules}
	t.cache.init()
	t.deaths = deaths{self: t.self.Node(), dir: dir, all: map[resource.NodeID]*death{}}
	t.lookups.all = map[resource.GID]*pendingLookup{}
	return t
}

// UseFlows sets the dispatcher that makes the flows.
func (t *Targets) UseFlows(disp flows) { t.disp = disp }

// Ended notes that the link with the context peer has ended.
func (t *Targets) Ended(peer resource.GID) { t.cache.ended(peer) }

// Forget drops what is cached of the resource id: it has ended, or the cache was wrong.
func (t *Targets) Forget(id resource.GID) { t.cache.forget(id) }

// Remember puts the owner and the addresses that an answer of the directory contains into the
// caches.
func (t *Targets) Remember(a *resource.Record) {
	minter := a.ID.Context()
	// An owner is not cached where the method owner knows it, or where the index can be read.
	if (a.Owner != t.self || minter != t.self) && (a.ID.Node() != t.self.Node() || !t.dir.Mapped()) {
		t.cache.own(a.ID, a.Owner)
	}
	if a.ID == minter { // a context's own resource, which has its addresses
		t.cache.reach(a.ID, &a.Attrs, time.Time{})
	}
}

// Sizes returns the numbers of owners, flows and addresses that are cached.
func (t *Targets) Sizes() (owners, flows, addrs int) {
	t.cache.mu.RLock()
	defer t.cache.mu.RUnlock()
	return len(t.cache.owners), len(t.cache.flows), len(t.cache.addrs)
}

// Cached returns the flow to the resource id if it is cached, else nil.
func (t *Targets) Cached(id resource.GID) *dispatch.Flow { return t.cache.flow(id) }

// Flow returns the flow to a resource. It asks the directory at most once, for the owner and the
// lane; the owner's addresses are asked for when the link is made. With doubt, after a failure, it
// uses only what the directory has said.
func (t *Targets) Flow(ctx context.Context, to resource.GID, doubt bool) (*dispatch.Flow, error) {
	if f := t.cache.flow(to); f != nil {
		return f, nil
	}
	owner, isKnown, err := t.owner(to, doubt)
	if err != nil {
		return nil, err
	}
	if isKnown {
		return t.flowOf(owner, to, nil)
	}
	names, _ := t.wanted(to)
	ans, err := t.dir.Lookup(ctx, to, names...)
	if errors.Is(err, directory.ErrNotFound) {
		return nil, dispatch.ErrGone
	}
	if err != nil {
		return nil, err
	}
	t.cache.own(to, ans.Owner)
	return t.flowOf(ans.Owner, to, &ans)
}

// owner returns the context that owns a resource, if that and the lane to the resource are known
// without asking the directory. With doubt, after a failure, owner uses only what the directory has
// said. Without doubt it also takes the context that made the identifier for the owner, if that is
// this context or is linked. It fails for identifiers to which no message can be sent.
func (t *Targets) owner(to resource.GID, doubt bool) (owner resource.GID, isKnown bool, err error) {
	switch {
	case to.IsZero():
		return owner, false, fmt.Errorf("%w: the target is the zero identifier", dispatch.ErrGone)
	case IsNode(to):
		return owner, false, fmt.Errorf("%w: the target is a node: send to a resource there", dispatch.ErrGone)
	case to == to.Context():
		return owner, false, fmt.Errorf("%w: the target is a context: send to a resource of it", dispatch.ErrGone)
	}
	t.cache.mu.RLock()
	owner, isKnown = t.cache.owners[to]
	t.cache.mu.RUnlock()
	if !isKnown && !doubt && (to.Context() == t.self || t.disp.Linked(to.Context())) {
		owner, isKnown = to.Context(), true // the context that made the identifier, which is alive
	}
	if _, needed := t.wanted(to); needed && owner != t.self {
		isKnown = false
	}
	return owner, isKnown, nil
}

// IsNode reports whether id identifies the resource that stands for a node. Such a resource
// receives no messages.
func IsNode(id resource.GID) bool { return id == directory.NodeResource(id.Node()) }

// Resolve returns the addresses of the context peer from the cache or the directory. It implements
// dispatch.Resolver.
func (t *Targets) Resolve(ctx context.Context, peer resource.GID) ([]string, error) {
	t.cache.mu.Lock()
	var known []string
	if a := t.cache.addrs[peer]; a != nil {
		known = a.urls
		if time.Since(a.used) > fresh {
			a.used = time.Now()
			t.cache.mu.Unlock()
			return t.usable(peer, known), nil
		}
	}
	t.cache.mu.Unlock()
	ans, err := t.dir.Lookup(ctx, peer) // all attributes: addresses repeat
	if errors.Is(err, directory.ErrNotFound) {
		return nil, fmt.Errorf("%w: the context has ended", dispatch.ErrGone)
	}
	if errors.Is(err, directory.ErrPartial) && t.deaths.isDead(ctx, peer.Node()) {
		return t.usable(peer, known), dispatch.ErrNodeDead
	}
	if err != nil {
		return nil, err
	}
	return t.usable(peer, t.cache.reach(peer, &ans.Attrs, time.Now())), nil
}

// wanted returns the attributes of a target that say which lane leads to it. needed is false if the
// lane does not depend on attributes; no names stand for all attributes.
func (t *Targets) wanted(to resource.GID) (names []string, needed bool) {
	switch {
	case to.Serial()&dispatch.Routed != 0:
		return []string{AttrOver}, true
	case t.rules.hasMatches:
		return nil, true
	}
	return []string{directory.AttrKind}, false
}

// flowOf returns the flow to a resource of the context owner, and keeps it in the cache. it has the
// attributes of the resource that wanted names; nil if none are needed.
func (t *Targets) flowOf(owner, to resource.GID, it *resource.Record) (*dispatch.Flow, error) {
	f, err := t.choose(owner, to, it)
	if err != nil {
		return nil, err
	}
	t.cache.mu.Lock()
	t.cache.addLocked(to, f)
	t.cache.mu.Unlock()
	return f, nil
}

// choose returns the flow to a resource over the lane that leads to it.
func (t *Targets) choose(owner, to resource.GID, it *resource.Record) (*dispatch.Flow, error) {
	switch {
	case owner == t.self:
		return t.disp.Flow(owner, to.Serial())
	case to.Serial()&dispatch.Routed != 0:
		lane, err := dispatch.ParseLane(it.Attrs.GetString(AttrOver))
		if err != nil {
			return nil, fmt.Errorf("%s of the target: %w", AttrOver, err)
		}
		return t.disp.FlowOver(owner, to.Serial(), lane)
	case len(t.rules.each) == 0:
		return t.disp.Flow(owner, to.Serial())
	}
	t.rules.choosing.Lock()
	defer t.rules.choosing.Unlock()
	lane, isKnown := t.disp.LaneTo(owner, to.Serial()) // its attributes may have changed since
	if !isKnown {
		lane = t.rules.pick(it)
	}
	return t.disp.FlowOver(owner, to.Serial(), lane)
}

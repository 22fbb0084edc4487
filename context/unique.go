// SPDX-License-Identifier: Apache-2.0

package context

import (
	stdctx "context"
	"errors"
	"fmt"
	"slices"

	"github.com/rocl-go/rocl/directory"
	"github.com/rocl-go/rocl/resource"
)

// Unique lets Register fail with rocl.ErrExists where another resource in reach has the
// same values of these attributes, whoever registered it and however. The resource must
// have each of them.
//
// Of several registrations at once with Unique and the same values, at most one succeeds,
// on one node and across a cluster; if none of their contexts ends meanwhile, one does.
// The resource is found only when it is certain that it is the only one. Register waits
// for that: it asks every node three times. It fails with rocl.ErrPartial where a node of the
// cluster could not be asked.
//
// Unique says nothing about later: a registration without Unique, Set and Update do not
// look whether a resource with the same values exists. Nor do the two sides of a partition
// once each has taken the other for dead: each may register a resource, and when the sides
// meet again both stay. A program that cannot bear that watches for a second one.
func Unique(names ...string) RegisterOption {
	return func(c *registerConfig) { c.unique = append(c.unique, names...) }
}

// A registration with Unique is in two steps. First a claim is registered under the
// resource's identifier: only the attributes that are to be unique, and AttrKind, which
// hides it from all but other claimants. When nothing else has the values, the claim is
// updated to what is to be registered. Two claimants cannot both get that far: whichever
// looks second sees the other's claim, or what became of it. A claimant gives way to
// every resource, and to a claim with a lower identifier; it waits for one with a higher
// identifier, whose owner may have looked before there was this claim.
const kindClaim = "claim"

// claim is a registration with Unique under way.
type claim struct {
	c       *Context
	id      resource.GID
	pattern resource.List // resources with the same values
	claims  resource.List // claims with the same values
}

func newClaim(c *Context, id resource.GID, l *resource.List, names []string) (*claim, error) {
	k := &claim{c: c, id: id}
	for name, value := range l.All() {
		if !slices.Contains(names, name) {
			continue
		}
		if err := errors.Join(k.pattern.Add(name, value), k.claims.Add(name, value)); err != nil {
			return nil, err
		}
	}
	for _, name := range names {
		if _, ok := l.Get(name); !ok {
			return nil, fmt.Errorf("%w: %q is to be unique", directory.ErrIncomplete, name)
		}
	}
	return k, k.claims.AddString(AttrKind, kindClaim)
}

// register registers l once it is certain that nothing else has its values.
func (k *claim) register(ctx stdctx.Context, l *resource.List) (rev uint64, err error) {
	dir := k.c.dir
	if err := k.free(ctx); err != nil { // most often that is all there is to it
		return 0, err
	}
	if rev, err = dir.Register(ctx, k.id, &k.claims); err != nil {
		return 0, err
	}
	if err = k.alone(ctx); err == nil {
		if rev, err = dir.Update(ctx, k.id, rev, l); err == nil {
			return rev, nil
		}
	}
	// The claim must go also where ctx has ended: others wait for it.
	wctx, cancel := stdctx.WithTimeout(k.c.life, withdrawTime)
	defer cancel()
	return 0, errors.Join(err, dir.Delete(wctx, k.id))
}

// alone returns nil when no other resource and no other claim has the values.
func (k *claim) alone(ctx stdctx.Context) error {
	for {
		// Claims first: one that becomes a resource in between is seen as that.
		higher, err := k.higher(ctx)
		if err != nil {
			return err
		}
		if err := k.free(ctx); err != nil {
			return err
		}
		if !higher {
			return nil
		}
		if err := k.decided(ctx); err != nil {
			return err
		}
	}
}

// free returns an error that matches ErrExists if a resource has the values, and one that
// matches ErrPartial if some node could not be asked.
func (k *claim) free(ctx stdctx.Context) error {
	ans, err := k.c.dir.Find(ctx, &k.pattern) // it does not match claims
	switch {
	case errors.Is(err, directory.ErrNotFound):
		return nil
	case err != nil:
		return err
	}
	return k.exists(ans.ID)
}

func (k *claim) exists(id resource.GID) error {
	return fmt.Errorf("%w: %v has %v", directory.ErrExists, id, &k.pattern)
}

// higher reports whether there is a claim with a higher identifier. For one with a lower
// identifier it returns an error that matches ErrExists.
func (k *claim) higher(ctx stdctx.Context) (some bool, err error) {
	for ans, err := range k.c.dir.FindAll(ctx, &k.claims) {
		if err != nil {
			return false, err
		}
		switch c := ans.ID.Compare(k.id); {
		case c < 0:
			return false, k.exists(ans.ID)
		case c > 0:
			some = true
		}
	}
	return some, nil
}

// decided waits until there is no claim with a higher identifier: each has become a
// resource, or has gone. A claim with a lower identifier waits for this one, and is not
// waited for: it is an error that matches ErrExists.
func (k *claim) decided(ctx stdctx.Context) error {
	others := map[resource.GID]bool{}
	synced := false
	for ev, err := range k.c.dir.Watch(ctx, &k.claims) {
		switch {
		case err != nil:
			return err
		case ev.Kind == directory.Synced:
			synced = true
		case ev.Kind == directory.Gone:
			delete(others, ev.ID)
		case ev.ID.Compare(k.id) < 0:
			return k.exists(ev.ID)
		case ev.ID != k.id:
			others[ev.ID] = true
		}
		if synced && len(others) == 0 {
			return nil
		}
	}
	return stdctx.Cause(ctx)
}

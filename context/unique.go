// SPDX-License-Identifier: Apache-2.0

package context

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/rocl-go/rocl/directory"
	"github.com/rocl-go/rocl/resource"
)

// Protocol: Unique resources
//
// 1. The context registers a claim under the resource's identifier: the unique attributes, and
//    `rocl.kind` = `claim`.
// 2. It asks for other claims with these values, then for resources.
// 3. At a resource, or a claim with a lower identifier, it deletes its claim. At a claim with a
//    higher one, it waits and asks again.
// 4. It updates the claim to the attributes of the resource.

// A registration with Unique has two steps. First a claim is registered under the resource's
// identifier. It has only the attributes that must be unique, and AttrKind, which hides it from all
// questions except those of other claims. When no other resource and no other claim has the values,
// the claim is updated to the resource.
//
// Two claims cannot both get that far: the one that looks second sees the first claim, or the
// resource that the first claim has become. A claim gives way to every resource, and to a claim
// with a lower identifier. It waits for a claim with a higher identifier, because that one's owner
// may have looked before this claim existed.
const kindClaim = "claim"

// A claim is a registration with Unique under way.
type claim struct {
	dir     *directory.Client
	life    context.Context // ends when Close begins
	id      resource.GID
	pattern resource.List // matches resources with the same values
	claims  resource.List // the attributes of this claim; matches claims with the same values
}

// newClaim returns a claim for the resource id with the attributes l, of which those with the given
// names must be unique.
func newClaim(d *Directory, id resource.GID, l *resource.List, names []string) (*claim, error) {
	k := &claim{dir: d.Client, life: d.life.Context(), id: id}
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
	return k, k.claims.AddString(directory.AttrKind, kindClaim)
}

// register registers l when it is certain that no other resource has its values.
func (k *claim) register(ctx context.Context, l *resource.List) (rev uint64, err error) {
	if err := k.checkFree(ctx); err != nil { // usually this finds a conflict, without a claim
		return 0, err
	}
	if rev, err = k.dir.Register(ctx, k.id, &k.claims); err != nil {
		return 0, err
	}
	if err = k.awaitAlone(ctx); err == nil {
		if rev, err = k.dir.Update(ctx, k.id, rev, l); err == nil {
			return rev, nil
		}
	}
	// The claim must be deleted even if ctx has ended: other claims wait for it.
	wctx, cancel := Within(k.life, WithdrawTime)
	defer cancel()
	return 0, errors.Join(err, k.dir.Delete(wctx, k.id))
}

// awaitAlone returns nil when no other resource and no other claim has the values. It waits for
// claims with a higher identifier.
func (k *claim) awaitAlone(ctx context.Context) error {
	for {
		// Claims are looked for first: a claim that becomes a resource meanwhile is then found as a
		// resource.
		higher, err := k.hasHigher(ctx)
		if err != nil {
			return err
		}
		if err := k.checkFree(ctx); err != nil {
			return err
		}
		if !higher {
			return nil
		}
		if err := k.awaitHigher(ctx); err != nil {
			return err
		}
	}
}

// checkFree returns an error that matches ErrExists if a resource has the values, and an error that
// matches ErrPartial if some node could not be asked.
func (k *claim) checkFree(ctx context.Context) error {
	ans, err := k.dir.Find(ctx, &k.pattern) // it does not match claims
	switch {
	case errors.Is(err, directory.ErrNotFound):
		return nil
	case err != nil:
		return err
	}
	return k.existsError(ans.ID)
}

// existsError returns the error for a resource or claim id that has the values.
func (k *claim) existsError(id resource.GID) error {
	return fmt.Errorf("%w: %v has %v", directory.ErrExists, id, &k.pattern)
}

// hasHigher reports whether a claim with a higher identifier exists. If a claim with a lower
// identifier exists, hasHigher returns an error that matches ErrExists.
func (k *claim) hasHigher(ctx context.Context) (some bool, err error) {
	for ans, err := range k.dir.FindAll(ctx, &k.claims) {
		if err != nil {
			return false, err
		}
		switch c := ans.ID.Compare(k.id); {
		case c < 0:
			return false, k.existsError(ans.ID)
		case c > 0:
			some = true
		}
	}
	return some, nil
}

// awaitHigher waits until no claim with a higher identifier exists: each has become a resource or
// has been deleted. If a claim with a lower identifier exists, that claim waits for this one, so
// awaitHigher does not wait: it returns an error that matches ErrExists.
func (k *claim) awaitHigher(ctx context.Context) error {
	others := map[resource.GID]bool{}
	synced := false
	for ev, err := range k.dir.Watch(ctx, &k.claims) {
		switch {
		case err != nil:
			return err
		case ev.Kind == directory.Synced:
			synced = true
		case ev.Kind == directory.Gone:
			delete(others, ev.ID)
		case ev.ID.Compare(k.id) < 0:
			return k.existsError(ev.ID)
		case ev.ID != k.id:
			others[ev.ID] = true
		}
		if synced && len(others) == 0 {
			return nil
		}
	}
	return context.Cause(ctx)
}

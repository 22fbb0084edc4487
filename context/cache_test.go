// SPDX-License-Identifier: Apache-2.0

package context

import (
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/rocl-go/rocl/directory"
	"github.com/rocl-go/rocl/dispatch"
	"github.com/rocl-go/rocl/internal/testkit/try"
	"github.com/rocl-go/rocl/resource"
)

// The caches are limited. An entry that is set again replaces no other one, and for one that was
// dropped the directory is asked again.
func TestEviction(t *testing.T) {
	c := newBare(t, directory.NewServer())
	k := &c.targets.cache
	owner := resource.MakeGID(1, 2, 0)
	const n = maxCache + 1000
	for i := range uint32(n) {
		id := owner.WithSerial(1000 + i)
		k.own(id, owner)
		k.reach(resource.MakeGID(1, uint64(i), 0), addrs(t, "inproc://x"), time.Time{})
		if _, err := c.targets.Flow(bg, id, false); err != nil {
			t.Fatal(err)
		}
		if owners, flows, addrs := c.targets.Sizes(); max(owners, flows, addrs) > maxCache {
			t.Fatalf("%d owners, %d flows, %d addresses, at most %d", owners, flows, addrs, maxCache)
		}
	}
	if owners, flows, addrs := c.targets.Sizes(); min(owners, flows, addrs) != maxCache {
		t.Errorf("%d owners, %d flows, %d addresses: less than there is room for", owners, flows, addrs)
	}
	last := owner.WithSerial(1000 + n - 1)
	for range 10 {
		k.own(last, c.targets.self)
		k.own(last, owner)
	}
	if owners, _, _ := c.targets.Sizes(); owners != maxCache {
		t.Errorf("%d owners after one was set again", owners)
	}
	asked := 0
	for i := range uint32(n) {
		id := owner.WithSerial(1000 + i)
		if _, isKnown := k.owners[id]; !isKnown && c.targets.Cached(id) == nil {
			asked++
			_, err := c.targets.Flow(bg, id, true) // the directory knows of no such resource
			try.Fails(err)(t, dispatch.ErrGone)
		}
	}
	if asked == 0 {
		t.Error("no entry was dropped")
	}
}

// An error of the directory is returned once, and for a while only: then the directory is asked
// again.
func TestOldLookup(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := directory.NewServer()
		c := newBare(t, s)
		s.Attach(&others{Remote: directory.Unreachable(errors.New("no member is reached"))})
		there := resource.MakeGID(c.targets.self.Node()+1, 1, 1)
		ask := func(want error) {
			t.Helper()
			if _, err := c.targets.FlowNow(there); !errors.Is(err, want) {
				t.Errorf("%v, want %v", err, want)
			}
			synctest.Wait() // the directory has answered
		}
		ask(dispatch.ErrFull)
		ask(directory.ErrPartial)
		ask(dispatch.ErrFull)
		time.Sleep(2 * lookupErrorFor) // in the synctest bubble: makes the error old
		ask(dispatch.ErrFull)
		ask(directory.ErrPartial)
	})
}

// addrs returns the attributes of a context with the address at.
func addrs(t *testing.T, at string) *resource.List {
	t.Helper()
	return try.Get(describe([]string{at}))(t)
}

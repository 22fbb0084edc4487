// SPDX-License-Identifier: Apache-2.0

package rocl_test

import (
	"context"
	"errors"
	"fmt"
	"testing"

	"github.com/rocl-go/rocl"
	"github.com/rocl-go/rocl/directory"
	"github.com/rocl-go/rocl/dispatch"
	"github.com/rocl-go/rocl/internal/testkit/try"
	"github.com/rocl-go/rocl/resource"
	"github.com/rocl-go/rocl/rocltest"
)

func monitor(t *testing.T, r *rocl.Resource, id resource.GID, tag uint64) (stop func()) {
	t.Helper()
	stop, err := r.Monitor(bg, id, tag)
	try.OK(t, err)
	return stop
}

// ends receives the message of a monitor.
func ends(t *testing.T, r *rocl.Resource, id resource.GID, tag uint64) {
	t.Helper()
	m := recv(t, r, dispatch.Tag(tag))
	defer m.Release()
	if !m.IsGone() || m.From() != id || m.Len() != 0 {
		t.Fatalf("a message from %v of %d bytes, gone: %v; want the end of %v", m.From(), m.Len(), m.IsGone(), id)
	}
}

// The end of a resource is reported behind its messages, wherever the resource is: in the same
// context, in another context of the process, or behind a link. It makes no difference whether the
// resource is deleted, closed with its context, or gone already.
func TestMonitor(t *testing.T) {
	eachTransport(t, func(t *testing.T, open func(...rocl.Option) *rocl.Context) {
		a, b := open(), open()
		me := newResource(t, a, nil)
		for tag, owner := range []*rocl.Context{a, b} {
			its := newResource(t, owner, nil)
			id := its.ID()
			monitor(t, me, id, uint64(10+tag))
			stop := monitor(t, me, id, 99)
			send(t, its, me.ID(), "first")
			send(t, its, me.ID(), "last")
			stop()
			stop()
			try.OK(t, its.Delete(bg))
			expect(t, me, "first")
			expect(t, me, "last")
			ends(t, me, id, uint64(10+tag))
			monitor(t, me, id, 20) // gone already
			ends(t, me, id, 20)
			monitor(t, me, id.WithSerial(4000), 21) // never existed
			ends(t, me, id.WithSerial(4000), 21)
		}
		its := newResource(t, b, nil)
		monitor(t, me, its.ID(), 30)
		monitor(t, me, b.ID(), 31)
		send(t, its, me.ID(), "last")
		try.OK(t, b.Close())
		expect(t, me, "last")
		ends(t, me, its.ID(), 30)
		ends(t, me, b.ID(), 31)
		monitor(t, me, its.ID(), 32)
		ends(t, me, its.ID(), 32)
		if m, err := me.TryRecv(); !errors.Is(err, dispatch.ErrEmpty) {
			t.Fatalf("left: tag %d, %v", m.Tag(), err)
		}
	})
}

// Monitor refuses identifiers that no resource with a context has.
func TestMonitorRefused(t *testing.T) {
	eachTransport(t, func(t *testing.T, open func(...rocl.Option) *rocl.Context) {
		a := open()
		me, other := newResource(t, a, nil), newResource(t, a, nil)
		try.Fails(me.Monitor(bg, resource.GID{}, 1))(t, dispatch.ErrGone)
		ended, cancel := context.WithCancel(bg)
		cancel()
		try.Fails(me.Monitor(ended, other.ID(), 1))(t, context.Canceled)
		try.OK(t, me.Delete(bg))
		try.Fails(me.Monitor(bg, other.ID(), 1))(t, dispatch.ErrClosed)
	})
}

// Thousands of resources are watched by their identifiers, whatever their attributes and wherever
// they are. The watch yields no other resources.
//
// Promise (Watches): `WatchIDs` tells of the given resources only, by the thousand, on whatever
// nodes. See also directory/cluster: TestWatchIDs.
func TestWatchIDs(t *testing.T) {
	cl := rocltest.Cluster(t, 2)
	a, b := cl.Open(0), cl.Open(1)
	const each = 1500
	var ids []resource.GID
	all := map[resource.GID]*rocl.Resource{}
	for i, c := range []*rocl.Context{a, b} {
		for range each {
			r := newResource(t, c, resource.Attrs{"of": fmt.Sprint(i)})
			ids, all[r.ID()] = append(ids, r.ID()), r
			newResource(t, c, resource.Attrs{"of": "others"})
		}
	}
	never := b.ID().WithSerial(1 << 30)
	ids = append(ids, b.ID(), never)
	seen := map[resource.GID]bool{}
	left := 0
	for ev, err := range a.WatchIDs(bg, ids...) {
		try.OK(t, err)
		if r := all[ev.ID]; r == nil && ev.ID != b.ID() && ev.Kind != directory.Synced {
			t.Fatalf("%v of %v, which is not watched", ev.Kind, ev.ID)
		}
		switch ev.Kind {
		case directory.Appeared:
			if of, _ := ev.Attrs.Get("of"); ev.ID != b.ID() && len(of) != 1 {
				t.Fatalf("the attributes of %v: %v", ev.ID, &ev.Attrs)
			}
			seen[ev.ID] = true
		case directory.Synced:
			if len(seen) != 2*each+1 {
				t.Fatalf("%d before Synced, of %d", len(seen), 2*each+1)
			}
			changes := ids[each]
			try.OK(t, all[changes].Update(bg, resource.Attrs{"of": "x"}))
			go func() {
				for _, r := range all {
					if r.Context() == a {
						_ = r.Delete(bg)
					}
				}
				b.Close()
			}()
			left = len(seen)
		case directory.Gone:
			if !seen[ev.ID] {
				t.Fatalf("%v is gone twice", ev.ID)
			}
			delete(seen, ev.ID)
			left--
		}
		if ev.Kind == directory.Gone && left == 0 {
			break
		}
	}
	for _, err := range a.WatchIDs(bg, make([]resource.GID, 0)...) {
		try.Check(t, err)
		break // Synced
	}
}

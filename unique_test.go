// SPDX-License-Identifier: Apache-2.0

package rocl_test

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/rocl-go/rocl"
	"github.com/rocl-go/rocl/directory"
	"github.com/rocl-go/rocl/internal/testkit/eventually"
	"github.com/rocl-go/rocl/internal/testkit/try"
	"github.com/rocl-go/rocl/resource"
	"github.com/rocl-go/rocl/rocltest"
)

// Of many registrations with the same unique values at once, exactly one succeeds, in every round.
//
// Promise (Resources): Of registrations with `Unique` and the same values, at most one succeeds.
// None succeeds while a node that may live cannot be asked. See also TestFindAcrossNodes.
func TestUnique(t *testing.T) {
	cl := rocltest.Cluster(t, 2)
	var cs []*rocl.Context
	for i := range 6 {
		cs = append(cs, cl.Open(i%2))
	}
	for round := range 20 {
		role := resource.Attrs{"role": "master", "job": fmt.Sprint(round), "by": "anybody"}
		var won atomic.Int32
		var winner atomic.Pointer[rocl.Resource]
		var busy sync.WaitGroup
		for i, c := range cs {
			busy.Go(func() {
				mine := resource.Attrs{"role": "master", "job": fmt.Sprint(round), "by": fmt.Sprint(i)}
				r, err := c.Register(bg, mine, rocl.Unique("role", "job"))
				switch {
				case err == nil:
					won.Add(1)
					winner.Store(r)
				case !errors.Is(err, directory.ErrExists):
					t.Error(err)
				}
			})
		}
		if busy.Wait(); won.Load() != 1 {
			t.Fatalf("round %d: %d are the only one", round, won.Load())
		}
		// The failed registrations have left nothing, and the claim has become the resource.
		n := 0
		for f, err := range cs[0].FindAll(bg, resource.Match{"job": fmt.Sprint(round)}) {
			if n++; err != nil || f.ID != winner.Load().ID() || f.Attrs.Len() != 3 || f.Revision != winner.Load().Revision() {
				t.Error(f.ID, &f.Attrs, err)
			}
		}
		if _, err := cs[0].Find(bg, resource.Match{"job": fmt.Sprint(round), rocl.AttrKind: "claim"}); n != 1 || !errors.Is(err, directory.ErrNotFound) {
			t.Error(n, err)
		}
		try.Fails(cs[1].Register(bg, role, rocl.Unique("role", "job")))(t, directory.ErrExists, "there is one already")
		if r, err := cs[1].Register(bg, role, rocl.Unique("by")); err != nil {
			t.Error("other values:", err)
		} else if r.Close(); round == 0 {
			winner.Load().Close()
			if r, err = cs[1].Register(bg, role, rocl.Unique("role", "job")); err != nil {
				t.Error("the only one has gone:", err)
			} else {
				r.Close()
			}
		}
	}
}

func TestUniqueFails(t *testing.T) {
	s := nodes(t, 1)[0]
	c := near(t, s)
	a := resource.Attrs{"role": "master"}
	try.Fails(c.Register(bg, a, rocl.Unique("name")))(t, directory.ErrIncomplete, "without the attribute")
	// Register waits for a claim with a higher identifier, and gives way to a claim with a lower
	// one.
	claim := try.Get(resource.NewPattern(resource.Attrs{"role": "master", rocl.AttrKind: "claim"}))(t)
	high, low := resource.MakeGID(c.ID().Node(), 1<<40, 1), resource.MakeGID(0, 0, 1)
	try.OK(t, errOf(s.Database().Put(high, high.Context(), claim)))
	ctx, cancel := context.WithCancel(bg)
	done := make(chan error)
	claims := func(n int) func() bool {
		return func() bool { return len(all(t, c.FindAll(bg, resource.Match{rocl.AttrKind: "claim"}))) == n }
	}
	begin := func(ctx context.Context) {
		go func() {
			_, err := c.Register(ctx, a, rocl.Unique("role"))
			done <- err
		}()
		eventually.True(t, "there are two claims", claims(2))
	}
	begin(ctx)
	cancel()
	try.Fails(<-done)(t, context.Canceled)
	eventually.True(t, "its claim goes", claims(1))
	begin(bg)
	try.OK(t, s.Database().Delete(high))
	try.Check(t, <-done, "the other one gave up")
	a = resource.Attrs{"role": "slave"}
	claim, _ = resource.NewPattern(resource.Attrs{"role": "slave", rocl.AttrKind: "claim"})
	try.OK(t, errOf(s.Database().Put(high, high.Context(), claim)))
	begin(bg)
	try.OK(t, errOf(s.Database().Put(low, low.Context(), claim)))
	try.Fails(<-done)(t, directory.ErrExists, "a lower one has come")
	try.OK(t, s.Database().Delete(low))
	begin(bg)
	it, _ := resource.NewPattern(resource.Attrs{"role": "slave"})
	try.OK(t, errOf(s.Database().Update(high, 0, it)))
	try.Fails(<-done)(t, directory.ErrExists, "the higher one has become a resource")
	s.Attach(directory.Unreachable(errors.New("nobody is reached")))
	try.Fails(c.Register(bg, resource.Attrs{"role": "other"}, rocl.Unique("role")))(t, directory.ErrPartial, "not everybody was asked")
}

// SendToAll reaches all resources that match, with one buffer, and skips those that are gone.
func TestSendToAll(t *testing.T) {
	s := nodes(t, 1)[0]
	a, b := near(t, s), near(t, s)
	from := newResource(t, a, nil)
	var all []*rocl.Resource
	for range 3 {
		all = append(all, newResource(t, b, resource.Attrs{"role": "worker"}))
	}
	lost := b.ID().WithSerial(1 << 20)
	l, _ := resource.NewPattern(resource.Attrs{"role": "worker"})
	try.OK(t, errOf(s.Database().Put(lost, b.ID(), l)))
	if n, err := from.SendToAll(bg, resource.Match{"role": "worker"}, 1, fill(t, a, "go")); n != 3 || err != nil {
		t.Error(n, err)
	}
	for _, r := range all {
		expect(t, r, "go")
	}
	if n, err := from.SendToAll(bg, resource.Match{"role": "none"}, 1, fill(t, a, "go")); n != 0 || err != nil {
		t.Error(n, err)
	}
	s.Attach(directory.Unreachable(errors.New("nobody is reached")))
	buf := fill(t, a, "go")
	if n, err := from.SendToAll(bg, resource.Match{"role": "worker"}, 1, buf); n != 3 || !errors.Is(err, directory.ErrPartial) {
		t.Error(n, err)
	}
	var cov directory.Coverage
	for _, r := range all {
		expect(t, r, "go")
	}
	_, err := from.SendToAll(bg, resource.Match{"role": "worker"}, 1, buf, rocl.Covered(&cov))
	if err == nil {
		t.Error("unreachable nodes are no error")
	} else {
		buf.Release()
	}
	if a.Stats().Buffers.InUse < 0 {
		t.Error("released too often")
	}
}

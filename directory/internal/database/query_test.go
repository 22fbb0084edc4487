// SPDX-License-Identifier: Apache-2.0

package database

import (
	"errors"
	"fmt"
	"slices"
	"testing"

	"github.com/rocl-go/rocl/internal/testkit/try"
	"github.com/rocl-go/rocl/resource"
)

// conditional returns m as a pattern with conditions.
func conditional(t *testing.T, m resource.Match, add ...func(*resource.List) error) *resource.List {
	t.Helper()
	p, err := resource.NewPattern(m)
	for _, a := range add {
		err = errors.Join(err, a(p))
	}
	try.OK(t, err)
	return p
}

// at returns a comparison for conditional.
func at(name string, op resource.Op, n string) func(*resource.List) error {
	return func(l *resource.List) error { return l.Compare(name, op, n) }
}

// by returns an order for conditional.
func by(name string, most bool) func(*resource.List) error {
	return func(l *resource.List) error { return l.OrderBy(name, most) }
}

// ownedBy returns a condition on the owner for conditional.
func ownedBy(id resource.GID) func(*resource.List) error {
	return func(l *resource.List) error { return l.OwnedBy(id) }
}

// However many resources there are, a question looks only at those with its rarest attribute.
func TestCandidates(t *testing.T) {
	d := New()
	owner := resource.MakeGID(1, 1, 0)
	const n = 50_000
	for i := range n {
		attrs := resource.Match{"i": fmt.Sprint(i), "pair": fmt.Sprint(i / 2), "kind": "many"}
		try.Get(d.Put(owner.WithSerial(uint32(i+1)), owner, conditional(t, attrs)))(t)
	}
	for _, c := range []struct {
		p    resource.Match
		most int
	}{
		{resource.Match{"i": "7"}, 1},
		{resource.Match{"kind": "many", "i": "7"}, 1},
		{resource.Match{"kind": "many", "pair": "7"}, 2},
		{resource.Match{"kind": "many", "i": "none"}, 0},
		{resource.Match{"kind": "many"}, n},
	} {
		q := newQuery(conditional(t, c.p))
		if l, all := d.candidatesLocked(&q, new([1]uint32)); all || len(l) > c.most {
			t.Errorf("%v: looks at %d resources, want %d", c.p, len(l), c.most)
		}
	}
}

// Find, cursors and watches obey comparisons, orders and owners.
func TestConditions(t *testing.T) {
	d := New()
	a, b := resource.MakeGID(1, 1, 0), resource.MakeGID(1, 2, 0)
	for i := range 100 {
		ctx := a
		if i%4 == 0 {
			ctx = b
		}
		attrs := resource.Attrs{"kind": "worker", "load": fmt.Sprint(float64(i-50) / 4)}
		if i%10 == 3 {
			attrs["load"] = "unknown"
		}
		try.Get(d.Put(ctx.WithSerial(uint32(i+1)), ctx, conditional(t, resource.Match(attrs))))(t)
	}
	try.Get(d.Put(a, a, conditional(t, resource.Match{"rocl.kind": "context", "load": "-1000"})))(t)
	worker := resource.Match{"kind": "worker"}
	for _, c := range []struct {
		p       *resource.List
		n       int
		serials []uint32 // which Find may return
	}{
		{conditional(t, worker, at("load", resource.Lt, "-12")), 2, []uint32{1, 2}},
		{conditional(t, worker, at("load", resource.Gt, "0"), at("load", resource.Le, "1")), 3, []uint32{52, 53, 55}},
		{conditional(t, worker, at("load", resource.Ne, "0")), 89, nil},
		{conditional(t, worker, at("missing", resource.Ne, "0")), 0, nil},
		{conditional(t, nil, at("load", resource.Lt, "-12.25")), 1, []uint32{1}},
		{conditional(t, worker, by("load", false)), 1, []uint32{1}},
		{conditional(t, worker, by("load", true)), 1, []uint32{100}},
		{conditional(t, worker, by("load", true), at("load", resource.Lt, "0")), 1, []uint32{50}},
		{conditional(t, worker, by("load", true), ownedBy(b)), 1, []uint32{97}},
		{conditional(t, resource.Match{"load": "unknown"}, by("load", false)), 1, []uint32{4, 14, 24, 34, 44, 54, 64, 74, 84, 94}},
		{conditional(t, worker, ownedBy(b)), 25, nil},
		{conditional(t, nil, ownedBy(b)), 25, nil},
		{conditional(t, nil, ownedBy(a)), 75, nil},
		{conditional(t, resource.Match{"rocl.kind": "context"}, ownedBy(a)), 1, []uint32{0}},
		{conditional(t, nil, ownedBy(b.WithSerial(7))), 0, nil},
		{conditional(t, resource.Match{"kind": "none"}, by("load", false)), 0, nil},
	} {
		n := 0
		d.Cursor(c.p).Take(func(r Record) bool {
			if n++; !resource.Meets(r.Owner, &r.Attrs, c.p) {
				t.Errorf("%v: %v does not match", c.p, &r.Attrs)
			}
			return true
		})
		try.Equal(t, n, c.n, "matches of %v", c.p)
		for range 20 {
			r, ok := d.Find(c.p)
			if ok != (c.n > 0) {
				t.Fatalf("%v is found: %v", c.p, ok)
			}
			if len(c.serials) > 0 && !slices.Contains(c.serials, r.ID.Serial()) {
				t.Errorf("%v: found %v %v", c.p, r.ID, &r.Attrs)
			}
		}
	}
	all, some := count(d, conditional(t, worker)), 0
	d.Cursor(conditional(t, worker)).Take(func(Record) bool { some++; return some < 70 })
	if all != 100 || some != 70 {
		t.Errorf("taken %d and %d", all, some)
	}
	w := d.Watch(conditional(t, worker, at("load", resource.Ge, "1000")))
	defer w.Close()
	load := func(v string) {
		try.Get(d.Update(a.WithSerial(2), 0, conditional(t, resource.Match{"kind": "worker", "load": v})))(t)
	}
	next := func(want Kind) {
		t.Helper()
		try.Equal(t, try.Get(w.Next(t.Context()))(t).Kind, want)
	}
	next(Synced)
	load("1e3")
	next(Appeared)
	load("1000.5")
	next(Changed)
	load("999.99")
	next(Gone)
}

// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"errors"
	"fmt"
	"slices"
	"testing"

	"github.com/rocl-go/rocl/directory"
	"github.com/rocl-go/rocl/internal/testkit/eventually"
	"github.com/rocl-go/rocl/internal/testkit/try"
	"github.com/rocl-go/rocl/resource"
)

func refined(t *testing.T, p *resource.List, add ...func(*resource.List) error) *resource.List {
	t.Helper()
	for _, f := range add {
		try.OK(t, f(p))
	}
	return p
}

// Comparisons, orders and owners reach all members. The first resource in an order is the first of
// all members that could be asked.
//
// Promise (Resources): `Find` with `Least` or `Most` returns the first resource of all nodes that
// could be asked. See also TestFindAcrossNodes.
func TestConditions(t *testing.T) { inMemory(t, testConditions) }

func testConditions(t *testing.T) {
	a, b, c := threeStations(t)
	for i, s := range []*station{a, b, c} {
		for k := range uint32(5) {
			s.put(k+1, resource.Attrs{"type": "lamp", "load": fmt.Sprint(10*int(k) - 3*i)}) // least at c, most at a
		}
	}
	dc, err := directory.Join(t.Context(), a.srv.Dialer())
	try.OK(t, err)
	defer dc.Close()
	lamps := func() *resource.List { return pattern(resource.Match{"type": "lamp"}) }
	least := func(l *resource.List) error { return l.OrderBy("load", false) }
	most := func(l *resource.List) error { return l.OrderBy("load", true) }
	best := func(p *resource.List, node resource.NodeID, load string, covered int, failed ...resource.NodeID) {
		t.Helper()
		var cov directory.Coverage
		r, err := dc.Best(t.Context(), p, &cov)
		if err != nil || r.ID.Node() != node || r.Attrs.GetString("load") != load || cov.Covered != covered || !slices.Equal(cov.Failed, failed) {
			t.Errorf("%v: %v %v, %v; %+v", p, r.ID, &r.Attrs, err, cov)
		}
	}
	best(refined(t, lamps(), least), 3, "-6", 3)
	best(refined(t, lamps(), most), 1, "40", 3)
	best(refined(t, lamps(), most, func(l *resource.List) error { return l.OwnedBy(resource.MakeGID(2, 1, 0)) }), 2, "37", 3)
	r, err := dc.Find(t.Context(), refined(t, lamps(), func(l *resource.List) error { return l.Compare("load", resource.Lt, "-3.5") }))
	if err != nil || r.ID.Node() != 3 || r.Attrs.GetString("load") != "-6" {
		t.Error(r.ID, &r.Attrs, err)
	}
	if _, err := dc.Find(t.Context(), refined(t, lamps(), func(l *resource.List) error { return l.Compare("load", resource.Gt, "40") })); !errors.Is(err, directory.ErrNotFound) {
		t.Error(err)
	}
	var loads []string
	for r, err := range dc.FindAll(t.Context(), refined(t, lamps(), most)) {
		try.OK(t, err)
		loads = append(loads, r.Attrs.GetString("load"))
	}
	if want := []string{"40", "37", "34", "30", "27", "24", "20", "17", "14", "10", "7", "4", "0", "-3", "-6"}; !slices.Equal(loads, want) {
		t.Error(loads)
	}
	// A member that cannot be asked is left out, and named.
	try.OK(t, c.c.HandOver())
	best(refined(t, lamps(), least), 2, "-3", 2, 3)
	try.Fails(dc.Find(t.Context(), refined(t, pattern(resource.Match{"type": "chair"}), least)))(t, directory.ErrPartial)
	eventually.True(t, "no cursor is kept", func() bool { return b.c.answers.cursors.count() == 0 })
}

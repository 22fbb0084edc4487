// SPDX-License-Identifier: Apache-2.0

package directory

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/rocl-go/rocl/internal/testkit/try"
	"github.com/rocl-go/rocl/resource"
)

// serials lists what matches, up to most resources.
func serials(t *testing.T, c *Client, p *resource.List, most int) (all []uint32) {
	t.Helper()
	for a, err := range c.FindAll(t.Context(), p) {
		try.OK(t, err)
		if all = append(all, a.ID.Serial()); len(all) == most {
			break
		}
	}
	return all
}

// By whatever route a listing goes, each matching resource comes once and complete. A listing that
// is stopped early leaves its connection usable.
//
// Promise (Resources): `FindAll` yields each resource once and whole, even if the directory is
// replaced meanwhile. See also FuzzBatch.
func TestFindAllWays(t *testing.T) {
	path := sock(t)
	beside := joinedNode(t, path, nil)
	owner, batches, index := joined(t, path), joined(t, path), joined(t, path)
	batches.noIndex = true
	mapped(t, index)
	const n = 1500
	sizes := map[uint32]int{7: 40 << 10, 8: 200 << 10, 900: 2 << 20}
	var want []uint32
	for i := range uint32(n) {
		want = append(want, i+1)
		register(t, owner, i+1, resource.Attrs{"type": "lamp", "n": fmt.Sprint(i + 1), "room": strings.Repeat("x", sizes[i+1])})
	}
	p, some := list(t, resource.Match{"type": "lamp"}), list(t, resource.Match{"type": "lamp"}, "n", "none")
	for name, c := range map[string]*Client{"direct": beside, "batches": batches, "index": index} {
		got := serials(t, c, p, 0)
		if slices.Sort(got); !slices.Equal(got, want) {
			t.Errorf("%s: %d listed, want %d", name, len(got), n)
		}
		for a, err := range c.FindAll(t.Context(), some) {
			if id := a.ID.Serial(); err != nil || a.Attrs.String() != fmt.Sprintf("{type=lamp, n=%d, none=?}", id) || a.Owner != owner.Self() || a.Revision != 1 {
				t.Fatal(name, a, err)
			}
		}
		for a, err := range c.FindAll(t.Context(), list(t, resource.Match{"n": "900"})) {
			if err != nil || len(a.Attrs.GetString("room")) != 2<<20 {
				t.Error(name, a.ID, err)
			}
		}
		for _, most := range []int{1, 2, 7, 8, 9, 40, 64, 65, 700, n - 1, n} {
			if got := serials(t, c, p, most); len(got) != most || len(slices.Compact(slices.Sorted(slices.Values(got)))) != most {
				t.Errorf("%s: %d of %d", name, len(got), most)
			}
			for range 3 { // the next question does not get an answer of the listing that was stopped
				if a, err := c.Find(t.Context(), list(t, resource.Match{"n": fmt.Sprint(most)})); err != nil || a.ID.Serial() != uint32(most) {
					t.Fatal(name, most, a.ID, err)
				}
			}
		}
		if got := serials(t, c, list(t, resource.Match{"type": "chair"}), 0); len(got) > 0 {
			t.Errorf("%s: listed %v", name, got)
		}
		ctx, cancel := context.WithCancel(t.Context())
		k := 0
		for _, err := range c.FindAll(ctx, p) {
			if k++; k == 100 {
				cancel()
			}
			if k == 101 && !errors.Is(err, context.Canceled) || k > 101 {
				t.Fatal(name, k, err)
			}
		}
		if cancel(); k != 101 {
			t.Errorf("%s: a listing that was cancelled came to %d", name, k)
		}
	}
	batches.mu.Lock()
	idle := len(batches.idle)
	batches.mu.Unlock()
	if idle > 1 {
		t.Errorf("%d connections for one goroutine", idle)
	}
}

// If a server ends during a listing, the next server continues it: no resource is lost, and none
// comes twice.
func TestFindAllTakeover(t *testing.T) {
	for _, name := range []string{"socket", "index"} {
		t.Run(name, func(t *testing.T) {
			path := sock(t)
			s := serve(t, path)
			c := joinedNode(t, path, nil) // serves after s
			if name == "index" {
				mapped(t, c)
			}
			var want []uint32
			for i := range uint32(600) {
				want = append(want, i+1)
				register(t, c, i+1, resource.Attrs{"type": "lamp"})
			}
			p := list(t, resource.Match{"type": "lamp"})
			var got []uint32
			for a, err := range c.FindAll(t.Context(), p) {
				try.OK(t, err)
				if got = append(got, a.ID.Serial()); len(got) == 10 {
					s.Close()
				}
			}
			if slices.Sort(got); !slices.Equal(got, want) {
				t.Errorf("%d listed, want %d", len(got), len(want))
			}
		})
	}
}

// A listing from the index equals the one over the socket, in the same order, and the server is not
// asked. In a cluster the server is asked.
func TestFindAllIndexed(t *testing.T) {
	path, s, owner := begun(t)
	c := joined(t, path)
	bySocket := joined(t, path, WithoutClientIndex())
	for i := range uint32(300) {
		register(t, owner, i+1, resource.Attrs{"type": "lamp", "n": fmt.Sprint(i), "room": strings.Repeat("x", int(i))})
	}
	for i := range uint32(50) {
		try.OK(t, owner.Delete(t.Context(), owner.Self().WithSerial(3*i+1)))
	}
	mapped(t, c)
	text := func(c *Client, p *resource.List) (all []string) {
		var cov Coverage
		for a, err := range c.FindCovering(t.Context(), p, &cov) {
			all = append(all, fmt.Sprint(a.ID, a.Owner, a.Revision, &a.Attrs, err))
		}
		return append(all, fmt.Sprint(cov))
	}
	for _, p := range []*resource.List{
		list(t, resource.Match{"type": "lamp"}), list(t, resource.Match{"type": "lamp"}, "n", "none"), list(t, resource.Match{"type": "lamp", "n": "7"}),
		list(t, resource.Match{"type": "chair"}), list(t, resource.Match{AttrKind: "node"}), where(t, list(t, resource.Match{"type": "lamp"}), compare("n", resource.Lt, "100")),
	} {
		var got []string
		inPlace(t, s, c, func() { got = text(c, p) })
		if want := text(bySocket, p); !slices.Equal(got, want) {
			t.Errorf("%v: listed %d from the index, %d over the socket", p, len(got)-1, len(want)-1)
		}
	}
	inPlace(t, s, c, func() { serials(t, c, list(t, resource.Match{"type": "lamp"}), 100) })
	far := resource.MakeGID(s.Node()^1, 1, 1)
	s.Attach(holding(resource.Record{ID: far, Owner: far.Context(), Revision: 1, Attrs: *list(t, resource.Attrs{"type": "lamp"})}, nil))
	try.Equal(t, len(serials(t, c, list(t, resource.Match{"type": "lamp"}), 0)), 251, "listed in a cluster")
}

// compare returns a condition for where.
func compare(name string, op resource.Op, n string) func(*resource.List) error {
	return func(l *resource.List) error { return l.Compare(name, op, n) }
}

// orderBy returns an order for where.
func orderBy(name string, most bool) func(*resource.List) error {
	return func(l *resource.List) error { return l.OrderBy(name, most) }
}

// where adds conditions to p.
func where(t testing.TB, p *resource.List, conditions ...func(*resource.List) error) *resource.List {
	t.Helper()
	for _, add := range conditions {
		try.OK(t, add(p))
	}
	return p
}

// Comparisons, orders and owners have the same meaning in the server's process, over the socket and
// in the index.
//
// Promise (Resources): Comparisons, orders and owners mean the same everywhere: socket, index,
// watch and other nodes. See also directory/cluster: TestConditions.
func TestConditionsEverywhere(t *testing.T) {
	path := sock(t)
	beside := joinedNode(t, path, nil)
	a, b, asker := joined(t, path), joined(t, path), joined(t, path)
	for i := range uint32(40) {
		register(t, []*Client{a, b}[i%2], i+1, resource.Attrs{"type": "lamp", "n": fmt.Sprint(i), "load": fmt.Sprint(float64(i)/2 - 5)})
	}
	register(t, a, 99, resource.Attrs{"type": "lamp", "load": "none"})
	lamps := func(want ...string) *resource.List { return list(t, resource.Match{"type": "lamp"}, want...) }
	bySocket := joined(t, path, WithoutClientIndex())
	mapped(t, asker)
	for name, c := range map[string]*Client{"direct": beside, "socket": bySocket, "index": asker} {
		find := func(p *resource.List, serial uint32, attrs string) {
			t.Helper()
			r, err := c.Find(t.Context(), p)
			if err != nil || r.ID.Serial() != serial || attrs != "" && r.Attrs.String() != attrs {
				t.Errorf("%s: %v: %v, %v, %v", name, p, r.ID, &r.Attrs, err)
			}
		}
		find(where(t, lamps(), compare("load", resource.Gt, "14")), 40, "")
		find(where(t, lamps("n"), compare("load", resource.Eq, "0.0")), 11, "{type=lamp, n=10}")
		find(where(t, lamps(), orderBy("load", true)), 40, "")
		find(where(t, lamps("n"), orderBy("load", false)), 1, "{type=lamp, n=0}")
		find(where(t, lamps("load", "n"), orderBy("load", false)), 1, "{type=lamp, load=-5, n=0}")
		owned := where(t, lamps("n"), orderBy("load", true), func(l *resource.List) error { return l.OwnedBy(a.Self()) })
		find(owned, 39, "{type=lamp, n=38}")
		try.Fails(c.Find(t.Context(), where(t, lamps(), compare("load", resource.Gt, "15"))))(t, ErrNotFound)
		try.Fails(c.Find(t.Context(), where(t, list(t, resource.Match{"type": "chair"}), orderBy("load", true))))(t, ErrNotFound)
		if got := serials(t, c, where(t, lamps(), compare("load", resource.Ge, "13.5")), 0); len(got) != 3 {
			t.Error(name, got)
		}
		got := serials(t, c, where(t, lamps("n"), orderBy("load", true)), 0)
		if len(got) != 41 || !slices.IsSortedFunc(got[:40], func(x, y uint32) int { return int(y) - int(x) }) || got[40] != 99 {
			t.Error(name, "in order:", got)
		}
		if got := serials(t, c, where(t, lamps(), func(l *resource.List) error { return l.OwnedBy(b.Self()) }), 0); len(got) != 20 || got[0]%2 != 0 {
			t.Error(name, "owned:", got)
		}
	}
	inPlace(t, beside.serving(), asker, func() {
		for range 10 {
			if r, err := asker.Find(t.Context(), where(t, lamps("n"), compare("load", resource.Lt, "-4"))); err != nil || r.ID.Serial() > 2 || r.Attrs.Len() != 2 {
				t.Error(r.ID, err)
			}
		}
	})
}

// A watch with a comparison reports resources as their numbers begin and cease to match.
func TestConditionsWatched(t *testing.T) {
	_, _, c := begun(t)
	id := register(t, c, 1, resource.Attrs{"type": "lamp", "load": "7", "room": "a"})
	p := where(t, list(t, resource.Match{"type": "lamp"}, "room"), compare("load", resource.Lt, "5"))
	step := 0
	load := func(v, room string) {
		try.Get(c.Update(t.Context(), id, 0, list(t, resource.Attrs{"type": "lamp", "load": v, "room": room})))(t)
	}
	for ev, err := range c.Watch(t.Context(), p) {
		try.OK(t, err)
		want := []EventKind{Synced, Appeared, Changed, Gone, Appeared, Gone}[step]
		if ev.Kind != want || want == Appeared && ev.Attrs.Len() != 2 {
			t.Fatalf("event %d is %v %v, want %v", step, ev.Kind, &ev.Attrs, want)
		}
		switch step++; step {
		case 1:
			load("6", "b") // no watch reports this
			load("4", "c")
		case 2:
			load("3", "c")
		case 3:
			load("none", "d")
		case 4:
			load("-1", "e")
		case 5:
			try.OK(t, c.Delete(t.Context(), id))
		case 6:
			return
		}
	}
}

// Concurrent calls of Change all take effect, also if the server has a revision that the client
// does not know.
func TestChange(t *testing.T) {
	_, _, c := begun(t)
	id := register(t, c, 1, resource.Attrs{"x": "0"})
	var wg sync.WaitGroup
	for i := range 8 {
		wg.Go(func() {
			for n := range 20 {
				try.Works(c.Change(t.Context(), id, func(l *resource.List) error { return l.Set(fmt.Sprint(i), fmt.Append(nil, n)) }))(t)
			}
		})
	}
	wg.Wait()
	a, err := c.Lookup(t.Context(), id)
	if err != nil || a.Revision != 161 || a.Attrs.Len() != 9 {
		t.Error(a.Revision, &a.Attrs, err)
	}
	c.mu.Lock()
	c.owned[id].revision = 100
	c.mu.Unlock()
	try.Gives(c.Change(t.Context(), id, func(l *resource.List) error { return l.Set("3", []byte("last")) }))(t, 162)
	if a, err = c.Lookup(t.Context(), id); err != nil || a.Attrs.GetString("3") != "last" || a.Attrs.GetString("7") != "19" {
		t.Error(&a.Attrs, err)
	}
	no := errors.New("no")
	try.Fails(c.Change(t.Context(), id, func(*resource.List) error { return no }))(t, no)
	try.Fails(c.Change(t.Context(), id.WithSerial(2), func(*resource.List) error { return nil }))(t, ErrNotFound)
}

// SPDX-License-Identifier: Apache-2.0

package search

import (
	"fmt"
	"iter"
	"slices"
	"testing"

	"github.com/rocl-go/rocl/internal/testkit/try"
	"github.com/rocl-go/rocl/resource"
	"go.uber.org/goleak"
)

func list(t try.TB, a resource.Attrs) *resource.List { return try.Get(resource.NewPattern(a))(t) }

func workers(t try.TB, from, to int) iter.Seq[*resource.List] {
	return func(yield func(*resource.List) bool) {
		for i := from; i < to; i++ {
			if !yield(list(t, resource.Attrs{"type": "worker", "name": fmt.Sprint(i)})) {
				return
			}
		}
	}
}

// A summary has what was added to it, also after it was written and read. It has little else: the
// less the more members there are.
func TestSummary(t *testing.T) {
	for _, c := range []struct{ members, wrongly int }{{1, 60}, {10_000, 3}} {
		a := NewSummary(workers(t, 0, 700), c.members)
		for l := range workers(t, 700, 1000) {
			keys(l, func(k uint32) { a.add(k) })
		}
		if a.Stale(c.members) {
			t.Error("there was capacity left")
		}
		b := try.Get(ParseSummary(a.Append(nil)))(t)
		wrongly := 0
		for i := range 3000 {
			l := list(t, resource.Attrs{"name": fmt.Sprint(i)})
			may := a.May(l)
			if may != b.May(l) {
				t.Fatal("it is another one when it was read")
			}
			if i < 1000 && !may {
				t.Fatalf("resource %d is denied", i)
			} else if i >= 1000 && may {
				wrongly++
			}
		}
		if wrongly > c.wrongly {
			t.Errorf("%d of 2000 wrong guesses among %d", wrongly, c.members)
		}
		for l := range workers(t, 1000, 1100) {
			keys(l, func(k uint32) { a.add(k) })
		}
		if !a.Stale(c.members) {
			t.Error("there is more in it than it was made for")
		}
		for _, bad := range [][]byte{nil, make([]byte, 20), a.Append(nil)[:100], append(a.Append(nil), 0)} {
			try.Rejects(ParseSummary(bad))(t, "%d bytes are a summary", len(bad))
		}
	}
	if s := NewSummary(workers(t, 0, 10), 2); s.Stale(2) || !s.Stale(5000) {
		t.Error("a summary for few members is not right for many, and a small one lasts")
	}
}

// However much a node holds, other nodes can read its summary.
func TestSummaryOfMuch(t *testing.T) {
	if testing.Short() {
		t.Skip("a million resources")
	}
	s := NewSummary(workers(t, 0, 1_000_000), 1000)
	b, err := ParseSummary(s.Append(nil))
	if err != nil || b.Bytes() > 1<<20+200 {
		t.Fatal(err)
	}
	if !b.May(list(t, resource.Attrs{"name": "999999"})) {
		t.Error("denied")
	}
	if s.Stale(1000) {
		t.Error("it would be made anew again and again")
	}
}

// Deltas that are old, repeated or overlapping do no harm, and a gap is noticed.
func TestApply(t *testing.T) {
	a := NewSummary(nil, 1)
	b := try.Get(ParseSummary(a.Append(nil)))(t)
	for i, c := range []struct {
		epoch, from uint32
		keys        []uint32
		fits        bool
		version     uint32
	}{
		{a.Epoch, 0, []uint32{1, 2}, true, 2},
		{a.Epoch, 0, []uint32{1, 2}, true, 2},
		{a.Epoch, 1, []uint32{2, 3}, true, 3},
		{a.Epoch, 0, []uint32{1}, true, 3},
		{a.Epoch, 4, []uint32{5}, false, 3},
		{a.Epoch, 3, nil, true, 3},
		{a.Epoch + 2, 3, []uint32{4}, false, 3},
		{a.Epoch, 1<<32 - 1, []uint32{4}, false, 3},
	} {
		if fits := b.apply(c.epoch, c.from, c.keys); fits != c.fits || b.Version != c.version {
			t.Errorf("%d: %v, version %d", i, fits, b.Version)
		}
	}
}

// Messages of any bytes are used or refused, and do no harm.
func FuzzFilters(f *testing.F) {
	a := NewFilters()
	a.Add(list(f, resource.Attrs{"type": "gpu"}))
	a.Spread([]resource.NodeID{1, 2}, 1, func(_ resource.NodeID, m []byte) { f.Add(m) })
	a.Add(list(f, resource.Attrs{"type": "cpu"}))
	a.Spread([]resource.NodeID{1, 2}, 1, func(_ resource.NodeID, m []byte) { f.Add(m) })
	f.Add(head9(msgWant, 0, 0))
	f.Fuzz(func(t *testing.T, m []byte) {
		b := NewFilters()
		b.Add(list(t, resource.Attrs{"type": "gpu"}))
		b.Spread([]resource.NodeID{1}, 1, func(resource.NodeID, []byte) {})
		for range 2 {
			reply, err := b.Hear(2, m)
			if err != nil && reply != nil {
				t.Fatal("refused and answered")
			}
			if len(reply) > msgHead {
				t.Fatalf("%d bytes are said to %d", len(reply), len(m))
			}
		}
		b.May(list(t, resource.Attrs{"type": "gpu"}))
		sent := 0
		b.Spread([]resource.NodeID{1, 2}, 1, func(resource.NodeID, []byte) { sent++ })
		if sent > 1 || b.Bytes() > 2*len(m)+1000 {
			t.Fatalf("sent %d times, %d bytes are held for %d", sent, b.Bytes(), len(m))
		}
	})
}

// Of many nodes that may have a match, not always the same are asked.
func TestMayTakesTurns(t *testing.T) {
	f, seen := NewFilters(), map[resource.NodeID]bool{}
	what := list(t, resource.Attrs{"type": "gpu"})
	for id := range resource.NodeID(50) {
		g := NewFilters()
		g.Add(what)
		g.Spread([]resource.NodeID{99}, id+1, func(_ resource.NodeID, m []byte) {
			try.Get(f.Hear(id+1, slices.Clone(m)))(t)
		})
	}
	for range 50 {
		who := f.May(what)
		if len(who) != maxFirst {
			t.Fatalf("%d are asked", len(who))
		}
		for _, id := range who {
			seen[id] = true
		}
	}
	try.Equal(t, len(seen), 50, "nodes that are ever asked")
	if who := f.May(new(resource.List)); who != nil {
		t.Errorf("everything may be at %v", who)
	}
}

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// SPDX-License-Identifier: Apache-2.0

package search_test

import (
	"iter"
	"slices"
	"strconv"
	"testing"
	"time"

	"github.com/rocl-go/rocl/directory/internal/search"
	"github.com/rocl-go/rocl/directory/internal/search/searchtest"
	"github.com/rocl-go/rocl/internal/testkit/try"
	"github.com/rocl-go/rocl/resource"
	"pgregory.net/rapid"
)

// A filterNode is a node with what it holds and its filters.
type filterNode struct {
	*searchtest.Node
	holds   map[string]bool
	filters *search.Filters
}

func named(t try.TB, name string) *resource.List {
	return try.Get(resource.NewPattern(resource.Attrs{"name": name}))(t)
}

func (n *filterNode) everything(t try.TB) iter.Seq[*resource.List] {
	return func(yield func(*resource.List) bool) {
		for name := range n.holds {
			if !yield(named(t, name)) {
				return
			}
		}
	}
}

type inFlight struct {
	from, to int
	message  []byte
}

// A filter never causes a wrong no. Whatever happens to the messages about summaries, and whenever
// nodes begin anew, a search finds what exists and denies what does not. When messages arrive
// again, the summaries come to have everything.
func TestNoWrongNo(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		s := searchtest.New(searchtest.Config{
			Nodes: rapid.IntRange(2, 5).Draw(t, "nodes"), Hop: time.Millisecond, Fan: 2, Seed: rapid.Uint64().Draw(t, "seed"),
		})
		var nodes []*filterNode
		for _, m := range s.Nodes {
			n := &filterNode{Node: m, holds: map[string]bool{}, filters: search.NewFilters()}
			m.Has = func(q []byte) ([]byte, bool) { return q, n.holds[string(q)] }
			m.May = func(q []byte) []resource.NodeID { return n.filters.May(named(t, string(q))) }
			nodes = append(nodes, n)
		}
		var air []inFlight
		some := func(t *rapid.T) *filterNode { return nodes[rapid.IntRange(0, len(nodes)-1).Draw(t, "node")] }
		name := func(t *rapid.T) string { return strconv.Itoa(rapid.IntRange(0, 20).Draw(t, "name")) }
		add := func(n *filterNode, name string) {
			n.holds[name] = true
			n.filters.Add(named(t, name))
		}
		spread := func(i int) {
			nodes[i].filters.Spread(s.IDs, nodes[i].ID, func(to resource.NodeID, m []byte) {
				air = append(air, inFlight{i, slices.Index(s.IDs, to), slices.Clone(m)})
			})
		}
		hear := func(m inFlight) {
			reply := try.Get(nodes[m.to].filters.Hear(nodes[m.from].ID, m.message))(t)
			if reply != nil {
				air = append(air, inFlight{m.to, m.from, reply})
			}
		}
		taken := func(t *rapid.T, keep bool) inFlight {
			if len(air) == 0 {
				t.Skip("nothing is under way")
			}
			i := rapid.IntRange(0, len(air)-1).Draw(t, "message")
			m := air[i]
			if !keep {
				air = slices.Delete(air, i, i+1)
			}
			return m
		}
		serial := 100
		t.Repeat(map[string]func(*rapid.T){
			"appear": func(t *rapid.T) { add(some(t), name(t)) },
			"many appear": func(t *rapid.T) {
				n := some(t)
				for range rapid.SampledFrom([]int{50, 300, 1500}).Draw(t, "how many") {
					serial++
					add(n, strconv.Itoa(serial))
				}
			},
			"vanish": func(t *rapid.T) { delete(some(t).holds, name(t)) },
			"spread": func(t *rapid.T) { spread(rapid.IntRange(0, len(nodes)-1).Draw(t, "node")) },
			"renew":  func(t *rapid.T) { n := some(t); n.filters.Renew(search.NewSummary(n.everything(t), len(nodes))) },
			"arrive": func(t *rapid.T) { hear(taken(t, false)) },
			"double": func(t *rapid.T) { hear(taken(t, true)) },
			"lost":   func(t *rapid.T) { taken(t, false) },
			"restart": func(t *rapid.T) {
				n := some(t)
				n.filters = search.NewFilters()
				n.filters.Renew(search.NewSummary(n.everything(t), len(nodes)))
			},
			"away and back": func(t *rapid.T) {
				n, o := some(t), some(t)
				n.filters.Met(o.ID, false)
				n.filters.Met(o.ID, true)
			},
			"": func(t *rapid.T) {
				n, what := some(t), name(t)
				exists := slices.ContainsFunc(nodes, func(o *filterNode) bool { return o != n && o.holds[what] })
				r := s.Search(n.Node, []byte(what))
				if r.Found != exists || !r.Definite() || exists && !nodes[slices.Index(s.IDs, r.From)].holds[what] {
					t.Fatalf("%s exists: %v, found %+v", what, exists, r)
				}
				try.OK(t, s.Drain())
			},
		})
		air = nil
		for range 20 { // the version is told again after 16
			for i := range nodes {
				spread(i)
			}
			for len(air) > 0 {
				m := air[0]
				air = air[1:]
				hear(m)
			}
		}
		for i, n := range nodes {
			for j, o := range nodes {
				for name := range o.holds {
					if s := n.filters.Of(o.ID); i != j && (s == nil || !s.May(named(t, name))) {
						t.Fatalf("node %d does not know that node %d holds %s", i, j, name)
					}
				}
			}
		}
	})
}

// SPDX-License-Identifier: Apache-2.0

package search_test

import (
	"slices"
	"testing"
	"time"

	"github.com/rocl-go/rocl/directory/internal/search"
	"github.com/rocl-go/rocl/directory/internal/search/searchtest"
	"github.com/rocl-go/rocl/internal/testkit/try"
	"github.com/rocl-go/rocl/resource"
	"pgregory.net/rapid"
)

func gold(q []byte) ([]byte, bool) { return []byte("gold"), string(q) == "gold" }

// A search takes an ask and an answer of each node. The node that has the answer is named, however
// far down the tree it is. Filters that are all wrong cost time, and not the answer.
func TestCost(t *testing.T) {
	for _, n := range []int{10, 100, 1000} {
		for _, fan := range []int{2, 16, search.Flat} {
			s := searchtest.New(searchtest.Config{Nodes: n, Fan: fan, Hop: 500 * time.Microsecond, Seed: 1})
			asker, holder := s.Nodes[n/2], s.Nodes[n-2]
			r := s.Search(asker, []byte("gold"))
			if r.Found || !r.Definite() || r.Covered != n {
				t.Errorf("%d nodes, fan %d: %+v", n, fan, r)
			}
			try.Equal(t, s.Sent, 2*(n-1), "%d nodes, fan %d: messages of a no", n, fan)
			holder.Has = gold
			for _, first := range [][]resource.NodeID{nil, {holder.ID}, {s.IDs[0], s.IDs[1]}} {
				try.OK(t, s.Drain())
				s.Reset()
				asker.May = func([]byte) []resource.NodeID { return first }
				if r := s.Search(asker, []byte("gold")); !r.Found || r.From != holder.ID || string(r.Answer) != "gold" {
					t.Errorf("%d nodes, fan %d: %+v", n, fan, r)
				}
				try.OK(t, s.Drain())
				if most := 2 * (n - 1 + len(first)); s.Sent > most || len(first) == 1 && s.Sent != 2 {
					t.Errorf("%d nodes, fan %d, %d asked first: %d messages", n, fan, len(first), s.Sent)
				}
			}
			if r := s.Search(asker, []byte("silver")); r.Found || !r.Definite() {
				t.Errorf("%d nodes, fan %d: %+v", n, fan, r)
			}
		}
	}
}

// Packets are lost, nodes are dead, and nodes do not know each other. A match is found unless its
// holders cannot be reached, a definite no is true, and a no names the nodes that were not asked.
func TestFaults(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		n := rapid.IntRange(2, 60).Draw(t, "nodes")
		s := searchtest.New(searchtest.Config{
			Nodes: n, Hop: time.Millisecond, Patience: 20 * time.Millisecond,
			Fan:  rapid.SampledFrom([]int{2, 3, 16, search.Flat}).Draw(t, "fan"),
			Loss: rapid.SampledFrom([]float64{0, 0.05, 0.2}).Draw(t, "loss"),
			Seed: rapid.Uint64().Draw(t, "seed"),
		})
		asker := s.IDs[rapid.IntRange(0, n-1).Draw(t, "asker")]
		live := map[resource.NodeID]bool{}
		for _, m := range s.Nodes {
			id := m.ID
			m.Dead = id != asker && rapid.IntRange(0, 9).Draw(t, "dead") == 0
			live[id] = !m.Dead
			if rapid.IntRange(0, 3).Draw(t, "blind") == 0 && id != asker { // it has not heard of some nodes
				m.View = slices.DeleteFunc(slices.Clone(s.IDs), func(o resource.NodeID) bool { return o != id && s.Rand.IntN(5) == 0 })
			}
		}
		holders := map[resource.NodeID]bool{}
		for _, m := range s.Nodes {
			if live[m.ID] && m.ID != asker && rapid.IntRange(0, n).Draw(t, "holds") == 0 {
				m.Has = gold
				holders[m.ID] = true
			}
		}
		r := s.Search(s.ByID(asker), []byte("gold"))
		if r.Found && !holders[r.From] {
			t.Fatalf("found at %x, which does not have it", r.From)
		}
		if !r.Found {
			for id := range holders {
				if !slices.Contains(r.Failed, id) {
					t.Fatalf("node %x has it, and was neither heard nor named", id)
				}
			}
			if s.Loss == 0 {
				for _, id := range r.Failed {
					if live[id] {
						t.Fatalf("node %x lives and is said not to answer", id)
					}
				}
			}
			for id := range live {
				if !live[id] && !slices.Contains(r.Failed, id) {
					t.Fatalf("node %x is dead and is not named: %v", id, r.Failed)
				}
			}
			if seen := map[resource.NodeID]bool{}; slices.ContainsFunc(r.Failed, func(id resource.NodeID) bool { twice := seen[id]; seen[id] = true; return twice }) {
				t.Fatalf("a node is named twice: %v", r.Failed)
			}
			if r.Covered+len(r.Failed) != n {
				t.Fatalf("%d covered and %d failed of %d", r.Covered, len(r.Failed), n)
			}
		}
		s.Loss = 0
		try.OK(t, s.Drain())
	})
}

// SPDX-License-Identifier: Apache-2.0

package search_test

import (
	"slices"
	"testing"
	"time"

	"github.com/rocl-go/rocl/directory/internal/search"
	"github.com/rocl-go/rocl/directory/internal/search/searchtest"
	"github.com/rocl-go/rocl/directory/strategy"
	"github.com/rocl-go/rocl/internal/testkit/try"
	"github.com/rocl-go/rocl/resource"
	"pgregory.net/rapid"
)

// traced runs a search with a trace, and checks what must hold for every trace: it has a step for
// each node that the asker asked, with the result.
func traced(t rapid.TB, s *searchtest.Sim, from *searchtest.Node, tr *search.Recorder) searchtest.Outcome {
	s.Reset()
	r := s.Await(from, func(now time.Time, done func(search.Result)) {
		tr.Begun = now
		from.SearchTraced(now, []byte("gold"), tr, search.Func(done))
	})
	steps, sent := slices.Clone(tr.Steps), from.Out
	found, casts := 0, 0
	for i, st := range steps {
		// The answer to an earlier question can come in the instant in which its node is asked
		// again.
		again := slices.ContainsFunc(steps[:i], func(b search.Step) bool { return b.Node == st.Node })
		switch {
		case st.Node == from.ID, st.Members < 1, (st.How == search.HowTree) != (st.Members > 1):
			t.Errorf("no such question: %+v", st)
		case st.Outcome == search.Unheard && !r.Found:
			t.Errorf("the search ended without a word of %+v", st)
		case st.Answered() != (st.Took > 0) && !(again && st.Answered()), st.Took < 0, st.Asked < 0:
			t.Errorf("heard when: %+v", st)
		}
		switch st.Outcome {
		case search.Found:
			found++
			if string(st.Answer) != string(r.Answer) || st.Node > r.From || st.Node != r.From && st.How != search.HowTree {
				t.Errorf("%+v of %+v", st, r)
			}
		case search.None:
			if st.Covered+st.Failed < 1 || st.Members == 1 && st.Covered != 1 {
				t.Errorf("a no of whom: %+v", st)
			}
		}
		if st.How == search.HowBroadcast {
			casts++
		}
	}
	packets := len(steps)
	if casts > 0 { // they are asked with one packet
		packets -= casts - 1
	}
	if casts != 0 && casts != len(s.Nodes)-1 || packets != sent || tr.More != 0 {
		t.Fatalf("%d packets were sent, %d of %d steps by one, and %d more told", sent, casts, len(steps), tr.More)
	}
	if r.Found != (found == 1) || found > 1 {
		t.Errorf("%d steps found it: %+v", found, r)
	}
	try.OK(t, s.Drain())
	if !slices.EqualFunc(steps, tr.Steps, func(a, b search.Step) bool { return a.Node == b.Node && a.Outcome == b.Outcome }) {
		t.Errorf("the trace goes on when the search is over")
	}
	return r
}

func outcomes(tr *search.Recorder) (how []string) {
	for _, s := range tr.Steps {
		how = append(how, s.How+" "+s.Outcome)
	}
	return how
}

func seven(cast bool) *searchtest.Sim {
	return searchtest.New(searchtest.Config{Nodes: 7, Fan: 2, Hop: time.Millisecond, Cast: cast, Seed: 1})
}

// A trace tells how each question was put and what its result was.
func TestTrace(t *testing.T) {
	s := seven(false)
	asker := s.Nodes[3]
	tr := &search.Recorder{Strategy: strategy.Tree}
	if r := traced(t, s, asker, tr); r.Found || !r.Definite() || r.Covered != 7 {
		t.Errorf("%+v", r)
	}
	if len(tr.Steps) != 2 || tr.Steps[0].Covered+tr.Steps[1].Covered != 6 || tr.Steps[0].Members != 3 || tr.Steps[0].How != search.HowTree {
		t.Errorf("a tree of two: %+v", tr.Steps)
	}

	// A summary that is wrong, then all nodes; and without summaries.
	asker.May = func([]byte) []resource.NodeID { return s.IDs[:1] }
	for _, c := range []struct {
		tr   search.Recorder
		want []string
	}{
		{search.Recorder{Strategy: strategy.Tree}, []string{"summary none", "tree none", "tree none"}},
		{search.Recorder{Strategy: strategy.Tree, Everybody: true}, []string{"tree none", "tree none"}},
		{search.Recorder{Strategy: strategy.Unicast, Everybody: true}, slices.Repeat([]string{"unicast none"}, 6)},
		{search.Recorder{Everybody: true}, slices.Repeat([]string{"unicast none"}, 6)},                               // there are few nodes
		{search.Recorder{Strategy: strategy.Broadcast, Everybody: true}, slices.Repeat([]string{"unicast none"}, 6)}, // the network cannot cast
	} {
		traced(t, s, asker, &c.tr)
		if !slices.Equal(outcomes(&c.tr), c.want) {
			t.Errorf("%d: %q, want %q", c.tr.Strategy, outcomes(&c.tr), c.want)
		}
	}

	// A summary that is right saves the other questions.
	s.Nodes[0].Has = gold
	tr = &search.Recorder{Strategy: strategy.Tree}
	if r := traced(t, s, asker, tr); !r.Found || !slices.Equal(outcomes(tr), []string{"summary found"}) {
		t.Errorf("%+v, %q", r, outcomes(tr))
	}

	// A dead node is asked up to the limit of tries, and named.
	dead := s.Nodes[6]
	dead.Dead = true
	among := func(who resource.NodeID) searchtest.Outcome {
		tr = &search.Recorder{}
		return s.Await(asker, func(now time.Time, done func(search.Result)) {
			asker.SearchAmong(now, []resource.NodeID{who}, 0, []byte("gold"), tr, search.Func(done))
		})
	}
	r := among(dead.ID)
	if want := slices.Repeat([]string{"unicast silent"}, search.DefaultTries); !slices.Equal(outcomes(tr), want) || !slices.Equal(r.Failed, []resource.NodeID{dead.ID}) {
		t.Errorf("%q, want %q; %+v", outcomes(tr), want, r)
	}

	// For a node that is not a member, no node is asked.
	if r := among(1 << 48); len(tr.Steps) != 0 || len(r.Failed) != 1 {
		t.Errorf("%+v, %+v", tr.Steps, r)
	}
}

// A cast has a step for each node that should hear it. A node that is silent is asked by itself.
func TestTraceCast(t *testing.T) {
	s := seven(true)
	asker := s.Nodes[3]
	for _, how := range []strategy.Strategy{strategy.Auto, strategy.Broadcast} {
		tr := &search.Recorder{Strategy: how}
		r := traced(t, s, asker, tr)
		if want := slices.Repeat([]string{"broadcast none"}, 6); r.Covered != 7 || !slices.Equal(outcomes(tr), want) {
			t.Errorf("%q, want %q; %+v", outcomes(tr), want, r)
		}
	}
	tr := &search.Recorder{Strategy: strategy.Tree}
	if traced(t, s, asker, tr); !slices.Equal(outcomes(tr), []string{"tree none", "tree none"}) {
		t.Errorf("%q", outcomes(tr))
	}
	s.Nodes[5].Has = gold
	tr = &search.Recorder{}
	if r := traced(t, s, asker, tr); r.From != s.IDs[5] || !slices.Contains(outcomes(tr), "broadcast found") {
		t.Errorf("%q; %+v", outcomes(tr), r)
	}
	s.Nodes[5].Has, s.Nodes[5].Dead = nil, true
	tr = &search.Recorder{}
	r := traced(t, s, asker, tr)
	if got := outcomes(tr); !slices.Equal(got[:6], []string{"broadcast none", "broadcast none", "broadcast none", "broadcast none", "broadcast silent", "broadcast none"}) ||
		!slices.Equal(got[6:], slices.Repeat([]string{"unicast silent"}, search.DefaultTries-1)) || !slices.Equal(r.Failed, s.IDs[5:6]) {
		t.Errorf("%q; %+v", got, r)
	}
}

// A head that says that it is busy has not answered. It is waited for and asked again, and its
// answer belongs to the last question.
func TestTraceBusy(t *testing.T) {
	s := searchtest.New(searchtest.Config{Nodes: 7, Fan: 2, Hop: time.Millisecond, Patience: 20 * time.Millisecond, Strategy: strategy.Tree, Seed: 1})
	asker := s.Nodes[0]
	// A node below the head of 1 to 3 is dead, and the head waits for it.
	s.Nodes[3].Dead = true
	tr := &search.Recorder{}
	r := traced(t, s, asker, tr)
	if !slices.Equal(r.Failed, s.IDs[3:4]) || r.Covered != 6 {
		t.Errorf("%+v", r)
	}
	var of []string // of the head
	for i, how := range outcomes(tr) {
		if tr.Steps[i].Node == s.IDs[1] {
			of = append(of, how)
		}
	}
	n := len(of)
	if n <= search.DefaultTries/2+1 || !slices.Equal(of[:n-1], slices.Repeat([]string{"tree silent"}, n-1)) || of[n-1] != "tree none" || len(tr.Steps) != n+1 {
		t.Errorf("%q, of them of the head %q", outcomes(tr), of)
	}
}

// Packets are lost and nodes are dead: traced checks what must hold all the same.
//
// Promise (Cluster searches): A trace has a step for each question that the node asked, with its
// result. See also directory/cluster: TestTrace.
func TestTraceUnderFaults(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		n := rapid.IntRange(2, 60).Draw(t, "nodes")
		s := searchtest.New(searchtest.Config{
			Nodes: n, Hop: time.Millisecond,
			Fan:  rapid.SampledFrom([]int{2, 3, 16, search.Flat}).Draw(t, "fan"),
			Loss: rapid.SampledFrom([]float64{0, 0.05, 0.2}).Draw(t, "loss"),
			Cast: rapid.Bool().Draw(t, "cast"),
			Seed: rapid.Uint64().Draw(t, "seed"),
		})
		asker := s.Nodes[rapid.IntRange(0, n-1).Draw(t, "asker")]
		other := func() *searchtest.Node {
			if m := s.Nodes[s.Rand.IntN(n)]; m != asker {
				return m
			}
			return new(searchtest.Node)
		}
		for range rapid.IntRange(0, 4).Draw(t, "dead") {
			other().Dead = true
		}
		if rapid.Bool().Draw(t, "held") {
			other().Has = gold
		}
		if rapid.Bool().Draw(t, "summaries") {
			asker.May = func([]byte) []resource.NodeID { return []resource.NodeID{s.IDs[s.Rand.IntN(n)]} }
		}
		traced(t, s, asker, &search.Recorder{
			Everybody: rapid.Bool().Draw(t, "everybody"),
			Strategy:  rapid.SampledFrom([]strategy.Strategy{strategy.Auto, strategy.Broadcast, strategy.Unicast, strategy.Tree}).Draw(t, "way"),
		})
	})
}

package search

import (
	"container/heap"
	"slices"
	"testing"
	"time"

	"github.com/rocl-go/rocl/resource"
	"pgregory.net/rapid"
)

// traced is search with a trace, and checks what must always be so of one: it
// has a step for each packet the asker sent for it, and what became of each.
func (s *sim) traced(t interface {
	Errorf(string, ...any)
	Fatalf(string, ...any)
}, from resource.NodeID, what string, tr *Trace) (r Result) {
	m, over, sent := s.nodes[from], false, 0
	send := m.cfg.Send
	m.cfg.Send = func(to resource.NodeID, p *Packet) {
		if p.Type == typeAsk && p.ID.Asker == from && !over {
			sent++
		}
		send(to, p)
	}
	m.SearchTraced(s.now, []byte(what), tr, func(got Result) { r, over = got, true })
	s.arm(m)
	for !over {
		e := heap.Pop(&s.queue).(event)
		s.now = e.at
		e.do()
	}
	steps := slices.Clone(tr.Steps)
	if len(steps) != sent || tr.More != 0 {
		t.Fatalf("%d packets were sent, %d steps and %d more told", sent, len(steps), tr.More)
	}
	found := 0
	for _, st := range steps {
		switch {
		case st.Node == from, st.Members < 1, st.How == Directly && st.Members != 1, st.How == ByTree && st.Members < 2:
			t.Errorf("no such question: %+v", st)
		case st.Outcome == Unheard && !r.Found:
			t.Errorf("the search ended without a word of %+v", st)
		case (st.Outcome == Found || st.Outcome == None) != !st.Heard.IsZero(), !st.Heard.IsZero() && st.Heard.Before(st.Asked):
			t.Errorf("heard when: %+v", st)
		}
		if st.Outcome == Found {
			found++
			if string(st.Answer) != string(r.Answer) || st.Node != r.From && r.From != 0 {
				t.Errorf("%+v of %+v", st, r)
			}
		}
	}
	if r.Found != (found == 1) || found > 1 {
		t.Errorf("%d steps found it: %+v", found, r)
	}
	s.drain(t)
	if !slices.EqualFunc(steps, tr.Steps, func(a, b Step) bool { return a.Node == b.Node && a.Outcome == b.Outcome }) {
		t.Errorf("the trace goes on when the search is over")
	}
	return r
}

func outcomes(tr *Trace) (how []string) {
	for _, s := range tr.Steps {
		how = append(how, s.How+" "+s.Outcome)
	}
	return how
}

// A trace tells of each question how it was put and what came of it.
func TestTrace(t *testing.T) {
	s := newSim(7, 2, time.Millisecond, 1)
	asker := s.all[3]
	tr := &Trace{}
	if r := s.traced(t, asker, "gold", tr); r.Found || !r.Definite() || r.Covered != 7 {
		t.Errorf("%+v", r)
	}
	if len(tr.Steps) != 2 || tr.Steps[0].Covered+tr.Steps[1].Covered != 6 || tr.Steps[0].Members != 3 || tr.Steps[0].How != ByTree {
		t.Errorf("a tree of two: %+v", tr.Steps)
	}

	// A summary that is wrong, then everybody; and without summaries.
	s.nodes[asker].cfg.May = func([]byte) []resource.NodeID { return s.all[:1] }
	tr = &Trace{}
	s.traced(t, asker, "gold", tr)
	if want := []string{"summary none", "tree none", "tree none"}; !slices.Equal(outcomes(tr), want) {
		t.Errorf("%q, want %q", outcomes(tr), want)
	}
	tr = &Trace{Everybody: true}
	s.traced(t, asker, "gold", tr)
	if want := []string{"tree none", "tree none"}; !slices.Equal(outcomes(tr), want) {
		t.Errorf("%q, want %q", outcomes(tr), want)
	}

	// A summary that is right spares the rest.
	s.nodes[s.all[0]].holds = "gold"
	tr = &Trace{}
	if r := s.traced(t, asker, "gold", tr); !r.Found || !slices.Equal(outcomes(tr), []string{"summary found"}) {
		t.Errorf("%+v, %q", r, outcomes(tr))
	}

	// The dead are asked as often as it takes, and named.
	dead := s.all[6]
	s.nodes[dead].dead = true
	tr = &Trace{}
	var r Result
	s.nodes[asker].SearchOneTraced(s.now, dead, []byte("gold"), tr, func(got Result) { r = got })
	s.arm(s.nodes[asker])
	s.drain(t)
	if want := []string{"flat silent", "flat silent", "flat silent"}; !slices.Equal(outcomes(tr), want) || !slices.Equal(r.Failed, []resource.NodeID{dead}) {
		t.Errorf("%q, want %q; %+v", outcomes(tr), want, r)
	}

	// Nobody is asked for a node that is not a member.
	tr = &Trace{}
	s.nodes[asker].SearchOneTraced(s.now, 1<<48, []byte("gold"), tr, func(got Result) { r = got })
	if len(tr.Steps) != 0 || len(r.Failed) != 1 {
		t.Errorf("%+v, %+v", tr.Steps, r)
	}
}

// Whatever is lost and whoever is dead: see traced for what must be so.
func TestTraceUnderFaults(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		n := rapid.IntRange(2, 60).Draw(t, "nodes")
		s := newSim(n, rapid.SampledFrom([]int{2, 3, 16, Flat}).Draw(t, "fan"), time.Millisecond, rapid.Uint64().Draw(t, "seed"))
		s.loss = rapid.SampledFrom([]float64{0, 0.05, 0.2}).Draw(t, "loss")
		asker := s.all[rapid.IntRange(0, n-1).Draw(t, "asker")]
		for range rapid.IntRange(0, 4).Draw(t, "dead") {
			if id := s.all[s.rnd.IntN(n)]; id != asker {
				s.nodes[id].dead = true
			}
		}
		if rapid.Bool().Draw(t, "held") {
			if id := s.all[s.rnd.IntN(n)]; id != asker {
				s.nodes[id].holds = "gold"
			}
		}
		if rapid.Bool().Draw(t, "summaries") {
			s.nodes[asker].cfg.May = func([]byte) []resource.NodeID { return []resource.NodeID{s.all[s.rnd.IntN(n)]} }
		}
		s.traced(t, asker, "gold", &Trace{Everybody: rapid.Bool().Draw(t, "everybody")})
	})
}

// A trace is bounded, and a search without one costs nothing for it.
func TestTraceBounds(t *testing.T) {
	tr := &Trace{Steps: make([]Step, maxSteps)}
	tr.asked(time.Time{}, Directly, 1)
	if len(tr.Steps) != maxSteps || tr.More != 1 {
		t.Errorf("%d steps and %d", len(tr.Steps), tr.More)
	}
	tr = nil
	packet := Packet{Type: typeNone}
	if n := testing.AllocsPerRun(100, func() {
		tr.asked(time.Time{}, Directly, 1)
		tr.heard(time.Time{}, 1, &packet)
		tr.silent(1)
	}); n != 0 || tr.everybody() {
		t.Errorf("%v allocations", n)
	}
}

package search

import (
	"container/heap"
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/rocl-go/rocl/resource"
	"pgregory.net/rapid"
)

// sim is a cluster in virtual time: one queue of events, so that a seed is a
// history.
type sim struct {
	now   time.Time
	queue events
	seq   int
	rnd   *rand.Rand
	hop   time.Duration
	loss  float64
	nodes map[resource.NodeID]*simNode
	all   []resource.NodeID
	sent  int
	bytes int
}

type simNode struct {
	*Node
	holds string
	dead  bool
	wake  time.Time
	view  []resource.NodeID
}

type event struct {
	at  time.Time
	seq int
	do  func()
}

type events []event

func (e events) Len() int { return len(e) }
func (e events) Less(i, j int) bool {
	return e[i].at.Before(e[j].at) || e[i].at.Equal(e[j].at) && e[i].seq < e[j].seq
}
func (e events) Swap(i, j int) { e[i], e[j] = e[j], e[i] }
func (e *events) Push(x any)   { *e = append(*e, x.(event)) }
func (e *events) Pop() any {
	old := *e
	x := old[len(old)-1]
	*e = old[:len(old)-1]
	return x
}

func newSim(n, fan int, hop time.Duration, seed uint64) *sim {
	s := &sim{now: time.Unix(0, 0), rnd: rand.New(rand.NewPCG(seed, 7)), hop: hop, nodes: map[resource.NodeID]*simNode{}}
	for len(s.nodes) < n {
		id := resource.NodeID(s.rnd.Uint64N(1<<48-1) + 1)
		if s.nodes[id] != nil {
			continue
		}
		m := &simNode{}
		m.Node = NewNode(Config{
			Self: id, Fan: fan, Hop: 20 * hop,
			Members: func() []resource.NodeID {
				if m.view != nil {
					return m.view
				}
				return s.all
			},
			Local: func(q []byte) ([]byte, bool) { return []byte(m.holds), m.holds != "" && m.holds == string(q) },
			Send:  func(to resource.NodeID, p *Packet) { s.send(id, to, p) },
		})
		s.nodes[id] = m
		s.all = append(s.all, id)
	}
	slices.Sort(s.all)
	return s
}

func (s *sim) after(d time.Duration, do func()) {
	s.seq++
	heap.Push(&s.queue, event{s.now.Add(d), s.seq, do})
}

func (s *sim) send(from, to resource.NodeID, p *Packet) {
	wire := p.Append(nil)
	s.sent++
	s.bytes += len(wire)
	if s.rnd.Float64() < s.loss {
		return
	}
	s.after(s.hop, func() {
		m := s.nodes[to]
		if m == nil || m.dead {
			return
		}
		var q Packet
		if err := q.Parse(wire); err != nil {
			panic(err)
		}
		m.Receive(s.now, from, &q)
		s.arm(m)
	})
}

// arm sees to it that the node's Tick is called when it is due.
func (s *sim) arm(m *simNode) {
	at := m.Next()
	if at.IsZero() || !m.wake.IsZero() && !at.Before(m.wake) {
		return
	}
	m.wake = at
	s.after(at.Sub(s.now), func() {
		if m.wake.Equal(at) {
			m.wake = time.Time{}
			if !m.dead {
				m.Tick(s.now)
			}
		}
		s.arm(m)
	})
}

// search runs one search to its end.
func (s *sim) search(from resource.NodeID, what string) (r Result, took time.Duration) {
	m, begun, over := s.nodes[from], s.now, false
	m.Search(s.now, []byte(what), func(got Result) { r, over = got, true })
	s.arm(m)
	for !over {
		if len(s.queue) == 0 {
			panic("the search does not end and nothing is left to happen")
		}
		e := heap.Pop(&s.queue).(event)
		s.now = e.at
		e.do()
	}
	return r, s.now.Sub(begun)
}

// drain lets everything happen that is under way, and checks that nothing is
// left.
func (s *sim) drain(t interface{ Fatalf(string, ...any) }) {
	for len(s.queue) > 0 {
		e := heap.Pop(&s.queue).(event)
		s.now = e.at
		e.do()
	}
	for id, m := range s.nodes {
		if !m.dead && (len(m.jobs) > 0 || len(m.own) > 0 || len(m.byID) > 0) {
			t.Fatalf("node %x remembers %d parts and %d searches", id, len(m.jobs), len(m.own))
		}
	}
}

// What a search costs, for each way of searching: the figures of the issue.
func TestScale(t *testing.T) {
	const hop = 500 * time.Microsecond
	for _, n := range []int{10, 100, 1000, 10_000} {
		for _, fan := range []int{2, 16, Flat} {
			s := newSim(n, fan, hop, 1)
			r, took := s.search(s.all[n/2], "nothing")
			if r.Found || !r.Definite() || r.Covered != n {
				t.Errorf("%d nodes, fan %d: %+v", n, fan, r)
			}
			if s.sent != 2*(n-1) {
				t.Errorf("%d nodes, fan %d: a no took %d messages", n, fan, s.sent)
			}
			if n == 10_000 && fan == 16 && took > 10*time.Millisecond {
				t.Errorf("a definite no of 10,000 nodes took %v", took)
			}
			t.Logf("%d nodes, fan %d: a definite no in %v, %d messages, %d bytes", n, fan, took, s.sent, s.bytes)
			s.drain(t)
		}
		s := newSim(n, 16, hop, 2)
		var holders []resource.NodeID
		for _, i := range s.rnd.Perm(n)[:3] {
			s.nodes[s.all[i]].holds = "gold"
			holders = append(holders, s.all[i])
		}
		asker := s.all[slices.IndexFunc(s.all, func(m resource.NodeID) bool { return !slices.Contains(holders, m) })]
		r, took := s.search(asker, "gold")
		if !r.Found || string(r.Answer) != "gold" || s.sent > 2*n {
			t.Errorf("%d nodes: %+v, %d messages", n, r, s.sent)
		}
		t.Logf("%d nodes, 3 hold a match, no filters: %v, %d messages until then", n, took, s.sent)
		s.drain(t)
		s.sent = 0
		s.nodes[asker].cfg.May = func([]byte) []resource.NodeID { return append(holders, s.all[n/3]) }
		if r, took = s.search(asker, "gold"); !r.Found || s.sent > 20 {
			t.Errorf("%d nodes with filters: %+v, %d messages", n, r, s.sent)
		}
		t.Logf("%d nodes, 3 hold a match, with filters: %v, %d messages", n, took, s.sent)
		// Summaries that are all wrong cost time, not the answer.
		s.nodes[asker].cfg.May = func([]byte) []resource.NodeID { return []resource.NodeID{s.all[n/2], s.all[n/3]} }
		s.nodes[s.all[n/2]].holds, s.nodes[s.all[n/3]].holds = "", ""
		if r, _ := s.search(asker, "gold"); r.Found != slices.ContainsFunc(holders, func(m resource.NodeID) bool { return s.nodes[m].holds != "" }) {
			t.Errorf("%d nodes, wrong filters: %+v", n, r)
		}
		s.drain(t)
	}
}

// Whatever is lost and whoever is dead or unknown to others: a yes is found
// unless its holders cannot be reached, a definite no is true, and a no names
// those that were not asked.
func TestFaults(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		n := rapid.IntRange(2, 60).Draw(t, "nodes")
		s := newSim(n, rapid.SampledFrom([]int{2, 3, 16, Flat}).Draw(t, "fan"), time.Millisecond, rapid.Uint64().Draw(t, "seed"))
		s.loss = rapid.SampledFrom([]float64{0, 0.05, 0.2}).Draw(t, "loss")
		asker := s.all[rapid.IntRange(0, n-1).Draw(t, "asker")]
		live := map[resource.NodeID]bool{}
		for _, id := range s.all {
			m := s.nodes[id]
			m.dead = id != asker && rapid.IntRange(0, 9).Draw(t, "dead") == 0
			live[id] = !m.dead
			if rapid.IntRange(0, 3).Draw(t, "blind") == 0 && id != asker { // it has not heard of some
				m.view = slices.DeleteFunc(slices.Clone(s.all), func(o resource.NodeID) bool { return o != id && s.rnd.IntN(5) == 0 })
			}
		}
		holders := 0
		for _, id := range s.all {
			if live[id] && id != asker && rapid.IntRange(0, n).Draw(t, "holds") == 0 {
				s.nodes[id].holds = "gold"
				holders++
			}
		}
		r, _ := s.search(asker, "gold")
		if r.Found && holders == 0 {
			t.Fatal("found what nobody has")
		}
		if !r.Found {
			for _, id := range s.all {
				if s.nodes[id].holds == "gold" && !slices.Contains(r.Failed, id) {
					t.Fatalf("node %x has it, and was neither heard nor named", id)
				}
			}
			if s.loss == 0 {
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
		s.loss = 0
		s.drain(t)
	})
}

// Packets of any bytes are read or refused, and do no harm.
func FuzzPacket(f *testing.F) {
	for _, p := range []Packet{
		{Type: typeAsk, Fan: 2, ID: ID{1, 2}, Lo: 3, Hi: 9, Body: []byte("q")},
		{Type: typeFound, Fan: 16, ID: ID{5, 1}, Lo: 5, Hi: 5, Body: []byte("a")},
		{Type: typeNone, Fan: Flat, ID: ID{5, 1}, Lo: 3, Hi: 9, Covered: 4, Sum: 7, Failed: []resource.NodeID{4, 5}},
	} {
		f.Add(p.Append(nil), uint64(3))
	}
	f.Fuzz(func(t *testing.T, b []byte, from uint64) {
		var p Packet
		if p.Parse(b) != nil {
			return
		}
		if again := p.Append(nil); string(again) != string(b) {
			t.Fatalf("%x is written as %x", b, again)
		}
		sent := 0
		members := []resource.NodeID{1, 3, 4, 5, 6, 9}
		n := NewNode(Config{Self: 5, Members: func() []resource.NodeID { return members },
			Local: func([]byte) ([]byte, bool) { return nil, false }, Send: func(resource.NodeID, *Packet) { sent++ }})
		now := time.Unix(0, 0)
		over := 0
		n.Search(now, []byte("q"), func(Result) { over++ })
		for range 3 {
			n.Receive(now, resource.NodeID(from), &p)
		}
		for i := 0; i < 1000 && !n.Next().IsZero(); i++ {
			now = n.Next()
			n.Tick(now)
		}
		if over != 1 || len(n.jobs)+len(n.own)+len(n.byID) > 0 || sent > 200 {
			t.Fatalf("%d ends, %d parts left, %d packets", over, len(n.jobs), sent)
		}
	})
}

func TestSummary(t *testing.T) {
	a, b := NewSummary(1000), NewSummary(0)
	for i := range 1000 {
		l, _ := resource.NewPattern(resource.Attrs{"type": "worker", "name": fmt.Sprint(i)})
		from := a.Version
		fresh := a.Add(l)
		if i == 0 {
			b, _ = ParseSummary(NewSummary(1000).Append(nil))
		}
		if len(fresh) > 0 && !b.Apply(from, a.Version, fresh) {
			t.Fatal("a delta does not fit")
		}
	}
	c, err := ParseSummary(a.Append(nil))
	if err != nil {
		t.Fatal(err)
	}
	wrongly := 0
	for i := range 2000 {
		l, _ := resource.NewPattern(resource.Match{"name": fmt.Sprint(i)})
		for _, s := range []*Summary{a, b, c} {
			if may := s.May(l); i < 1000 && !may {
				t.Fatalf("resource %d is denied", i)
			} else if i >= 1000 && may {
				wrongly++
			}
		}
	}
	if wrongly > 3*60 {
		t.Errorf("%d of 3000 wrong guesses", wrongly)
	}
	if b.Apply(a.Version+1, a.Version+2, nil) {
		t.Error("a delta with a gap is taken")
	}
	for _, bad := range [][]byte{nil, make([]byte, 20), a.Append(nil)[:100], append(a.Append(nil), 0)} {
		if _, err := ParseSummary(bad); err == nil {
			t.Errorf("%d bytes are a summary", len(bad))
		}
	}
}

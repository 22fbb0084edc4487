// SPDX-License-Identifier: Apache-2.0

package scale

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/rocl-go/rocl/directory/internal/search"
	"github.com/rocl-go/rocl/directory/internal/search/searchtest"
	"github.com/rocl-go/rocl/directory/strategy"
	"github.com/rocl-go/rocl/resource"
)

// What is assumed of machines and network.
const (
	// Resources is the number of resources in the whole cluster.
	Resources = 1_000_000

	// Hop is the time of a packet, in one direction.
	Hop = 500 * time.Microsecond
	// Work is the time that a packet takes at each end.
	Work = 5 * time.Microsecond

	// Queue is how many small packets can wait at a socket. Further ones are lost. A kernel with
	// its defaults grants 416 KiB: 512 packets over the loopback interface, which takes 832 bytes
	// for each, and 184 packets if a driver takes 2,304.
	Queue = 256

	// UDP is the size of the heads of IP and UDP, in bytes.
	UDP = 28
	// Seal is the size of the head and seal of package mux, in bytes.
	Seal = 36
	// Says is the size of the first byte inside, in bytes, which tells the kind of a payload.
	Says = 1
	// Heads is the size of all that is around a packet, in bytes.
	Heads = UDP + Seal + Says

	holders = 3    // nodes that have what is searched for
	dying   = 0.01 // share of the nodes, in the first milliseconds of a search

	// pace is that of package search: the time that an asker allows for each packet.
	pace = 5 * time.Microsecond
)

// A Variant is a search strategy with its settings.
type Variant struct {
	Name string
	By   strategy.Strategy
	Fan  int
	Cast bool // one packet can go to all nodes
}

// The variants that are measured, and Variants, the list of those that are not automatic.
var (
	Broadcast = Variant{"broadcast", strategy.Broadcast, 0, true}
	Unicast   = Variant{"unicast", strategy.Unicast, 0, false}
	Tree4     = Variant{"tree of 4", strategy.Tree, 4, false}
	Tree16    = Variant{"tree of 16", strategy.Tree, 16, false} // the default fan-out
	Tree64    = Variant{"tree of 64", strategy.Tree, 64, false}

	Auto      = Variant{"auto", strategy.Auto, 0, true}
	AutoAlone = Variant{"auto without a group", strategy.Auto, 0, false}

	Variants = []Variant{Broadcast, Unicast, Tree4, Tree16, Tree64}
)

// Takes returns the variant that auto chooses in a cluster of so many nodes, or w itself if w is
// not automatic. It repeats the rule of package search, and the test compares the two.
func (w Variant) Takes(nodes int) Variant {
	switch others := nodes - 1; {
	case w.By != strategy.Auto:
		return w
	case w.Cast && others > 1 && others <= search.MostBroadcast:
		return Broadcast
	case others <= search.MostUnicast:
		return Unicast
	}
	return Tree16
}

// Time returns how long a definite no takes, by the formula.
func (w Variant) Time(nodes int) time.Duration {
	w = w.Takes(nodes)
	others := nodes - 1
	switch {
	case w.By == strategy.Tree:
		return Time(others, w.Fan, Hop, Work)
	case w.By == strategy.Broadcast && others > Queue: // some are asked again, one by one
		return search.DefaultHop + 2*pace*time.Duration(others) + 2*Hop + 4*Work
	}
	return Time(others, search.Flat, Hop, Work)
}

// Messages returns the packets of a definite no, by the formula.
func (w Variant) Messages(nodes int) int {
	w = w.Takes(nodes)
	others := nodes - 1
	if w.By == strategy.Broadcast {
		return 1 + others + 2*max(0, others-Queue)
	}
	return 2 * others
}

// A Case tells what is searched for, and what goes wrong.
type Case struct {
	Exists, Filters bool
	Loss            float64
	Dying           bool
}

// A Cost is the cost of several searches.
type Cost struct {
	P50, P99 time.Duration
	Messages float64 // of one search, on average
	Most     int
	Bytes    float64 // of one search, with all heads
	Heard    float64 // as Bytes, but counted once for each receiver
	Packets  float64 // sent and received by all nodes
	Busiest  float64 // packets in and out of the node that has most of them
	Wrong    int     // answers that are not true
	Definite int     // number of searches with a definite result
	Searches int
}

// Rate returns the bytes per second that a node sends and receives if the whole cluster makes so
// many searches per second. A cast is received by all nodes.
func (c Cost) Rate(nodes int, searches float64) float64 {
	return (c.Bytes + c.Heard) * searches / float64(nodes)
}

// KibRate is Rate in KiB per second.
func (c Cost) KibRate(nodes int, searches float64) float64 { return c.Rate(nodes, searches) / 1024 }

// PacketRate returns the packets per second that a node then sends and receives.
func (c Cost) PacketRate(nodes int, searches float64) float64 {
	return c.Packets * searches / float64(nodes)
}

// A Cluster has nodes that hold the resources and have sent their summaries.
type Cluster struct {
	Nodes   int
	filters *search.Filters // what each node knows of the other nodes
	where   map[string][]int
	names   []string
	sim     searchtest.Config
}

// NewCluster returns a cluster with resources for so many different searches.
func NewCluster(nodes, resources, searches int) (*Cluster, error) {
	c := &Cluster{Nodes: nodes, filters: search.NewFilters(), where: map[string][]int{}}
	c.sim = searchtest.Config{Nodes: nodes, Hop: Hop, Work: Work, Queue: Queue, Head: Heads, Seed: 1}
	rnd := rand.New(rand.NewPCG(2, uint64(nodes)))
	has := make([][]string, nodes)
	for i := range searches {
		name := fmt.Sprintf("gold %d", i)
		c.names = append(c.names, name)
		for _, n := range rnd.Perm(nodes)[:holders] {
			c.where[name] = append(c.where[name], n)
			has[n] = append(has[n], name)
		}
	}
	ids := searchtest.New(c.sim).IDs
	var err error
	for i, id := range ids {
		h := newHolder(i, resources/nodes, nodes)
		h.age(rnd.Float64()) // some summaries are new, some are about to be replaced
		for _, name := range has[i] {
			h.summary.Add(pattern(name))
		}
		h.summary.Spread([]resource.NodeID{0}, id, func(_ resource.NodeID, m []byte) {
			if _, e := c.filters.Hear(id, m); e != nil {
				err = e
			}
		})
	}
	return c, err
}

// Searches runs n searches of one case.
func (c *Cluster) Searches(w Variant, k Case, n int) (cost Cost, err error) {
	cfg := c.sim
	cfg.Strategy, cfg.Fan, cfg.Cast, cfg.Loss, cfg.Seed = w.By, w.Fan, w.Cast, k.Loss, 3
	var s *searchtest.Sim
	var took []time.Duration
	for i := range n {
		if s == nil || k.Dying {
			cfg.Seed++
			s = c.cluster(cfg)
		}
		name, where := fmt.Sprintf("none %d", i), []int(nil)
		if k.Exists {
			name = c.names[i%len(c.names)]
			where = c.where[name]
		}
		at := s.Rand.IntN(c.Nodes)
		for slices.Contains(where, at) {
			at = s.Rand.IntN(c.Nodes)
		}
		asker := s.Nodes[at]
		asker.May = nil
		if k.Filters {
			asker.May = func(q []byte) []resource.NodeID { return c.filters.May(asked(q)) }
		}
		if k.Dying {
			for range max(1, int(dying*float64(c.Nodes))) {
				if m := s.Nodes[s.Rand.IntN(c.Nodes)]; m != asker {
					s.After(time.Duration(s.Rand.Int64N(int64(4*Hop))), func() { m.Dead = true })
				}
			}
		}
		s.Reset()
		o := s.Search(asker, question(name))
		if err := s.Drain(); err != nil { // packets under way still count
			return cost, err
		}
		took = append(took, o.Took)
		if !c.true(s, k, o.Result, where) {
			cost.Wrong++
		}
		if o.Definite() {
			cost.Definite++
		}
		cost.Messages += float64(s.Sent) / float64(n)
		cost.Bytes += float64(s.Bytes) / float64(n)
		cost.Heard += float64(s.Heard) / float64(n)
		cost.Most = max(cost.Most, s.Sent)
		busiest := 0
		for _, m := range s.Nodes {
			busiest = max(busiest, m.In+m.Out)
			cost.Packets += float64(m.In+m.Out) / float64(n)
		}
		cost.Busiest += float64(busiest) / float64(n)
	}
	slices.Sort(took)
	cost.P50, cost.P99, cost.Searches = took[len(took)/2], took[(len(took)*99)/100], n
	return cost, nil
}

// cluster returns a simulation whose nodes answer for what they hold.
func (c *Cluster) cluster(cfg searchtest.Config) *searchtest.Sim {
	s := searchtest.New(cfg)
	for i, m := range s.Nodes {
		m.Has = func(q []byte) ([]byte, bool) {
			name, _ := asked(q).Get("name")
			if !slices.Contains(c.where[string(name)], i) {
				return nil, false
			}
			return answer(i, q), true
		}
	}
	return s
}

// true reports whether a result is true. What is found must exist, a definite no must be of what
// does not exist, and without loss only dead nodes may be named as failed.
func (c *Cluster) true(s *searchtest.Sim, k Case, r search.Result, where []int) bool {
	if r.Found {
		return slices.ContainsFunc(where, func(i int) bool { return s.Nodes[i].ID == r.From })
	}
	for _, i := range where {
		if m := s.Nodes[i]; !m.Dead && !slices.Contains(r.Failed, m.ID) {
			return false
		}
	}
	for _, id := range r.Failed {
		if k.Loss == 0 && !s.ByID(id).Dead {
			return false
		}
	}
	return true
}

// Time returns how long a definite no of so many other nodes takes. Each level of the tree sends
// packets to its heads one after the other. Then come a hop there and one back, and the work of
// both ends on the last packet.
func Time(others, fan int, hop, work time.Duration) time.Duration {
	if others <= 0 {
		return 0
	}
	heads := min(fan, others)
	size := (others + heads - 1) / heads
	return time.Duration(heads)*work + 2*hop + 3*work + Time(size-1, fan, hop, work)
}

// Hops and Works are the networks and machines that the choice has to suit.
var (
	Hops  = []time.Duration{50 * time.Microsecond, 100 * time.Microsecond, 200 * time.Microsecond, Hop}
	Works = []time.Duration{2 * time.Microsecond, Work, 10 * time.Microsecond}
)

// Regret returns how many times as long as by the better variant a no takes, in the worst of those
// networks and sizes. By the rule that it examines, the asker asks up to most other nodes itself,
// and uses a tree of 16 beyond.
func Regret(most int) (worst float64) {
	for _, h := range Hops {
		for _, w := range Works {
			for others := 1; others <= 2000; others++ {
				all, tree := Time(others, search.Flat, h, w), Time(others, Tree16.Fan, h, w)
				taken := tree
				if others <= most {
					taken = all
				}
				worst = max(worst, float64(taken)/float64(min(all, tree)))
			}
		}
	}
	return worst
}

// A Burst is the result of searches that one node begins at once, for what no node has.
type Burst struct {
	Lost int           // packets for which their receiver had no room
	Took time.Duration // until the last search ended
}

// Bursts runs so many searches at once in a cluster that holds nothing.
func Bursts(w Variant, nodes, searches int) (b Burst, err error) {
	s := searchtest.New(searchtest.Config{
		Nodes: nodes, Hop: Hop, Work: Work, Queue: Queue, Head: Heads, Seed: 1, Strategy: w.By, Fan: w.Fan, Cast: w.Cast,
	})
	asker := s.Nodes[nodes/2]
	o := s.Await(asker, func(now time.Time, done func(search.Result)) {
		left := searches
		for i := range searches {
			asker.Search(now, question(fmt.Sprintf("none %d", i)), search.Func(func(r search.Result) {
				if left--; left == 0 {
					done(r)
				}
			}))
		}
	})
	if err := s.Drain(); err != nil {
		return b, err
	}
	return Burst{s.Lost, o.Took}, nil
}

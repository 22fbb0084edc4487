package scale

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/rocl-go/rocl/directory/search"
	"github.com/rocl-go/rocl/directory/search/searchtest"
	"github.com/rocl-go/rocl/resource"
)

// What is assumed of machines and network.
const (
	Resources = 1_000_000 // in the whole cluster

	Hop   = 500 * time.Microsecond // one way
	Work  = 5 * time.Microsecond   // of a packet, at each end
	Queue = 256                    // small packets that a socket's buffer holds

	UDP   = 28 // bytes of IP and UDP around a packet
	Seal  = 45 // of memberlist's encryption and label
	From  = 8  // who sends it
	Heads = UDP + Seal + From

	holders = 3    // that have what is searched for
	dying   = 0.01 // of the nodes, in the first milliseconds of a search
)

// A Way is how everybody is asked.
type Way struct {
	Name string
	Fan  int
}

// Ways that there are. One datagram to all is another one, once the nodes can
// send it: searchtest counts a packet to many as one.
var Ways = []Way{{"flat", search.Flat}, {"tree of 4", 4}, {"tree of 16", 16}, {"tree of 64", 64}}

// A Case is what is searched for, and what goes wrong.
type Case struct {
	Exists, Filters bool
	Loss            float64
	Dying           bool
}

// A Cost is that of several searches.
type Cost struct {
	P50, P99 time.Duration
	Messages float64 // of one search, on average
	Most     int
	Bytes    float64 // of one search, with all heads
	Busiest  float64 // packets in and out of the node that has most of them
	Wrong    int     // answers that are not true
	Definite int     // of Searches
	Searches int
}

// Rate is the bytes a second that a node sends and receives where the whole
// cluster searches so often.
func (c Cost) Rate(nodes int, searches float64) float64 {
	return 2 * c.Bytes * searches / float64(nodes)
}

// A Cluster has nodes that hold the resources and have told of them.
type Cluster struct {
	Nodes   int
	filters *search.Filters // what each knows of the others
	where   map[string][]int
	names   []string
	sim     searchtest.Config
}

// NewCluster fills a cluster for so many different searches.
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
		h.age(rnd.Float64()) // for some the summary is new, others are about to make another
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

// Searches runs searches of one case.
func (c *Cluster) Searches(w Way, k Case, n int) (cost Cost, err error) {
	cfg := c.sim
	cfg.Fan, cfg.Loss, cfg.Seed = w.Fan, k.Loss, 3
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
		if err := s.Drain(); err != nil { // what is under way still counts
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
		cost.Most = max(cost.Most, s.Sent)
		busiest := 0
		for _, m := range s.Nodes {
			busiest = max(busiest, m.In+m.Out)
		}
		cost.Busiest += float64(busiest) / float64(n)
	}
	slices.Sort(took)
	cost.P50, cost.P99, cost.Searches = took[len(took)/2], took[(len(took)*99)/100], n
	return cost, nil
}

// cluster has the nodes answer what they hold.
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

// true says whether a result is: what is found is there, a definite no is of
// what does not exist, and without loss only the dead are named.
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

// Time is how long a definite no of so many other nodes takes: for each level
// of the tree the packets to its heads one after the other, a hop there and one
// back, and what the ends work on the last of them.
func Time(others, fan int, hop, work time.Duration) time.Duration {
	if others <= 0 {
		return 0
	}
	heads := min(fan, others)
	size := (others + heads - 1) / heads
	return time.Duration(heads)*work + 2*hop + 3*work + Time(size-1, fan, hop, work)
}

// Switch is the size of a cluster from which on a tree says no sooner than
// asking all.
func Switch(fan int, hop, work time.Duration) int {
	for n := fan + 1; ; n++ {
		if Time(n-1, fan, hop, work) < Time(n-1, search.Flat, hop, work) {
			return n
		}
	}
}

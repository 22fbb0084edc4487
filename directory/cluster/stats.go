// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"errors"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/hashicorp/memberlist"
	"github.com/rocl-go/rocl/directory"
	"github.com/rocl-go/rocl/directory/mux"
	"github.com/rocl-go/rocl/directory/search"
	"github.com/rocl-go/rocl/internal/histogram"
	"github.com/rocl-go/rocl/resource"
)

// Stats describe a member and how it sees its cluster: the present numbers, and what has happened
// since Open.
type Stats struct {
	// Alive, Away and Dead count members. Alive counts this member too. The dead are remembered,
	// and looked for.
	Alive, Away, Dead     int
	Joins, Leaves, Deaths uint64 // of other members, as seen here
	Unresolved, NotJoined uint64 // names, and addresses, of members to join that led nowhere
	Keys                  int    // of the cluster; 0: nothing is sealed
	// Health is memberlist's health score. 0 is well. With a higher score, memberlist doubts its
	// own view and takes longer to accuse other members.
	Health int
	// Silence is the longest time for which a living member has not answered a probe of this member
	// over UDP. The members are probed in turn.
	Silence time.Duration
	Ping    histogram.Snapshot // round trips of the probes that were answered

	Searches             []SearchStats
	Sent                 uint64 // packets of searches, also those sent for other members
	Answered, Denied     uint64 // questions of other members
	Filters              FilterStats
	Port                 mux.Stats
	PlacesKept, LookedAt int // places of listings; addresses that are being tried
}

// SearchStats describe the searches of one kind.
type SearchStats struct {
	Strategy                     string // the widest that the searches used, see ways
	Found, None, Partial, Failed uint64 // partial: not found, and some members could not be asked
	Messages                     histogram.Snapshot
	Took                         histogram.Snapshot
}

// FilterStats describe summaries.
type FilterStats struct {
	Known         int // members whose summary is here
	Held          int // bytes of all summaries here, with this member's own
	Sent          uint64
	SentBytes     uint64
	Received      uint64
	ReceivedBytes uint64
	Asked         uint64 // members asked because of their summary
	Wrong         uint64 // asked members that said no
	Spared        uint64 // members not asked because an asked one had the answer
}

// A way is a strategy that a search used. A search counts for the widest of those it used.
type way uint8

const (
	wayNobody  way = iota // there is no other member
	wayDirect             // some members by name: that of an identifier, or that of a listing
	waySummary            // the members whose summary has the attributes, and no more
	wayEach               // all members, one by one
	wayTree               // all members, by a spanning tree
	wayCast               // all members, with one datagram
)

var ways = [...]string{"nobody", "direct", "summary", "unicast", "tree", "broadcast"}

// counts has the counters of a member.
type counts struct {
	joins, leaves, deaths atomic.Uint64
	unresolved, notJoined atomic.Uint64
	sent                  atomic.Uint64 // packets of searches
	answered, denied      atomic.Uint64
	filterSent, filterGot traffic
	asked, wrong, spared  atomic.Uint64
	searches              [len(ways)]searches
	ping                  *histogram.Histogram
	pulseMu               sync.Mutex
	pulse                 map[resource.NodeID]time.Time // when each living member answered last
}

// traffic counts messages and their bytes.
type traffic struct{ messages, bytes atomic.Uint64 }

func (t *traffic) add(bytes int) {
	t.messages.Add(1)
	t.bytes.Add(uint64(bytes))
}

func (t *traffic) load() (messages, bytes uint64) { return t.messages.Load(), t.bytes.Load() }

// searches counts the searches of one way.
type searches struct {
	found, none, partial, failed atomic.Uint64
	messages, took               *histogram.Histogram
}

func (n *counts) init() {
	n.ping, n.pulse = histogram.Durations(), map[resource.NodeID]time.Time{}
	for i := range n.searches {
		n.searches[i].messages, n.searches[i].took = new(histogram.Histogram), histogram.Durations()
	}
}

// tally is what one search costs. Cluster.mu guards it.
type tally struct {
	begun    time.Duration // since Cluster.born; 0: not asked
	way      way
	messages uint64
	others   int               // number of other members
	may      []resource.NodeID // members whose summary has the attributes
	asked    []resource.NodeID // members in may that were asked
	wrong    []resource.NodeID // members in asked that said no
	differ   []differs         // members that said no and know other members than this one
}

// begin begins to count a search, of the members in who or, if that is nil, of all members.
func (c *Cluster) begin(t *tally, who []resource.NodeID) {
	*t = tally{others: len(c.members.list()) - 1}
	if who != nil {
		t.way = wayDirect
	}
}

// asks counts a packet to one member that the search sends. mu must be held.
func (c *Cluster) asks(to resource.NodeID, p *search.Packet) {
	t, n := c.tallyOf(p), &c.count
	if t == nil {
		return
	}
	t.messages++
	switch {
	case t.way == wayDirect:
	case p.Lo != p.Hi:
		t.way = max(t.way, wayTree)
	case t.way <= waySummary && slices.Contains(t.may, to):
		t.way = waySummary
		if !slices.Contains(t.asked, to) {
			t.asked = append(t.asked, to)
			n.asked.Add(1)
		}
	default:
		t.way = max(t.way, wayEach)
	}
}

// castsOne counts a packet that the search sends to all members. mu must be held.
func (c *Cluster) castsOne(p *search.Packet) {
	if t := c.tallyOf(p); t != nil {
		t.messages++
		t.way = wayCast
	}
}

// tallyOf returns the tally of this member's search that a packet is about. It returns nil if the
// search is another member's or is not counted. mu must be held.
func (c *Cluster) tallyOf(p *search.Packet) *tally {
	if p.ID.Asker != c.cfg.Node {
		return nil
	}
	return c.tallyBy(p.ID.N)
}

// tallyBy returns the tally of this member's search n, or nil if it has ended or is not counted. mu
// must be held.
func (c *Cluster) tallyBy(n uint64) *tally {
	if w, ok := c.search.Asker(n).(*waiter); ok && w.counts {
		return &w.tally
	}
	return nil
}

// hears counts what comes back: a member whose answer covers any members says no. mu must be held.
func (c *Cluster) hears(from resource.NodeID, p *search.Packet) {
	if p.Covered == 0 {
		return
	}
	t := c.tallyOf(p)
	if t == nil {
		return
	}
	if p.Known != 0 && p.Known != c.members.roll.Load().sum {
		t.differ = append(t.differ, differs{from, p.Known})
	}
	if t.way == waySummary && slices.Contains(t.asked, from) && !slices.Contains(t.wrong, from) {
		t.wrong = append(t.wrong, from)
		c.count.wrong.Add(1)
	}
}

// counted counts a search that has ended. Only the caller has t by then.
func (c *Cluster) counted(t *tally, err error) {
	s := &c.count.searches[t.way]
	switch {
	case err == nil:
		s.found.Add(1)
		if asked := len(t.asked); t.way == waySummary && t.others > asked {
			c.count.spared.Add(uint64(t.others - asked))
		}
	case errors.Is(err, directory.ErrNotFound):
		s.none.Add(1)
	case errors.Is(err, directory.ErrPartial):
		s.partial.Add(1)
	default:
		s.failed.Add(1)
	}
	s.messages.Observe(t.messages)
	if t.begun > 0 { // the question was asked
		s.took.Observe(uint64(max(time.Since(c.born)-t.begun, 0)))
	}
}

// member counts what gossip says of another member.
func (n *counts) member(id resource.NodeID, was, alive, left bool) {
	switch {
	case alive && !was:
		n.joins.Add(1)
	case was && !alive && left:
		n.leaves.Add(1)
	case was && !alive:
		n.deaths.Add(1)
	}
	n.pulseMu.Lock()
	defer n.pulseMu.Unlock()
	if !alive {
		delete(n.pulse, id)
	} else if !was {
		n.pulse[id] = time.Now()
	}
}

// silence returns for how long the most silent of the living members has not answered.
func (n *counts) silence(now time.Time) (most time.Duration) {
	n.pulseMu.Lock()
	defer n.pulseMu.Unlock()
	for _, at := range n.pulse {
		most = max(most, now.Sub(at))
	}
	return most
}

// probes is called for the probes that were answered. memberlist takes a member for alive to which
// only TCP gets through; such a member falls silent here.
type probes struct{ n *counts }

func (probes) AckPayload() []byte { return nil }

func (p probes) NotifyPingComplete(other *memberlist.Node, rtt time.Duration, _ []byte) {
	id, ok := nodeID(other)
	if !ok {
		return
	}
	p.n.ping.Observe(uint64(max(rtt, 0)))
	p.n.pulseMu.Lock()
	defer p.n.pulseMu.Unlock()
	if _, alive := p.n.pulse[id]; alive {
		p.n.pulse[id] = time.Now()
	}
}

// Stats returns the present figures.
func (c *Cluster) Stats() Stats {
	n := &c.count
	s := Stats{
		Joins: n.joins.Load(), Leaves: n.leaves.Load(), Deaths: n.deaths.Load(),
		Unresolved: n.unresolved.Load(), NotJoined: n.notJoined.Load(),
		Health: c.gossip.list.GetHealthScore(), Silence: n.silence(time.Now()), Ping: n.ping.Snapshot(),
		Sent: n.sent.Load(), Answered: n.answered.Load(), Denied: n.denied.Load(),
		Filters: FilterStats{
			Asked: n.asked.Load(), Wrong: n.wrong.Load(), Spared: n.spared.Load(),
		},
		Port: c.mux.Stats(),
	}
	for i := range n.searches {
		q := &n.searches[i]
		s.Searches = append(s.Searches, SearchStats{
			ways[i], q.found.Load(), q.none.Load(), q.partial.Load(), q.failed.Load(), q.messages.Snapshot(), q.took.Snapshot(),
		})
	}
	s.Keys = c.gossip.keys()
	s.LookedAt = c.joiner.lookedAt()
	c.members.stats(&s)
	c.summaries.stats(&s.Filters)
	c.places.mu.Lock()
	s.PlacesKept = len(c.places.by)
	c.places.mu.Unlock()
	return s
}

// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"errors"
	"sync"
	"sync/atomic"
	"time"

	"github.com/hashicorp/memberlist"
	"github.com/rocl-go/rocl/directory"
	"github.com/rocl-go/rocl/directory/internal/mux"
	"github.com/rocl-go/rocl/internal/histogram"
	"github.com/rocl-go/rocl/resource"
)

// Stats describe a member and how it sees its cluster: the present numbers, and what has happened
// since Open.
type Stats struct {
	// Alive, Away and Dead count members. Alive counts this member too. The dead are remembered,
	// and looked for.
	Alive, Away, Dead int
	// Refused counts the addresses at which a program refuses this member, at addresses that it
	// wants to join or has met. Refusing has some of them, each with what is known of the reason.
	Refused               int
	Refusing              []string
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

	Searches          []SearchStats
	Sent              uint64 // packets of searches, also those sent for other members
	Answered, Denied  uint64 // questions of other members
	Filters           FilterStats
	Port              mux.Stats
	Cursors, LookedAt int // cursors of listings; addresses that are being tried
}

// SearchStats describe the searches of one kind.
type SearchStats struct {
	Strategy                     string // the widest that the searches used, see methods
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

// A method is how a search asked. A search counts for the widest of those it used.
type method uint8

const (
	methodNone      method = iota // there is no other member
	methodDirect                  // some members by name: that of an identifier, or that of a listing
	methodSummary                 // the members whose summary has the attributes, and no more
	methodUnicast                 // all members, one by one
	methodTree                    // all members, by a spanning tree
	methodBroadcast               // all members, with one datagram
)

var methods = [...]string{"nobody", "direct", "summary", "unicast", "tree", "broadcast"}

// counts has the counters of a member.
type counts struct {
	joins, leaves, deaths atomic.Uint64
	unresolved, notJoined atomic.Uint64
	sent                  atomic.Uint64 // packets of searches
	answered, denied      atomic.Uint64
	filterSent, filterGot traffic
	asked, wrong, spared  atomic.Uint64
	searches              [len(methods)]outcomes
	ping                  *histogram.Histogram
	pulseMu               sync.Mutex
	pulse                 map[resource.NodeID]pulse // of each living member
}

// A pulse is the last answer of a member to a probe.
type pulse struct {
	at          time.Time     // when it came, or when the member came
	ping, clock time.Duration // see MemberStatus
}

// traffic counts messages and their bytes.
type traffic struct{ messages, bytes atomic.Uint64 }

func (t *traffic) add(bytes int) {
	t.messages.Add(1)
	t.bytes.Add(uint64(bytes))
}

func (t *traffic) load() (messages, bytes uint64) { return t.messages.Load(), t.bytes.Load() }

// outcomes counts the searches of one method.
type outcomes struct {
	found, none, partial, failed atomic.Uint64
	messages, took               *histogram.Histogram
}

func (n *counts) init() {
	n.ping, n.pulse = histogram.Durations(), map[resource.NodeID]pulse{}
	for i := range n.searches {
		n.searches[i].messages, n.searches[i].took = new(histogram.Histogram), histogram.Durations()
	}
}

// search counts a search that has ended, and that began after born. Only the caller has t by then.
func (n *counts) search(t *tally, err error, born time.Time) {
	s := &n.searches[t.method]
	switch {
	case err == nil:
		s.found.Add(1)
		if asked := len(t.asked); t.method == methodSummary && t.others > asked {
			n.spared.Add(uint64(t.others - asked))
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
		s.took.Observe(uint64(max(time.Since(born)-t.begun, 0)))
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
		n.pulse[id] = pulse{at: time.Now()}
	}
}

// silence returns for how long the most silent of the living members has not answered.
func (n *counts) silence(now time.Time) (most time.Duration) {
	n.pulseMu.Lock()
	defer n.pulseMu.Unlock()
	for _, p := range n.pulse {
		most = max(most, now.Sub(p.at))
	}
	return most
}

// probes is called for the probes that were answered. memberlist takes a member for alive to which
// only TCP gets through; such a member falls silent here.
type probes struct{ n *counts }

func (probes) AckPayload() []byte { return clockPayload() }

func (p probes) NotifyPingComplete(other *memberlist.Node, rtt time.Duration, payload []byte) {
	id, ok := nodeID(other)
	if !ok {
		return
	}
	rtt = max(rtt, 0)
	p.n.ping.Observe(uint64(rtt))
	p.n.pulseMu.Lock()
	defer p.n.pulseMu.Unlock()
	if _, alive := p.n.pulse[id]; alive {
		p.n.pulse[id] = pulse{time.Now(), rtt, clockOf(payload, rtt)}
	}
}

// stats fills in the counters.
func (n *counts) stats(s *Stats) {
	s.Joins, s.Leaves, s.Deaths = n.joins.Load(), n.leaves.Load(), n.deaths.Load()
	s.Unresolved, s.NotJoined = n.unresolved.Load(), n.notJoined.Load()
	s.Silence, s.Ping = n.silence(time.Now()), n.ping.Snapshot()
	s.Sent, s.Answered, s.Denied = n.sent.Load(), n.answered.Load(), n.denied.Load()
	f := &s.Filters
	f.Sent, f.SentBytes = n.filterSent.load()
	f.Received, f.ReceivedBytes = n.filterGot.load()
	f.Asked, f.Wrong, f.Spared = n.asked.Load(), n.wrong.Load(), n.spared.Load()
	for i := range n.searches {
		q := &n.searches[i]
		s.Searches = append(s.Searches, SearchStats{
			methods[i], q.found.Load(), q.none.Load(), q.partial.Load(), q.failed.Load(), q.messages.Snapshot(), q.took.Snapshot(),
		})
	}
}

// Stats returns the present figures.
func (c *Cluster) Stats() Stats {
	s := Stats{
		Health: c.gossip.list.GetHealthScore(), Keys: c.gossip.keys(),
		Cursors: c.answers.cursors.count(), Port: c.mux.Stats(),
	}
	c.count.stats(&s)
	c.members.stats(&s)
	c.joiner.stats(&s)
	c.summaries.stats(&s.Filters)
	return s
}

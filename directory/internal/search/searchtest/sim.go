// SPDX-License-Identifier: Apache-2.0

// Package searchtest runs searches of many nodes in virtual time. It uses the nodes of package
// search as they are, in a network with delays, queues of limited length and losses. There is one
// queue of events and one random source: a seed determines all that happens, and every figure is
// exact.
package searchtest

import (
	"cmp"
	"fmt"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/rocl-go/rocl/directory/internal/search"
	"github.com/rocl-go/rocl/directory/strategy"
	"github.com/rocl-go/rocl/resource"
)

// Config describes a cluster. Nodes and Hop are required.
type Config struct {
	Nodes    int
	Fan      int           // of package search
	Patience time.Duration // the Hop of package search
	Hop      time.Duration // one way
	Work     time.Duration // for which a packet occupies its sender, and then its receiver
	Queue    int           // packets that wait at a receiver, more are lost; 0: any number
	Head     int           // bytes around each packet
	Loss     float64       // share of the packets that are lost
	Cast     bool          // one packet can go to all nodes
	Strategy strategy.Strategy
	Seed     uint64
}

// A Sim is a cluster.
type Sim struct {
	Nodes []*Node // sorted by ID
	IDs   []resource.NodeID
	Rand  *rand.Rand
	Loss  float64

	Sent, Bytes int // packets, and their bytes, since New or Reset
	Heard       int // bytes that were received; a packet to many nodes counts once for each
	Lost        int // packets for which their receiver had no room

	cfg   Config
	now   time.Time
	byID  map[resource.NodeID]*Node
	queue search.Alarms
}

// A Node is a member. Its exported fields can be set at any time.
type Node struct {
	*search.Node
	ID   resource.NodeID
	Has  func(question []byte) (answer []byte, ok bool) // nil: the node has nothing
	May  func(question []byte) []resource.NodeID        // nil: no nodes
	View []resource.NodeID                              // the members that it knows; nil: all
	Dead bool

	Out, In int // packets

	sends, receives time.Time // until when it is busy
	wake            time.Time
}

// New makes a cluster. Its members have random numbers, which depend on cfg.Nodes alone.
func New(cfg Config) *Sim {
	s := &Sim{
		cfg: cfg, now: time.Unix(0, 0), Loss: cfg.Loss,
		Rand: rand.New(rand.NewPCG(cfg.Seed, 7)), byID: map[resource.NodeID]*Node{},
	}
	numbers := rand.New(rand.NewPCG(uint64(cfg.Nodes), 11)) // the same for every seed
	for len(s.Nodes) < cfg.Nodes {
		id := resource.NodeID(numbers.Uint64N(1<<48-1) + 1)
		if s.byID[id] != nil {
			continue
		}
		m := &Node{ID: id}
		scfg := search.Config{
			Self: id, Strategy: cfg.Strategy, Fan: cfg.Fan, Hop: cfg.Patience,
			Members: func() []resource.NodeID {
				if m.View != nil {
					return m.View
				}
				return s.IDs
			},
			Local: func(q []byte) ([]byte, bool) {
				if m.Has == nil {
					return nil, false
				}
				return m.Has(q)
			},
			May: func(_ uint64, q []byte) []resource.NodeID {
				if m.May == nil {
					return nil
				}
				return m.May(q)
			},
			Send: func(to resource.NodeID, p *search.Packet) { s.transmit(m, p, to) },
		}
		if cfg.Cast {
			scfg.Cast = func(p *search.Packet) {
				s.transmit(m, p, slices.DeleteFunc(slices.Clone(s.IDs), func(o resource.NodeID) bool { return o == id })...)
			}
		}
		m.Node = search.NewNode(scfg)
		s.byID[id] = m
		s.Nodes = append(s.Nodes, m)
		s.IDs = append(s.IDs, id)
	}
	slices.Sort(s.IDs)
	slices.SortFunc(s.Nodes, func(a, b *Node) int { return cmp.Compare(a.ID, b.ID) })
	return s
}

// ByID returns the member with a number, or nil.
func (s *Sim) ByID(id resource.NodeID) *Node { return s.byID[id] }

// transmit sends one packet. With several receivers it is one datagram to all of them.
func (s *Sim) transmit(m *Node, p *search.Packet, to ...resource.NodeID) {
	wire := p.Append(nil)
	s.Sent++
	s.Bytes += len(wire) + s.cfg.Head
	m.Out++
	m.sends = later(m.sends, s.now).Add(s.cfg.Work)
	for _, id := range to {
		if s.Rand.Float64() < s.Loss {
			continue
		}
		if r := s.byID[id]; r != nil {
			s.at(m.sends.Add(s.cfg.Hop), func() { s.arrive(r, m.ID, wire) })
		}
	}
}

// later returns the later of two times.
func later(a, b time.Time) time.Time {
	if a.After(b) {
		return a
	}
	return b
}

// arrive queues a packet at its receiver.
func (s *Sim) arrive(m *Node, from resource.NodeID, wire []byte) {
	if q := s.cfg.Queue; q > 0 && m.receives.Sub(s.now) >= time.Duration(q)*s.cfg.Work {
		s.Lost++
		return
	}
	m.receives = later(m.receives, s.now).Add(s.cfg.Work)
	s.at(m.receives, func() {
		if m.Dead {
			return
		}
		m.In++
		s.Heard += len(wire) + s.cfg.Head
		var p search.Packet
		if err := p.Parse(wire); err != nil {
			panic(err) // a node has written what a node cannot read
		}
		m.Receive(s.now, from, &p)
		s.arm(m)
	})
}

// arm schedules the call of the node's Tick for when it is due.
func (s *Sim) arm(m *Node) {
	at := m.Next()
	if at.IsZero() || !m.wake.IsZero() && !at.Before(m.wake) {
		return
	}
	m.wake = at
	s.at(at, func() {
		if !m.wake.Equal(at) {
			return
		}
		m.wake = time.Time{}
		if !m.Dead {
			m.Tick(s.now)
			s.arm(m)
		}
	})
}

// An Outcome tells how a search ended, and how long it took.
type Outcome struct {
	search.Result
	Took time.Duration
}

// Search runs one search to its end, though not all that the search has begun: see Drain.
func (s *Sim) Search(from *Node, question []byte) Outcome {
	return s.Await(from, func(now time.Time, done func(search.Result)) { from.Search(now, question, search.Func(done)) })
}

// Await is Search for a search of from that begin starts. begin calls done when the search has
// ended.
func (s *Sim) Await(from *Node, begin func(now time.Time, done func(search.Result))) (o Outcome) {
	begun, ended := s.now, false
	begin(s.now, func(r search.Result) { o.Result, ended = r, true })
	s.arm(from)
	for !ended {
		if !s.step() {
			panic("the search does not end and nothing is left to happen")
		}
	}
	o.Took = s.now.Sub(begun)
	return o
}

// After calls do after the time d.
func (s *Sim) After(d time.Duration, do func()) { s.at(s.now.Add(d), do) }

// Drain lets everything happen that is under way. It returns an error if a living node remembers
// anything then.
func (s *Sim) Drain() error {
	for s.step() {
	}
	for _, m := range s.Nodes {
		if parts, searches := m.Pending(); !m.Dead && parts+searches > 0 {
			return fmt.Errorf("node %x remembers %d parts and %d searches", m.ID, parts, searches)
		}
	}
	return nil
}

// Reset sets the counts to zero.
func (s *Sim) Reset() {
	s.Sent, s.Bytes, s.Heard, s.Lost = 0, 0, 0, 0
	for _, m := range s.Nodes {
		m.In, m.Out = 0, 0
	}
}

// at calls do at a time.
func (s *Sim) at(t time.Time, do func()) {
	s.queue.Set(&search.Alarm{Ring: func(time.Time) { do() }}, t)
}

// step runs the next event, and reports false if there is none.
func (s *Sim) step() bool {
	e := s.queue.Next()
	if e == nil {
		return false
	}
	s.queue.Stop(e)
	s.now = e.At
	e.Ring(s.now)
	return true
}

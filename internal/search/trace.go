// SPDX-License-Identifier: Apache-2.0

package search

import (
	"slices"
	"time"

	"github.com/rocl-go/rocl/directory/strategy"
	"github.com/rocl-go/rocl/resource"
)

// How a node was asked.
const (
	HowSummary   = "summary"   // alone: its summary has what is searched
	HowTree      = "tree"      // as the head of a part
	HowUnicast   = "unicast"   // alone: its part has no other node
	HowBroadcast = "broadcast" // with all other nodes, by one packet
)

// byCover returns how a head that covers so many members is asked.
func byCover(members int) string {
	if members > 1 {
		return HowTree
	}
	return HowUnicast
}

// What a node that was asked did, as far as the asking node knows.
const (
	Unheard = ""       // no answer before the search ended
	Found   = "found"  // it has an answer, or a node below it has
	None    = "none"   // neither it nor any node below it has one
	Silent  = "silent" // no answer in time
)

// maxSteps bounds the steps that a trace keeps.
const maxSteps = 1 << 16

// A Trace tells how one search of this node went, as the asking node sees it: of what happens below
// a head, it has the sums that the head reported. It may be read when the search has ended.
type Trace struct {
	Everybody bool              // set before the search: ask all nodes, whatever summaries say
	Strategy  strategy.Strategy // set before the search; Auto: that of Config
	Steps     []Step
	More      int // steps that were not kept, because there are too many
}

// A Step is one question to one node.
type Step struct {
	Node            resource.NodeID
	How             string
	Members         int       // number of nodes that it was to cover, itself among them
	Asked, Heard    time.Time // Heard is zero if no answer came
	Outcome         string
	Covered, Failed int    // of a none: nodes that said no, and nodes that could not be asked
	Answer          []byte // of a found

	last resource.NodeID // the last node that it was to cover
}

// The methods of a nil Trace keep nothing.

func (t *Trace) everybody() bool { return t != nil && t.Everybody }

// strategyOr returns the strategy that t asks for, or s if it asks for none.
func (t *Trace) strategyOr(s strategy.Strategy) strategy.Strategy {
	if t == nil || t.Strategy == strategy.Auto {
		return s
	}
	return t.Strategy
}

// asked records a question to members[0] to cover members.
func (t *Trace) asked(now time.Time, how string, members ...resource.NodeID) {
	switch {
	case t == nil:
	case len(t.Steps) >= maxSteps:
		t.More++
	default:
		t.Steps = append(t.Steps, Step{Node: members[0], How: how, Members: len(members), Asked: now, last: members[len(members)-1]})
	}
}

// latest returns the last step to the given node for which ok reports true, or nil.
func (t *Trace) latest(node resource.NodeID, ok func(*Step) bool) *Step {
	if t == nil {
		return nil
	}
	for i := len(t.Steps) - 1; i >= 0; i-- {
		if s := &t.Steps[i]; s.Node == node && ok(s) {
			return s
		}
	}
	return nil
}

// heard records an answer. A no that is late counts for nothing, as in the search. A found ends the
// search however late it is.
func (t *Trace) heard(now time.Time, from resource.NodeID, p *Packet) {
	found := p.Type == typeFound
	if p.Type == typeBusy {
		return
	}
	s := t.latest(from, func(s *Step) bool { return s.last == p.Hi && (s.Outcome == Unheard || found) })
	if s == nil {
		return
	}
	s.Heard = now
	if found {
		s.Outcome, s.Answer = Found, slices.Clone(p.Body)
		return
	}
	s.Outcome, s.Failed = None, len(p.Failed)
	s.Covered = max(int(p.Covered)-s.Failed, 0)
}

// silent records that the node did not answer the last question in time.
func (t *Trace) silent(node resource.NodeID) {
	if s := t.latest(node, func(s *Step) bool { return s.Outcome == Unheard }); s != nil {
		s.Outcome = Silent
	}
}

// trace returns the trace of this node's search that j is a part of, or nil.
func (j *job) trace() *Trace {
	if j.own == nil {
		return nil
	}
	return j.own.trace
}

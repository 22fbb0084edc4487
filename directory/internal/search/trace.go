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

// A Recorder records the steps of one search of this node, as the asking node sees them: of what
// happens below a head, it has the sums that the head reported. Everybody, Strategy and Begun are
// set before the search. The rest may be read when the search has ended.
type Recorder struct {
	Everybody bool              // ask all nodes, whatever summaries say
	Strategy  strategy.Strategy // Auto: that of Config
	Begun     time.Time         // the times of the steps count from here
	Steps     []Step
	More      int // steps that were not kept, because there are too many
}

// A Step is a step of a trace, with the answer in place of Found: only the asker of the search can
// read an answer.
type Step struct {
	strategy.Step
	Answer []byte // of a found

	last resource.NodeID // the last node that it was to cover
}

// Answered reports whether the node has answered.
func (s *Step) Answered() bool { return s.Outcome == Found || s.Outcome == None }

// The methods of a nil Recorder keep nothing.

func (r *Recorder) everybody() bool { return r != nil && r.Everybody }

// strategyOr returns the strategy that r asks for, or s if it asks for none.
func (r *Recorder) strategyOr(s strategy.Strategy) strategy.Strategy {
	if r == nil || r.Strategy == strategy.Auto {
		return s
	}
	return r.Strategy
}

// asked records a question to members[0] to cover members.
func (r *Recorder) asked(now time.Time, how string, members ...resource.NodeID) {
	switch {
	case r == nil:
	case len(r.Steps) >= maxSteps:
		r.More++
	default:
		r.Steps = append(r.Steps, Step{
			Step: strategy.Step{Node: members[0], How: how, Members: len(members), Asked: now.Sub(r.Begun)},
			last: members[len(members)-1],
		})
	}
}

// latest returns the last step to the given node for which ok reports true, or nil.
func (r *Recorder) latest(node resource.NodeID, ok func(*Step) bool) *Step {
	if r == nil {
		return nil
	}
	for i := len(r.Steps) - 1; i >= 0; i-- {
		if s := &r.Steps[i]; s.Node == node && ok(s) {
			return s
		}
	}
	return nil
}

// heard records an answer. A no that is late counts for nothing, as in the search. A found ends the
// search however late it is.
func (r *Recorder) heard(now time.Time, from resource.NodeID, p *Packet) {
	found := p.Type == typeFound
	if p.Type == typeBusy {
		return
	}
	s := r.latest(from, func(s *Step) bool { return s.last == p.Hi && (s.Outcome == Unheard || found) })
	if s == nil {
		return
	}
	s.Took = now.Sub(r.Begun) - s.Asked
	if found {
		s.Outcome, s.Answer = Found, slices.Clone(p.Body)
		return
	}
	s.Outcome, s.Failed = None, len(p.Failed)
	s.Covered = max(int(p.Covered)-s.Failed, 0)
}

// silent records that the node did not answer the last question in time.
func (r *Recorder) silent(node resource.NodeID) {
	if s := r.latest(node, func(s *Step) bool { return s.Outcome == Unheard }); s != nil {
		s.Outcome = Silent
	}
}

// recorder returns the Recorder of this node's search that j is a part of, or nil.
func (j *job) recorder() *Recorder {
	if j.own == nil {
		return nil
	}
	return j.own.recorder
}

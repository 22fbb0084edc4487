package search

import (
	"slices"
	"time"

	"github.com/rocl-go/rocl/resource"
)

// How a node was asked.
const (
	BySummary = "summary" // alone: its summary has what is searched
	ByTree    = "tree"    // as the head of a part
	Directly  = "flat"    // alone: its part has no other node
)

func byCover(members int) string {
	if members > 1 {
		return ByTree
	}
	return Directly
}

// What a node that was asked did, as far as who asked knows.
const (
	Unheard = ""       // nothing, before the search ended
	Found   = "found"  // it has an answer, or one below it
	None    = "none"   // neither it nor any node below it has one
	Silent  = "silent" // nothing in time
)

// maxSteps bounds what a trace keeps.
const maxSteps = 1 << 16

// A Trace tells how one search of this node went. It is the view of who asked:
// of what happens below a head it knows the sum that the head told. It may be
// read once the search has ended.
type Trace struct {
	Everybody bool // set before: ask everybody, whatever summaries say
	Steps     []Step
	More      int // steps that were too many
}

// A Step is one question to one node.
type Step struct {
	Node            resource.NodeID
	How             string
	Members         int       // whom it was to cover, itself among them
	Asked, Heard    time.Time // Heard is zero if it was not
	Outcome         string
	Covered, Failed int    // of a none: nodes that said so, nodes that could not be asked
	Answer          []byte // of a found
}

// A nil Trace takes what it is told and keeps nothing.

func (t *Trace) everybody() bool { return t != nil && t.Everybody }

func (t *Trace) asked(now time.Time, who resource.NodeID, how string, members int) {
	switch {
	case t == nil:
	case len(t.Steps) >= maxSteps:
		t.More++
	default:
		t.Steps = append(t.Steps, Step{Node: who, How: how, Members: members, Asked: now})
	}
}

// open is the question to a node that has no outcome; a node has at most one.
func (t *Trace) open(who resource.NodeID) *Step {
	if t == nil {
		return nil
	}
	for i := len(t.Steps) - 1; i >= 0; i-- {
		if s := &t.Steps[i]; s.Node == who && s.Outcome == Unheard {
			return s
		}
	}
	return nil
}

func (t *Trace) heard(now time.Time, from resource.NodeID, p *Packet) {
	s := t.open(from)
	if s == nil {
		return // late, or once too often
	}
	s.Heard = now
	if p.Type == typeFound {
		s.Outcome, s.Answer = Found, slices.Clone(p.Body)
		return
	}
	s.Outcome, s.Failed = None, len(p.Failed)
	s.Covered = max(int(p.Covered)-s.Failed, 0)
}

func (t *Trace) silent(who resource.NodeID) {
	if s := t.open(who); s != nil {
		s.Outcome = Silent
	}
}

// trace is that of the search j is a part of, if it is ours.
func (j *job) trace() *Trace {
	if j.own == nil {
		return nil
	}
	return j.own.trace
}

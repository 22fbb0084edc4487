// SPDX-License-Identifier: Apache-2.0

package dataflow

import (
	"errors"
	"fmt"

	"github.com/rocl-go/rocl/dataflow/internal/frames"
	"github.com/rocl-go/rocl/dataflow/internal/plan"
	"github.com/rocl-go/rocl/dataflow/internal/sched"
)

// A verdict is an error that tells no failure.
type verdict string

func (v verdict) Error() string { return string(v) }

// Done is what a node returns to end well before its inputs have ended. Send returns Done when
// every consumer has ended.
const Done = verdict("dataflow: the node is done")

// The errors of this package. Errors wrap them: use errors.Is.
var (
	// ErrGraph is returned by New for a graph that cannot run.
	ErrGraph = plan.ErrGraph
	// ErrTwoGroups is returned by Group for a node that has a group.
	ErrTwoGroups = plan.ErrTwoGroups
	// ErrNoGroup is returned by Run with InGroup if a node has no group.
	ErrNoGroup = plan.ErrNoGroup
	// ErrGroup is returned by Run for the name of a group that the graph does not have.
	ErrGroup = plan.ErrGroup

	// ErrChannel is returned by SendTo and SendBack for a number that no channel has.
	ErrChannel = errors.New("dataflow: the node has no such channel")
	// ErrPanic is the cause of a run's end if a node has panicked.
	ErrPanic = errors.New("dataflow: the node panicked")
	// ErrCount is the cause of a run's end if a channel ended with another number of items than its
	// sender has sent.
	ErrCount = sched.ErrCount
	// ErrHash is the cause of a run's end if two groups have different graphs.
	ErrHash = errors.New("dataflow: two groups have different graphs")
	// ErrLost is the cause of a run's end if a group has ended before its channels have.
	ErrLost = errors.New("dataflow: a group is lost")
	// ErrCodec is the cause of a run's end if a codec of the program has panicked or has broken the
	// rules of rocl.Codec.
	ErrCodec = frames.ErrCodec
	// ErrStuck is part of the cause if a node had not returned long after the run had ended.
	ErrStuck = errors.New("dataflow: a node does not return")
)

// A RunError is the first failure of a run. Each group that the failure affects returns it.
type RunError struct {
	Graph string
	Group string // of the stage; empty without groups
	Stage string // the node's name, or of a group that was lost a node with an edge to this group; empty if no node has failed, such as when ctx ended
	// Edges has the edges between this group and Group, if that is another one.
	Edges []LostEdge
	Err   error // the cause; from another group it has the text of the cause, and matches ErrLost, ErrHash and the like if the cause does
}

// A LostEdge tells what crossed an edge before the group at its other end was lost or failed. The
// senders to that group and the receivers from it together tell what the group held.
type LostEdge struct {
	From, To     string // names of the nodes
	FromCh, ToCh int    // numbers of the channels
	Back         bool   // a feedback edge
	Sent         bool   // the items were sent to the other group; else they have come from it
	Items        uint64
	Taken        uint64 // of the items sent, how many the consumer is known to have taken
	// Origins has, for each input of the node From in that group, its forward inputs first, how
	// many of the items that have come From sent while it processed an item of that input. Items
	// that From sent in Start, InputEnded or Finish count for no input. Origins is nil if From has
	// one input, or is of this group. If From sends one item for each, as many items of that input
	// are done, and those after them are not.
	Origins []uint64
}

// String says what crossed the edge: "A → B: 7 items sent, 5 of them taken", or "… items have
// come".
func (e LostEdge) String() string {
	s := fmt.Sprintf("%s → %s: %d items ", e.From, e.To, e.Items)
	if e.Sent {
		return s + fmt.Sprintf("sent, %d of them taken", e.Taken)
	}
	s += "have come"
	if e.Origins != nil {
		s += fmt.Sprintf(", for its inputs %d", e.Origins)
	}
	return s
}

// Error names the stage and the group.
func (e *RunError) Error() string {
	s := fmt.Sprintf("dataflow: run %s", e.Graph)
	if e.Group != "" {
		s += ": group " + e.Group
	}
	if e.Stage != "" {
		s += ": stage " + e.Stage
	}
	return s + ": " + e.Err.Error()
}

// Unwrap returns the cause.
func (e *RunError) Unwrap() error { return e.Err }

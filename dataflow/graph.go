// SPDX-License-Identifier: Apache-2.0

package dataflow

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/rocl-go/rocl"
	"github.com/rocl-go/rocl/dataflow/internal/plan"
)

// A Graph is a checked graph that can run. Its methods may be called concurrently. A graph may run
// again when a run has ended, unless its nodes keep state.
type Graph struct {
	mu   sync.Mutex
	plan *plan.Plan
	runs map[*run]bool // under way
}

// New checks the graph under root and numbers its nodes and channels. It fails with ErrGraph.
func New(name string, root Part[None, None]) (*Graph, error) {
	if root.b == nil {
		return nil, errors.Join(ErrGraph, errors.New("dataflow: the root is no part"))
	}
	if err := errors.Join(root.b.errs...); err != nil {
		return nil, err
	}
	p, err := plan.New(name, &root.b.Block)
	if err != nil {
		return nil, err
	}
	return &Graph{plan: p, runs: map[*run]bool{}}, nil
}

// Group puts the nodes of the members into a group. A group may be given members several times. If
// one of the nodes has a group, Group fails with ErrTwoGroups and changes nothing. Group must not
// be called while the graph runs.
func (g *Graph) Group(name string, members ...Node) error {
	g.mu.Lock()
	defer g.mu.Unlock()
	blocks := make([]*plan.Block, len(members))
	for i, m := range members {
		b := m.part()
		if b == nil {
			return ErrGraph
		}
		blocks[i] = &b.Block
	}
	return g.plan.Group(name, blocks...)
}

// A RunOption is a setting of [Graph.Run].
type RunOption func(*runOptions)

type runOptions struct {
	c       *rocl.Context
	isGroup bool
	group   string
	cfg     Config
}

// A Config has the settings of one group of a run. A zero field is not set.
type Config struct {
	// Run identifies the run. The groups of a run have the same text. Two runs at once need
	// different ones. The default is the name of the graph.
	Run string
	// BatchItems, BatchBytes and BatchDelay say when the batches leave that this group sends to
	// others. They replace those of [Batch].
	BatchItems int
	BatchBytes int
	BatchDelay time.Duration
	// Window replaces that of [Window] for the channels that lead out of this group.
	Window int
	// Wait is how long Run waits for the groups with which this group has edges. The default is
	// 30 s.
	Wait time.Duration
	// Grace is how long Run waits for nodes to return when the run has ended early. The default is
	// 5 s. Then Run returns without them, and its error matches ErrStuck.
	Grace time.Duration
}

// InGroup lets Run run the nodes of one group. Edges that leave the group or enter it go over the
// context c, which stays the caller's.
func InGroup(c *rocl.Context, name string, cfg Config) RunOption {
	return func(o *runOptions) { o.c, o.isGroup, o.group, o.cfg = c, true, name, cfg }
}

// Using lets Run run all nodes, with a context by which elastic farms find their workers. The
// context stays the caller's.
func Using(c *rocl.Context, cfg Config) RunOption {
	return func(o *runOptions) { o.c, o.isGroup, o.cfg = c, false, cfg }
}

// Run runs the graph: without InGroup all its nodes, whatever groups they have. It returns when
// each of these nodes has ended: nil if all have ended well, and otherwise a *RunError with the
// first failure. A failure, and the end of ctx, end the whole run: the ctx that the nodes get ends,
// and Run returns as soon as the nodes have returned. A node that ignores the end of ctx holds Run
// up for 5 s, and in a group for the time of Config.Grace.
func (g *Graph) Run(ctx context.Context, o ...RunOption) error {
	var ro runOptions
	for _, f := range o {
		f(&ro)
	}
	r, err := g.newRun(ctx, ro)
	if err != nil {
		return err
	}
	return r.wait()
}

// EdgeStats are the figures of one edge in the runs of this process.
type EdgeStats struct {
	From, To       string // names of the nodes
	FromCh, ToCh   int    // numbers of the channels
	Back           bool   // a feedback edge
	Transport      string // local, or that of the link
	Items          uint64 // that have left the sender
	Bytes          uint64 // of these, encoded; 0 for a local edge
	Batches        uint64 // in which they left
	Waiting        int    // items that the consumer has not taken
	Waits          uint64 // how often the sender has waited for the consumer
	Copied         uint64 // bytes that were copied to cross
	OldestItem     time.Duration
	Dropped        uint64 // items for a consumer that had ended
	Ended, Started bool
}

// Stats returns the figures of each edge of the runs under way, in declaration order. An edge
// between two groups has the figures of the end in this process.
func (g *Graph) Stats() []EdgeStats {
	g.mu.Lock()
	defer g.mu.Unlock()
	var all []EdgeStats
	for r := range g.runs {
		all = append(all, r.stats()...)
	}
	return all
}

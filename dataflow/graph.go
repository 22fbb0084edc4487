// SPDX-License-Identifier: Apache-2.0

package dataflow

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
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
	log     *slog.Logger // nil: figures are not logged
	every   time.Duration
	tracer  Tracer // nil: nothing is sampled
	oneIn   int
	c       *rocl.Context
	isGroup bool
	group   string
	cfg     Config
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
		if f != nil {
			f(&ro)
		}
	}
	if ro.isGroup && ro.c == nil {
		return fmt.Errorf("dataflow: run group %q of %s: %w: the context is nil", ro.group, g.plan.Name, fs.ErrInvalid)
	}
	r, err := g.newRun(ctx, ro)
	if err != nil {
		return err
	}
	return r.wait()
}

// SPDX-License-Identifier: Apache-2.0

package dataflow

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"time"

	"github.com/rocl-go/rocl"
	"github.com/rocl-go/rocl/dataflow/internal/plan"
)

// A run is one run of a graph, or of one group of it.
type run struct {
	g      *Graph
	plan   *plan.Plan
	group  string        // empty without groups
	c      *rocl.Context // nil if there is none
	cfg    Config
	ctx    context.Context
	cancel context.CancelFunc
	nodes  []node  // by the index in the plan; nil in another group
	remote *remote // nil without groups

	log   *slog.Logger // nil: figures are not logged
	every time.Duration

	tracer Tracer // nil: nothing is sampled
	oneIn  int    // so many items of a source, one is sampled

	mu  sync.Mutex
	err *RunError // the first failure
}

// newRun makes the nodes and edges of a run, and starts them.
func (g *Graph) newRun(ctx context.Context, o runOptions) (*run, error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	r := &run{g: g, plan: g.plan, group: o.group, c: o.c, cfg: o.cfg, log: o.log, every: o.every, tracer: o.tracer, oneIn: o.oneIn, nodes: make([]node, len(g.plan.Nodes))}
	r.cfg.Run = cmp.Or(r.cfg.Run, g.plan.Name)
	if o.isGroup {
		if err := g.plan.Check(o.group); err != nil {
			return nil, err
		}
		if err := r.cfg.checkPolicy(); err != nil {
			return nil, err
		}
		r.cfg.Wait = cmp.Or(r.cfg.Wait, defaultWait)
		r.remote = newRemote(r, o.c)
	}
	r.ctx, r.cancel = context.WithCancel(ctx)
	for i, n := range g.plan.Nodes {
		if r.isMine(n) {
			r.nodes[i] = n.Block.Data.(*block).make(r, n)
		}
	}
	for _, e := range g.plan.Edges {
		from, to := r.nodes[e.From.Index], r.nodes[e.To.Index]
		switch {
		case from != nil && to != nil:
			from.sender().connect(e, to.receiver())
		case from != nil:
			from.sender().connectRemote(e, r.remote)
		case to != nil:
			to.receiver().acceptRemote(e, r.remote)
		}
	}
	g.runs[r] = true
	return r, nil
}

// isMine reports whether this run has the node.
func (r *run) isMine(n *plan.Node) bool { return r.remote == nil || n.Group == r.group }

// isLocal reports whether both ends of an edge are in this run.
func (r *run) isLocal(e *plan.Edge) bool { return r.isMine(e.From) && r.isMine(e.To) }

// sending returns the options by which a node sends: its own, those of the block around, those of
// the group, and the defaults.
func (r *run) sending(n *plan.Node) options {
	s := n.Block.Data.(*block).opts
	for _, e := range n.Out {
		s.choice = e.Choice
		if e.Via != nil {
			via := e.Via.Data.(*block).opts
			s.batch = s.batch.or(via.batch)
			s.window = cmp.Or(s.window, via.window)
			if s.key == nil {
				s.key = via.key
			}
			s.demand = cmp.Or(s.demand, via.demand)
		}
		if !r.isLocal(e) {
			s.batch = batchLimits{r.cfg.BatchItems, r.cfg.BatchBytes, r.cfg.BatchDelay}.or(s.batch)
		}
	}
	if r.cfg.Policy != nil && isFree(s.choice) {
		r.cfg.Policy.set(&s)
	}
	s.batch = s.batch.or(batchLimits{defaultCount, defaultBytes, defaultDelay})
	return s
}

// or returns the limits with those of d where they are not set.
func (l batchLimits) or(d batchLimits) batchLimits {
	return batchLimits{cmp.Or(l.count, d.count), cmp.Or(l.bytes, d.bytes), cmp.Or(l.delay, d.delay)}
}

// windowOf returns how many items may be under way on an edge of a node that sends by s.
func (r *run) windowOf(e *plan.Edge, s options) int {
	switch {
	case s.choice == plan.OnDemand:
		return s.demand
	case !r.isLocal(e) && r.cfg.Window > 0:
		return r.cfg.Window
	}
	return cmp.Or(s.window, max(defaultWindow, batchesUnderWay*s.batch.count))
}

// wait runs the nodes and returns when they have ended.
func (r *run) wait() error {
	defer r.forget()
	defer r.cancel()
	if r.remote != nil {
		if err := r.remote.start(); err != nil {
			r.fail(nil, err)
			r.remote.stop()
			return r.failure()
		}
	}
	if r.log != nil {
		defer r.logStats(r.log, r.every)()
	}
	stop := context.AfterFunc(r.ctx, r.endNodes)
	defer stop()
	ended := make([]chan struct{}, len(r.nodes))
	for i, n := range r.nodes {
		if n != nil {
			ended[i] = make(chan struct{})
			go func() {
				defer close(ended[i])
				defer r.remote.ended(r.plan.Nodes[i])
				if err := n.run(r.ctx); err != nil {
					r.fail(r.plan.Nodes[i], err)
				}
			}()
		}
	}
	stuck := r.join(ended)
	if r.remote != nil {
		r.remote.stop()
	}
	f := r.failure()
	if f == nil {
		return nil
	}
	told := *f
	if r.remote != nil && f.Group != r.group {
		told.Edges = r.remote.edgesWith(f.Group)
	}
	if stuck != nil {
		told.Err = fmt.Errorf("%w (and %w: %s)", f.Err, ErrStuck, strings.Join(stuck, ", "))
	}
	return &told
}

// endNodes ends the nodes' waits when the run has ended early, and tells the other groups.
func (r *run) endNodes() {
	r.fail(nil, context.Cause(r.ctx))
	for _, n := range r.nodes {
		if n != nil {
			n.receiver().stop()
		}
	}
	if r.remote != nil {
		r.remote.tellFailure()
	}
}

// join waits for the nodes. It returns the names of those that have not returned long after the run
// has ended.
func (r *run) join(ended []chan struct{}) (stuck []string) {
	grace, cancel := context.WithCancel(context.Background())
	defer cancel()
	for i, c := range ended {
		if c == nil {
			continue
		}
		select {
		case <-c:
			continue
		case <-r.ctx.Done():
		}
		if _, ok := grace.Deadline(); !ok {
			var end context.CancelFunc
			grace, end = context.WithTimeout(grace, cmp.Or(r.cfg.Grace, defaultGrace))
			defer end()
		}
		select {
		case <-c:
		case <-grace.Done():
			stuck = append(stuck, r.plan.Nodes[i].Name)
		}
	}
	return stuck
}

// push lets messages leave that wait for more to leave with them. rocl would let them leave after
// at most a millisecond, or as soon as a goroutine of the context waits for a message.
func (r *run) push() {
	if r.remote != nil {
		r.remote.c.Poll()
	}
}

// forget removes the run from its graph.
func (r *run) forget() {
	r.g.mu.Lock()
	defer r.g.mu.Unlock()
	delete(r.g.runs, r)
}

// fail ends the run. Only the first failure counts. n is nil if no node has failed.
func (r *run) fail(n *plan.Node, err error) {
	e := &RunError{Graph: r.plan.Name, Group: r.group, Err: err}
	if n != nil {
		e.Stage = n.Name
	}
	r.failWith(e)
}

// failWith ends the run with a failure, which may be one of another group.
func (r *run) failWith(e *RunError) {
	r.mu.Lock()
	isFirst := r.err == nil
	if isFirst {
		if ended := context.Cause(r.ctx); ended != nil && errors.Is(e.Err, ended) {
			e.Stage = "" // the node has returned why its ctx ended
		}
		r.err = e
	}
	r.mu.Unlock()
	if isFirst {
		r.cancel()
	}
}

// failure returns the first failure, or nil.
func (r *run) failure() *RunError {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.err
}

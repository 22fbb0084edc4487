// SPDX-License-Identifier: Apache-2.0

// Package observe gathers what the contexts of a node or a cluster tell about themselves, and
// compares what they told one after another. The commands rocl top, rocl waits and rocl record show
// it, and so do the page and the metrics of dirserver.
//
// A context chooses what it tells. So [View.Clean] cuts texts, quotes the characters that would
// control a terminal, shortens lists and limits numbers. All texts of this package are safe on a
// terminal. A page must still escape its own syntax.
package observe

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/rocl-go/rocl"
	"github.com/rocl-go/rocl/dispatch"
	"github.com/rocl-go/rocl/internal/display"
	"github.com/rocl-go/rocl/resource"
)

// A View is what a node, or a cluster, has at one moment.
type View struct {
	Taken    time.Time `json:"taken"`    // when the contexts were asked
	Contexts []Context `json:"contexts"` // by identifier
	Nodes    []Node    `json:"nodes"`    // by identifier; without the cluster only the node that was asked

	// Names has attributes, in a short form, of resources that are waited for and of which no
	// context told.
	Names map[rocl.GID]string `json:"names,omitempty"`
}

// A Context is what one context told. Only Context, PID and Program of the snapshot are set if it
// told nothing. The first two are always those of the directory.
type Context struct {
	rocl.Snapshot
	Silent string `json:"silent,omitempty"` // why there is no snapshot
}

// A Node is a node of the cluster.
type Node struct {
	ID    resource.NodeID `json:"id"`
	Name  string          `json:"name,omitempty"`  // the name of the machine, and the labels
	Addr  string          `json:"addr,omitempty"`  // HOST:PORT in the cluster
	Error string          `json:"error,omitempty"` // why the node could not be asked
}

// Gather asks every context of c's node at the same time, without c itself, and with isCluster the
// other nodes for their summaries. A context that has not answered within limit is Silent. Gather
// fails if the directory of c's node does not answer within limit. It may be called concurrently.
func Gather(ctx context.Context, c *rocl.Context, isCluster bool, limit time.Duration) (*View, error) {
	v := &View{Taken: time.Now()}
	within, cancel := context.WithDeadline(ctx, v.Taken.Add(limit))
	defer cancel()
	var mu sync.Mutex // guards v.Contexts
	var asking sync.WaitGroup
	told := map[rocl.GID]Context{} // by contexts of other nodes
	sums := map[resource.NodeID]summary{}
	asking.Go(func() {
		v.Nodes = nodes(within, c, isCluster)
		sumUp(within, c, v.Nodes, told, sums)
	})
	var found []Context // that are to be told: those of other nodes with isCluster
	err := error(nil)
	for f, ferr := range c.FindAll(within, rocl.Match{rocl.AttrKind: "context"}, rocl.Want(rocl.AttrPID, rocl.AttrProgram)) {
		if err = ferr; err != nil {
			break
		}
		one := Context{Snapshot: rocl.Snapshot{Context: f.ID}}
		one.PID, _ = strconv.Atoi(f.Attrs.GetString(rocl.AttrPID))
		one.Program = f.Attrs.GetString(rocl.AttrProgram)
		switch {
		case f.ID == c.ID():
		case f.ID.Node() != c.ID().Node():
			found = append(found, one)
		default:
			asking.Go(func() {
				if !one.ask(within, c) {
					return
				}
				mu.Lock()
				defer mu.Unlock()
				v.Contexts = append(v.Contexts, one)
			})
		}
	}
	asking.Wait()
	if len(v.Nodes) > 0 && (errors.Is(err, rocl.ErrPartial) || errors.Is(err, context.DeadlineExceeded)) {
		err = nil // the directory of this node has answered, and has told its contexts before it asked other nodes
	}
	if ctx.Err() != nil || err != nil && len(v.Contexts)+len(found) == 0 {
		return nil, fmt.Errorf("observe: find the contexts of the node: %w", cmp.Or(context.Cause(ctx), err))
	}
	if isCluster {
		sums[c.ID().Node()] = summary{} // its contexts were asked
		v.merge(found, told, sums)
	}
	v.Clean()
	v.name(ctx, c, limit)
	return v, nil
}

// A summary says how the question to a node ended.
type summary struct {
	problem string
	isCut   bool // contexts were left out
}

// sumUp asks the nodes but c's own for their summaries, and sets what each context has told.
func sumUp(ctx context.Context, c *rocl.Context, nodes []Node, told map[rocl.GID]Context, sums map[resource.NodeID]summary) {
	var others []resource.NodeID
	for _, n := range nodes {
		if n.ID != c.ID().Node() {
			others = append(others, n.ID)
		}
	}
	if len(others) == 0 {
		return
	}
	for s, err := range c.Summaries(ctx, others...) {
		sum := summary{isCut: s.Cut["contexts"]+s.Cut["silent"] > 0}
		if err != nil {
			sum.problem = err.Error()
		}
		sums[s.Node] = sum
		for _, one := range s.Contexts {
			told[one.Context] = Context{Snapshot: one}
		}
		for _, id := range s.Silent {
			told[id] = Context{Silent: noAnswer}
		}
	}
}

// merge adds the contexts of other nodes that were found, with what they have told. A node's
// directory does not tell of the context by which it asks.
func (v *View) merge(found []Context, told map[rocl.GID]Context, sums map[resource.NodeID]summary) {
	for i := range v.Nodes {
		n := &v.Nodes[i]
		if sum, isAsked := sums[n.ID]; isAsked {
			n.Error = sum.problem
		} else {
			n.Error = noAnswer
		}
	}
	for _, f := range found {
		one, isTold := told[f.Context]
		switch {
		case isTold && one.Silent == "":
			one.PID = f.PID
			v.Contexts = append(v.Contexts, one)
		case isTold:
			f.Silent = one.Silent
			v.Contexts = append(v.Contexts, f)
		case sums[f.Context.Node()].isCut:
			f.Silent = "left out of the summary of its node"
			v.Contexts = append(v.Contexts, f)
		}
	}
}

// name asks the directory for the names of resources that are waited for and of which no context
// told, such as those of silent contexts.
func (v *View) name(ctx context.Context, c *rocl.Context, limit time.Duration) {
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	told, wanted := map[rocl.GID]bool{}, map[rocl.GID]bool{}
	for i := range v.Contexts {
		s := &v.Contexts[i]
		for j := range s.Resources {
			told[s.Resources[j].Resource] = true
			for _, w := range s.Resources[j].Waits {
				for _, id := range w.From {
					wanted[id] = true
				}
			}
		}
		for _, w := range s.Calls {
			wanted[w.To] = true
		}
		for _, w := range s.Sends {
			wanted[w.To] = true
		}
	}
	v.Names = map[rocl.GID]string{}
	asked := 0
	for id := range wanted {
		if told[id] || id == id.Context() || asked == maxNames {
			continue
		}
		asked++
		f, err := c.Lookup(ctx, id)
		if ctx.Err() != nil {
			return
		}
		if err == nil {
			v.Names[id] = display.Short(labels(&f.Attrs))
		}
	}
}

// nodes returns c's node, or all nodes of the cluster.
func nodes(ctx context.Context, c *rocl.Context, isCluster bool) (all []Node) {
	var covered rocl.Coverage
	if !isCluster {
		if f, err := c.Lookup(ctx, resource.MakeGID(c.ID().Node(), 0, 0)); err == nil {
			all = append(all, newNode(&f))
		}
		return all
	}
	for f, err := range c.FindAll(ctx, rocl.Match{rocl.AttrKind: "node"}, rocl.Covered(&covered)) {
		if err != nil {
			break
		}
		all = append(all, newNode(&f))
	}
	for _, id := range covered.Failed {
		all = append(all, Node{ID: id, Error: noAnswer})
	}
	return all
}

func newNode(f *rocl.Found) Node {
	return Node{ID: f.ID.Node(), Name: strings.TrimSpace(f.Attrs.GetString(rocl.AttrHost) + " " + labels(&f.Attrs)), Addr: f.Attrs.GetString(rocl.AttrAddr)}
}

// ask asks the context for its snapshot. It reports false if the context has ended meanwhile.
func (t *Context) ask(ctx context.Context, c *rocl.Context) bool {
	id, pid := t.Context, t.PID
	s, err := c.SnapshotOf(ctx, id)
	if errors.Is(err, rocl.ErrNotFound) || errors.Is(err, rocl.ErrGone) {
		if _, err := c.Lookup(ctx, id, rocl.AttrKind); errors.Is(err, rocl.ErrNotFound) {
			return false
		}
	}
	switch {
	case errors.Is(err, context.DeadlineExceeded):
		t.Silent = noAnswer
	case err != nil:
		t.Silent = err.Error()
	default:
		t.Snapshot = s
		t.Context, t.PID = id, pid
	}
	return true
}

// labels returns attributes, without those of the library.
func labels(a *rocl.List) string {
	var all []string
	for name, value := range a.All() {
		if !strings.HasPrefix(name, resource.SystemPrefix) {
			all = append(all, name+"="+string(value[:min(len(value), display.MaxText)]))
		}
	}
	return strings.Join(all[:min(len(all), 8)], " ")
}

// maxNames is of how many resources the names are asked for.
const maxNames = 1000

const noAnswer = "no answer" // within the limit

// Clean makes the values of a view safe to show and to compute with, and brings the contexts and
// nodes into order. Gather does so. Clean is for the reader of a view from a file.
func (v *View) Clean() {
	display.Clean(v)
	slices.SortFunc(v.Contexts, func(a, b Context) int { return a.Context.Compare(b.Context) })
	v.Contexts = slices.CompactFunc(v.Contexts, func(a, b Context) bool { return a.Context == b.Context })
	slices.SortFunc(v.Nodes, func(a, b Node) int { return cmp.Compare(a.ID, b.ID) })
	for i := range v.Contexts { // a context tells of itself only
		c := &v.Contexts[i]
		isOther := func(id rocl.GID) bool { return id.Context() != c.Context }
		c.Resources = slices.DeleteFunc(c.Resources, func(r rocl.ResourceSnapshot) bool { return isOther(r.Resource) })
		c.Calls = slices.DeleteFunc(c.Calls, func(w dispatch.CallSnapshot) bool { return isOther(w.From) })
		c.Sends = slices.DeleteFunc(c.Sends, func(w dispatch.SendSnapshot) bool { return isOther(w.From) })
	}
}

// number limits a number to those that are from 0 to display.MaxNumber.
func number[N ~int | ~int64](n N) N { return N(min(max(int64(n), 0), display.MaxNumber)) }

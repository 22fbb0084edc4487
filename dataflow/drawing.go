// SPDX-License-Identifier: Apache-2.0

package dataflow

import (
	"fmt"
	"io"
	"slices"

	"github.com/rocl-go/rocl/dataflow/internal/plan"
	"github.com/rocl-go/rocl/internal/flowfile"
)

// drawing returns of what the graph consists.
func (g *Graph) drawing() *flowfile.Drawing {
	g.mu.Lock()
	defer g.mu.Unlock()
	p := g.plan
	d := &flowfile.Drawing{Graph: p.Name, Hash: p.Hash(), Groups: p.Groups}
	for _, n := range p.Nodes {
		d.Nodes = append(d.Nodes, flowfile.Node{Name: n.Name, Group: n.Group, In: n.Block.In, Out: n.Block.Out})
	}
	for _, e := range p.Edges {
		f := flowfile.Edge{From: e.From.Index, To: e.To.Index, Back: e.IsBack}
		if !e.IsBack && len(e.From.Out) > 1 {
			f.Policy = e.Choice.String()
		}
		d.Edges = append(d.Edges, f)
	}
	return d
}

// show prints the nodes of a group, or of all groups, and where they send.
func (g *Graph) show(w io.Writer, group string) {
	d := g.drawing()
	for i, n := range d.Nodes {
		if group != "all" && group != n.Group {
			continue
		}
		fmt.Fprintf(w, "%s: %s:", n.Group, n.Name)
		for _, e := range d.Edges {
			if e.From == i {
				fmt.Fprintf(w, " %s", d.Nodes[e.To].Name)
			}
		}
		fmt.Fprintln(w)
	}
}

// groups returns the names of the groups.
func (g *Graph) groups() []string {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.plan.Groups
}

// needsContext reports whether the graph has an elastic farm.
func (g *Graph) needsContext() bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	return slices.ContainsFunc(g.plan.Nodes, func(n *plan.Node) bool { return n.Block.Data.(*block).opts.needsContext })
}

// check reports whether each node has a group, and a group of the given name exists.
func (g *Graph) check(group string) error {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.plan.Check(group)
}

// SPDX-License-Identifier: Apache-2.0

// Package plan flattens a graph of blocks to nodes and edges, numbers their channels, cuts them
// into groups and checks all of that. It has no goroutines and knows no items.
package plan

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
)

// The errors of a graph. Package dataflow exports them.
var (
	ErrGraph     = errors.New("dataflow: the graph is invalid")
	ErrTwoGroups = errors.New("dataflow: a node belongs to two groups")
	ErrNoGroup   = errors.New("dataflow: a node belongs to no group")
	ErrGroup     = errors.New("dataflow: the graph has no such group")
)

// Kind is the form of a block.
type Kind uint8

// The kinds of blocks.
const (
	Leaf     Kind = iota // a node
	Pipe                 // Parts in a chain
	Farm                 // Parts side by side
	AllToAll             // the first Left Parts are each connected with each of the others
	Loop                 // the outputs of the only part are connected back to its inputs
	Ring                 // a Loop that has no other edges
)

// Choice is how a node chooses a channel for an item.
type Choice uint8

// The choices. Unset stands for that of the block around, and in the end for Balanced.
const (
	Unset Choice = iota
	Balanced
	RoundRobin
	PreferLocal
	OnDemand
	ByKey
	Broadcast
	OneToOne
)

// String returns the name of the choice in package dataflow.
func (c Choice) String() string {
	return [...]string{"Unset", "Balanced", "RoundRobin", "PreferLocal", "OnDemand", "ByKey", "Broadcast", "OneToOne"}[c]
}

// A Block is a piece of a graph, before it is flattened.
type Block struct {
	Kind    Kind
	Name    string // may be empty
	Parts   []*Block
	Left    int    // of an AllToAll
	In, Out string // the types of a Leaf's items; empty for a source's input and a sink's output
	Choice  Choice // of a Leaf: how it sends; of an AllToAll: how its left parts send; of a Farm: how items come to it
	Joins   Joins  // of a Leaf
	Data    any    // the caller's
}

// Joins says which group a Leaf gets to which none was given.
type Joins uint8

// The groups of a Leaf to which none was given.
const (
	None   Joins = iota
	Before       // that of the first node that sends to it, or else that of the first that it sends to
	Behind       // that of the first node that it sends to, or else that of the first that sends to it
)

// A Node is a Leaf in a plan.
type Node struct {
	Index      int // in declaration order
	Name       string
	Group      string // empty until a group has it
	Block      *Block
	In, InBack []*Edge // the input channels, forward and feedback, in the order of their numbers
	Out, Back  []*Edge // the output channels, forward and feedback
}

// An Edge connects an output channel of one node with an input channel of another.
type Edge struct {
	Index    int // in declaration order
	From, To *Node
	FromCh   int    // among From.Out or From.Back
	ToCh     int    // among To.In or To.InBack
	IsBack   bool   // feedback
	Via      *Block // the AllToAll or Farm whose options hold for the edge; nil without one
	Choice   Choice // how From chooses among its channels
}

// IsLocal reports whether both ends of the edge are in one group.
func (e *Edge) IsLocal() bool { return e.From.Group == e.To.Group }

// A Plan is a graph flattened to nodes and edges.
type Plan struct {
	Name   string
	Nodes  []*Node
	Edges  []*Edge
	Groups []string // in declaration order
	byLeaf map[*Block]*Node
	names  map[string]bool
}

// ends are the nodes by which a block is connected with others.
type ends struct{ ins, outs []*Node }

// New flattens the graph under root. It fails with ErrGraph if the graph is invalid.
func New(name string, root *Block) (*Plan, error) {
	p := &Plan{Name: name, byLeaf: map[*Block]*Node{}, names: map[string]bool{}}
	if _, err := p.flatten(root, ""); err != nil {
		return nil, fmt.Errorf("%w: graph %q: %w", ErrGraph, name, err)
	}
	if err := p.checkCycles(); err != nil {
		return nil, fmt.Errorf("%w: graph %q: %w", ErrGraph, name, err)
	}
	return p, nil
}

// flatten adds the nodes and edges of a block. suffix makes the names of a farm's parts differ.
func (p *Plan) flatten(b *Block, suffix string) (ends, error) {
	if b.Kind == Leaf {
		return p.addNode(b, suffix)
	}
	parts := make([]ends, len(b.Parts))
	for i, part := range b.Parts {
		s := suffix
		if b.Kind == Farm {
			s = fmt.Sprintf("%s-%d", suffix, i)
		}
		var err error
		if parts[i], err = p.flatten(part, s); err != nil {
			return ends{}, err
		}
	}
	switch b.Kind {
	case Pipe:
		for i := 1; i < len(parts); i++ {
			if err := p.connect(parts[i-1].outs, parts[i].ins, entry(b.Parts[i]), false); err != nil {
				return ends{}, err
			}
		}
		return ends{parts[0].ins, parts[len(parts)-1].outs}, nil
	case AllToAll:
		left, right := join(parts[:b.Left]), join(parts[b.Left:])
		return ends{left.ins, right.outs}, p.connect(left.outs, right.ins, b, false)
	case Loop, Ring:
		if err := p.connect(parts[0].outs, parts[0].ins, nil, true); err != nil || b.Kind == Ring {
			return ends{}, err
		}
		return parts[0], nil
	}
	return join(parts), nil
}

// join returns the ends of blocks side by side.
func join(parts []ends) (all ends) {
	for _, e := range parts {
		all.ins, all.outs = append(all.ins, e.ins...), append(all.outs, e.outs...)
	}
	return all
}

// entry returns the Farm with which a block begins, or nil.
func entry(b *Block) *Block {
	for {
		switch b.Kind {
		case Farm:
			return b
		case Pipe, Loop:
			b = b.Parts[0]
		default:
			return nil
		}
	}
}

// addNode adds a node. Its name gets a number if the leaf has none.
func (p *Plan) addNode(b *Block, suffix string) (ends, error) {
	n := &Node{Index: len(p.Nodes), Block: b, Name: b.Name + suffix}
	if b.Name == "" {
		n.Name = fmt.Sprintf("node%d", n.Index)
	}
	switch {
	case p.byLeaf[b] != nil:
		return ends{}, fmt.Errorf("the node %q is used twice", n.Name)
	case p.names[n.Name]:
		return ends{}, fmt.Errorf("two nodes have the name %q", n.Name)
	}
	p.byLeaf[b], p.names[n.Name] = n, true
	p.Nodes = append(p.Nodes, n)
	var e ends
	if b.In != "" {
		e.ins = []*Node{n}
	}
	if b.Out != "" {
		e.outs = []*Node{n}
	}
	return e, nil
}

// connect adds the edges from each node of from to each of to, or one to one.
func (p *Plan) connect(from, to []*Node, via *Block, isBack bool) error {
	switch {
	case len(from) == 0 && len(to) == 0:
		return errors.New("a part without an output is connected with one without an input")
	case len(from) == 0:
		return fmt.Errorf("the node %q has an input, and the part before it has no output", to[0].Name)
	case len(to) == 0:
		return fmt.Errorf("the node %q has an output, and the part behind it has no input", from[0].Name)
	}
	pairs := 0
	for i, f := range from {
		choice := f.Block.Choice
		if choice == Unset && via != nil {
			choice = via.Choice
		}
		if choice == Unset {
			choice = Balanced
		}
		if choice != OneToOne || isBack {
			for _, t := range to {
				p.addEdge(f, t, via, choice, isBack)
			}
			continue
		}
		pairs++
		if len(from) != len(to) {
			return fmt.Errorf("the node %q sends one to one, but there are %d senders for %d receivers", f.Name, len(from), len(to))
		}
		p.addEdge(f, to[i], via, choice, false)
	}
	if pairs != 0 && pairs != len(from) {
		return fmt.Errorf("of the nodes beside %q some send one to one and some do not", from[0].Name)
	}
	return nil
}

// addEdge adds an edge and numbers its channels.
func (p *Plan) addEdge(from, to *Node, via *Block, choice Choice, isBack bool) {
	outs, ins := &from.Out, &to.In
	if isBack {
		outs, ins = &from.Back, &to.InBack
	}
	e := &Edge{Index: len(p.Edges), From: from, To: to, FromCh: len(*outs), ToCh: len(*ins), IsBack: isBack, Via: via, Choice: choice}
	*outs, *ins, p.Edges = append(*outs, e), append(*ins, e), append(p.Edges, e)
}

// checkCycles refuses a broadcast within a cycle: each turn would multiply the items.
func (p *Plan) checkCycles() error {
	for _, e := range p.Edges {
		if !e.IsBack && e.Choice == Broadcast && len(e.From.Out) > 1 && p.reaches(e.To, e.From) {
			return fmt.Errorf("the node %q broadcasts within a cycle: the items would multiply without bound", e.From.Name)
		}
	}
	return nil
}

// reaches reports whether items of one node can come to another.
func (p *Plan) reaches(from, to *Node) bool {
	seen := map[*Node]bool{}
	var visit func(n *Node) bool
	visit = func(n *Node) bool {
		if n == to {
			return true
		}
		if seen[n] {
			return false
		}
		seen[n] = true
		for _, es := range [][]*Edge{n.Out, n.Back} {
			for _, e := range es {
				if visit(e.To) {
					return true
				}
			}
		}
		return false
	}
	return visit(from)
}

// Leaf returns the node of a leaf, or nil if the leaf is not in the graph.
func (p *Plan) Leaf(b *Block) *Node { return p.byLeaf[b] }

// Leaves returns the leaves of a block in declaration order.
func Leaves(b *Block) (all []*Block) {
	if b.Kind == Leaf {
		return []*Block{b}
	}
	for _, part := range b.Parts {
		all = append(all, Leaves(part)...)
	}
	return all
}

// Group puts the nodes of blocks into a group. If it fails, nothing has changed.
func (p *Plan) Group(name string, members ...*Block) error {
	if name == "" {
		return fmt.Errorf("%w: the name of a group is empty", ErrGroup)
	}
	var nodes []*Node
	mine := map[*Node]bool{}
	for _, m := range members {
		for _, b := range Leaves(m) {
			n := p.byLeaf[b]
			switch {
			case n == nil:
				return fmt.Errorf("%w: group %q: a member is not in the graph %q", ErrGraph, name, p.Name)
			case n.Group != "":
				return fmt.Errorf("%w: %q is in %q and in %q", ErrTwoGroups, n.Name, n.Group, name)
			case mine[n]:
				return fmt.Errorf("%w: %q is twice in %q", ErrTwoGroups, n.Name, name)
			}
			mine[n] = true
			nodes = append(nodes, n)
		}
	}
	for _, n := range nodes {
		n.Group = name
	}
	if !p.HasGroup(name) {
		p.Groups = append(p.Groups, name)
	}
	return nil
}

// HasGroup reports whether the graph has a group of that name.
func (p *Plan) HasGroup(name string) bool {
	for _, g := range p.Groups {
		if g == name {
			return true
		}
	}
	return false
}

// Check reports whether each node has a group, and a group of the given name exists.
func (p *Plan) Check(group string) error {
	if !p.HasGroup(group) {
		return fmt.Errorf("%w: graph %q, group %q; its groups are %q", ErrGroup, p.Name, group, p.Groups)
	}
	p.join()
	for _, n := range p.Nodes {
		if n.Group == "" {
			return fmt.Errorf("%w: %q of graph %q", ErrNoGroup, n.Name, p.Name)
		}
	}
	return nil
}

// join gives groups to the nodes that join others.
func (p *Plan) join() {
	given := map[*Node]string{}
	for _, n := range p.Nodes {
		given[n] = n.Group
	}
	for _, n := range p.Nodes {
		if n.Group != "" || n.Block.Joins == None || len(n.In) == 0 || len(n.Out) == 0 {
			continue
		}
		first, second := n.In[0].From, n.Out[0].To
		if n.Block.Joins == Behind {
			first, second = second, first
		}
		if n.Group = given[first]; n.Group == "" {
			n.Group = given[second]
		}
	}
}

// Hash returns a short text that differs between graphs that cannot run together: other nodes,
// types, edges, choices or groups.
func (p *Plan) Hash() string {
	h := sha256.New()
	fmt.Fprintf(h, "%q\n", p.Name)
	for _, n := range p.Nodes {
		fmt.Fprintf(h, "%d %q %q %q %q\n", n.Index, n.Name, n.Group, n.Block.In, n.Block.Out)
	}
	for _, e := range p.Edges {
		writeEdge(h, e)
	}
	return hex.EncodeToString(h.Sum(nil)[:8])
}

func writeEdge(w io.Writer, e *Edge) {
	fmt.Fprintf(w, "%d:%d>%d:%d %v %v\n", e.From.Index, e.FromCh, e.To.Index, e.ToCh, e.IsBack, e.Choice)
}

// SPDX-License-Identifier: Apache-2.0

package flowfile

import (
	"encoding/json"
	"os"
	"slices"
)

// A Drawing says of what a graph consists.
type Drawing struct {
	Graph  string   `json:"graph"`
	Hash   string   `json:"hash"` // see plan.Plan
	Groups []string `json:"groups"`
	Nodes  []Node   `json:"nodes"`
	Edges  []Edge   `json:"edges"`
}

// A Node is a node of a drawing.
type Node struct {
	Name  string `json:"name"`
	Group string `json:"group,omitempty"`
	In    string `json:"in,omitempty"`  // the type of its inputs; empty: a source
	Out   string `json:"out,omitempty"` // the type of its outputs; empty: a sink
}

// An Edge connects the nodes with two indices.
type Edge struct {
	From   int    `json:"from"`
	To     int    `json:"to"`
	Back   bool   `json:"back,omitempty"`
	Policy string `json:"policy,omitempty"`
}

// Write writes the drawing to a file.
func (d *Drawing) Write(name string) error {
	return os.WriteFile(name, d.JSON(), 0o666)
}

// JSON returns the drawing as Write writes it.
func (d *Drawing) JSON() []byte {
	b, _ := json.MarshalIndent(d, "", "  ") // cannot fail
	return append(b, '\n')
}

// Configuration returns a configuration with the groups of the graph and the names of their nodes,
// in the form of FastFlow's dry run.
func (d *Drawing) Configuration() []byte {
	type group struct {
		Name  string   `json:"name"`
		Nodes []string `json:"includedNodes"`
	}
	groups := []group{}
	for _, name := range d.Groups {
		g := group{Name: name}
		for _, n := range d.Nodes {
			if n.Group == name {
				g.Nodes = append(g.Nodes, n.Name)
			}
		}
		groups = append(groups, g)
	}
	b, _ := json.MarshalIndent(map[string]any{"groups": groups}, "", "  ") // cannot fail
	return append(b, '\n')
}

// ReadDrawing reads what Write has written.
func ReadDrawing(name string) (*Drawing, error) {
	b, err := os.ReadFile(name)
	if err != nil {
		return nil, err
	}
	var d Drawing
	if err := json.Unmarshal(b, &d); err != nil {
		return nil, err
	}
	isOutside := func(e Edge) bool { return min(e.From, e.To) < 0 || max(e.From, e.To) >= len(d.Nodes) }
	if slices.ContainsFunc(d.Edges, isOutside) {
		return nil, &Error{File: name, Key: "edges", Err: os.ErrInvalid}
	}
	return &d, nil
}

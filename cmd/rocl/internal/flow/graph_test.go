// SPDX-License-Identifier: Apache-2.0

package flow

import (
	"bytes"
	"encoding/xml"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"testing"

	"github.com/rocl-go/rocl/cmd/rocl/internal/cli"
	"github.com/rocl-go/rocl/internal/flowfile"
	"github.com/rocl-go/rocl/internal/testkit/try"
	"pgregory.net/rapid"
)

// rocl runs rocl flow with arguments and the program behind them, and returns the exit code.
func (b *bench) rocl(args, how string) int {
	b.Helper()
	root := cli.Root()
	root.AddCommand(Commands()...)
	root.SetOut(&b.out)
	root.SetErr(&b.err)
	self := try.Get(os.Executable())(b)
	return cli.Run(b.Context(), root, append(append([]string{"flow"}, strings.Fields(args)...), self, how))
}

// Promise (Dataflow): The graph of a program can be drawn, with groups as boxes, without running
// it.
func TestGraph(t *testing.T) {
	b := newBench(t)
	try.Equal(t, b.rocl("graph", "ok"), 0, b.err.String())
	try.Equal(t, b.out.String(), `flowchart LR
    subgraph g0["a"]
        n0(["numbers"])
    end
    subgraph g1["b"]
        n1["stage"]
    end
    subgraph g2["c"]
        n2(["sum"])
    end
    n0 ==> n1
    n1 ==> n2
`)
	try.Equal(t, b.rocl("graph -o "+b.path("g.svg"), "ok"), 0, b.err.String())
	checkXML(t, try.Get(os.ReadFile(b.path("g.svg")))(t))
	try.Equal(t, b.rocl("graph -o "+b.path("g.json"), "ok"), 0, b.err.String())
	d := try.Get(flowfile.ReadDrawing(b.path("g.json")))(t)
	try.Equal(t, fmt.Sprint(d.Graph, d.Groups, len(d.Nodes), len(d.Edges)), "launched[a b c] 3 2")
	try.Equal(t, b.rocl("graph --form=png", "ok"), 64)
}

// A program without a graph, and one that fails, are errors.
func TestGraphOfOthers(t *testing.T) {
	b := newBench(t)
	root := cli.Root()
	root.AddCommand(Commands()...)
	root.SetErr(&b.err)
	try.Equal(t, cli.Run(t.Context(), root, []string{"flow", "graph", "true"}), 1)
	b.lastLine("rocl: true has written no graph: dataflow.Main or Launch.Run does that")
	try.Equal(t, cli.Run(t.Context(), root, []string{"flow", "graph", "false"}), 1)
	b.lastLine("rocl: false: exit status 1")
	try.Equal(t, cli.Run(t.Context(), root, []string{"flow", "dryrun"}), 64)
}

// A dry run writes the groups of a program, and its output is a configuration.
func TestDryRun(t *testing.T) {
	b := newBench(t)
	try.Equal(t, b.rocl("dryrun -o "+b.path("flow.json"), "ok"), 0, b.err.String())
	f := try.Get(flowfile.Read(b.path("flow.json")))(t)
	try.OK(t, f.Match([]string{"a", "b", "c"}))
	try.Equal(t, b.flow(t.Context(), "-V", "ok"), 0, b.err.String())
	b.has(&b.out, "[c] the sum is 12497500\n")
}

// checkXML checks that a text is well-formed XML.
func checkXML(t try.TB, text []byte) {
	t.Helper()
	d := xml.NewDecoder(bytes.NewReader(text))
	for {
		if _, err := d.Token(); errors.Is(err, io.EOF) {
			return
		} else if err != nil {
			t.Fatal(err, string(text))
		}
	}
}

// anyDrawing is any graph whose forward edges have no cycle, in any groups.
var anyDrawing = rapid.Custom(func(t *rapid.T) *flowfile.Drawing {
	d := &flowfile.Drawing{Graph: rapid.String().Draw(t, "graph")}
	for i := range rapid.IntRange(0, 4).Draw(t, "groups") {
		d.Groups = append(d.Groups, fmt.Sprintf("<g%d>", i))
	}
	n := rapid.IntRange(1, 12).Draw(t, "nodes")
	for i := range n {
		node := flowfile.Node{Name: fmt.Sprintf("n&%d", i)}
		if len(d.Groups) > 0 {
			node.Group = rapid.SampledFrom(append(d.Groups, "")).Draw(t, "group")
		}
		d.Nodes = append(d.Nodes, node)
	}
	for range rapid.IntRange(0, 20).Draw(t, "edges") {
		a, b := rapid.IntRange(0, n-1).Draw(t, "a"), rapid.IntRange(0, n-1).Draw(t, "b")
		d.Edges = append(d.Edges, flowfile.Edge{From: min(a, b), To: max(a, b), Back: a >= b})
	}
	return d
})

// In a drawing no two nodes and no two boxes overlap, each node is in the box of its group, and
// forward edges go to the right.
func TestLayout(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		d := anyDrawing.Draw(t, "drawing")
		l := newLayout(d)
		checkXML(t, drawSVG(d))
		try.Equal(t, strings.Count(string(drawMermaid(d)), "subgraph"), len(d.Groups))
		for _, e := range d.Edges {
			if !e.Back && l.column[e.From] >= l.column[e.To] {
				t.Fatalf("%v goes from column %d to %d", e, l.column[e.From], l.column[e.To])
			}
		}
		places := map[[2]float64]bool{}
		for i, n := range d.Nodes {
			x, y := l.at(i)
			if places[[2]float64{x, y}] {
				t.Fatalf("node %d is on another one", i)
			}
			places[[2]float64{x, y}] = true
			isIn := 0
			for _, b := range l.boxes {
				top := l.laneTop(b.lane)
				if x >= l.columnAt(b.first) && x <= l.columnAt(b.last) && y > top && y+nodeHeight < top+l.laneHeight(b.lane) {
					try.Equal(t, b.group, n.Group)
					isIn++
				}
			}
			try.Equal(t, isIn, 1, "boxes of node %d", i)
		}
	})
}

// A loop of forward edges, which no graph has, does not hang the layout.
func TestLayoutLoop(t *testing.T) {
	d := &flowfile.Drawing{Nodes: make([]flowfile.Node, 2), Edges: []flowfile.Edge{{From: 0, To: 1}, {From: 1, To: 0}}}
	checkXML(t, drawSVG(d))
}

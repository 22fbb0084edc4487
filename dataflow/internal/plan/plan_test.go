// SPDX-License-Identifier: Apache-2.0

package plan

import (
	"fmt"
	"strings"
	"testing"

	"github.com/rocl-go/rocl/internal/testkit/try"
)

func leaf(name string, o ...func(*Block)) *Block {
	b := &Block{Name: name, In: "int", Out: "int"}
	for _, f := range o {
		f(b)
	}
	return b
}

func leaves(names string) (bs []*Block) {
	for _, n := range strings.Fields(names) {
		bs = append(bs, leaf(n))
	}
	return bs
}

func source(b *Block)            { b.In = "" }
func sink(b *Block)              { b.Out = "" }
func by(c Choice) func(b *Block) { return func(b *Block) { b.Choice = c } }
func pipe(bs ...*Block) *Block   { return &Block{Kind: Pipe, Parts: bs} }
func farm(bs ...*Block) *Block   { return &Block{Kind: Farm, Parts: bs} }
func loop(b *Block) *Block       { return &Block{Kind: Loop, Parts: []*Block{b}} }
func a2a(left, right string) *Block {
	l := leaves(left)
	return &Block{Kind: AllToAll, Left: len(l), Parts: append(l, leaves(right)...)}
}

// edges writes the edges of a plan: from:channel>to:channel, with a ! before feedback.
func edges(p *Plan) string {
	var b strings.Builder
	for _, e := range p.Edges {
		back := ""
		if e.IsBack {
			back = "!"
		}
		fmt.Fprintf(&b, "%s%s:%d>%s:%d ", back, e.From.Name, e.FromCh, e.To.Name, e.ToCh)
	}
	return strings.TrimSpace(b.String())
}

// Channels are numbered in the order in which the parts were declared.
func TestEdges(t *testing.T) {
	for _, c := range []struct {
		name string
		root *Block
		want string
	}{
		{"pipe", pipe(leaf("S", source), leaf("A"), leaf("K", sink)), "S:0>A:0 A:0>K:0"},
		{"all to all", pipe(leaf("S", source), a2a("L1 L2", "R1 R2"), leaf("K", sink)),
			"L1:0>R1:0 L1:1>R2:0 L2:0>R1:1 L2:1>R2:1 S:0>L1:0 S:1>L2:0 R1:0>K:0 R2:0>K:1"},
		{"farm", pipe(leaf("S", source), farm(leaf("W"), leaf("W")), leaf("K", sink)), "S:0>W-0:0 S:1>W-1:0 W-0:0>K:0 W-1:0>K:1"},
		{"one to one", pipe(leaf("S", source), farm(leaf("W", by(OneToOne)), leaf("W", by(OneToOne))), a2a("L1 L2", "R"), leaf("K", sink)),
			"L1:0>R:0 L2:0>R:1 S:0>W-0:0 S:1>W-1:0 W-0:0>L1:0 W-1:0>L2:0 R:0>K:0"},
		{"nested loops", pipe(leaf("S", source), loop(pipe(leaf("A"), loop(leaf("B")))), leaf("K", sink)),
			"!B:0>B:0 A:0>B:0 !B:1>A:0 S:0>A:0 B:0>K:0"},
	} {
		p := try.Get(New(c.name, c.root))(t)
		try.Equal(t, edges(p), c.want, "%s", c.name)
	}
}

// Promise (Dataflow): A graph that cannot run is refused before anything starts.
func TestRefused(t *testing.T) {
	twice := leaf("T")
	for text, root := range map[string]*Block{
		"used twice":                     pipe(twice, twice),
		`two nodes have the name "A"`:    pipe(leaf("A"), leaf("A")),
		"has no output":                  pipe(leaf("A", sink), leaf("B")),
		"has no input":                   pipe(leaf("A"), leaf("B", source)),
		"2 senders for 3 receivers":      pipe(farm(leaf("A", by(OneToOne)), leaf("A", by(OneToOne))), farm(leaf("B"), leaf("B"), leaf("B"))),
		"some send one to one":           pipe(farm(leaf("A", by(OneToOne)), leaf("A")), farm(leaf("B"), leaf("B"))),
		`the node "A" broadcasts`:        loop(pipe(leaf("A", by(Broadcast)), farm(leaf("B"), leaf("B")))),
		"without an output is connected": pipe(leaf("A", sink), leaf("B", source)),
	} {
		_, err := New("wrong", root)
		try.Fails(err)(t, ErrGraph)
		if err != nil && !strings.Contains(err.Error(), text) {
			t.Errorf("the error is %v, not %q", err, text)
		}
	}
}

// The hash differs between graphs, types, policies and cuts.
func TestHash(t *testing.T) {
	seen := map[string]string{}
	for _, c := range []struct {
		name  string
		root  *Block
		group string
	}{
		{"base", pipe(leaf("A"), leaf("B")), ""}, {"name", pipe(leaf("A"), leaf("C")), ""}, {"group", pipe(leaf("A"), leaf("B")), "G"},
		{"type", pipe(leaf("A"), leaf("B", sink)), ""}, {"policy", pipe(leaf("A", by(RoundRobin)), leaf("B")), ""}, {"edge", farm(leaf("A"), leaf("B")), ""},
	} {
		p := try.Get(New("g", c.root))(t)
		if c.group != "" {
			try.OK(t, p.Group(c.group, c.root))
		}
		if other, ok := seen[p.Hash()]; ok {
			t.Errorf("%s has the hash of %s", c.name, other)
		}
		seen[p.Hash()] = c.name
	}
}

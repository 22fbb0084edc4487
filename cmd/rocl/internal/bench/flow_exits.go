// SPDX-License-Identifier: Apache-2.0

package bench

import (
	"context"
	"errors"
	"fmt"

	"github.com/rocl-go/rocl"
	"github.com/rocl-go/rocl/dataflow"
)

type (
	flowPart = dataflow.Part[int64, int64]
	flowCode = dataflow.Func[int64, int64]
)

// exits are graphs of FastFlow's tests that often hung there at their exit. Their two groups are
// connected both ways.
var exits = []func() (g *dataflow.Graph, parent, peer []dataflow.Node){exit7, exit26, exit27, exit28}

// runExits runs each of the graphs n times.
func (f *flow) runExits(ctx context.Context, c *rocl.Context, group string) {
	for i := range f.n {
		for k, build := range exits {
			g, parent, peer := build()
			check(errors.Join(g.Group("parent", parent...), g.Group("peer", peer...)))
			check(g.Run(ctx, dataflow.InGroup(c, group, dataflow.Config{Run: fmt.Sprint(f.run, " ", i, " ", k)})))
		}
	}
}

func passing() flowPart {
	return dataflow.Do(flowCode(func(ctx context.Context, in dataflow.Item[int64], out dataflow.Out[int64]) error {
		return out.Send(ctx, in.Value)
	}))
}

func dropping() dataflow.Part[int64, dataflow.None] {
	return dataflow.To(func(context.Context, dataflow.Item[int64]) error { return nil })
}

// few is a source of ten items.
func few(name string) dataflow.Part[dataflow.None, int64] {
	return sourceOf(10, func(i int) int64 { return int64(i) }, dataflow.Name(name), dataflow.Policy(dataflow.RoundRobin))
}

func exit7() (g *dataflow.Graph, parent, peer []dataflow.Node) {
	source, sink := few("source"), dropping()
	var left, right [2]flowPart
	for i := range left {
		left[i] = dataflow.Pipeline(passing(), passing())
		right[i] = dataflow.AllToAll([]flowPart{passing(), passing()}, []flowPart{passing(), passing()})
	}
	g = must(dataflow.New("exit7", dataflow.Pipeline3(source, dataflow.AllToAll(left[:], right[:]), sink)))
	return g, []dataflow.Node{source, left[0], right[0], sink}, []dataflow.Node{left[1], right[1]}
}

func exit26() (g *dataflow.Graph, parent, peer []dataflow.Node) {
	source, sink, left := few("source"), dropping(), 10
	first := dataflow.Do(flowCode(func(ctx context.Context, in dataflow.Item[int64], out dataflow.Out[int64]) error {
		err := out.Send(ctx, in.Value)
		if in.Back {
			left--
		}
		if err == nil && left == 0 {
			return dataflow.Done
		}
		return err
	}))
	second := dataflow.Do(flowCode(func(ctx context.Context, in dataflow.Item[int64], out dataflow.Out[int64]) error {
		if in.Value >= 0 { // has not turned yet
			return out.SendBack(ctx, 0, -1-in.Value)
		}
		return out.Send(ctx, in.Value)
	}))
	g = must(dataflow.New("exit26", dataflow.Pipeline3(source, dataflow.Loop(dataflow.Pipeline(first, second)), sink)))
	return g, []dataflow.Node{source, second}, []dataflow.Node{first, sink}
}

// A lister is a left node of topology 27: it sends an item to the node beside it, and ends with the
// item that returns.
type lister int

func (l lister) Start(ctx context.Context, out dataflow.Out[int64]) error {
	return out.SendTo(ctx, int(l), 0)
}

func (l lister) Process(context.Context, dataflow.Item[int64], dataflow.Out[int64]) error {
	return dataflow.Done
}

func exit27() (g *dataflow.Graph, parent, peer []dataflow.Node) {
	var left, right [2]flowPart
	for i := range left {
		left[i] = dataflow.Do[int64, int64](lister(i))
		right[i] = dataflow.Do(flowCode(func(ctx context.Context, _ dataflow.Item[int64], out dataflow.Out[int64]) error {
			return out.SendBack(ctx, 1-i, 0)
		}))
	}
	g = must(dataflow.New("exit27", dataflow.Ring(dataflow.AllToAll(left[:], right[:]))))
	return g, []dataflow.Node{left[0], right[0]}, []dataflow.Node{left[1], right[1]}
}

func exit28() (g *dataflow.Graph, parent, peer []dataflow.Node) {
	sources := []dataflow.Part[dataflow.None, int64]{few("source1"), few("source2")}
	middle := []flowPart{passing(), passing()}
	sinks := []dataflow.Part[int64, dataflow.None]{dropping(), dropping()}
	behind := dataflow.AllToAll(middle, sinks)
	g = must(dataflow.New("exit28", dataflow.AllToAll(sources, []dataflow.Part[int64, dataflow.None]{behind})))
	return g, []dataflow.Node{sources[0], middle[0], sinks[0]}, []dataflow.Node{sources[1], middle[1], sinks[1]}
}

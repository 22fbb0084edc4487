// SPDX-License-Identifier: Apache-2.0

// Command group1 is FastFlow's test_group1 on package dataflow: a source of numbers, two stages
// that are connected with three others, and a sink. Each stage passes the numbers on.
//
// It runs in one process, or in one for each group of FastFlow's file:
//
//	go build ./examples/group1
//	./group1
//	rocl flow run -V -f examples/group1/test_group1.json ./group1
package main

import (
	"context"
	"errors"
	"fmt"

	"github.com/rocl-go/rocl/dataflow"
)

func main() { dataflow.Main(build) }

// numbers sends the numbers below 100.
func numbers(ctx context.Context, out dataflow.Out[int]) error {
	for i := range 100 {
		if err := out.Send(ctx, i); err != nil {
			return err
		}
	}
	return nil
}

// pass sends on what comes.
func pass(ctx context.Context, in dataflow.Item[int], out dataflow.Out[int]) error {
	return out.Send(ctx, in.Value)
}

// A sum adds what comes. Its Close is called at the end.
type sum struct{ count, total int }

func (s *sum) Process(_ context.Context, in dataflow.Item[int], _ dataflow.Out[dataflow.None]) error {
	s.count++
	s.total += in.Value
	return nil
}

func (s *sum) Close() error {
	fmt.Printf("count %d, sum %d\n", s.count, s.total)
	return nil
}

// build returns the graph, cut into groups.
func build([]string) (*dataflow.Graph, error) {
	stage := func(name string) dataflow.Part[int, int] {
		return dataflow.Do(dataflow.Func[int, int](pass), dataflow.Name(name))
	}
	source, sink := dataflow.From(numbers, dataflow.Name("S")), dataflow.Do(&sum{}, dataflow.Name("K"))
	l1, l2, r1, r2, r3 := stage("L1"), stage("L2"), stage("R1"), stage("R2"), stage("R3")
	middle := dataflow.AllToAll([]dataflow.Part[int, int]{l1, l2}, []dataflow.Part[int, int]{r1, r2, r3})
	g, err := dataflow.New("group1", dataflow.Pipeline3(source, middle, sink))
	if err != nil {
		return nil, err
	}
	return g, errors.Join(g.Group("G1", source), g.Group("G2", l1, r1, r2), g.Group("G3", l2, r3), g.Group("G4", sink))
}

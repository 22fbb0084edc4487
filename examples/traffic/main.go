// SPDX-License-Identifier: Apache-2.0

// Command traffic computes the mean speed on each road of a town from the positions of cars:
//
//	traffic [-n N] [-cars N] [-steps N]
//
// N sources send positions, each of its own cars. The stage behind a source finds the road of a
// position. Stages that each have a part of the roads compute the means, and print them in the end.
// Groups 0 to N-1 have one node of each kind: the graph is cut through its stages.
package main

import (
	"context"
	"flag"
	"fmt"
	"math"
	"math/rand/v2"
	"os"
	"strconv"
	"time"

	"github.com/rocl-go/rocl/dataflow"
)

func main() { dataflow.Main(build) }

// build returns the graph.
func build(args []string) (*dataflow.Graph, error) {
	f := flag.NewFlagSet("traffic", flag.ExitOnError)
	n := f.Int("n", 4, "nodes of each kind")
	cars := f.Int("cars", 1000, "cars of a source")
	steps := f.Int("steps", 100, "positions of a car")
	_ = f.Parse(args) // it ends the process
	var left []dataflow.Part[dataflow.None, passage]
	var right []dataflow.Part[passage, dataflow.None]
	for i := range *n {
		source := dataflow.From(drive(uint64(i), *cars, *steps), dataflow.Name(fmt.Sprint("source", i)), dataflow.Batch(256, 0, 0))
		match := dataflow.Do(dataflow.Func[position, passage](match), dataflow.Name(fmt.Sprint("match", i)), dataflow.Batch(256, 0, 0), dataflow.Policy(dataflow.ByKey(roadOf)))
		left = append(left, dataflow.Pipeline(source, match))
		speed := dataflow.Do(&means{roads: map[uint32]*mean{}, began: time.Now()}, dataflow.Name(fmt.Sprint("speed", i)), dataflow.Batch(256, 0, 0))
		right = append(right, dataflow.Pipeline(speed, dataflow.To(show, dataflow.Name(fmt.Sprint("show", i)))))
	}
	g, err := dataflow.New("traffic", dataflow.AllToAll(left, right))
	for i := range *n {
		if err == nil {
			err = g.Group(strconv.Itoa(i), left[i], right[i])
		}
	}
	return g, err
}

// The town has streets from west to east and avenues from south to north, each of them a road.
const (
	roads = 40  // of either direction
	space = 100 // metres between two roads
)

// A position tells where a car is, in metres, and how fast, in metres a second.
type position struct {
	Car         uint32
	X, Y, Speed float32
}

// A passage tells that a car was on a road.
type passage struct {
	Road  uint32
	Speed float32
}

func roadOf(p passage) uint64 { return uint64(p.Road) }

// drive returns a source that sends the positions of cars, which drive along their roads.
func drive(seed uint64, cars, steps int) dataflow.Source[position] {
	return func(ctx context.Context, out dataflow.Out[position]) error {
		r := rand.New(rand.NewPCG(seed, 0))
		for car := range cars {
			road, along, speed := float32(r.IntN(roads)*space), r.Float32()*roads*space, 5+15*r.Float32()
			isAvenue := r.IntN(2) == 1
			for range steps {
				along = float32(math.Mod(float64(along+speed), roads*space))
				x, y := along, road+4*r.Float32()-2 // a receiver is wrong by two metres
				if isAvenue {
					x, y = y, x
				}
				if err := out.Send(ctx, position{uint32(car), x, y, speed}); err != nil {
					return err
				}
			}
		}
		_, err := fmt.Printf("sent %d positions\n", cars*steps)
		return err
	}
}

// match sends the road that is nearest to a position. Avenues have the numbers from roads on.
func match(ctx context.Context, in dataflow.Item[position], out dataflow.Out[passage]) error {
	street, dy := nearest(in.Value.Y)
	avenue, dx := nearest(in.Value.X)
	road := street
	if dx < dy {
		road = roads + avenue
	}
	return out.Send(ctx, passage{road, in.Value.Speed})
}

// nearest returns the road of one direction that is nearest, and how near it is.
func nearest(at float32) (road uint32, distance float32) {
	k := min(max(math.Round(float64(at)/space), 0), roads-1)
	return uint32(k), float32(math.Abs(float64(at) - k*space))
}

// A mean is the mean speed on a road.
type mean struct {
	Road, Cars uint32
	Sum        float64
}

// means has the roads of one node.
type means struct {
	roads map[uint32]*mean
	began time.Time
}

// Process adds a passage.
func (s *means) Process(_ context.Context, in dataflow.Item[passage], _ dataflow.Out[mean]) error {
	m := s.roads[in.Value.Road]
	if m == nil {
		m = &mean{Road: in.Value.Road}
		s.roads[m.Road] = m
	}
	m.Cars++
	m.Sum += float64(in.Value.Speed)
	return nil
}

// Finish sends the means, and prints how many passages came.
func (s *means) Finish(ctx context.Context, out dataflow.Out[mean]) error {
	all := 0
	for road := range uint32(2 * roads) {
		if m := s.roads[road]; m != nil {
			all += int(m.Cars)
			if err := out.Send(ctx, *m); err != nil {
				return err
			}
		}
	}
	fmt.Fprintf(os.Stderr, "%.0f passages a second\n", float64(all)/time.Since(s.began).Seconds())
	_, err := fmt.Printf("received %d passages\n", all)
	return err
}

// show prints the mean speed on a road.
func show(_ context.Context, in dataflow.Item[mean]) error {
	m := in.Value
	_, err := fmt.Printf("road %d: %d passages, %.1f km/h\n", m.Road, m.Cars, 3.6*m.Sum/float64(m.Cars))
	return err
}

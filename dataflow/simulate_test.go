// SPDX-License-Identifier: Apache-2.0

package dataflow_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"runtime/debug"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	. "github.com/rocl-go/rocl/dataflow"
	"github.com/rocl-go/rocl/internal/testkit/short"
	"github.com/rocl-go/rocl/rocltest"
)

// A shape is a graph and its cut, drawn from a seed: sources, stages or a loop, and one or two
// sinks. The item decides to which sink it goes.
type shape struct {
	sources, middles, sinks int
	items                   int // of each source
	loop                    bool
	pause                   time.Duration // at most, of the sources
	options                 []Option
	groups                  map[string]string // of nodes, by their names
}

// names returns the names of the nodes.
func (s *shape) names() (all []string) {
	for _, kind := range []struct {
		name string
		n    int
	}{{"S", s.sources}, {"M", s.middles}, {"K", s.sinks}} {
		for i := range kind.n {
			all = append(all, fmt.Sprintf("%s%d", kind.name, i+1))
		}
	}
	return all
}

// drawShape draws a shape.
func drawShape(rnd *rand.Rand) *shape {
	s := &shape{
		sources: 1 + rnd.IntN(2), middles: 1 + rnd.IntN(3), sinks: 1 + rnd.IntN(2), items: rnd.IntN(80),
		loop: rnd.IntN(3) == 0, pause: time.Duration(rnd.IntN(200)) * time.Millisecond, groups: map[string]string{},
	}
	if s.loop {
		s.middles = 2
	}
	if rnd.IntN(2) == 0 {
		s.options = append(s.options, Batch(1+rnd.IntN(9), 0, time.Duration(rnd.IntN(20))*time.Millisecond))
	}
	if rnd.IntN(2) == 0 {
		s.options = append(s.options, Window(1+rnd.IntN(9)))
	}
	s.options = append(s.options, Policy([]Choice{Balanced, RoundRobin, PreferLocal, OnDemand(2)}[rnd.IntN(4)]))
	cut := 2 + rnd.IntN(3)
	for _, name := range s.names() {
		s.groups[name] = fmt.Sprintf("G%d", 1+rnd.IntN(cut))
	}
	return s
}

// graph makes the graph anew. Its nodes tell c what they see.
func (s *shape) graph(c *checker) (*Graph, error) {
	nodes := map[string]Node{}
	sources := some(s.sources, func(name string) Part[None, parcel] {
		rnd := rand.New(rand.NewPCG(uint64(s.items), uint64(name[1])))
		first := s.items * int(name[1]-'1')
		p := From(func(ctx context.Context, out Out[parcel]) error {
			for i := range s.items {
				time.Sleep(time.Duration(rnd.Int64N(int64(s.pause) + 1))) // of virtual time
				if err := out.Send(ctx, parcel{ID: first + i, Stamp: i}); err != nil {
					return err
				}
			}
			return nil
		}, Name(name))
		nodes[name] = p
		return p
	}, "S")
	middle := func(name, loop string, inputs int) Part[parcel, parcel] {
		p := Do(&hop{c: c, name: name, loop: loop, inputs: inputs, last: map[[2]int]int{}, ended: map[[2]int]bool{}}, Name(name))
		nodes[name] = p
		return p
	}
	var middles []Part[parcel, parcel]
	if s.loop {
		middles = append(middles, Loop(Pipeline(middle("M1", "head", s.sources), middle("M2", "tail", 1))))
	} else {
		middles = some(s.middles, func(name string) Part[parcel, parcel] { return middle(name, "", s.sources) }, "M")
	}
	sinks := Farm(s.sinks, func(i int) Part[parcel, None] {
		name := fmt.Sprintf("K%d", i+1)
		p := To(func(_ context.Context, in Item[parcel]) error {
			c.mu.Lock()
			defer c.mu.Unlock()
			c.ids = append(c.ids, in.Value.ID)
			return nil
		}, Name(name))
		nodes[name] = p
		return p
	}, Policy(ByKey(func(p parcel) uint64 { return uint64(p.ID) })))
	g, err := New("simulated", Pipeline(AllToAll(sources, middles, s.options...), sinks))
	for name, n := range nodes {
		if err == nil {
			err = g.Group(s.groups[name], n)
		}
	}
	return g, err
}

// ids returns the items that come to the sinks of a group, in order.
func (s *shape) ids(group string) (all []int) {
	for id := range s.items * s.sources {
		if s.groups[fmt.Sprintf("K%d", 1+id%s.sinks)] == group {
			all = append(all, id)
		}
	}
	return all
}

// A simulation runs the groups of a shape in the processes of a world.
type simulation struct {
	*shape
	w            *rocltest.World
	well, failed *atomic.Int64 // ends

	mu    sync.Mutex
	ended map[*rocltest.Process]bool
}

// run is the program of a process, which has the name of its group.
func (s *simulation) run(p *rocltest.Process) {
	c := &checker{}
	g, err := s.graph(c)
	if err == nil {
		err = g.Run(p.Context(), InGroup(p.Rocl(), p.Name(), Config{Wait: 10 * time.Second}))
	}
	s.w.Log("group ", p.Name(), " has ended: ", err)
	s.mu.Lock()
	s.ended[p] = true
	s.mu.Unlock()
	c.mu.Lock()
	defer c.mu.Unlock()
	slices.Sort(c.ids)
	var e *RunError
	switch {
	case len(c.wrong) > 0:
		s.w.Errorf("group %s: %q", p.Name(), c.wrong)
	case err == nil:
		s.well.Add(1)
		if want := s.ids(p.Name()); !slices.Equal(c.ids, want) {
			s.w.Errorf("group %s has ended well, and its sinks have the items %v, not %v", p.Name(), c.ids, want)
		}
	case !errors.As(err, &e) || errors.Is(err, ErrCount) || errors.Is(err, ErrStuck) || errors.Is(err, ErrPanic):
		s.w.Errorf("group %s has ended with %v", p.Name(), err)
	default:
		s.failed.Add(1)
	}
}

// hasEnded reports whether the latest process of each group has ended its run.
func (s *simulation) hasEnded(groups map[string]bool) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	for group := range groups {
		if !s.ended[s.w.Process(group)] {
			return false
		}
	}
	return true
}

// Promise (Dataflow): While links break, machines stand still or crash, and processes are killed,
// each group of a run ends: with all items at its sinks, or with one error.
func TestSimulated(t *testing.T) {
	defer debug.SetGCPercent(debug.SetGCPercent(400))
	var well, failed atomic.Int64
	seeds := times(50, 5000)
	if short.Form(t) {
		seeds = 20
	}
	t.Run("seeds", func(t *testing.T) {
		for seed := range uint64(seeds) {
			t.Run(fmt.Sprint(seed), func(t *testing.T) {
				t.Parallel()
				rocltest.Simulate(t, seed, func(w *rocltest.World) { simulateFlow(w, &well, &failed) })
			})
		}
	})
	t.Logf("%d groups have ended well, and %d with an error", well.Load(), failed.Load())
	if well.Load() == 0 || failed.Load() == 0 {
		t.Error("the faults are too many or too few")
	}
}

// simulateFlow runs a shape in a world.
func simulateFlow(w *rocltest.World, well, failed *atomic.Int64) {
	s := &simulation{shape: drawShape(w.Rand()), w: w, well: well, failed: failed, ended: map[*rocltest.Process]bool{}}
	nodes := 1 + w.Rand().IntN(3)
	w.AddNodes(nodes)
	groups := map[string]bool{}
	for _, name := range s.names() {
		if group := s.groups[name]; !groups[group] {
			groups[group] = true
			w.Start(w.Rand().IntN(nodes), group, s.run)
		}
	}
	w.Run(6 * time.Second)
	for range 90 {
		if s.hasEnded(groups) {
			return
		}
		time.Sleep(time.Second) // in the bubble
	}
	w.Errorf("a group has not ended its run")
}

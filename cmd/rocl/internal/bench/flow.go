// SPDX-License-Identifier: Apache-2.0

package bench

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"sync/atomic"
	"time"

	"github.com/rocl-go/rocl"
	"github.com/rocl-go/rocl/dataflow"
)

// The batches of the rows, and what is moved.
const (
	flowBatch = 512
	flowItem  = 8        // bytes of a small item
	flowBlock = 64 << 10 // bytes of a large one
)

// flowCases measure package dataflow: a pipe of three nodes within this process, and a source in
// this process whose sink is in the peer.
var flowCases = []comparison{
	{bench: "flow", name: "flow pipe batch=1", transport: "inproc", role: isAlone, what: "three goroutines with Go channels of 1,024", unit: "items/s", limits: []Limit{atLeast("ratio", 0.5, 0.9)}, bare: channelPipe, ours: flowPipe(1)},
	{bench: "flow", name: "flow pipe batch=512", transport: "inproc", role: isAlone, what: "three goroutines with Go channels of 1,024", unit: "items/s", limits: []Limit{atLeast("ratio", 0.8, 1.5)}, bare: channelPipe, ours: flowPipe(flowBatch)},
	{bench: "flow", name: "flow batch=1", transport: "shm", set: flowSmall, what: "a bare ring in shared memory", unit: "items/s", limits: []Limit{atLeast("rate", 1e6, 5e6)}, bare: throughRing, ours: flowItems(1)},
	{bench: "flow", name: "flow batch=512", transport: "shm", set: flowBatches, what: "a bare ring in shared memory", unit: "items/s", limits: []Limit{atLeast("rate", 15e6, 50e6)}, bare: throughRing, ours: flowItems(flowBatch)},
	{bench: "flow", name: "flow batch=1", transport: "tcp", set: flowSmall, what: "a bare buffered Go loop", unit: "items/s", limits: []Limit{atLeast("rate", 5e5, 3e6)}, bare: buffered("recv-fixed"), ours: flowItems(1)},
	{bench: "flow", name: "flow batch=512", transport: "tcp", set: flowBatches, what: "a bare buffered Go loop", unit: "items/s", limits: []Limit{atLeast("rate", 8e6, 20e6)}, bare: buffered("recv-fixed"), ours: flowItems(flowBatch)},
	{bench: "flow", name: "flow blocks", when: apart, set: flowBuffers, what: "messages in buffers, as in bench bw", unit: "bytes/s", limits: []Limit{atLeast("ratio", 0.6, 0.9)}, bare: pours("recv-recv", nil), ours: flowBlocks(blockGraph)},
	{bench: "flow", name: "flow bytes", when: apart, set: flowBlock64, what: "messages in buffers, as in bench bw, which copy nothing", unit: "bytes/s", bare: pours("recv-recv", nil), ours: flowBlocks(bytesGraph)},
	{bench: "flow", name: "flow trip", when: apart, set: flowTrips, what: "a message there and back", unit: "µs", limits: []Limit{atMost("ratio", 3, 1.5), atMost("p99/p50", 5)}, bare: messages("echo"), ours: flowTrip},
}

// apart reports whether the two sides are different processes.
func apart(o *options) bool { return o.transport != "inproc" }

func flowSmall(o *options) { o.size = flowItem }

// flowBatches moves so many items that the start and the end of a run count little.
func flowBatches(o *options) { o.size, o.count = flowItem, 8*o.count }

func flowBlock64(o *options) { o.size, o.count = flowBlock, max(o.count/200, 1) }

// flowBuffers moves more of them where none is copied.
func flowBuffers(o *options) {
	if o.transport == "shm" {
		o.count *= 20
	}
	flowBlock64(o)
}

func flowTrips(o *options) { o.size, o.count = flowItem, max(o.count/100, 1) }

// channelPipe is a pipe of three goroutines with Go channels.
func channelPipe(*pair) loop {
	return func(n int, t *times) {
		t.rate(n, func() {
			first, second := make(chan int, 1024), make(chan int, 1024)
			got := 0
			concurrently(3, func(i int) {
				switch i {
				case 0:
					for i := range n {
						first <- i
					}
					close(first)
				case 1:
					for v := range first {
						second <- v
					}
					close(second)
				case 2:
					for range second {
						got++
					}
				}
			})
			checkFlow(got, n)
		})
	}
}

func checkFlow(got, n int) {
	if got != n {
		check(fmt.Errorf("%d of %d items came", got, n))
	}
}

// flowPipe is the same pipe as a graph.
func flowPipe(batch int) side {
	return func(p *pair) loop {
		return func(n int, t *times) {
			got, sends := 0, dataflow.Batch(batch, 0, 0)
			pass := dataflow.Do(dataflow.Func[int, int](func(ctx context.Context, in dataflow.Item[int], out dataflow.Out[int]) error {
				return out.Send(ctx, in.Value)
			}), sends)
			count := dataflow.To(func(context.Context, dataflow.Item[int]) error {
				got++
				return nil
			})
			g := must(dataflow.New("pipe", dataflow.Pipeline3(sourceOf(n, func(i int) int { return i }, sends), pass, count)))
			t.rate(n, func() { check(g.Run(p.ctx)) })
			checkFlow(got, n)
		}
	}
}

// sourceOf is a source of n items.
func sourceOf[T any](n int, item func(i int) T, o ...dataflow.Option) dataflow.Part[dataflow.None, T] {
	return dataflow.From(func(ctx context.Context, out dataflow.Out[T]) error {
		for i := range n {
			if err := out.Send(ctx, item(i)); err != nil {
				return err
			}
		}
		return nil
	}, append(o, dataflow.Name("source"))...)
}

// The graphs whose second group the peer runs, as numbers of the task "flow".
const (
	itemGraph  = iota
	blockGraph // items are buffers
	bytesGraph // items are slices, which are copied in and out
	tripGraph
)

// A flow is a graph of two groups, which the parent and the peer build alike.
type flow struct {
	kind, n, batch, run int
	c                   *rocl.Context
	got                 atomic.Int64    // items at the sink
	trips               []time.Duration // of a tripGraph
}

// numbers are the arguments of the task by which the peer builds the same flow; n comes first.
func (f *flow) numbers() []int { return []int{f.n, f.kind, f.batch, f.run} }

// graph builds the graph.
func (f *flow) graph() *dataflow.Graph {
	switch f.kind {
	case blockGraph:
		source := sourceOf(f.n, func(int) *rocl.Buffer { return must(f.c.BufferWait(context.Background(), flowBlock)) }, dataflow.Window(64))
		return grouped(source, sinkOf(f, (*rocl.Buffer).Release))
	case bytesGraph:
		b := make([]byte, flowBlock)
		return grouped(sourceOf(f.n, func(int) []byte { return b }, dataflow.Window(64)), sinkOf(f, func([]byte) {}))
	case tripGraph:
		return f.ring()
	}
	source := sourceOf(f.n, func(i int) int64 { return int64(i) }, dataflow.Batch(f.batch, 0, 0))
	return grouped(source, sinkOf(f, func(int64) {}))
}

func sinkOf[T any](f *flow, use func(T)) dataflow.Part[T, dataflow.None] {
	return dataflow.To(func(_ context.Context, in dataflow.Item[T]) error {
		use(in.Value)
		f.got.Add(1)
		return nil
	}, dataflow.Name("sink"))
}

// grouped makes a graph of a source in one group and a sink in the other.
func grouped[T any](source dataflow.Part[dataflow.None, T], sink dataflow.Part[T, dataflow.None]) *dataflow.Graph {
	g := must(dataflow.New("flow", dataflow.Pipeline(source, sink)))
	check(errors.Join(g.Group("parent", source), g.Group("peer", sink)))
	return g
}

// A pinger is the node of a ring that sends an item and waits for its return.
type pinger struct {
	f     *flow
	start time.Time
}

func (s *pinger) Start(ctx context.Context, out dataflow.Out[int64]) error {
	s.start = time.Now()
	return out.Send(ctx, 0)
}

func (s *pinger) Process(ctx context.Context, in dataflow.Item[int64], out dataflow.Out[int64]) error {
	s.f.trips = append(s.f.trips, time.Since(s.start))
	if len(s.f.trips) > s.f.n { // the first trip has also connected the groups
		return dataflow.Done
	}
	s.start = time.Now()
	return out.Send(ctx, in.Value+1)
}

// ring makes a loop of two groups.
func (f *flow) ring() *dataflow.Graph {
	there := dataflow.Do(&pinger{f: f}, dataflow.Name("there"))
	back := dataflow.Do(dataflow.Func[int64, int64](func(ctx context.Context, in dataflow.Item[int64], out dataflow.Out[int64]) error {
		return out.SendBack(ctx, 0, in.Value)
	}), dataflow.Name("back"))
	g := must(dataflow.New("flow", dataflow.Ring(dataflow.Pipeline(there, back))))
	check(errors.Join(g.Group("parent", there), g.Group("peer", back)))
	return g
}

// runGroup runs one group of a flow.
func (f *flow) runGroup(ctx context.Context, c *rocl.Context, group string) {
	f.c = c
	check(f.graph().Run(ctx, dataflow.InGroup(c, group, dataflow.Config{Run: strconv.Itoa(f.run)})))
}

// flowRuns counts the runs of this process, each of which has an identifier of its own.
var flowRuns atomic.Int64

// flowing returns a loop that runs a flow with the peer. took adds the figures; run is the run.
func (p *pair) flowing(kind, batch int, took func(f *flow, t *times, run func())) loop {
	return func(n int, t *times) {
		f := &flow{kind: kind, n: n, batch: batch, run: int(flowRuns.Add(1))}
		took(f, t, func() {
			p.begin(p.peer, "flow", f.numbers()...)
			f.runGroup(p.ctx, p.c, "parent")
			p.wait(p.peer)
		})
	}
}

// flow runs the peer's group.
func (a *answerer) flow(n []int) {
	f := &flow{n: n[0], kind: n[1], batch: n[2], run: n[3]}
	f.runGroup(a.ctx, a.c, "peer")
	if f.kind != tripGraph {
		checkFlow(int(f.got.Load()), f.n)
	}
}

func flowItems(batch int) side {
	return func(p *pair) loop {
		return p.flowing(itemGraph, batch, func(f *flow, t *times, run func()) { t.rate(f.n, run) })
	}
}

func flowBlocks(kind int) side {
	return func(p *pair) loop {
		return p.flowing(kind, 1, func(f *flow, t *times, run func()) { t.rate(f.n*flowBlock, run) })
	}
}

func flowTrip(p *pair) loop {
	return p.flowing(tripGraph, 1, func(f *flow, t *times, run func()) {
		run()
		next := 0
		t.timed(f.n, 1, func() time.Duration {
			next++
			return f.trips[next]
		})
	})
}

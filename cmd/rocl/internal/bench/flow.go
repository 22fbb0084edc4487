// SPDX-License-Identifier: Apache-2.0

package bench

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/rocl-go/rocl"
	"github.com/rocl-go/rocl/dataflow"
	"github.com/rocl-go/rocl/internal/testkit/posix"
)

// The batches of the rows, and what is moved.
const (
	flowBatch = 512
	flowItem  = 8        // bytes of a small item
	flowBlock = 64 << 10 // bytes of a large one
)

// flowCases measure package dataflow: a pipe of three nodes within this process, and graphs of two
// groups, of which the peer runs one.
var flowCases = []comparison{
	{bench: "flow", name: "flow pipe batch=1", transport: "inproc", role: isAlone, what: "three goroutines with Go channels of 1,024", unit: "items/s", limits: []Limit{atLeast("ratio", 0.5, 0.9)}, bare: channelPipe, ours: flowPipe(1)},
	{bench: "flow", name: "flow pipe batch=512", transport: "inproc", role: isAlone, what: "three goroutines with Go channels of 1,024", unit: "items/s", limits: []Limit{atLeast("ratio", 0.8, 1.5)}, bare: channelPipe, ours: flowPipe(flowBatch)},
	{bench: "flow", name: "flow batch=1", transport: "shm", set: flowSmall, what: "a bare ring in shared memory", unit: "items/s", limits: []Limit{atLeast("rate", 1e6, 5e6)}, bare: throughRing, ours: flowItems(1)},
	{bench: "flow", name: "flow batch=512", transport: "shm", set: flowBatches, what: "a bare ring in shared memory", unit: "items/s", limits: []Limit{atLeast("rate", 15e6, 50e6)}, bare: throughRing, ours: flowItems(flowBatch)},
	{bench: "flow", name: "flow batch=1", transport: "tcp", set: flowSmall, what: "a bare buffered Go loop", unit: "items/s", limits: []Limit{atLeast("rate", 5e5, 3e6)}, bare: buffered("recv-fixed"), ours: flowItems(1)},
	{bench: "flow", name: "flow batch=512", transport: "tcp", set: flowBatches, what: "a bare buffered Go loop", unit: "items/s", limits: []Limit{atLeast("rate", 8e6, 20e6)}, bare: buffered("recv-fixed"), ours: flowItems(flowBatch)},
	{bench: "flow", name: "flow blocks", transport: "tcp", set: flowBlock64, what: "messages in buffers, as in bench bw", unit: "bytes/s", limits: []Limit{atLeast("ratio", 0.6, 0.9)}, bare: pours("recv-recv", nil), ours: flowBlocks(blockGraph)},
	{bench: "flow", name: "flow blocks", transport: "shm", set: flowWritten, what: "messages in buffers, as in bench bw", unit: "bytes/s", limits: []Limit{atLeast("ratio", 0.6, 0.9)}, bare: pours("recv-read", fillCounting), ours: flowBlocks(writtenGraph), finish: note("the source writes every byte, and the sink reads every byte")},
	{bench: "flow", name: "flow blocks that nobody reads", transport: "shm", set: flowHandedOver, what: "messages in buffers that nobody reads", unit: "bytes/s", bare: pours("recv-recv", nil), ours: flowBlocks(blockGraph)},
	{bench: "flow", name: "flow bytes", when: apart, set: flowBlock64, what: "messages in buffers, as in bench bw, which copy nothing", unit: "bytes/s", bare: pours("recv-recv", nil), ours: flowBlocks(bytesGraph)},
	{bench: "flow", name: "flow trip", when: apart, set: flowTrips, what: "a message there and back", unit: "µs", limits: []Limit{atMost("ratio", 3, 1.5), atMost("p99/p50", 5)}, bare: messages("echo"), ours: flowTrip},
	{bench: "flow", name: "flow farm 10,20,30 ms", when: apart, set: flowWorks, what: "goroutines that take the items from a Go channel", unit: "ms", limits: []Limit{atMost("ratio", 1.1, 1.05)}, bare: channelFarm, ours: flowFarm, finish: note("from the first item at the source to the last one at the sink; 60 items take at least 330 ms")},
	{bench: "flow", name: "flow idle", when: apart, set: flowWaits, what: "the required 10, which is 0.01 processors", unit: "ms of processor time a second", limits: []Limit{atMost("p50", 10)}, run: flowIdle},
	{bench: "flow", name: "flow batch=512 least mailbox", transport: "tcp", set: flowLeast, what: "a bare buffered Go loop", unit: "items/s", bare: buffered("recv-fixed"), ours: flowItems(flowBatch)},
	{bench: "flow", name: "flow run", when: apart, set: flowEnds, what: "a find of the peer's resource", unit: "µs", bare: finds(rocl.Match{"bench": "peer"}), ours: flowExits, finish: note("topologies 7 and 26 to 28 of FastFlow, from the beginning of a run until both groups have ended")},
}

// apart reports whether the two sides are different processes.
func apart(o *options) bool { return o.transport != "inproc" }

func flowSmall(o *options) { o.size = flowItem }

// flowBatches moves so many items that the start and the end of a run count little.
func flowBatches(o *options) { o.size, o.count = flowItem, 8*o.count }

func flowBlock64(o *options) { o.size, o.count = flowBlock, max(o.count/200, 1) }

func flowWritten(o *options) { o.size, o.count = flowBlock, max(o.count/50, 1) }

// flowHandedOver moves more of them, since no byte of them is touched.
func flowHandedOver(o *options) { o.size, o.count = flowBlock, max(o.count/10, 1) }

func flowWorks(o *options) { o.size, o.count, o.rounds = flowItem, min(o.count, 60), min(o.rounds, 2) }

func flowWaits(o *options) {
	o.size, o.count, o.rounds = flowItem, min(o.count, 1000), 1
}

func flowLeast(o *options) { o.size, o.mailbox = flowItem, 1 }

func flowEnds(o *options) { o.size, o.count = 0, max(o.count/100_000, 1) }

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
	}, append([]dataflow.Option{dataflow.Name("source")}, o...)...)
}

// The graphs whose second group the peer runs, as numbers of the task "flow".
const (
	itemGraph    = iota
	blockGraph   // items are buffers
	writtenGraph // items are buffers, of which the source writes every byte, and the sink reads it
	bytesGraph   // items are slices, which are copied in and out
	idleGraph
	tripGraph // the sink of this and of the next ones is not in the peer
	farmGraph
	exitGraphs
)

// A flow is a graph of two groups, which the parent and the peer build alike.
type flow struct {
	kind, n, batch, run int
	got                 atomic.Int64    // items at the sink
	sum                 uint64          // of their bytes, of a writtenGraph
	trips               []time.Duration // of a tripGraph
	began, ended        time.Time       // of a farmGraph: the first item has left the source, the last one has come to the sink
	spent               spent           // of an idleGraph, while
	resting             sync.WaitGroup  // the peer rests
	answer              string          // of the peer
}

// numbers are the arguments of the task by which the peer builds the same flow; n comes first.
func (f *flow) numbers() []int { return []int{f.n, f.kind, f.batch, f.run} }

// graph builds the graph.
func (f *flow) graph(c *rocl.Context) *dataflow.Graph {
	switch f.kind {
	case blockGraph:
		source := sourceOf(f.n, func(int) *rocl.Buffer { return must(c.BufferWait(context.Background(), flowBlock)) }, dataflow.Window(64))
		return grouped(source, sinkOf(f, (*rocl.Buffer).Release))
	case writtenGraph:
		bytes := fillCounting(make([]byte, flowBlock))
		source := sourceOf(f.n, func(int) *rocl.Buffer {
			b := must(c.BufferWait(context.Background(), flowBlock))
			copy(b.Bytes(), bytes)
			return b
		}, dataflow.Window(64))
		return grouped(source, sinkOf(f, func(b *rocl.Buffer) {
			f.sum += sum(b.Bytes())
			b.Release()
		}))
	case bytesGraph:
		b := make([]byte, flowBlock)
		return grouped(sourceOf(f.n, func(int) []byte { return b }, dataflow.Window(64)), sinkOf(f, func([]byte) {}))
	case tripGraph:
		return f.ring()
	case farmGraph:
		return f.farm()
	case idleGraph:
		return f.idle(c)
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
	if f.kind == exitGraphs {
		f.runExits(ctx, c, group)
		return
	}
	check(f.graph(c).Run(ctx, dataflow.InGroup(c, group, dataflow.Config{Run: strconv.Itoa(f.run)})))
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
			f.answer = p.wait(p.peer)
		})
	}
}

// flow runs the peer's group. It answers what the group has used while it was idle.
func (a *answerer) flow(n []int) string {
	f := &flow{n: n[0], kind: n[1], batch: n[2], run: n[3]}
	f.runGroup(a.ctx, a.c, "peer")
	if f.kind < tripGraph {
		checkFlow(int(f.got.Load()), f.n)
	}
	if want := uint64(f.n) * sum(fillCounting(make([]byte, flowBlock))); f.kind == writtenGraph && f.sum != want {
		check(fmt.Errorf("the bytes of the items add up to %d in place of %d", f.sum, want))
	}
	f.resting.Wait()
	return fmt.Sprint(f.spent.cpu, " ", f.spent.work)
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

// A worker of the farm takes flowWork for an item, the second one twice and the third three times
// as long.
const (
	flowWork    = 10 * time.Millisecond
	flowWorkers = 3
)

// farm makes a farm on demand whose workers are in the peer.
func (f *flow) farm() *dataflow.Graph {
	source := dataflow.From(func(ctx context.Context, out dataflow.Out[int64]) error {
		for i := range f.n {
			if err := out.Send(ctx, int64(i)); err != nil {
				return err
			}
			if i == 0 { // which has waited until the groups were connected
				f.began = time.Now()
			}
		}
		return nil
	}, dataflow.Name("source"))
	sink := sinkOf(f, func(int64) { f.ended = time.Now() })
	farm := dataflow.Farm(flowWorkers, func(i int) dataflow.Part[int64, int64] {
		return dataflow.Do(dataflow.Func[int64, int64](func(ctx context.Context, in dataflow.Item[int64], out dataflow.Out[int64]) error {
			time.Sleep(time.Duration(i+1) * flowWork) // the work
			return out.Send(ctx, in.Value)
		}))
	}, dataflow.Policy(dataflow.OnDemand(1)))
	g := must(dataflow.New("flow", dataflow.Pipeline3(source, farm, sink)))
	check(errors.Join(g.Group("parent", source, sink), g.Group("peer", farm)))
	return g
}

// channelFarm is a farm of goroutines that take the items from one Go channel. On an idle machine
// it takes the ideal time: no worker waits while there is an item.
func channelFarm(*pair) loop {
	return func(n int, t *times) {
		items := make(chan int, n)
		for i := range n {
			items <- i
		}
		close(items)
		start := time.Now()
		concurrently(flowWorkers, func(i int) {
			for range items {
				time.Sleep(time.Duration(i+1) * flowWork) // the work
			}
		})
		t.each = append(t.each, milliseconds(time.Since(start)))
	}
}

func milliseconds(d time.Duration) float64 { return d.Seconds() * 1e3 }

func flowFarm(p *pair) loop {
	return p.flowing(farmGraph, 1, func(f *flow, t *times, run func()) {
		run()
		t.each = append(t.each, milliseconds(f.ended.Sub(f.began)))
		checkFlow(int(f.got.Load()), f.n)
	})
}

// spent is what a group has used: processor time of its process, and wake-ups and system calls of
// its context.
type spent struct{ cpu, work float64 }

// rest adds, over f.batch milliseconds in which nothing happens, what the group has used.
func (f *flow) rest(c *rocl.Context) {
	time.Sleep(flowSettle)
	work := contextWork(c)
	before, _, _, err := posix.Usage()
	check(err)
	time.Sleep(time.Duration(f.batch) * time.Millisecond) // what is measured
	after, _, _, err := posix.Usage()
	check(err)
	f.spent = spent{float64(after - before), contextWork(c) - work}
}

// flowSettle is how long a graph rests before and after it is measured.
const flowSettle = 100 * time.Millisecond

// idle makes a graph of two groups through which one item goes, which connects them, and then
// nothing until both have rested.
func (f *flow) idle(c *rocl.Context) *dataflow.Graph {
	source := dataflow.From(func(ctx context.Context, out dataflow.Out[int64]) error {
		err := out.Send(ctx, 0)
		f.rest(c)
		time.Sleep(flowSettle) // the other group rests a bit later
		return err
	})
	sink := dataflow.To(func(context.Context, dataflow.Item[int64]) error {
		f.got.Add(1)
		f.resting.Go(func() { f.rest(c) })
		return nil
	})
	return grouped(source, sink)
}

// flowIdle measures what both groups of an idle graph use.
func flowIdle(p *pair, c *comparison) []*Result {
	cpu, work := newTimes(), newTimes()
	run := p.flowing(idleGraph, p.o.count, func(f *flow, _ *times, run func()) {
		run()
		var there spent
		must(fmt.Sscan(f.answer, &there.cpu, &there.work))
		seconds := float64(p.o.count) / 1e3
		cpu.each = append(cpu.each, (f.spent.cpu+there.cpu)/1e6/seconds)
		work.each = append(work.each, (f.spent.work+there.work)/seconds)
	})
	for range p.o.rounds {
		run(1, nil)
	}
	r := p.result(c, cpu, limit(10))
	r.Extra = fmt.Sprintf("%.1f wake-ups and system calls a second of both contexts", work.mid())
	return []*Result{r}
}

func flowExits(p *pair) loop {
	return p.flowing(exitGraphs, 1, func(f *flow, t *times, run func()) {
		start := time.Now()
		run()
		t.each = append(t.each, milliseconds(time.Since(start))*1e3/float64(f.n*len(exits)))
	})
}

// SPDX-License-Identifier: Apache-2.0

package dataflow_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"

	"github.com/rocl-go/rocl"
	. "github.com/rocl-go/rocl/dataflow"
	"github.com/rocl-go/rocl/internal/testkit/try"
	"github.com/rocl-go/rocl/rocltest"
)

// An item of the topologies. By and Seq are set as it is sent: they tell of each edge whether it
// keeps order.
type item struct {
	Text string
	I    int
	F    float64
	Data []byte

	By  string
	Seq int
}

// A channel is an input of a node.
type channel struct {
	from int
	back bool
}

// A probe has what one node has seen.
type probe struct {
	w     *world
	name  string
	sent  int
	got   []Item[item]
	by    map[channel]string
	last  map[channel]int
	ended map[channel]int
}

// A world is a graph under test, built anew for each run.
type world struct {
	t      *testing.T
	leaves []Node
	cut    []cutGroup
	sinks  []string
	opts   []rocl.Option // of the contexts

	mu     sync.Mutex
	probes map[string]*probe
}

type cutGroup struct {
	name    string
	members []Node
}

// group adds a group to the cut that the table gives.
func (w *world) group(members ...Node) {
	w.cut = append(w.cut, cutGroup{fmt.Sprintf("G%d", len(w.cut)+1), members})
}

func (w *world) errorf(format string, a ...any) {
	w.t.Helper()
	w.t.Errorf(format, a...)
}

func (w *world) probe(name string) *probe {
	w.mu.Lock()
	defer w.mu.Unlock()
	p := &probe{w: w, name: name, by: map[channel]string{}, last: map[channel]int{}, ended: map[channel]int{}}
	w.probes[name] = p
	return p
}

// take notes an item, and checks that it is in order, from the node of its channel, and not behind
// the channel's end.
func (p *probe) take(in Item[item]) {
	p.w.mu.Lock()
	defer p.w.mu.Unlock()
	c := channel{in.From, in.Back}
	if by, ok := p.by[c]; ok && (by != in.Value.By || p.last[c] >= in.Value.Seq) {
		p.w.errorf("%s: item %d of %s came on channel %v behind item %d of %s", p.name, in.Value.Seq, in.Value.By, c, p.last[c], by)
	}
	if p.ended[c] != 0 {
		p.w.errorf("%s: an item behind the end of channel %v", p.name, c)
	}
	p.by[c], p.last[c] = in.Value.By, in.Value.Seq
	p.got = append(p.got, in)
}

func (p *probe) end(from int, back bool) {
	p.w.mu.Lock()
	defer p.w.mu.Unlock()
	c := channel{from, back}
	if p.ended[c]++; p.ended[c] != 1 {
		p.w.errorf("%s: channel %v has ended twice", p.name, c)
	}
}

// out stamps what a node sends.
type stampingOut struct {
	Out[item]
	p *probe
}

func (o stampingOut) stamp(v item) item {
	o.p.w.mu.Lock()
	defer o.p.w.mu.Unlock()
	o.p.sent++
	v.By, v.Seq = o.p.name, o.p.sent
	return v
}

func (o stampingOut) Send(ctx context.Context, v item) error { return o.Out.Send(ctx, o.stamp(v)) }
func (o stampingOut) SendTo(ctx context.Context, ch int, v item) error {
	return o.Out.SendTo(ctx, ch, o.stamp(v))
}
func (o stampingOut) SendBack(ctx context.Context, ch int, v item) error {
	return o.Out.SendBack(ctx, ch, o.stamp(v))
}

type (
	sendFunc    = func(ctx context.Context, out Out[item]) error
	processFunc = func(ctx context.Context, in Item[item], out Out[item]) error
	endedFunc   = func(ctx context.Context, from int, back bool, out Out[item]) error
)

// A code is the code of a stage under test. Functions may be nil.
type code struct {
	begin   sendFunc
	process processFunc
	ended   endedFunc
}

// probed is a stage with a probe.
type probed struct {
	*probe
	code
}

func (s *probed) Start(ctx context.Context, out Out[item]) error {
	if s.begin == nil {
		return nil
	}
	return s.begin(ctx, stampingOut{out, s.probe})
}

func (s *probed) Process(ctx context.Context, in Item[item], out Out[item]) error {
	s.take(in)
	return s.process(ctx, in, stampingOut{out, s.probe})
}

func (s *probed) InputEnded(ctx context.Context, from int, back bool, out Out[item]) error {
	s.end(from, back)
	if s.code.ended == nil {
		return nil
	}
	return s.code.ended(ctx, from, back, stampingOut{out, s.probe})
}

// leafOf notes a node, so that it can be cut.
func leafOf[I, O any](w *world, p Part[I, O]) Part[I, O] {
	w.leaves = append(w.leaves, p)
	return p
}

// fuse fuses two stages, which become one node.
func (w *world) fuse(p, q Part[item, item]) Part[item, item] {
	w.leaves = slices.DeleteFunc(w.leaves, func(n Node) bool { return n == Node(p) || n == Node(q) })
	return leafOf(w, Fuse(p, q))
}

// stage returns a stage with any code.
func (w *world) stage(name string, c code, o ...Option) Part[item, item] {
	return leafOf(w, Do(&probed{w.probe(name), c}, append([]Option{Name(name)}, o...)...))
}

// do returns a stage that is a function.
func (w *world) do(name string, f processFunc, o ...Option) Part[item, item] {
	return w.stage(name, code{process: f}, o...)
}

// from returns a source.
func (w *world) from(name string, f sendFunc, o ...Option) Part[None, item] {
	p := w.probe(name)
	return leafOf(w, From(func(ctx context.Context, out Out[item]) error { return f(ctx, stampingOut{out, p}) },
		append([]Option{Name(name)}, o...)...))
}

// sinkStage is a sink that sees the ends of its channels.
type sinkStage struct {
	*probe
	f func(ctx context.Context, in Item[item]) error
}

func (s *sinkStage) Process(ctx context.Context, in Item[item], _ Out[None]) error {
	s.take(in)
	if s.f == nil {
		return nil
	}
	return s.f(ctx, in)
}

func (s *sinkStage) InputEnded(_ context.Context, from int, back bool, _ Out[None]) error {
	s.end(from, back)
	return nil
}

// to returns a sink. f may be nil.
func (w *world) to(name string, f func(ctx context.Context, in Item[item]) error, o ...Option) Part[item, None] {
	w.sinks = append(w.sinks, name)
	return leafOf(w, Do(&sinkStage{w.probe(name), f}, append([]Option{Name(name)}, o...)...))
}

// several returns n parts, named with numbers from 1.
func several[I, O any](n int, name string, f func(name string, i int) Part[I, O]) []Part[I, O] {
	ps := make([]Part[I, O], n)
	for i := range ps {
		ps[i] = f(fmt.Sprintf("%s%d", name, i+1), i)
	}
	return ps
}

// nodesOf returns parts as nodes.
func nodesOf[I, O any](ps []Part[I, O]) (ns []Node) {
	for _, p := range ps {
		ns = append(ns, p)
	}
	return ns
}

// got returns how many items a node got, and how many of them by feedback.
func (w *world) got(name string) (all, back int) {
	for _, i := range w.probes[name].got {
		all++
		if i.Back {
			back++
		}
	}
	return all, back
}

// wantGot checks how many items nodes got.
func (w *world) wantGot(n int, names ...string) {
	w.t.Helper()
	for _, name := range names {
		got, _ := w.got(name)
		try.Equal(w.t, got, n, "items at %s", name)
	}
}

// wantPerChannel checks how many items each of a node's forward channels brought.
func (w *world) wantPerChannel(name string, channels, n int) {
	w.t.Helper()
	count := map[int]int{}
	for _, i := range w.probes[name].got {
		count[i.From]++
	}
	try.Equal(w.t, len(count), channels, "channels of %s with items", name)
	for c, k := range count {
		try.Equal(w.t, k, n, "items of channel %d of %s", c, name)
	}
}

// wantEnds checks how many forward and feedback channels of a node have ended, from 0 on.
func (w *world) wantEnds(name string, forward, back int) {
	w.t.Helper()
	p := w.probes[name]
	try.Equal(w.t, len(p.ended), forward+back, "ends at %s", name)
	for c := range p.ended {
		if !c.back && c.from >= forward || c.back && c.from >= back {
			w.t.Errorf("%s saw the end of channel %v", name, c)
		}
	}
}

// result returns what came to the sinks, whatever the order.
func (w *world) result() string {
	var all []string
	for _, s := range w.sinks {
		for _, i := range w.probes[s].got {
			all = append(all, fmt.Sprintf("%s %d %v", i.Value.Text, i.Value.I, i.Value.F))
		}
	}
	slices.Sort(all)
	return fmt.Sprint(all)
}

// oneEach puts each node into a group of its own.
func (w *world) oneEach() {
	w.cut = nil
	for _, n := range w.leaves {
		w.group(n)
	}
}

// randomCut puts the nodes into up to four groups.
func (w *world) randomCut(r *rand.Rand) {
	groups := make([][]Node, 2+r.IntN(3))
	for _, n := range w.leaves {
		k := r.IntN(len(groups))
		groups[k] = append(groups[k], n)
	}
	w.cut = nil
	for _, members := range groups {
		if len(members) != 0 {
			w.group(members...)
		}
	}
}

// run runs a graph in the groups of the cut, each in a context of its own, or without groups.
func (w *world) run(name string, root Part[None, None]) {
	t := w.t
	g := try.Get(New(name, root))(t)
	if w.cut == nil {
		try.OK(t, g.Run(t.Context()))
		return
	}
	cluster := rocltest.Cluster(t, 1)
	var wg sync.WaitGroup
	for _, c := range w.cut {
		try.OK(t, g.Group(c.name, c.members...))
	}
	for _, group := range w.cut {
		c := cluster.Open(0, w.opts...)
		wg.Go(func() { try.Works(g.Run(t.Context(), InGroup(c, group.name, Config{})))(t, "group %s", group.name) })
	}
	wg.Wait()
}

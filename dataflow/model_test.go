// SPDX-License-Identifier: Apache-2.0

package dataflow_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	. "github.com/rocl-go/rocl/dataflow"
	"pgregory.net/rapid"
)

// A parcel is an item of a random graph. Stamp counts what its last sender has sent, so that the
// receiver can check the order on each channel.
type parcel struct{ ID, Turn, Stamp int }

// A checker has what the nodes of a random graph have found wrong.
type checker struct {
	mu    sync.Mutex
	wrong []string
	ids   []int // at the sinks
	nodes []*hop
}

func (c *checker) errorf(format string, a ...any) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.wrong = append(c.wrong, fmt.Sprintf(format, a...))
}

// A hop is a stage of a random graph. With loop it sends each fresh item back, and a returned one
// on.
type hop struct {
	c      *checker
	name   string
	loop   string // "", "self": sends to itself; "head" and "tail": two nodes of a loop
	inputs int    // forward channels
	pause  time.Duration

	stamp, fresh, returned, endedForward int
	last                                 map[[2]int]int // the last stamp, by channel
	ended                                map[[2]int]bool
}

func (h *hop) key(from int, back bool) [2]int {
	if back {
		return [2]int{from, 1}
	}
	return [2]int{from, 0}
}

func (h *hop) Process(ctx context.Context, in Item[parcel], out Out[parcel]) error {
	k, v := h.key(in.From, in.Back), in.Value
	if h.ended[k] {
		h.c.errorf("%s: an item after the end of channel %v", h.name, k)
	}
	if last, ok := h.last[k]; ok && v.Stamp <= last {
		h.c.errorf("%s: stamp %d after %d on channel %v", h.name, v.Stamp, last, k)
	}
	h.last[k] = v.Stamp
	if h.pause > 0 {
		time.Sleep(h.pause) // in a bubble: the work
	}
	h.stamp++
	v.Stamp = h.stamp
	switch {
	case h.loop == "self" && !in.Back, h.loop == "tail" && v.Turn == 0:
		h.fresh++
		return out.SendBack(ctx, 0, v)
	case h.loop == "head":
		if v.Turn = 0; in.Back {
			v.Turn = 1
			h.returned++
		} else {
			h.fresh++
		}
	case h.loop == "self":
		h.returned++
	case h.loop == "tail":
		v.Turn = 0
	}
	return errors.Join(out.Send(ctx, v), h.done())
}

// done returns Done if a loop has nothing more to expect.
func (h *hop) done() error {
	if (h.loop == "self" || h.loop == "head") && h.endedForward == h.inputs && h.returned == h.fresh {
		return Done
	}
	return nil
}

func (h *hop) InputEnded(_ context.Context, from int, back bool, _ Out[parcel]) error {
	k := h.key(from, back)
	if h.ended[k] {
		h.c.errorf("%s: channel %v ended twice", h.name, k)
	}
	h.ended[k] = true
	if !back {
		h.endedForward++
	}
	return h.done()
}

// A builder draws a random graph.
type builder struct {
	t *rapid.T
	c *checker
	n int
}

func (b *builder) draw(lo, hi int, what string) int { return rapid.IntRange(lo, hi).Draw(b.t, what) }

// options draws how a part sends.
func (b *builder) options() []Option {
	var o []Option
	switch b.draw(0, 5, "policy") {
	case 0:
		o = append(o, Policy(RoundRobin))
	case 1:
		o = append(o, Policy(OnDemand(b.draw(1, 3, "demand"))))
	case 2:
		o = append(o, Policy(ByKey(func(p parcel) uint64 { return uint64(p.ID) })))
	case 3:
		o = append(o, Policy(PreferLocal))
	}
	if b.draw(0, 1, "batch?") == 1 {
		o = append(o, Batch(b.draw(1, 9, "batch"), 0, time.Duration(b.draw(0, 2, "delay"))*time.Millisecond))
	}
	if b.draw(0, 1, "window?") == 1 {
		o = append(o, Window(b.draw(1, 5, "window")))
	}
	return o
}

// hop draws a stage whose stage before has that many nodes at its end.
func (b *builder) hop(loop string, inputs int) Part[parcel, parcel] {
	b.n++
	h := &hop{c: b.c, name: fmt.Sprintf("%shop%d", loop, b.n), loop: loop, inputs: inputs, last: map[[2]int]int{}, ended: map[[2]int]bool{}}
	h.pause = time.Duration(b.draw(0, 3, "pause")) * 100 * time.Microsecond
	b.c.nodes = append(b.c.nodes, h)
	return Do(h, append(b.options(), Name(h.name))...)
}

func (b *builder) hops(n, inputs int) []Part[parcel, parcel] {
	ps := make([]Part[parcel, parcel], n)
	for i := range ps {
		ps[i] = b.hop("", inputs)
	}
	return ps
}

// part draws a part. inputs is how many nodes send to it; it returns how many nodes it ends with.
func (b *builder) part(inputs, depth int) (p Part[parcel, parcel], outs int) {
	kind := b.draw(0, 7, "kind")
	if depth == 0 || kind == 5 && inputs != 1 { // an ordered farm behind several nodes has no one order
		kind = 0
	}
	switch n := b.draw(1, 3, "width"); kind {
	case 1:
		return Farm(n, func(int) Part[parcel, parcel] { return b.hop("", inputs) }, b.options()...), n
	case 2:
		m := b.draw(1, 3, "right")
		return AllToAll(b.hops(n, inputs), b.hops(m, n), b.options()...), m
	case 3:
		return Loop(b.hop("self", inputs)), 1
	case 4:
		return Loop(Pipeline(b.hop("head", inputs), b.hop("tail", 1))), 1
	case 5:
		return Farm(n, func(int) Part[parcel, parcel] { return b.unstamped() }, append(b.options(), Ordered(b.draw(1, 20, "ordered")))...), 1
	case 6:
		total := 0
		return Farm(n, func(int) Part[parcel, parcel] {
			p, k := b.part(inputs, depth-1)
			total += k
			return p
		}), total
	case 7:
		p, k := b.part(inputs, depth-1)
		q, outs := b.part(k, depth-1)
		return Pipeline(p, q), outs
	}
	return Fuse(b.hop("", inputs), b.hop("", 1)), 1
}

// unstamped draws a worker of an ordered farm: it keeps the stamp, so that the node behind the farm
// checks the order of the whole farm. The farm gets its items from one node.
func (b *builder) unstamped() Part[parcel, parcel] {
	pause := time.Duration(b.draw(0, 9, "pause")) * 100 * time.Microsecond
	b.n++
	return Do(Func[parcel, parcel](func(ctx context.Context, in Item[parcel], out Out[parcel]) error {
		time.Sleep(pause) // in a bubble: the work
		return out.Send(ctx, in.Value)
	}), Name(fmt.Sprintf("worker%d", b.n)))
}

// graph draws a graph through which items go.
func (b *builder) graph(items int) (*Graph, error) {
	src := From(func(ctx context.Context, out Out[parcel]) error {
		for i := range items {
			if err := out.Send(ctx, parcel{i, 0, i}); err != nil {
				return err
			}
		}
		return nil
	}, b.options()...)
	mid, _ := b.part(1, 2)
	sink := To(func(_ context.Context, in Item[parcel]) error {
		b.c.mu.Lock()
		defer b.c.mu.Unlock()
		b.c.ids = append(b.c.ids, in.Value.ID)
		return nil
	})
	return New("random", Pipeline3(src, mid, sink))
}

// Promise (Dataflow): Whatever the graph, each item comes to a sink once, each channel keeps its
// order and ends once, and the run ends.
func TestRandomGraphs(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		b := &builder{t: rt, c: &checker{}}
		items := b.draw(0, 60, "items")
		g, err := b.graph(items)
		if err != nil {
			rt.Fatal(err)
		}
		synctest.Test(t, func(t *testing.T) { err = g.Run(t.Context()) })
		if err != nil {
			rt.Fatal(err)
		}
		checkRandom(rt, b.c, items)
	})
}

// checkRandom checks what the nodes of a random graph have seen.
func checkRandom(t *rapid.T, c *checker, items int) {
	slices.Sort(c.ids)
	for i, id := range c.ids {
		if i != id {
			t.Fatalf("item %d is %d", i, id)
		}
	}
	if len(c.ids) != items || len(c.wrong) != 0 {
		t.Fatalf("%d of %d items came; %q", len(c.ids), items, c.wrong)
	}
	for _, h := range c.nodes {
		if h.endedForward != h.inputs {
			t.Fatalf("%s has seen the ends of %d channels of %d", h.name, h.endedForward, h.inputs)
		}
	}
}

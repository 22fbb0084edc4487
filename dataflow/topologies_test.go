// SPDX-License-Identifier: Apache-2.0

package dataflow_test

import (
	"context"
	"fmt"
	"hash/fnv"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"testing/synctest"

	. "github.com/rocl-go/rocl/dataflow"
	"github.com/rocl-go/rocl/internal/testkit/short"
	"github.com/rocl-go/rocl/internal/testkit/try"
)

// A topology builds a graph of section 2 of FastFlow's specification. It puts the groups of the
// given cut into w, and returns what must hold when the graph has run.
type topology func(w *world) (root Part[None, None], check func())

func forward(ctx context.Context, in Item[item], out Out[item]) error { return out.Send(ctx, in.Value) }

// records sends n records.
func records(n int) sendFunc {
	return func(ctx context.Context, out Out[item]) error {
		for i := range n {
			if err := out.Send(ctx, item{Text: "Hello", I: i, F: float64(i)}); err != nil {
				return err
			}
		}
		return nil
	}
}

// toEach sends one item to each channel.
func toEach(ctx context.Context, out Out[item], v item) error {
	n, _ := out.Channels()
	for ch := range n {
		if err := out.SendTo(ctx, ch, v); err != nil {
			return err
		}
	}
	return nil
}

// stages returns n stages that pass items on.
func (w *world) stages(n int, name string, o ...Option) []Part[item, item] {
	return several(n, name, func(name string, _ int) Part[item, item] { return w.do(name, forward, o...) })
}

// combs returns n nodes of two fused stages, the second with code f.
func (w *world) combs(n int, name string, f processFunc, o ...Option) []Part[item, item] {
	return several(n, name, func(name string, _ int) Part[item, item] {
		return w.fuse(w.do(name+"in", forward), w.do(name, f, o...))
	})
}

func addWorld(ctx context.Context, in Item[item], out Out[item]) error {
	in.Value.Text += " World"
	return out.Send(ctx, in.Value)
}

func addOne(ctx context.Context, in Item[item], out Out[item]) error {
	in.Value.F++
	return out.Send(ctx, in.Value)
}

// numbers checks that the integers below n came to K, each once.
func (w *world) numbers(n int) {
	w.t.Helper()
	var is []int
	for _, i := range w.probes["K"].got {
		is = append(is, i.Value.I)
	}
	slices.Sort(is)
	try.Equal(w.t, len(is), n, "items")
	for i, v := range is {
		if i != v {
			w.t.Fatalf("item %d is %d", i, v)
		}
	}
}

// inOrder checks that K got n numbers in order.
func (w *world) inOrder(n int) {
	w.t.Helper()
	w.wantGot(n, "K")
	for i, in := range w.probes["K"].got {
		try.Equal(w.t, in.Value.I, i)
	}
}

// crossed is topology 1 and its kin: S, left, right, K.
func crossed(left, right, n int, cut func(w *world, s, k Node, l, r []Node), o ...Option) topology {
	return func(w *world) (Part[None, None], func()) {
		s, l, r, k := w.from("S", records(n)), w.stages(left, "L"), w.stages(right, "R"), w.to("K", nil)
		cut(w, s, k, nodesOf(l), nodesOf(r))
		return Pipeline3(s, AllToAll(l, r, o...), k), func() {
			w.numbers(n)
			sum := 0
			for i := range left {
				got, _ := w.got(fmt.Sprintf("L%d", i+1))
				sum += got
			}
			try.Equal(w.t, sum, n)
			w.wantEnds("K", right, 0)
		}
	}
}

func byStage(w *world, s, k Node, l, r []Node) {
	w.group(s)
	w.group(slices.Concat(l, r)...)
	w.group(k)
}

// pairs is topology 3 and its kin: each source sends a text to each sink.
func pairs(sources, sinks int, cut func(w *world, s, k []Node), o ...Option) topology {
	return func(w *world) (Part[None, None], func()) {
		s := several(sources, "S", func(name string, i int) Part[None, item] {
			return w.from(name, func(ctx context.Context, out Out[item]) error {
				for k := range sinks {
					if err := out.SendTo(ctx, k, item{Text: fmt.Sprintf("from %d to %d", i, k)}); err != nil {
						return err
					}
				}
				return nil
			}, o...)
		})
		k := several(sinks, "K", func(name string, k int) Part[item, None] {
			return w.to(name, func(_ context.Context, in Item[item]) error {
				try.Equal(w.t, in.Value.Text, fmt.Sprintf("from %d to %d", in.From, k))
				return nil
			})
		})
		cut(w, nodesOf(s), nodesOf(k))
		return AllToAll(s, k), func() {
			for i := range sinks {
				w.wantPerChannel(fmt.Sprintf("K%d", i+1), sources, 1)
				w.wantEnds(fmt.Sprintf("K%d", i+1), sources, 0)
			}
		}
	}
}

// twoCrossed is topologies 5 and 6.
func twoCrossed(cut func(w *world, s, wk, t []Node, k Node)) topology {
	return func(w *world) (Part[None, None], func()) {
		s := several(3, "S", func(name string, _ int) Part[None, item] {
			return w.from(name, func(ctx context.Context, out Out[item]) error { return toEach(ctx, out, item{Text: name}) })
		})
		wk := w.combs(3, "W", func(ctx context.Context, in Item[item], out Out[item]) error { return toEach(ctx, out, in.Value) })
		ts := w.combs(3, "T", forward)
		k := w.to("K", nil)
		cut(w, nodesOf(s), nodesOf(wk), nodesOf(ts), k)
		return Pipeline(AllToAll(s, wk), AllToAll(ts, []Part[item, None]{k})), func() {
			for i := range 3 {
				w.wantPerChannel(fmt.Sprintf("W%din", i+1), 3, 1)
				w.wantPerChannel(fmt.Sprintf("T%din", i+1), 3, 3)
			}
			w.wantPerChannel("K", 3, 9)
		}
	}
}

func topology7(w *world) (Part[None, None], func()) {
	s1, n := w.from("S1", records(10)), 0
	s2 := w.do("S2", func(ctx context.Context, in Item[item], out Out[item]) error {
		n++
		return out.SendTo(ctx, n%2, in.Value)
	})
	wp := several(2, "W", func(name string, _ int) Part[item, item] {
		n := 0
		return Pipeline(w.do(name+"a", forward), w.do(name+"b", func(ctx context.Context, in Item[item], out Out[item]) error {
			n++
			return out.SendTo(ctx, n%4, in.Value)
		}))
	})
	right := several(2, "X", func(name string, _ int) Part[item, item] {
		return AllToAll(w.stages(2, name+"T"), w.stages(2, name+"U"))
	})
	k := w.to("K", nil)
	w.group(s1, s2)
	w.group(wp[0], right[0])
	w.group(wp[1], right[1])
	w.group(k)
	return Pipeline3(Pipeline(s1, s2), AllToAll(wp, right), k), func() {
		w.wantGot(5, "W1a", "W2a", "W1b", "W2b")
		w.numbers(10)
		w.wantEnds("X1T1", 2, 0)
		w.wantEnds("K", 4, 0)
	}
}

// chain is topologies 9, 16 and 19: four nodes in a row.
func chain(n int, cut func(w *world, ns []Node), o ...Option) topology {
	return func(w *world) (Part[None, None], func()) {
		n1, n2, n3, k := w.from("N1", records(n)), w.do("N2", addWorld, o...), w.do("N3", addOne, o...), w.to("K", nil)
		cut(w, []Node{n1, n2, n3, k})
		return Pipeline(Pipeline(n1, n2), Pipeline(n3, k)), func() {
			w.inOrder(n)
			for i, in := range w.probes["K"].got {
				try.Equal(w.t, in.Value.Text, "Hello World")
				try.Equal(w.t, in.Value.F, float64(i)+1)
			}
		}
	}
}

// spread is topologies 10, 14 and 20: L×3 between the first part and K.
func spread(n int, hasSecond bool, cut func(w *world, s, l []Node, k Node)) topology {
	return func(w *world) (Part[None, None], func()) {
		s, l, k := w.from("N1", records(n)), w.stages(3, "L"), w.to("K", nil)
		first, ss := s, []Node{s}
		if hasSecond {
			n2 := w.do("N2", addWorld)
			first, ss = Pipeline(s, n2), append(ss, n2)
		}
		cut(w, ss, nodesOf(l), k)
		return Pipeline(first, AllToAll(l, []Part[item, None]{k})), func() {
			w.numbers(n)
			for i := range 3 {
				w.wantEnds(fmt.Sprintf("L%d", i+1), 1, 0)
			}
			w.wantEnds("K", 3, 0)
		}
	}
}

// combed is topologies 11 and 12.
func combed(c int, cut func(w *world, s Node, c, d []Node, k Node)) topology {
	return func(w *world) (Part[None, None], func()) {
		s, cs, ds, k := w.from("S", records(100)), w.combs(c, "C", addWorld), w.combs(3, "D", addOne), w.to("K", nil)
		cut(w, s, nodesOf(cs), nodesOf(ds), k)
		return Pipeline(AllToAll([]Part[None, item]{s}, cs), AllToAll(ds, []Part[item, None]{k})), func() {
			w.numbers(100)
			w.wantEnds("D1in", c, 0)
			w.wantEnds("D1", 1, 0)
		}
	}
}

func topology18(w *world) (Part[None, None], func()) {
	e := w.from("E", records(100))
	var ws []Node
	farm := Farm(3, func(i int) Part[item, item] {
		p := w.do(fmt.Sprintf("W%d", i), func(ctx context.Context, in Item[item], out Out[item]) error {
			in.Value.Data = []byte{byte(i)}
			return out.Send(ctx, in.Value)
		}, Policy(OneToOne))
		ws = append(ws, p)
		return p
	})
	l := several(3, "L", func(name string, i int) Part[item, item] {
		return w.do(name, func(ctx context.Context, in Item[item], out Out[item]) error {
			try.Equal(w.t, string(in.Value.Data), string([]byte{byte(i)}), "the worker of an item at %s", name)
			return out.Send(ctx, in.Value)
		})
	})
	r, k := w.stages(2, "R"), w.to("K", nil)
	w.group(append(ws, e)...)
	w.group(slices.Concat(nodesOf(l), nodesOf(r))...)
	w.group(k)
	return Pipeline4(e, farm, AllToAll(l, r), k), func() {
		w.numbers(100)
		w.wantEnds("L1", 1, 0)
	}
}

// answering is R of topologies 21 and 22.
func answering(ctx context.Context, in Item[item], out Out[item]) error {
	if in.Value.Text == "Feedback" {
		return out.Send(ctx, in.Value)
	}
	_, back := out.Channels()
	for ch := range back {
		if err := out.SendBack(ctx, ch, item{Text: "Feedback"}); err != nil {
			return err
		}
	}
	return nil
}

// doneAfter passes items on, and is done after n returned ones.
func doneAfter(n int) processFunc {
	got := 0
	return func(ctx context.Context, in Item[item], out Out[item]) error {
		err := out.Send(ctx, in.Value)
		if in.Back {
			got++
		}
		if err == nil && got == n {
			err = Done
		}
		return err
	}
}

// answered is topologies 21 and 22.
func answered(isLong bool, o ...Option) topology {
	return func(w *world) (Part[None, None], func()) {
		const n = 100
		s, k := w.from("S", records(n)), w.to("K", nil)
		l := several(3, "L", func(name string, _ int) Part[item, item] { return w.do(name, doneAfter(n), o...) })
		r := several(5, "R", func(name string, _ int) Part[item, item] { return w.do(name, answering) })
		w.group(s)
		w.group(slices.Concat(nodesOf(l), nodesOf(r))...)
		w.group(k)
		loop := AllToAll(l, r)
		if isLong {
			c1, c2 := w.do("C1", forward), w.do("C2", forward)
			w.cut[1].members = append(w.cut[1].members, c1, c2)
			loop = Pipeline(AllToAll(l, []Part[item, item]{c1}), AllToAll([]Part[item, item]{c2}, r))
		}
		return Pipeline3(s, Loop(loop), k), func() {
			w.wantGot(3*n, "K")
			for _, in := range w.probes["K"].got {
				try.Equal(w.t, in.Value.Text, "Feedback")
			}
			w.wantEnds("K", 5, 0)
		}
	}
}

// turning is the loop of N2 and N3 in topologies 23 and 26: each fresh item turns once.
func (w *world) turning() (n2, n3 Part[item, item]) {
	under, hasEnded := 0, false
	over := func() error {
		if hasEnded && under == 0 {
			return Done
		}
		return nil
	}
	n2 = w.stage("N2", code{process: func(ctx context.Context, in Item[item], out Out[item]) error {
		if under++; in.Back {
			under -= 2
		}
		if err := out.Send(ctx, in.Value); err != nil {
			return err
		}
		return over()
	}, ended: func(_ context.Context, _ int, back bool, _ Out[item]) error {
		hasEnded = hasEnded || !back
		return over()
	}})
	n3 = w.do("N3", func(ctx context.Context, in Item[item], out Out[item]) error {
		if in.Value.Text == "returned" {
			in.Value.Text = "Hello"
			return out.Send(ctx, in.Value)
		}
		in.Value.Text = "returned"
		return out.SendBack(ctx, 0, in.Value)
	})
	return n2, n3
}

func topology23(w *world) (Part[None, None], func()) {
	const n = 100
	sent, returned := 0, 0
	more := func(ctx context.Context, out Out[item]) error {
		for i := 0; i < 10 && sent < n; i++ {
			if err := out.Send(ctx, item{I: sent}); err != nil {
				return err
			}
			sent++
		}
		return nil
	}
	n1 := w.stage("N1", code{begin: more, process: func(ctx context.Context, _ Item[item], out Out[item]) error {
		if returned++; returned == n {
			return Done
		}
		return more(ctx, out)
	}})
	n2, n3 := w.turning()
	n4 := w.do("N4", func(ctx context.Context, in Item[item], out Out[item]) error { return out.SendBack(ctx, 0, in.Value) })
	w.group(n1)
	w.group(n2, n3)
	w.group(n4)
	return Ring(Pipeline3(n1, Loop(Pipeline(n2, n3)), n4)), func() {
		w.wantGot(n, "N1", "N4")
		w.wantGot(2*n, "N2", "N3")
		_, back := w.got("N2")
		try.Equal(w.t, back, n)
	}
}

func topology24(w *world) (Part[None, None], func()) {
	k := w.to("K", nil)
	ms := several(3, "P", func(name string, _ int) Part[None, item] {
		c := several(2, name+"C", func(name string, _ int) Part[None, item] { return w.from(name, records(100)) })
		m := w.do(name+"M", forward)
		p := AllToAll(c, []Part[item, item]{m})
		w.group(p)
		return p
	})
	w.group(k)
	return AllToAll(ms, []Part[item, None]{k}), func() {
		w.wantPerChannel("K", 3, 200)
		w.wantEnds("P1M", 2, 0)
	}
}

func topology25(w *world) (Part[None, None], func()) {
	const n = 10
	returned := 0
	h := w.stage("H", code{begin: func(ctx context.Context, out Out[item]) error { return out.Send(ctx, item{I: -1}) }, process: forward})
	n1 := w.do("N1", func(ctx context.Context, in Item[item], out Out[item]) error {
		if in.Value.I < 0 {
			if err := records(n)(ctx, out); err != nil {
				return err
			}
			return out.Flush(ctx)
		}
		if returned++; returned == n {
			return Done
		}
		return nil
	}, Batch(100, 0, 0))
	r := several(3, "R", func(name string, _ int) Part[item, item] {
		return w.do(name, func(ctx context.Context, in Item[item], out Out[item]) error { return out.SendBack(ctx, 0, in.Value) })
	})
	l := w.stages(2, "L")
	comb := w.fuse(h, n1)
	w.group(comb)
	w.group(slices.Concat(nodesOf(l), nodesOf(r))...)
	return Ring(Pipeline(comb, AllToAll(l, r))), func() {
		try.Equal(w.t, returned, n)
		w.wantEnds("H", 0, 3)
	}
}

func topology26(w *world) (Part[None, None], func()) {
	const n = 20
	n1, k := w.from("N1", records(n), Batch(3, 0, 0)), w.to("K", nil)
	n2, n3 := w.turning()
	for _, p := range []Node{n1, n2, n3, k} {
		w.group(p)
	}
	return Pipeline3(n1, Loop(Pipeline(n2, n3)), k), func() {
		w.wantGot(2*n, "N2", "N3")
		w.numbers(n)
	}
}

func topology27(w *world) (Part[None, None], func()) {
	l := several(2, "L", func(name string, i int) Part[item, item] {
		return w.stage(name, code{
			begin:   func(ctx context.Context, out Out[item]) error { return out.SendTo(ctx, i, item{Text: "list"}) },
			process: func(context.Context, Item[item], Out[item]) error { return Done },
		})
	})
	r := several(2, "R", func(name string, i int) Part[item, item] {
		return w.do(name, func(ctx context.Context, _ Item[item], out Out[item]) error {
			return out.SendBack(ctx, 1-i, item{Text: "record"})
		})
	})
	w.group(l[0], r[0])
	w.group(l[1], r[1])
	return Ring(AllToAll(l, r)), func() {
		w.wantGot(1, "L1", "L2", "R1", "R2")
		w.wantEnds("R1", 2, 0)
		w.wantEnds("R2", 2, 0)
	}
}

func topology28(o ...Option) topology {
	return func(w *world) (Part[None, None], func()) {
		s := several(2, "S", func(name string, _ int) Part[None, item] {
			return w.from(name, func(ctx context.Context, out Out[item]) error { return toEach(ctx, out, item{Text: name}) })
		})
		f := w.combs(2, "F", forward, o...)
		k := several(2, "K", func(name string, _ int) Part[item, None] { return w.to(name, nil) })
		w.group(s[0], f[0], k[0])
		w.group(s[1], f[1], k[1])
		return AllToAll(s, []Part[item, None]{AllToAll(f, k)}), func() {
			k1, _ := w.got("K1")
			k2, _ := w.got("K2")
			try.Equal(w.t, k1+k2, 4)
			w.wantEnds("K1", 2, 0)
			w.wantEnds("K2", 2, 0)
		}
	}
}

// launcher sends one item with the first file, to which the second is appended.
func launcher(w *world) (Part[None, None], func()) {
	first, second := strings.Repeat("first\n", 10_000), strings.Repeat("second\n", 20_000)
	n1 := w.from("N1", func(ctx context.Context, out Out[item]) error { return out.Send(ctx, item{Data: []byte(first)}) })
	n2 := w.do("N2", func(ctx context.Context, in Item[item], out Out[item]) error {
		in.Value.Data = append(in.Value.Data, second...)
		return out.Send(ctx, in.Value)
	})
	k := w.to("K", nil)
	w.group(n1)
	w.group(n2)
	w.group(k)
	return Pipeline3(n1, n2, k), func() {
		w.wantGot(1, "K")
		try.Equal(w.t, string(w.probes["K"].got[0].Value.Data), first+second)
	}
}

// perf is p·w sources and q·v sinks with items of some bytes, of which a few are checked.
func perf(sources, sinks, items, bytes int, o ...Option) topology {
	marks := map[int]byte{0: 'c', 10: 'i', 100: 'a', 500: 'o', bytes - 1: 'F'}
	return func(w *world) (Part[None, None], func()) {
		s := several(sources, "S", func(name string, _ int) Part[None, item] {
			return w.from(name, func(ctx context.Context, out Out[item]) error {
				for range items {
					p := make([]byte, bytes)
					for at, c := range marks {
						p[at] = c
					}
					if err := out.Send(ctx, item{Data: p}); err != nil {
						return err
					}
				}
				return nil
			}, o...)
		})
		k := several(sinks, "K", func(name string, _ int) Part[item, None] {
			return w.to(name, func(_ context.Context, in Item[item]) error {
				for at, c := range marks {
					try.Equal(w.t, in.Value.Data[at], c)
				}
				return nil
			})
		})
		w.group(nodesOf(s)...)
		w.group(nodesOf(k)...)
		return AllToAll(s, k), func() {
			sum := 0
			for i := range sinks {
				got, _ := w.got(fmt.Sprintf("K%d", i+1))
				sum += got
			}
			try.Equal(w.t, sum, sources*items)
		}
	}
}

// words counts the words of a text, which is sent by line.
func words(n, m int, isMixed bool) topology {
	text := strings.Split("the quick brown fox jumps over the lazy dog\nthe end of the tale is near\nso says the fox", "\n")
	key := func(v item) uint64 {
		h := fnv.New64a()
		_, _ = h.Write([]byte(v.Text))
		return h.Sum64()
	}
	return func(w *world) (Part[None, None], func()) {
		left := several(n, "", func(i string, _ int) Part[None, item] {
			return Pipeline(w.from("Source"+i, func(ctx context.Context, out Out[item]) error {
				for range 10 {
					for _, line := range text {
						if err := out.Send(ctx, item{Text: line}); err != nil {
							return err
						}
					}
				}
				return nil
			}), w.do("Split"+i, func(ctx context.Context, in Item[item], out Out[item]) error {
				for word := range strings.FieldsSeq(in.Value.Text) {
					if err := out.Send(ctx, item{Text: word}); err != nil {
						return err
					}
				}
				return nil
			}, Policy(ByKey(key)), Batch(16, 0, 0)))
		})
		distinct := 0
		right := several(m, "", func(i string, _ int) Part[item, None] {
			count := map[string]int{}
			return Pipeline(w.do("Count"+i, func(ctx context.Context, in Item[item], out Out[item]) error {
				if count[in.Value.Text]++; count[in.Value.Text] == 1 {
					w.mu.Lock()
					distinct++
					w.mu.Unlock()
				}
				in.Value.I = count[in.Value.Text]
				return out.Send(ctx, in.Value)
			}), w.to("K"+i, nil))
		})
		if isMixed {
			w.group(left[0], right[0])
			w.group(slices.Concat(nodesOf(left[1:]), nodesOf(right[1:]))...)
		} else {
			w.group(nodesOf(left)...)
			w.group(nodesOf(right)...)
		}
		return AllToAll(left, right), func() {
			all, unique := strings.Fields(strings.Join(text, " ")), map[string]bool{}
			for _, word := range all {
				unique[word] = true
			}
			sum := 0
			for i := range m {
				got, _ := w.got(fmt.Sprintf("K%d", i+1))
				sum += got
			}
			try.Equal(w.t, sum, n*10*len(all), "words")
			try.Equal(w.t, distinct, len(unique), "distinct words")
		}
	}
}

// thesis is k sources of floats, a stage that halves them, and a sink.
func thesis(k int) topology {
	return func(w *world) (Part[None, None], func()) {
		s := several(k, "S", func(name string, _ int) Part[None, item] {
			p := w.from(name, records(50))
			w.group(p)
			return p
		})
		n := w.do("N", func(ctx context.Context, in Item[item], out Out[item]) error {
			in.Value.F /= 2
			return out.Send(ctx, in.Value)
		})
		sink := w.to("K", nil)
		w.group(n)
		w.group(sink)
		return AllToAll(s, []Part[item, None]{Pipeline(n, sink)}), func() {
			w.wantPerChannel("N", k, 50)
			w.wantGot(50*k, "K")
			w.wantEnds("N", k, 0)
		}
	}
}

// traffic maps positions to roads, and roads to the mean speed on them.
func traffic(n int) topology {
	return func(w *world) (Part[None, None], func()) {
		left := several(n, "", func(i string, k int) Part[None, item] {
			return Pipeline(w.from("Source"+i, records(60)), w.do("Match"+i, func(ctx context.Context, in Item[item], out Out[item]) error {
				return out.Send(ctx, item{I: in.Value.I % 7, F: float64(10 * (in.Value.I % 7))})
			}, Policy(ByKey(func(v item) uint64 { return uint64(v.I) }))))
		})
		right := several(n, "", func(i string, _ int) Part[item, None] {
			sum, count := map[int]float64{}, map[int]float64{}
			return Pipeline(w.do("Speed"+i, func(ctx context.Context, in Item[item], out Out[item]) error {
				road := in.Value.I
				sum[road], count[road] = sum[road]+in.Value.F, count[road]+1
				return out.Send(ctx, item{I: road, F: sum[road] / count[road]})
			}), w.to("K"+i, nil))
		})
		for i := range n {
			w.group(left[i], right[i])
		}
		return AllToAll(left, right), func() {
			all := 0
			for i := range n {
				for _, in := range w.probes[fmt.Sprintf("K%d", i+1)].got {
					try.Equal(w.t, in.Value.F, float64(10*in.Value.I))
					all++
				}
			}
			try.Equal(w.t, all, 60*n)
		}
	}
}

// topologies are those of FastFlow's tests, by their numbers and names.
var topologies = []struct {
	name string
	make topology
}{
	{"1", crossed(2, 3, 100, func(w *world, s, k Node, l, r []Node) {
		w.group(s)
		w.group(l[0], r[0], r[1])
		w.group(l[1], r[2])
		w.group(k)
	})},
	{"1 on demand", crossed(2, 3, 100, byStage, Policy(OnDemand(4)))},
	{"2", crossed(2, 3, 100, func(w *world, s, k Node, l, r []Node) {
		w.group(s)
		w.group(append(r, l[0])...)
		w.group(l[1])
		w.group(k)
	})},
	{"3", pairs(3, 2, func(w *world, s, k []Node) {
		w.group(append(s, k[0])...)
		w.group(k[1])
	})},
	{"4", pairs(3, 2, func(w *world, s, k []Node) {
		w.group(s[:2]...)
		w.group(append(k, s[2])...)
	})},
	{"5", twoCrossed(func(w *world, s, wk, t []Node, k Node) {
		w.group(s[0], s[1], wk[0], wk[1])
		w.group(s[2], wk[2])
		w.group(append(t, k)...)
	})},
	{"6", twoCrossed(func(w *world, s, wk, t []Node, k Node) {
		w.group(append(s, wk...)...)
		w.group(append(t, k)...)
	})},
	{"7", topology7},
	{"8", crossed(3, 3, 100, byStage)},
	{"9", chain(1000, func(w *world, n []Node) {
		w.group(n[:2]...)
		w.group(n[2:]...)
	})},
	{"10", spread(1000, true, func(w *world, s, l []Node, k Node) {
		w.group(s...)
		w.group(append(l, k)...)
	})},
	{"11", combed(2, func(w *world, s Node, c, d []Node, k Node) {
		w.group(append(c, s)...)
		w.group(append(d, k)...)
	})},
	{"12", combed(3, func(w *world, s Node, c, d []Node, k Node) {
		w.group(s)
		w.group(c[:2]...)
		w.group(c[2])
		w.group(d[0])
		w.group(d[1:]...)
		w.group(k)
	})},
	{"13", crossed(2, 3, 1000, byStage)},
	{"14", spread(1000, false, func(w *world, s, l []Node, k Node) {
		w.group(s...)
		w.group(l...)
		w.group(k)
	})},
	{"15", crossed(3, 3, 100, func(w *world, s, k Node, l, r []Node) {
		w.group(slices.Concat(l, r, []Node{s})...)
		w.group(k)
	})},
	{"16", chain(1000, func(w *world, n []Node) {
		w.group(n[:2]...)
		w.group(n[2])
		w.group(n[3])
	}, Batch(10, 0, 0), Window(32))},
	{"17", pairs(3, 4, func(w *world, s, k []Node) {
		w.group(s...)
		w.group(k...)
	}, Batch(2, 0, 0), Window(2))},
	{"18", topology18},
	{"19", chain(1000, func(w *world, n []Node) {
		w.group(n[:2]...)
		w.group(n[2:]...)
	}, Batch(64, 1000, 0))},
	{"20", spread(1000, true, func(w *world, s, l []Node, k Node) {
		w.group(s...)
		w.group(append(l, k)...)
	})},
	{"21", answered(false)},
	{"21 batches", answered(false, Batch(9, 0, 0), Window(1))},
	{"22", answered(true)},
	{"23", topology23},
	{"24", topology24},
	{"25", topology25},
	{"26", topology26},
	{"27", topology27},
	{"28", topology28()},
	{"28 prefer local", topology28(Policy(PreferLocal))},
	{"launcher", launcher},
	{"perf", perf(2, 3, 50, 1000, Batch(8, 4000, 0))},
	{"perf on demand", perf(4, 2, 50, 700, Policy(OnDemand(1)))},
	{"words", words(2, 3, false)},
	{"words H", words(2, 2, true)},
	{"thesis", thesis(1)},
	{"thesis with sources", thesis(3)},
	{"traffic", traffic(3)},
}

// Promise (Dataflow): Every topology of FastFlow's tests gives the same items at its sinks under
// every cut: none, FastFlow's own, one group a node, and drawn ones. Each channel ends once, no
// item comes behind the end, and each edge keeps order.
func TestTopologies(t *testing.T) {
	drawn := 10
	if short.Form(t) {
		drawn = 2
	}
	for _, to := range topologies {
		t.Run(to.name, func(t *testing.T) {
			var want string
			run := func(name string, cut func(w *world)) {
				t.Run(name, func(t *testing.T) {
					synctest.Test(t, func(t *testing.T) {
						w := &world{t: t, probes: map[string]*probe{}}
						root, check := to.make(w)
						cut(w)
						w.run(to.name, root)
						check()
						if want == "" {
							want = w.result()
						}
						try.Equal(t, w.result(), want, "items at the sinks")
					})
				})
			}
			run("whole", func(w *world) { w.cut = nil })
			run("given", func(*world) {})
			run("each", (*world).oneEach)
			for seed := range uint64(drawn) {
				run(fmt.Sprintf("drawn %d", seed), func(w *world) { w.randomCut(rand.New(rand.NewPCG(seed, 36))) })
			}
		})
	}
}

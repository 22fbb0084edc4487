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
	"github.com/rocl-go/rocl/internal/testkit/try"
	"github.com/rocl-go/rocl/rocltest"
)

// A collector is the state of sinks: what came, by the sink's name.
type collector[T any] struct {
	mu    sync.Mutex
	items map[string][]Item[T]
}

// sink returns a sink that notes its items.
func (c *collector[T]) sink(name string, o ...Option) Part[T, None] {
	return To(func(_ context.Context, in Item[T]) error {
		c.mu.Lock()
		defer c.mu.Unlock()
		if c.items == nil {
			c.items = map[string][]Item[T]{}
		}
		c.items[name] = append(c.items[name], in)
		return nil
	}, append([]Option{Name(name)}, o...)...)
}

// values returns what came to a sink.
func (c *collector[T]) values(name string) (vs []T) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, i := range c.items[name] {
		vs = append(vs, i.Value)
	}
	return vs
}

// checkNumbers checks that the integers below n came, each once.
func checkNumbers(t *testing.T, vs []int, n int) {
	t.Helper()
	slices.Sort(vs)
	try.Equal(t, len(vs), n, "items")
	for i, v := range vs {
		if i != v {
			t.Fatalf("item %d is %d", i, v)
		}
	}
}

// count returns a source of the integers below n.
func count(n int, o ...Option) Part[None, int] {
	return From(func(ctx context.Context, out Out[int]) error {
		for i := range n {
			if err := out.Send(ctx, i); err != nil {
				return err
			}
		}
		return nil
	}, append([]Option{Name("S")}, o...)...)
}

// pass returns a stage that passes its items on.
func pass[T any](name string, o ...Option) Part[T, T] {
	return Do(Func[T, T](func(ctx context.Context, in Item[T], out Out[T]) error { return out.Send(ctx, in.Value) }),
		append([]Option{Name(name)}, o...)...)
}

// some returns n parts that f makes.
func some[I, O any](n int, f func(name string) Part[I, O], name string) []Part[I, O] {
	ps := make([]Part[I, O], n)
	for i := range ps {
		ps[i] = f(fmt.Sprintf("%s%d", name, i+1))
	}
	return ps
}

func passes(n int, name string) []Part[int, int] {
	return some(n, func(name string) Part[int, int] { return pass[int](name) }, name)
}

// Topology 1 of FastFlow gives each number once.
func TestTopology1(t *testing.T) {
	for _, o := range [][]Option{nil, {Policy(OnDemand(4))}, {Policy(RoundRobin)}, {Policy(PreferLocal)}, {Batch(7, 0, 0)}, {Window(1), Batch(3, 0, 0)}} {
		synctest.Test(t, func(t *testing.T) {
			var k collector[int]
			mid := AllToAll(passes(2, "L"), passes(3, "R"), o...)
			g := try.Get(New("t1", Pipeline3(count(100), mid, k.sink("K"))))(t)
			try.OK(t, g.Run(t.Context()))
			checkNumbers(t, k.values("K"), 100)
		})
	}
}

type record struct {
	Text string
	I    int
	F    float64
}

// topology19 is pipe(N1,N2,N3,N4) in two groups.
func topology19(t *testing.T, n int, k *collector[record], fail func(i int) error) *Graph {
	src := From(func(ctx context.Context, out Out[record]) error {
		for i := range n {
			if err := out.Send(ctx, record{"Hello", i, float64(i)}); err != nil {
				return err
			}
		}
		return nil
	}, Name("N1"))
	n2 := Do(Func[record, record](func(ctx context.Context, in Item[record], out Out[record]) error {
		in.Value.Text += " World"
		return out.Send(ctx, in.Value)
	}), Name("N2"), Batch(10, 0, 0), Window(32))
	n3 := Do(Func[record, record](func(ctx context.Context, in Item[record], out Out[record]) error {
		if err := fail(in.Value.I); err != nil {
			return err
		}
		in.Value.F++
		return out.Send(ctx, in.Value)
	}), Name("N3"))
	n4 := k.sink("N4")
	g := try.Get(New("t19", Pipeline4(src, n2, n3, n4)))(t)
	try.OK(t, g.Group("G1", src, n2))
	try.OK(t, g.Group("G2", n3, n4))
	return g
}

// runGroups runs the groups of a graph, each in a context of its own, and returns their errors.
func runGroups(t *testing.T, ctx context.Context, g *Graph, groups ...string) []error {
	cluster := rocltest.Cluster(t, 1)
	errs := make([]error, len(groups))
	var wg sync.WaitGroup
	for i, name := range groups {
		c := cluster.Open(0)
		wg.Go(func() { errs[i] = g.Run(ctx, InGroup(c, name, Config{})) })
	}
	wg.Wait()
	return errs
}

func never(int) error { return nil }

// Items cross from one group to another in order (topology 19).
func TestTopology19(t *testing.T) {
	const n = 1000
	check := func(t *testing.T, k *collector[record]) {
		got := k.values("N4")
		try.Equal(t, len(got), n)
		for i, v := range got {
			try.Equal(t, v, record{"Hello World", i, float64(i) + 1})
		}
	}
	t.Run("one process", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			var k collector[record]
			try.OK(t, topology19(t, n, &k, never).Run(t.Context()))
			check(t, &k)
		})
	})
	t.Run("cut", func(t *testing.T) {
		var k collector[record]
		for _, err := range runGroups(t, t.Context(), topology19(t, n, &k, never), "G1", "G2") {
			try.OK(t, err)
		}
		check(t, &k)
	})
}

// Promise (Dataflow): Each group returns the first failure of the run, with the node and its group.
func TestFailureCrosses(t *testing.T) {
	broken := errors.New("broken")
	var k collector[record]
	g := topology19(t, 1000, &k, func(i int) error {
		if i == 500 {
			return broken
		}
		return nil
	})
	for _, err := range runGroups(t, t.Context(), g, "G1", "G2") {
		var re *RunError
		if !errors.As(err, &re) {
			t.Fatalf("the error is %v", err)
		}
		try.Equal(t, re.Stage, "N3")
		try.Equal(t, re.Group, "G2")
		try.Equal(t, re.Err.Error(), "broken")
	}
}

// A group that dies is an error of the others, never an end.
func TestGroupDies(t *testing.T) {
	cluster := rocltest.Cluster(t, 1)
	a, b := cluster.Open(0), cluster.Open(0)
	var k collector[record]
	g := topology19(t, 1<<30, &k, never)
	var wg sync.WaitGroup
	started := make(chan struct{})
	var once sync.Once
	var errB error
	g2 := topology19(t, 1, &k, func(int) error { once.Do(func() { close(started) }); return nil })
	wg.Go(func() { errB = g2.Run(t.Context(), InGroup(b, "G2", Config{})) })
	wg.Go(func() {
		<-started
		try.Check(t, a.Close())
	})
	err := g.Run(t.Context(), InGroup(a, "G1", Config{}))
	wg.Wait()
	try.Rejects(err)(t)
	var re *RunError
	if !errors.As(errB, &re) || re.Group != "G1" {
		t.Fatalf("the error of G2 is %v", errB)
	}
}

// Promise (Dataflow): A panic of a node is the error of the run.
func TestPanic(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		k := To(func(_ context.Context, in Item[int]) error { panic("oops") }, Name("K"))
		g := try.Get(New("panic", Pipeline(count(10), k)))(t)
		err := g.Run(t.Context())
		try.Fails(err)(t, ErrPanic)
		var re *RunError
		try.Equal(t, errors.As(err, &re) && re.Stage == "K", true)
	})
}

// A worker of a farm has the name of the farm and its number, if it has no
// name, also if it is fused.
func TestWorkerNames(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		broken := errors.New("broken")
		farm := Farm(3, func(i int) Part[int, int] {
			return Fuse(pass[int](""), Do(Func[int, int](func(ctx context.Context, in Item[int], out Out[int]) error {
				if i == 1 {
					return broken
				}
				return out.Send(ctx, in.Value)
			})))
		}, Name("F"))
		g := try.Get(New("names", Pipeline3(count(10), farm, To(ignore[int]))))(t)
		wantRunError(t, g.Run(t.Context()), "", "F-1", broken)
	})
}

// Promise (Dataflow): Run ends when its context ends.
func TestCancel(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		var k collector[int]
		src := From(func(ctx context.Context, out Out[int]) error {
			<-ctx.Done()
			return ctx.Err()
		})
		g := try.Get(New("cancel", Pipeline3(src, pass[int]("P"), k.sink("K"))))(t)
		done := make(chan error)
		go func() { done <- g.Run(ctx) }()
		synctest.Wait()
		cancel()
		try.Fails(<-done)(t, context.Canceled)
	})
}

// A node is in one group, and a run needs a group for each node.
func TestGroups(t *testing.T) {
	var k collector[int]
	s, p := count(1), pass[int]("P")
	g := try.Get(New("groups", Pipeline3(s, p, k.sink("K"))))(t)
	try.OK(t, g.Group("A", s))
	try.Fails(g.Group("B", s))(t, ErrTwoGroups)
	try.Fails(g.Group("B", count(1)))(t, ErrGraph)
	c := rocltest.Cluster(t, 1).Open(0)
	try.Fails(g.Run(t.Context(), InGroup(c, "C", Config{})))(t, ErrGroup)
	try.Fails(g.Run(t.Context(), InGroup(c, "A", Config{})))(t, ErrNoGroup)
}

// Small items that leave one by one for another group come in order, and none
// stays behind, whether the consumer is quick or slow.
func TestHeldItems(t *testing.T) {
	for _, pause := range []time.Duration{0, 20 * time.Millisecond} {
		var k collector[int]
		src := From(func(ctx context.Context, out Out[int]) error {
			for i := range 3000 {
				if err := out.Send(ctx, i); err != nil {
					return err
				}
				if i%500 == 499 {
					time.Sleep(10 * time.Millisecond) // the consumer catches up
				}
			}
			return nil
		}, Name("S"))
		slow := Do(Func[int, int](func(ctx context.Context, in Item[int], out Out[int]) error {
			if in.Value%500 == 250 {
				time.Sleep(pause) // the items are held
			}
			return out.Send(ctx, in.Value)
		}), Name("P"))
		sink := k.sink("K")
		g := try.Get(New("held", Pipeline3(src, slow, sink)))(t)
		try.OK(t, g.Group("G1", src))
		try.OK(t, g.Group("G2", slow, sink))
		for _, err := range runGroups(t, t.Context(), g, "G1", "G2") {
			try.OK(t, err)
		}
		got := k.values("K")
		try.Equal(t, len(got), 3000)
		for i, v := range got {
			if i != v {
				t.Fatalf("item %d is %d", i, v)
			}
		}
	}
}

// The last node of a ring has no forward channel: Send fails, and loses no item.
func TestSendInRing(t *testing.T) {
	first := Do(&starter{}, Name("first"))
	last := Do(Func[int, int](func(ctx context.Context, in Item[int], out Out[int]) error {
		return out.Send(ctx, in.Value)
	}), Name("last"))
	err := try.Get(New("ring", Ring(Pipeline(first, last))))(t).Run(t.Context())
	var re *RunError
	try.Equal(t, errors.Is(err, ErrChannel) && errors.As(err, &re) && re.Stage == "last", true, "%v", err)
}

// A starter begins a ring.
type starter struct{}

func (*starter) Start(ctx context.Context, out Out[int]) error      { return out.Send(ctx, 1) }
func (*starter) Process(context.Context, Item[int], Out[int]) error { return Done }

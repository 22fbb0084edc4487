// SPDX-License-Identifier: Apache-2.0

package dataflow_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"strconv"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	. "github.com/rocl-go/rocl/dataflow"
	"github.com/rocl-go/rocl/internal/testkit/try"
)

// uneven is a worker that takes a random time and sends an item n%3 times.
type uneven struct{ rnd *rand.Rand }

func (w *uneven) Process(ctx context.Context, in Item[int], out Out[int]) error {
	time.Sleep(time.Duration(w.rnd.IntN(100)) * time.Millisecond) // in a bubble: the work
	for range in.Value % 3 {
		if err := out.Send(ctx, in.Value); err != nil {
			return err
		}
	}
	return nil
}

// orderedWant is what a sink behind uneven workers gets of the integers below n.
func orderedWant(n int) (vs []int) {
	for i := range n {
		for range i % 3 {
			vs = append(vs, i)
		}
	}
	return vs
}

func unevenFarm(workers, window int, o ...Option) Part[int, int] {
	return Farm(workers, func(i int) Part[int, int] {
		return Do(&uneven{rnd: rand.New(rand.NewPCG(uint64(i), 7))}, Name("W"))
	}, append([]Option{Ordered(window), Name("F")}, o...)...)
}

// Promise (Dataflow): An ordered farm keeps the order of its inputs, whatever time a worker takes.
func TestOrdered(t *testing.T) {
	for _, o := range [][]Option{nil, {Policy(OnDemand(1))}, {Policy(RoundRobin)}, {Batch(5, 0, 0)}, {Policy(ByKey(func(v int) uint64 { return uint64(v / 7) }))}} {
		for _, window := range []int{1, 10, 1000} {
			synctest.Test(t, func(t *testing.T) {
				var k collector[int]
				g := try.Get(New("ordered", Pipeline3(count(300), unevenFarm(4, window, o...), k.sink("K"))))(t)
				try.OK(t, g.Run(t.Context()))
				try.Equal(t, fmt.Sprint(k.values("K")), fmt.Sprint(orderedWant(300)))
			})
		}
	}
}

// Promise (Dataflow): An ordered farm holds no more inputs than its window, while a worker lags.
func TestOrderedWindow(t *testing.T) {
	const workers, window = 4, 40
	synctest.Test(t, func(t *testing.T) {
		release := make(chan struct{})
		var begun atomic.Int64
		farm := Farm(workers, func(int) Part[int, int] {
			return Do(Func[int, int](func(ctx context.Context, in Item[int], out Out[int]) error {
				begun.Add(1)
				if in.Value == 0 {
					<-release
				}
				return out.Send(ctx, in.Value)
			}))
		}, Ordered(window))
		var k collector[int]
		g := try.Get(New("window", Pipeline3(count(10_000), farm, k.sink("K"))))(t)
		done := make(chan error)
		go func() { done <- g.Run(t.Context()) }()
		synctest.Wait()
		if n := begun.Load(); n > window || n < window/3 {
			t.Errorf("the workers have begun %d inputs", n)
		}
		try.Equal(t, len(k.values("K")), 0)
		close(release)
		try.OK(t, <-done)
		for i, v := range k.values("K") {
			if i != v {
				t.Fatalf("item %d is %d", i, v)
			}
		}
	})
}

// A worker of an ordered farm may be done before its inputs have ended. The
// others go on in order.
func TestOrderedDone(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		farm := Farm(3, func(i int) Part[int, int] {
			n := 0
			return Do(Func[int, int](func(ctx context.Context, in Item[int], out Out[int]) error {
				if err := out.Send(ctx, in.Value); err != nil {
					return err
				}
				if n++; i == 1 && n == 5 {
					return Done
				}
				return nil
			}))
		}, Ordered(12))
		var k collector[int]
		g := try.Get(New("done", Pipeline3(count(200), farm, k.sink("K"))))(t)
		try.OK(t, g.Run(t.Context()))
		before := -1
		for _, v := range k.values("K") {
			if v <= before {
				t.Fatalf("%d comes after %d", v, before)
			}
			before = v
		}
		if n := len(k.values("K")); n < 180 || before < 190 {
			t.Errorf("%d items came, the last is %d", n, before)
		}
	})
}

// decimal encodes integers as decimal texts.
type decimal struct{}

func (decimal) Append(p []byte, v int) ([]byte, error) {
	return strconv.AppendInt(p, int64(v), 10), nil
}
func (decimal) Decode(p []byte) (int, error) { return strconv.Atoi(string(p)) }

// Promise (Dataflow): An ordered farm keeps the order when its workers are in other groups.
func TestOrderedCut(t *testing.T) {
	for _, c := range []Option{Name("F"), Codec[int](decimal{})} {
		var k collector[int]
		var ws []Part[int, int]
		src, sink := count(300), k.sink("K")
		farm := Farm(2, func(i int) Part[int, int] {
			ws = append(ws, Do(Func[int, int](func(ctx context.Context, in Item[int], out Out[int]) error {
				return out.Send(ctx, in.Value)
			}), Name("W"), c))
			return ws[i]
		}, Ordered(30), c)
		g := try.Get(New("cut", Pipeline3(src, farm, sink)))(t)
		try.OK(t, g.Group("G1", src, ws[0]))
		try.OK(t, g.Group("G2", ws[1], sink))
		for _, err := range runGroups(t, t.Context(), g, "G1", "G2") {
			try.OK(t, err)
		}
		for i, v := range k.values("K") {
			if i != v {
				t.Fatalf("item %d is %d", i, v)
			}
		}
		try.Equal(t, len(k.values("K")), 300)
	}
}

// An ordered farm of parts that are no single stages is refused.
func TestOrderedRefused(t *testing.T) {
	var k collector[int]
	farm := Farm(2, func(i int) Part[int, int] {
		return Pipeline(pass[int]("A"), pass[int]("B"))
	}, Ordered(30))
	_, err := New("refused", Pipeline3(count(1), farm, k.sink("K")))
	try.Fails(err)(t, ErrGraph)
}

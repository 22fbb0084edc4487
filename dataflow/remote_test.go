// SPDX-License-Identifier: Apache-2.0

package dataflow_test

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"regexp"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/rocl-go/rocl"
	. "github.com/rocl-go/rocl/dataflow"
	"github.com/rocl-go/rocl/internal/testkit/try"
	"github.com/rocl-go/rocl/rocltest"
)

// wantRunError checks the group, the stage and the cause of a run's end. What is empty or nil is
// not checked.
func wantRunError(t *testing.T, err error, group, stage string, cause error) {
	t.Helper()
	var re *RunError
	if !errors.As(err, &re) {
		t.Fatalf("the error is %v", err)
	}
	if group != "" {
		try.Equal(t, re.Group, group, "the group of %v", err)
	}
	if stage != "" {
		try.Equal(t, re.Stage, stage, "the stage of %v", err)
	}
	if cause != nil {
		try.Fails(err)(t, cause)
	}
}

// A cutPipe is the graph S, K in the groups G1 and G2.
func cutPipe[T any](t *testing.T, src Part[None, T], k Part[T, None]) *Graph {
	g := try.Get(New("pipe", Pipeline(src, k)))(t)
	try.OK(t, g.Group("G1", src))
	try.OK(t, g.Group("G2", k))
	return g
}

func ignore[T any](context.Context, Item[T]) error { return nil }

// runBoth runs the groups of a cutPipe, and returns their errors.
func runBoth(ctx context.Context, g1, g2 *Graph, c1, c2 *rocl.Context, cfg Config) (err1, err2 error) {
	var wg sync.WaitGroup
	wg.Go(func() { err1 = g1.Run(ctx, InGroup(c1, "G1", cfg)) })
	wg.Go(func() { err2 = g2.Run(ctx, InGroup(c2, "G2", cfg)) })
	wg.Wait()
	return err1, err2
}

// inTwo runs f in virtual time with two contexts.
func inTwo(t *testing.T, f func(t *testing.T, c1, c2 *rocl.Context)) {
	synctest.Test(t, func(t *testing.T) {
		cluster := rocltest.Cluster(t, 1)
		f(t, cluster.Open(0), cluster.Open(0))
	})
}

// A batch that is not full leaves to another group when its first item has
// waited for the batch's delay.
func TestRemoteBatchLeavesByTime(t *testing.T) {
	inTwo(t, func(t *testing.T, c1, c2 *rocl.Context) {
		const delay = 5 * time.Millisecond
		var sent, waited atomic.Int64
		src := From(func(ctx context.Context, out Out[int]) error {
			for range 10 {
				sent.Store(time.Now().UnixNano())
				if err := out.Send(ctx, 1); err != nil {
					return err
				}
				time.Sleep(100 * time.Millisecond) // longer than the delay of a batch
			}
			return nil
		}, Batch(1000, 0, delay))
		k := To(func(context.Context, Item[int]) error {
			waited.Store(max(waited.Load(), time.Now().UnixNano()-sent.Load()))
			return nil
		})
		g := cutPipe(t, src, k)
		err1, err2 := runBoth(t.Context(), g, g, c1, c2, Config{})
		try.OK(t, errors.Join(err1, err2))
		if w := time.Duration(waited.Load()); w < delay || w > 2*delay {
			t.Errorf("an item waited for %v of virtual time", w)
		}
	})
}

// Promise (Dataflow): Two groups with different graphs refuse each other, and the error has both
// hashes.
func TestDifferentGraphs(t *testing.T) {
	inTwo(t, func(t *testing.T, c1, c2 *rocl.Context) {
		g1 := cutPipe(t, count(10), To(ignore[int], Name("K")))
		g2 := cutPipe(t, count(10), To(ignore[int], Name("other")))
		err1, err2 := runBoth(t.Context(), g1, g2, c1, c2, Config{})
		for _, err := range []error{err1, err2} {
			wantRunError(t, err, "", "", ErrHash)
			hashes := regexp.MustCompile("[0-9a-f]{16}").FindAllString(err.Error(), -1)
			try.Equal(t, len(hashes) == 2 && hashes[0] != hashes[1], true, "%v", err)
		}
	})
}

// A group that never starts is an error of the others, which names it.
func TestGroupNeverStarts(t *testing.T) {
	for _, group := range []string{"G1", "G2"} {
		inTwo(t, func(t *testing.T, c1, _ *rocl.Context) {
			g := cutPipe(t, count(10), To(ignore[int]))
			start := time.Now()
			err := g.Run(t.Context(), InGroup(c1, group, Config{Wait: 3 * time.Second}))
			wantRunError(t, err, map[string]string{"G1": "G2", "G2": "G1"}[group], "", ErrLost)
			if w := time.Since(start); w < 3*time.Second || w > 6*time.Second {
				t.Errorf("the error came after %v of virtual time", w)
			}
		})
	}
}

// Promise (Dataflow): When a group is lost, the errors of the groups before and behind it have the
// numbers of items that they sent to it and got from it, so together they tell what it held.
func TestLostGroupHeld(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		sent, got, stop := 0, 0, make(chan struct{})
		src := From(func(ctx context.Context, out Out[int]) error {
			for {
				if err := out.Send(ctx, sent); err != nil {
					return err
				}
				sent++
			}
		}, Name("S"), Window(8))
		w := Do(Func[int, int](func(ctx context.Context, in Item[int], out Out[int]) error {
			if in.Value == 50 {
				close(stop)
				<-ctx.Done()
				return ctx.Err()
			}
			return out.Send(ctx, in.Value)
		}), Name("W"))
		k := To(func(_ context.Context, in Item[int]) error {
			got++
			return nil
		}, Name("K"))
		g := try.Get(New("held", Pipeline3(src, w, k)))(t)
		before, behind := loseMiddle(t, g, stop, []Node{src}, w, k)
		try.Equal(t, before.Group+behind.Group, "G2G2")
		try.Equal(t, fmt.Sprint(before.Edges), fmt.Sprintf("[S → W: %d items sent, %d of them taken]", sent, before.Edges[0].Taken))
		try.Equal(t, fmt.Sprint(behind.Edges), "[W → K: 50 items have come]")
		try.Equal(t, got, 50)
		try.Equal(t, sent > 50 && sent <= 50+8+2, true, "%d items were sent", sent)
	})
}

// loseMiddle runs a graph with its nodes in the groups G1, G2 and G3, and lets G2 end a while after
// stop. It returns the errors of G1 and G3.
func loseMiddle(t *testing.T, g *Graph, stop chan struct{}, first []Node, middle, last Node) (before, behind *RunError) {
	t.Helper()
	try.OK(t, errors.Join(g.Group("G1", first...), g.Group("G2", middle), g.Group("G3", last)))
	cluster := rocltest.Cluster(t, 1)
	var errs [3]error
	var wg sync.WaitGroup
	for i, name := range []string{"G1", "G2", "G3"} {
		c := cluster.Open(0)
		wg.Go(func() { errs[i] = g.Run(t.Context(), InGroup(c, name, Config{})) })
		if name == "G2" {
			wg.Go(func() {
				<-stop
				time.Sleep(time.Second) // until the sources have sent all that they can, in virtual time
				try.Check(t, c.Close())
			})
		}
	}
	wg.Wait()
	try.Equal(t, errors.As(errs[0], &before) && errors.As(errs[2], &behind), true, "%v", errs)
	return before, behind
}

// When a group is lost whose node has several inputs, the receivers from it
// tell for each of them how many items it has done, and the senders to it how many they sent.
func TestLostGroupOrigins(t *testing.T) {
	for _, batch := range []int{1, 8} {
		synctest.Test(t, func(t *testing.T) {
			stop := make(chan struct{})
			var sent, done [2]uint64
			sources := some(2, func(name string) Part[None, int] {
				i := int(name[1] - '1')
				return From(func(ctx context.Context, out Out[int]) error {
					for {
						if err := out.Send(ctx, i); err != nil {
							return err
						}
						sent[i]++
						time.Sleep(time.Duration(i+1) * time.Millisecond)
					}
				}, Name(name), Window(16), Batch(batch, 0, 0))
			}, "S")
			w := Do(Func[int, int](func(ctx context.Context, in Item[int], out Out[int]) error {
				if done[0]+done[1] == 50 {
					close(stop)
					<-ctx.Done()
					return ctx.Err()
				}
				done[in.Value]++
				return out.Send(ctx, in.Value)
			}), Name("W"), Batch(batch, 0, 0))
			k := To(ignore[int], Name("K"))
			g := try.Get(New("origins", Pipeline(AllToAll(sources, []Part[int, int]{w}), k)))(t)
			before, behind := loseMiddle(t, g, stop, nodesOf(sources), w, k)
			for i, e := range before.Edges {
				try.Equal(t, e.Items, sent[i], "items of source %d", i)
			}
			try.Equal(t, fmt.Sprint(behind.Edges[0].Items, behind.Edges[0].Origins), fmt.Sprint(50, done))
			try.Equal(t, sent[0] > done[0] && sent[1] >= done[1] && done[1] > 0, true, "sent %v, done %v", sent, done)
		})
	}
}

// A group that cannot use its context says so at once.
func TestContextIsClosed(t *testing.T) {
	inTwo(t, func(t *testing.T, c1, _ *rocl.Context) {
		try.OK(t, c1.Close())
		g := cutPipe(t, count(10), To(ignore[int]))
		wantRunError(t, g.Run(t.Context(), InGroup(c1, "G1", Config{})), "G1", "", rocl.ErrClosed)
	})
}

// A group that fails before others have started tells them its failure when
// they start soon after.
func TestFailureReachesLateGroup(t *testing.T) {
	inTwo(t, func(t *testing.T, c1, c2 *rocl.Context) {
		broken := errors.New("broken")
		src := From(func(context.Context, Out[int]) error { return broken }, Name("S"))
		g := cutPipe(t, src, To(ignore[int]))
		var wg sync.WaitGroup
		wg.Go(func() { wantRunError(t, g.Run(t.Context(), InGroup(c1, "G1", Config{})), "G1", "S", broken) })
		time.Sleep(time.Second) // of virtual time, in which the first group fails
		err := g.Run(t.Context(), InGroup(c2, "G2", Config{}))
		wg.Wait()
		var re *RunError
		try.Equal(t, errors.As(err, &re) && re.Stage == "S" && re.Err.Error() == "broken", true, "%v", err)
	})
}

// Promise (Dataflow): A node that ignores the end of the run holds up neither Run, which names it,
// nor the other groups.
func TestNodeBlocksForEver(t *testing.T) {
	inTwo(t, func(t *testing.T, c1, c2 *rocl.Context) {
		release := make(chan struct{})
		k := To(func(context.Context, Item[int]) error {
			<-release
			return nil
		}, Name("K"))
		g := cutPipe(t, count(1<<30), k)
		ctx, cancel := context.WithCancel(t.Context())
		var wg sync.WaitGroup
		wg.Go(func() {
			start := time.Now()
			wantRunError(t, g.Run(t.Context(), InGroup(c1, "G1", Config{})), "G2", "", context.Canceled)
			if w := time.Since(start); w > 3*time.Second {
				t.Errorf("the other group was told after %v of virtual time", w)
			}
		})
		wg.Go(func() {
			err := g.Run(ctx, InGroup(c2, "G2", Config{}))
			wantRunError(t, err, "G2", "", context.Canceled)
			wantRunError(t, err, "G2", "", ErrStuck)
			try.Equal(t, strings.HasSuffix(err.Error(), ": K)"), true, "%v", err)
		})
		time.Sleep(time.Second) // of virtual time, until the sink blocks
		cancel()
		wg.Wait()
		close(release)
	})
}

// lying is a codec of numbers that breaks its rules for one of them.
type lying struct{ encodes, decodes int }

func (l lying) Append(p []byte, v int) ([]byte, error) {
	if v == l.encodes {
		panic("oops")
	}
	return binary.LittleEndian.AppendUint64(p, uint64(v)), nil
}

func (l lying) Decode(p []byte) (int, error) {
	if v := int(binary.LittleEndian.Uint64(p)); v != l.decodes {
		return v, nil
	}
	return 0, errors.New("undecodable")
}

// Promise (Dataflow): An item whose codec fails is an error of the stage that sent it, in each
// group.
func TestCodecFails(t *testing.T) {
	for _, codec := range []lying{{5, -1}, {-1, 5}} {
		for _, batch := range []int{1, 3, 100} {
			inTwo(t, func(t *testing.T, c1, c2 *rocl.Context) {
				src := count(1<<30, Codec[int](codec), Batch(batch, 0, 0))
				g := cutPipe(t, src, To(ignore[int]))
				err1, err2 := runBoth(t.Context(), g, g, c1, c2, Config{})
				for _, err := range []error{err1, err2} {
					var re *RunError
					try.Equal(t, errors.As(err, &re) && re.Stage == "S" && re.Group == "G1", true, "%v", err)
				}
			})
		}
	}
}

// Promise (Dataflow): Two runs of one graph at once do not mix.
func TestTwoRuns(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		cluster := rocltest.Cluster(t, 1)
		var wg sync.WaitGroup
		for run := range 3 {
			c1, c2 := cluster.Open(0), cluster.Open(0)
			sum := 0
			src := From(func(ctx context.Context, out Out[int]) error {
				for range 100 {
					if err := out.Send(ctx, run); err != nil {
						return err
					}
				}
				return nil
			}, Name("S"))
			k := To(func(_ context.Context, in Item[int]) error {
				try.Equal(t, in.Value, run)
				sum++
				return nil
			}, Name("K"))
			g := cutPipe(t, src, k)
			wg.Go(func() {
				err1, err2 := runBoth(t.Context(), g, g, c1, c2, Config{Run: fmt.Sprint(run)})
				try.Check(t, errors.Join(err1, err2))
				try.Equal(t, sum, 100)
			})
		}
		wg.Wait()
	})
}

// A group of a run is in one process: a second one is refused, and the first is not disturbed.
func TestGroupTwice(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		cluster := rocltest.Cluster(t, 1)
		got := 0
		begin := make(chan struct{})
		src := From(func(ctx context.Context, out Out[int]) error {
			<-begin
			return out.Send(ctx, 1)
		})
		k := To(func(context.Context, Item[int]) error {
			got++
			return nil
		})
		g := cutPipe(t, src, k)
		var wg sync.WaitGroup
		wg.Go(func() {
			err1, err2 := runBoth(t.Context(), g, g, cluster.Open(0), cluster.Open(0), Config{})
			try.Check(t, errors.Join(err1, err2))
		})
		time.Sleep(time.Second) // of virtual time, until both groups run
		for _, group := range []string{"G1", "G2"} {
			try.Fails(g.Run(t.Context(), InGroup(cluster.Open(0), group, Config{})))(t, rocl.ErrExists)
		}
		close(begin)
		wg.Wait()
		try.Equal(t, got, 1)
	})
}

// A memory buffer crosses to another group as an item, and its slices go to
// several consumers without a copy (topology scatter).
func TestScatter(t *testing.T) {
	for _, isCut := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			const size, slices = 1 << 20, 4
			cluster := rocltest.Cluster(t, 1)
			own := cluster.Open(0)
			var mu sync.Mutex
			got := map[int]int{}
			left := some(3, func(name string) Part[None, *rocl.Buffer] {
				first := map[string]int{"L1": 0, "L2": 2, "L3": 3}[name]
				last := map[string]int{"L1": 2, "L2": 3, "L3": 4}[name]
				return From(func(ctx context.Context, out Out[*rocl.Buffer]) error {
					b, err := own.Buffer(size)
					if err != nil {
						return err
					}
					defer b.Release()
					for k := first; k < last; k++ {
						s := b.Slice(k*size/slices, size/slices)
						binary.LittleEndian.PutUint64(s.Bytes(), uint64(k+1))
						if err := out.SendTo(ctx, k, s); err != nil {
							return err
						}
					}
					return nil
				}, Name(name))
			}, "L")
			right := some(slices, func(name string) Part[*rocl.Buffer, None] {
				return To(func(_ context.Context, in Item[*rocl.Buffer]) error {
					defer in.Value.Release()
					mu.Lock()
					defer mu.Unlock()
					got[int(binary.LittleEndian.Uint64(in.Value.Bytes()))] = in.Value.Len()
					return nil
				}, Name(name))
			}, "R")
			g := try.Get(New("scatter", AllToAll(left, right)))(t)
			if isCut {
				var wg sync.WaitGroup
				groups := append(nodesOf(left), nodesOf(right)...)
				for i, n := range groups {
					try.OK(t, g.Group(fmt.Sprint(i), n))
				}
				for i := range groups {
					c := cluster.Open(0)
					wg.Go(func() { try.Works(g.Run(t.Context(), InGroup(c, fmt.Sprint(i), Config{})))(t) })
				}
				wg.Wait()
			} else {
				try.OK(t, g.Run(t.Context()))
			}
			try.Equal(t, fmt.Sprint(got), "map[1:262144 2:262144 3:262144 4:262144]")
		})
	}
}

// With OnDemand, consumers get items in proportion to their speed under any cut, and a farm has
// done all within 10 % of the ideal time (topologies demand 1 and 2, perf H).
func TestOnDemand(t *testing.T) {
	cuts := map[string]func(w *world){
		"whole": func(w *world) { w.cut = nil },
		"given": func(*world) {},
		"each":  (*world).oneEach,
	}
	slow := func(w *world, n int, unit, odd time.Duration) []Part[item, None] {
		return several(n, "K", func(name string, i int) Part[item, None] {
			return w.to(name, func(context.Context, Item[item]) error {
				time.Sleep(unit*time.Duration(i+1) + odd*time.Duration(i)) // its work, in virtual time
				return nil
			})
		})
	}
	for _, tt := range []struct {
		name   string
		unit   time.Duration
		shares []int
		spare  int
		make   func(w *world) Part[None, None]
	}{
		{"demand 1", 10 * time.Millisecond, []int{33, 16, 11}, 2, func(w *world) Part[None, None] {
			s, l, k := w.from("S", records(60)), w.stages(1, "L"), slow(w, 3, 10*time.Millisecond, 0)
			w.group(s)
			w.group(nodesOf(l)...)
			w.group(nodesOf(k)...)
			return Pipeline(s, AllToAll(l, k, Policy(OnDemand(1))))
		}},
		// Each of two sources may have an item wait at the slowest consumer, so the shares are not
		// 22, 11 and 7. The second source begins later, and no two consumers end their work at one
		// instant: otherwise goroutines would race for the last items, and the shares would vary.
		{"demand 2", 100 * time.Millisecond, []int{21, 11, 8}, 0, func(w *world) Part[None, None] {
			s := several(2, "S", func(name string, i int) Part[None, item] {
				return w.from(name, func(ctx context.Context, out Out[item]) error {
					time.Sleep(time.Duration(i) * 50 * time.Millisecond) // of virtual time
					return records(20)(ctx, out)
				})
			})
			k := slow(w, 3, 100*time.Millisecond, 3*time.Millisecond)
			w.group(nodesOf(s)...)
			w.group(nodesOf(k)...)
			return AllToAll(s, k, Policy(OnDemand(1)))
		}},
		{"perf H", 10 * time.Millisecond, []int{33, 16, 11}, 2, func(w *world) Part[None, None] {
			s, k := w.from("S", records(60)), slow(w, 3, 10*time.Millisecond, 0)
			w.group(s, k[0])
			w.group(k[1])
			w.group(k[2])
			return AllToAll([]Part[None, item]{s}, k, Policy(OnDemand(1)))
		}},
	} {
		for name, cut := range cuts {
			t.Run(tt.name+"/"+name, func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					w := &world{t: t, probes: map[string]*probe{}}
					root := tt.make(w)
					cut(w)
					start := time.Now()
					w.run("demand", root)
					took, n := time.Since(start), 0
					for i, share := range tt.shares {
						got, _ := w.got(fmt.Sprintf("K%d", i+1))
						if got < share-tt.spare || got > share+tt.spare {
							t.Errorf("K%d got %d items, not %d", i+1, got, share)
						}
						n += share
					}
					ideal := idealTime(n, len(tt.shares), tt.unit)
					t.Logf("%v of virtual time, ideal %v", took, ideal)
					if tt.name != "demand 2" && took > ideal+ideal/10 {
						t.Errorf("the run took %v of virtual time, ideal %v", took, ideal)
					}
				})
			})
		}
	}
}

// idealTime returns in which time consumers do n items, if the first takes one unit for each, the
// second two, and so on.
func idealTime(n, consumers int, unit time.Duration) time.Duration {
	for t := 1; ; t++ {
		done := 0
		for i := range consumers {
			done += t / (i + 1)
		}
		if done >= n {
			return time.Duration(t) * unit
		}
	}
}

// SPDX-License-Identifier: Apache-2.0

package dataflow_test

import (
	"context"
	"fmt"
	"math"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/rocl-go/rocl"
	"github.com/rocl-go/rocl/codec"
	. "github.com/rocl-go/rocl/dataflow"
	"github.com/rocl-go/rocl/internal/testkit/try"
	"github.com/rocl-go/rocl/rocltest"
)

// A trail is the state of a tracer whose spans are paths: the names of the nodes at which an item
// has been, without numbers.
type trail struct {
	mu    sync.Mutex
	paths map[int][]string // of the items at the sink, by value
}

type pathKey struct{}

func (l *trail) trace(ctx context.Context, v *Visit, next func(context.Context) error) error {
	path := v.Meta["path"]
	if v.IsSource != (path == "") {
		return fmt.Errorf("node %s: the path is %q", v.Node, path)
	}
	path += " " + strings.TrimRight(v.Node, "-0123456789")
	v.Meta = map[string]string{"path": path}
	return next(context.WithValue(ctx, pathKey{}, path))
}

// sink returns a sink that notes the paths.
func (l *trail) sink() Part[int, None] {
	return To(func(ctx context.Context, in Item[int]) error {
		l.mu.Lock()
		defer l.mu.Unlock()
		if l.paths == nil {
			l.paths = map[int][]string{}
		}
		path, _ := ctx.Value(pathKey{}).(string)
		l.paths[in.Value] = append(l.paths[in.Value], path)
		return nil
	}, Name("K"))
}

// check checks that each of the n items came so many times, one in oneIn with the path.
func (l *trail) check(t *testing.T, n, oneIn, times int, path string) {
	t.Helper()
	try.Equal(t, len(l.paths), n, "items")
	for i := range n {
		want := ""
		if i%oneIn == 0 {
			want = path
		}
		try.Equal(t, fmt.Sprintf("%q", l.paths[i]), fmt.Sprintf("%q", slices.Repeat([]string{want}, times)), "item %d", i)
	}
}

// turn is the first node of a loop in which each of n items turns once. It passes its items on.
type turn struct{ n int }

func (s *turn) Process(ctx context.Context, in Item[int], out Out[int]) error {
	if err := out.Send(ctx, in.Value); err != nil || !in.Back {
		return err
	}
	if s.n--; s.n == 0 {
		return Done
	}
	return nil
}

// back is the other node of the loop.
func back(ctx context.Context, in Item[int], out Out[int]) error {
	if in.Value < 0 {
		return out.Send(ctx, -1-in.Value)
	}
	return out.SendBack(ctx, 0, -1-in.Value)
}

// Promise (Dataflow): What a node sends while it processes a sampled item is sampled, through
// farms, ordered farms and loops, also in other groups. Other items are not.
func TestTrace(t *testing.T) {
	const n, oneIn = 100, 7
	sends := Batch(4, 0, 0)
	for name, tt := range map[string]struct {
		path  string
		times int
		make  func() (middle Part[int, int], stay, cut []Node) // cut: what is in the second group
	}{
		"pipe": {" S P K", 1, func() (Part[int, int], []Node, []Node) {
			p := pass[int]("P", sends)
			return p, nil, []Node{p}
		}},
		"farm": {" S P Q K", 1, func() (Part[int, int], []Node, []Node) {
			p, q := passes(3, "P"), pass[int]("Q")
			return Pipeline(Farm(3, func(i int) Part[int, int] { return p[i] }, Policy(OnDemand(2))), q), []Node{p[0], q}, nodesOf(p[1:])
		}},
		"broadcast": {" S P K", 3, func() (Part[int, int], []Node, []Node) {
			p := passes(3, "P")
			return Farm(3, func(i int) Part[int, int] { return p[i] }, Policy(Broadcast)), nodesOf(p[2:]), nodesOf(p[:2])
		}},
		"ordered": {" S F-split W K", 1, func() (Part[int, int], []Node, []Node) {
			w := some(3, func(name string) Part[int, int] {
				return Do(Func[int, int](func(ctx context.Context, in Item[int], out Out[int]) error {
					time.Sleep(time.Duration(in.Value%5) * time.Millisecond) // in a bubble: the work
					return out.Send(ctx, in.Value)
				}), Name(name))
			}, "W")
			return Farm(3, func(i int) Part[int, int] { return w[i] }, Ordered(20), Name("F"), sends), nil, nodesOf(w)
		}},
		"loop": {" S A B A B K", 1, func() (Part[int, int], []Node, []Node) {
			a, b := Do(&turn{n}, Name("A")), Do(Func[int, int](back), Name("B"), sends)
			return Loop(Pipeline(a, b)), []Node{a}, []Node{b}
		}},
		"fused": {" S Q K", 1, func() (Part[int, int], []Node, []Node) {
			p := Fuse(pass[int]("P"), pass[int]("Q"))
			return p, nil, []Node{p}
		}},
	} {
		for _, isCut := range []bool{false, true} {
			t.Run(fmt.Sprint(name, isCut), func(t *testing.T) {
				inTwo(t, func(t *testing.T, c1, c2 *rocl.Context) {
					var l trail
					middle, stay, cut := tt.make()
					src, k := count(n, sends), l.sink()
					g := try.Get(New("trace", Pipeline3(src, middle, k)))(t)
					follow := Trace(l.trace, oneIn)
					if !isCut {
						try.OK(t, g.Run(t.Context(), follow))
						l.check(t, n, oneIn, tt.times, tt.path)
						return
					}
					try.OK(t, g.Group("G2", cut...))
					try.OK(t, g.Group("G1", append(stay, src, k)...))
					var wg sync.WaitGroup
					wg.Go(func() { try.Check(t, g.Run(t.Context(), InGroup(c1, "G1", Config{}), follow)) })
					wg.Go(func() { try.Check(t, g.Run(t.Context(), InGroup(c2, "G2", Config{}), follow)) })
					wg.Wait()
					l.check(t, n, oneIn, tt.times, tt.path)
				})
			})
		}
	}
}

// The items that a worker of an elastic farm makes of a sampled item are
// sampled, also in order and behind a lost worker.
func TestTraceElastic(t *testing.T) {
	for _, o := range [][]Option{nil, {Ordered(10)}} {
		for _, isFused := range []bool{false, true} {
			synctest.Test(t, func(t *testing.T) {
				const n, oneIn = 100, 7
				c := crew{t, rocltest.Cluster(t, 1)}
				for i := range 3 {
					c.work(time.Duration(i+1) * 10 * time.Millisecond)
				}
				lost, release := c.cluster.Open(0), make(chan struct{})
				var wg sync.WaitGroup
				wg.Go(func() {
					try.Rejects(Work(t.Context(), lost, WorkFor{Graph: "elastic", Farm: "F"}, Func[int, int](func(context.Context, Item[int], Out[int]) error {
						<-release
						return nil
					})))(t)
				})
				time.AfterFunc(100*time.Millisecond, func() { try.Check(t, lost.Close()) }) // in the middle of the run, in virtual time
				var l trail
				farm := Elastic[int, int]("F", o...)
				if isFused {
					farm = Fuse(farm, pass[int]("")) // has the name of the farm
				}
				g := try.Get(New("elastic", Pipeline3(count(n), farm, l.sink())))(t)
				try.OK(t, g.Run(t.Context(), Using(c.cluster.Open(0), Config{}), Trace(l.trace, oneIn)))
				close(release)
				wg.Wait()
				l.check(t, n, oneIn, 1, " S F K")
			})
		}
	}
}

// A failed item's error passes the tracers of its nodes, and a tracer that fails ends the run.
func TestTraceFails(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var seen []string
		follow := Trace(func(ctx context.Context, v *Visit, next func(context.Context) error) error {
			v.Meta = map[string]string{}
			err := next(ctx)
			if v.Node == "K" {
				seen = append(seen, fmt.Sprintf("%+v %v", *v, err))
			}
			return err
		}, 1)
		fails := To(func(context.Context, Item[int]) error { return fmt.Errorf("broken") }, Name("K"))
		g := try.Get(New("fails", Pipeline(count(10), fails)))(t)
		try.Rejects(g.Run(t.Context(), follow))(t)
		try.Equal(t, fmt.Sprint(seen), "[{Graph:fails Run:fails Group: Node:K IsSource:false From:0 Back:false Meta:map[]} broken]")
	})
}

// asGroup registers what a group of the graph "pipe" registers that has one node. It is no graph.
func asGroup(t *testing.T, c *rocl.Context, group, node string, hash []byte) *rocl.Resource {
	a := rocl.Attrs{"type": "dataflow", "graph": "pipe", "run": "pipe", "group": group, "node": "all", "hash": string(hash)}
	whole := try.Get(c.Register(t.Context(), a))(t)
	a["node"], a["of"] = node, whole.ID().String()
	res := try.Get(c.Register(t.Context(), a))(t)
	try.OK(t, whole.Set(t.Context(), "state", "ready"))
	return res
}

// groupOf returns the attribute "hash" of a group, and the resource of a node.
func groupOf(t *testing.T, c *rocl.Context, group, node string) (hash []byte, id rocl.GID) {
	a := rocl.Attrs{"type": "dataflow", "graph": "pipe", "group": group, "node": "all", "state": "ready"}
	whole := try.Get(c.Await(t.Context(), a, 1))(t)[0]
	hash, _ = whole.Attrs.Get("hash")
	found := try.Get(c.Find(t.Context(), rocl.Attrs{"of": whole.ID.String(), "node": node}))(t)
	return hash, found.ID
}

// messagesOf returns the messages of a group that sends three items.
func messagesOf(t *testing.T, o ...RunOption) (got []string) {
	inTwo(t, func(t *testing.T, c1, c2 *rocl.Context) {
		g := cutPipe(t, count(3, Batch(2, 0, 0)), To(ignore[int], Name("K")))
		var wg sync.WaitGroup
		wg.Go(func() { try.Check(t, g.Run(t.Context(), append(o, InGroup(c1, "G1", Config{}))...)) })
		hash, _ := groupOf(t, c2, "G1", "0")
		k := asGroup(t, c2, "G2", "1", hash)
		for isEnd := false; !isEnd; {
			m := try.Get(k.Recv(t.Context()))(t)
			got = append(got, fmt.Sprintf("%d %x", m.Tag(), m.Bytes()))
			isEnd = m.Tag() == 4
			m.Release()
		}
		wg.Wait()
	})
	return got
}

// Without a tracer, messages between groups are the same as ever. With one, a further message goes
// before the batch with a sampled item.
func TestTraceMessages(t *testing.T) {
	plain := []string{
		"1 0004000000000000",
		"3 02444383428fc8d000000000000000000100000000000000",
		"2 01444383428fc8d00200000000000000",
		"4 0300000000000000",
	}
	try.Equal(t, strings.Join(messagesOf(t), "\n"), strings.Join(plain, "\n"))
	var l trail
	got := messagesOf(t, Trace(l.trace, 2))
	isSample := func(m string) bool { return strings.HasPrefix(m, "9 ") }
	for i, is := range []bool{false, true, false, true, false, false} {
		try.Equal(t, isSample(got[i]), is, "message %d", i)
	}
	try.Equal(t, strings.Join(slices.DeleteFunc(got, isSample), "\n"), strings.Join(plain, "\n"))
}

// What another group says of a sampled item is checked.
func TestTraceRefused(t *testing.T) {
	sample := func(item uint64) string {
		return string(try.Get(codec.Append(nil, &struct {
			Item uint64
			Meta map[string]string
		}{item, map[string]string{"path": " S"}}))(t))
	}
	one := 0
	item := string(try.Get(codec.Append(nil, &one))(t))
	const kindOne, kindSample = 2, 9
	type message struct {
		tag uint64
		p   string
	}
	for want, ms := range map[string][]message{
		"decode the span":                     {{kindSample, "garbage"}},
		"item 0 comes behind that of item 0":  {{kindSample, sample(0)}, {kindSample, sample(0)}},
		"item 3 comes behind that of item 18": {{kindSample, sample(math.MaxUint64)}, {kindSample, sample(3)}},
		"item 1 comes behind the item":        {{kindOne, item}, {kindOne, item}, {kindSample, sample(1)}},
	} {
		inTwo(t, func(t *testing.T, c1, c2 *rocl.Context) {
			var l trail
			g := cutPipe(t, count(3), l.sink())
			var wg sync.WaitGroup
			wg.Go(func() {
				err := g.Run(t.Context(), InGroup(c2, "G2", Config{}), Trace(l.trace, 1))
				wantRunError(t, err, "G1", "S", err)
				try.Equal(t, strings.Contains(err.Error(), want), true, "%v", err)
			})
			hash, k := groupOf(t, c1, "G2", "1")
			s := asGroup(t, c1, "G1", "0", hash)
			for _, m := range append([]message{{1, "\x08\x00\x00\x00\x00\x00\x00\x00"}}, ms...) {
				try.OK(t, s.SendBytes(t.Context(), k, m.tag, []byte(m.p)))
			}
			wg.Wait()
		})
	}
}

// A group without a tracer takes no notice of sampled items.
func TestTraceIgnored(t *testing.T) {
	inTwo(t, func(t *testing.T, c1, c2 *rocl.Context) {
		var l trail
		g := cutPipe(t, count(10), l.sink())
		var wg sync.WaitGroup
		wg.Go(func() { try.Check(t, g.Run(t.Context(), InGroup(c1, "G1", Config{}), Trace(l.trace, 1))) })
		wg.Go(func() { try.Check(t, g.Run(t.Context(), InGroup(c2, "G2", Config{}))) })
		wg.Wait()
		l.check(t, 10, 1, 1, "")
	})
}

// Items that are not sampled allocate nothing, with a tracer or without.
func TestTraceAllocations(t *testing.T) {
	for _, o := range []RunOption{nil, Trace(func(ctx context.Context, _ *Visit, next func(context.Context) error) error { return next(ctx) }, math.MaxInt)} {
		for _, batch := range []int{1, 64} {
			run := func(n int) float64 {
				return testing.AllocsPerRun(1, func() {
					sends := Batch(batch, 0, time.Hour)
					g := try.Get(New("allocations", Pipeline3(count(n, sends), pass[int]("P", sends), To(ignore[int]))))(t)
					try.OK(t, g.Run(t.Context(), o))
				})
			}
			const more = 100_000
			if each := (run(1000+more) - run(1000)) / more; each > 0.01 {
				t.Errorf("%v allocations an item, in batches of %d", each, batch)
			}
		}
	}
}

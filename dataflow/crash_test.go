// SPDX-License-Identifier: Apache-2.0

package dataflow_test

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/rocl-go/rocl"
	. "github.com/rocl-go/rocl/dataflow"
	"github.com/rocl-go/rocl/internal/testkit/eventually"
	"github.com/rocl-go/rocl/internal/testkit/relay"
	"github.com/rocl-go/rocl/internal/testkit/subprocess"
	"github.com/rocl-go/rocl/internal/testkit/try"
	"github.com/rocl-go/rocl/rocltest"
	"github.com/rocl-go/rocl/subsys"
	"github.com/rocl-go/rocl/subsys/shm"
	"github.com/rocl-go/rocl/subsys/tcp"
)

var long = flag.Bool("long", false, "run the long forms of tests with processes")

// times returns how often a test repeats what may fail seldom.
func times(short, all int) int {
	if *long {
		return all
	}
	return short
}

// graphs are what the processes of tests run, by name. up is called when an item comes to a sink.
var graphs = map[string]func(up func()) (*Graph, error){
	"5": endless,
}

// A report is what a process prints when its group has ended.
type report struct {
	Group, Stage, Err string // of the RunError
	IsLost, IsRunErr  bool
	Edges             []LostEdge
}

// runGroup runs one group of a graph for a test, and returns the exit code of the process. It
// prints "up" when the first item has come to a sink or has left a source, and a report at the end.
func runGroup(group string) int {
	ctx, cancel := subprocess.UntilEnd(context.Background(), os.Stdin)
	defer cancel()
	opts := []rocl.Option{rocl.WithSocket(os.Getenv("DATAFLOW_TEST_SOCKET")), rocl.WithTransports(shm.New())}
	if os.Getenv("DATAFLOW_TEST_TCP") != "" {
		opts[1] = rocl.WithTransports(tcp.New())
	}
	c, err := rocl.Open(ctx, opts...)
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 2
	}
	var up sync.Once
	g, err := graphs[os.Getenv("DATAFLOW_TEST_GRAPH")](func() {
		up.Do(func() { fmt.Println("up") })
	})
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 2
	}
	err = g.Run(ctx, InGroup(c, group, Config{Run: os.Getenv("DATAFLOW_TEST_RUN")}))
	var r report
	if err != nil {
		var re *RunError
		if r.IsRunErr = errors.As(err, &re); r.IsRunErr {
			r.Group, r.Stage, r.Edges = re.Group, re.Stage, re.Edges
		}
		r.Err, r.IsLost = err.Error(), errors.Is(err, ErrLost)
	}
	p, _ := json.Marshal(r)
	fmt.Println(string(p))
	if cerr := c.Close(); err == nil && cerr != nil {
		fmt.Fprintln(os.Stderr, cerr)
		return 2
	}
	if err != nil {
		return 1
	}
	return 0
}

// startGroups starts a process for each group of a graph.
func startGroups(t *testing.T, graph, run string, groups ...string) map[string]*subprocess.Process {
	ps := map[string]*subprocess.Process{}
	for _, group := range groups {
		cmd := subprocess.Self()
		cmd.Env = append(os.Environ(), "DATAFLOW_TEST_GROUP="+group, "DATAFLOW_TEST_GRAPH="+graph, "DATAFLOW_TEST_RUN="+run)
		ps[group] = try.Get(subprocess.Start(cmd))(t)
	}
	return ps
}

// runWorker runs a worker of an elastic farm for a test.
func runWorker() int {
	ctx, cancel := subprocess.UntilEnd(context.Background(), os.Stdin)
	defer cancel()
	c, err := rocl.Open(ctx, rocl.WithSocket(os.Getenv("DATAFLOW_TEST_SOCKET")), rocl.WithTransports(shm.New()))
	if err == nil {
		fmt.Println("up")
		err = Work(ctx, c, WorkFor{Graph: "farm", Farm: "F"}, Func[int, int](func(ctx context.Context, in Item[int], out Out[int]) error {
			time.Sleep(100 * time.Microsecond) // so that workers are killed while they have items
			return out.Send(ctx, in.Value)
		}))
		err = errors.Join(err, c.Close())
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	return 0
}

// serveNode serves the directory of a node for the processes of a test.
func serveNode(t *testing.T) *rocl.Context {
	sock := filepath.Join(t.TempDir(), "s")
	t.Setenv("DATAFLOW_TEST_SOCKET", sock)
	c := try.Get(rocl.Open(eventually.Context(t), rocl.WithSocket(sock), rocl.WithTransports(shm.New())))(t)
	t.Cleanup(func() { try.Check(t, c.Close()) })
	return c
}

// endless is topology 5 with sources that do not end, in its given cut.
func endless(up func()) (*Graph, error) {
	s := some(3, func(name string) Part[None, int] {
		return From(func(ctx context.Context, out Out[int]) error {
			for i := 0; ; i++ {
				for ch := range 3 {
					if err := out.SendTo(ctx, ch, i); err != nil {
						return err
					}
				}
				up()
			}
		}, Name(name))
	}, "S")
	fan := Func[int, int](func(ctx context.Context, in Item[int], out Out[int]) error {
		for ch := range 3 {
			if err := out.SendTo(ctx, ch, in.Value); err != nil {
				return err
			}
		}
		return nil
	})
	w := some(3, func(name string) Part[int, int] { return Fuse(pass[int](name), Do(fan)) }, "W")
	ts := some(3, func(name string) Part[int, int] { return Fuse(pass[int](name), pass[int]("")) }, "T")
	k := To(func(context.Context, Item[int]) error {
		up()
		return nil
	}, Name("K"))
	g, err := New("five", Pipeline(AllToAll(s, w), AllToAll(ts, []Part[int, None]{k})))
	if err == nil {
		err = errors.Join(g.Group("G1", s[0], s[1], w[0], w[1]), g.Group("G2", s[2], w[2]), g.Group("G3", append(nodesOf(ts), k)...))
	}
	return g, err
}

// lastReport returns the report of a process.
func lastReport(t *testing.T, p *subprocess.Process) (r report) {
	ctx := eventually.Context(t)
	for {
		line := try.Get(p.Line(ctx))(t)
		if strings.HasPrefix(line, "{") {
			try.OK(t, json.Unmarshal([]byte(line), &r))
			return r
		}
	}
}

// Promise (Dataflow): When the process of any group is killed, Run returns one RunError in each
// other group. It names the killed group, and matches ErrLost.
func TestKillGroup(t *testing.T) {
	serveNode(t)
	groups := []string{"G1", "G2", "G3"}
	for i := range times(5, 100) {
		ps := startGroups(t, "5", fmt.Sprint(i), groups...)
		for _, p := range ps {
			try.OK(t, p.Expect(eventually.Context(t), "up"))
		}
		time.Sleep(time.Duration(rand.IntN(50)) * time.Millisecond) // the moment of the crash is any
		victim := groups[rand.IntN(len(groups))]
		ps[victim].Kill()
		for name, p := range ps {
			if name == victim {
				continue
			}
			r := lastReport(t, p)
			try.Equal(t, r.IsRunErr && r.IsLost, true, "%s, when %s was killed: %s", name, victim, r.Err)
			try.Equal(t, r.Group, victim, "the error of %s: %s", name, r.Err)
			try.Equal(t, r.Stage != "", true, "the error of %s names a stage: %s", name, r.Err)
			checkLostEdges(t, name, victim, r.Edges)
			_ = p.Wait()
			try.Equal(t, p.Cmd.ProcessState.ExitCode(), 1, "exit code of %s", name)
		}
		if t.Failed() {
			return
		}
	}
}

// checkLostEdges checks that a group of the graph endless has told of all edges with a lost one.
func checkLostEdges(t *testing.T, group, victim string, es []LostEdge) {
	t.Helper()
	want := map[string]int{"G1 G2": 4, "G1 G3": 6, "G2 G1": 4, "G2 G3": 3, "G3 G1": 6, "G3 G2": 3}[group+" "+victim]
	try.Equal(t, len(es), want, "edges of %s with %s: %v", group, victim, es)
	for _, e := range es {
		if e.Taken > e.Items {
			t.Errorf("more items were taken than sent: %v", e)
		}
		if strings.HasPrefix(e.From, "W") && victim != "G3" { // has three inputs
			sum := uint64(0)
			for _, n := range e.Origins {
				sum += n
			}
			try.Equal(t, sum, e.Items, "the items that have come, by their origins: %v", e)
		}
	}
}

// summing is a sink that fails if the integers below n did not come in order.
type summing struct{ n, sum int }

func (s *summing) Process(_ context.Context, in Item[int], _ Out[None]) error {
	if in.Value != s.sum {
		return fmt.Errorf("item %d is %d", s.sum, in.Value)
	}
	s.sum++
	return nil
}

func (s *summing) InputEnded(context.Context, int, bool, Out[None]) error {
	if s.sum != s.n {
		return fmt.Errorf("%d items of %d", s.sum, s.n)
	}
	return nil
}

// Many small items pass mailboxes of the least size, and TCP receive buffers of the least size,
// also through a group in the middle.
func TestSmallBuffers(t *testing.T) {
	narrow := relay.New(tcp.New(), func(net.Conn) func(to, from net.Conn) {
		return func(to, from net.Conn) {
			_ = from.(*net.TCPConn).SetReadBuffer(1)
			_, _ = io.Copy(to, from)
		}
	})
	for name, tt := range map[string]struct {
		n  int
		to subsys.Transport
	}{
		"mailbox": {times(100_000, 10_000_000), tcp.New()},
		"buffers": {times(2_000, 20_000), narrow}, // the kernel lets a full buffer wait for 40 ms
	} {
		t.Run(name, func(t *testing.T) {
			cluster := rocltest.Cluster(t, 1)
			src, w, k := count(tt.n, Batch(512, 0, 0)), pass[int]("W", Batch(512, 0, 0)), Do(&summing{n: tt.n}, Name("K"))
			g := inThree(t, src, w, k)
			open := func() *rocl.Context { return cluster.Open(0, rocl.WithMailbox(1), rocl.WithTransports(tt.to)) }
			for group, err := range runThree(t.Context(), g, open) {
				try.Check(t, err, "%s", group)
			}
		})
	}
}

// inThree returns the graph of a source, a stage and a sink in the groups G1, G2 and G3.
func inThree[T any](t *testing.T, src Part[None, T], w Part[T, T], k Part[T, None]) *Graph {
	g := try.Get(New("three", Pipeline3(src, w, k)))(t)
	try.OK(t, errors.Join(g.Group("G1", src), g.Group("G2", w), g.Group("G3", k)))
	return g
}

// runThree runs the groups of inThree, each in a context of its own, and returns their errors.
func runThree(ctx context.Context, g *Graph, open func() *rocl.Context) map[string]error {
	var mu sync.Mutex
	var wg sync.WaitGroup
	errs := map[string]error{}
	for _, group := range []string{"G1", "G2", "G3"} {
		c := open()
		wg.Go(func() {
			err := g.Run(ctx, InGroup(c, group, Config{}))
			mu.Lock()
			defer mu.Unlock()
			errs[group] = err
		})
	}
	wg.Wait()
	return errs
}

// When the disk of a sink is full, the error of its write is the error of each group, and names the
// sink.
func TestFullDisk(t *testing.T) {
	disk, err := os.OpenFile("/dev/full", os.O_WRONLY, 0)
	if err != nil {
		t.Skip("there is no disk that is always full: ", err)
	}
	defer disk.Close()
	synctest.Test(t, func(t *testing.T) {
		cluster := rocltest.Cluster(t, 1)
		g := inThree(t, count(1<<30), pass[int]("W"), To(func(_ context.Context, in Item[int]) error {
			_, err := fmt.Fprintln(disk, in.Value)
			return err
		}, Name("K")))
		for group, err := range runThree(t.Context(), g, func() *rocl.Context { return cluster.Open(0) }) {
			wantRunError(t, err, "G3", "K", nil)
			try.Equal(t, strings.Contains(err.Error(), syscall.ENOSPC.Error()), true, "%s: %v", group, err)
		}
	})
}

// Promise (Dataflow): A group that is cut off for longer than the time of WithGiveUp is lost: Run
// returns an error on both sides.
func TestCutOff(t *testing.T) {
	cluster := rocltest.Cluster(t, 2)
	cut, over := make(chan struct{}), make(chan struct{})
	cuttable := func() []rocl.Option {
		return []rocl.Option{rocl.WithGiveUp(time.Second), rocl.WithLinger(time.Millisecond), rocl.WithTransports(relay.New(tcp.New(), func(net.Conn) func(to, from net.Conn) {
			return func(to, from net.Conn) {
				select {
				case <-cut: // later connections pass nothing
					<-over
				default:
					go func() {
						<-cut
						to.Close()
						from.Close()
					}()
					_, _ = io.Copy(to, from)
				}
			}
		}))}
	}
	var once sync.Once
	g := cutPipe(t, count(1<<30), To(func(_ context.Context, in Item[int]) error {
		if in.Value == 1000 {
			once.Do(func() { close(cut) })
		}
		return nil
	}))
	c1, c2 := cluster.Open(0, cuttable()...), cluster.Open(1, cuttable()...)
	t.Cleanup(func() { close(over) })
	err1, err2 := runBoth(t.Context(), g, g, c1, c2, Config{})
	wantRunError(t, err1, "G2", "", ErrLost)
	wantRunError(t, err2, "G1", "", ErrLost)
}

// Groups that are connected both ways end, however often they run (topologies 7 and 26 to 28, which
// hung at FastFlow's exit).
func TestExits(t *testing.T) {
	for i := range times(3, 100) {
		for _, to := range topologies {
			switch to.name {
			case "7", "26", "27", "28":
				eventually.Returns(t, "topology "+to.name, func() {
					w := &world{t: t, probes: map[string]*probe{}, opts: []rocl.Option{rocltest.TCP()}}
					root, check := to.make(w)
					w.run(fmt.Sprint(to.name, " ", i), root)
					check()
				})
			}
		}
	}
}

// killWorkers runs a farm of worker processes, of which it kills one after another, until kills of
// them were killed. It returns what came to the sink, and which items OnLoss was told.
func killWorkers(t *testing.T, kills int, answer error) (sink, told []int) {
	c := serveNode(t)
	var mu sync.Mutex
	enough := make(chan struct{})
	sent := 0
	src := From(func(ctx context.Context, out Out[int]) error {
		for ; ; sent++ {
			select {
			case <-enough:
				return nil
			default:
			}
			if err := out.Send(ctx, sent); err != nil {
				return err
			}
		}
	}, Name("S"))
	farm := Elastic[int, int]("F", Policy(OnDemand(3)), OnLoss(func(v int, err error) error {
		mu.Lock()
		defer mu.Unlock()
		try.Fails(err)(t, ErrLost)
		told = append(told, v)
		return answer
	}))
	k := To(func(_ context.Context, in Item[int]) error {
		sink = append(sink, in.Value)
		return nil
	}, Name("K"))
	g := try.Get(New("farm", Pipeline3(src, farm, k)))(t)
	var wg sync.WaitGroup
	wg.Go(func() { try.Works(g.Run(eventually.Context(t), Using(c, Config{})))(t) })
	start := func() *subprocess.Process {
		cmd := subprocess.Self()
		cmd.Env = append(os.Environ(), "DATAFLOW_TEST_GROUP=worker")
		p := try.Get(subprocess.Start(cmd))(t)
		try.OK(t, p.Expect(eventually.Context(t), "up"))
		return p
	}
	workers := []*subprocess.Process{start(), start()}
	for range kills {
		time.Sleep(time.Duration(rand.IntN(30)) * time.Millisecond) // the moment of the crash is any
		i := rand.IntN(len(workers))
		workers[i].Kill()
		workers[i] = start()
	}
	close(enough)
	wg.Wait()
	for _, p := range workers {
		try.OK(t, p.Wait())
	}
	try.Equal(t, len(sink) > 0, true, "there are items")
	checkNumbers(t, slices.Concat(sink, map[bool][]int{answer == nil: told}[true]), sent)
	return sink, told
}

// Promise (Dataflow): When the process of a worker is killed, OnLoss is told exactly the items that
// have no result. If it answers that they are skipped, each other item has come to the sink once.
func TestKillWorkersSkip(t *testing.T) {
	sink, told := killWorkers(t, times(5, 100), nil)
	t.Logf("%d items came to the sink, %d were skipped", len(sink), len(told))
}

// Promise (Dataflow): When the process of a worker is killed, its items are done again if OnLoss
// says so: each item has one result.
func TestKillWorkersAgain(t *testing.T) {
	sink, told := killWorkers(t, times(5, 100), Again)
	t.Logf("%d items came to the sink, %d were done again", len(sink), len(told))
}

// SPDX-License-Identifier: Apache-2.0

package flow

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/rocl-go/rocl/cmd/internal/interrupt"
	"github.com/rocl-go/rocl/cmd/rocl/internal/cli"
	"github.com/rocl-go/rocl/dataflow"
	"github.com/rocl-go/rocl/internal/testkit/eventually"
	"github.com/rocl-go/rocl/internal/testkit/posix"
	"github.com/rocl-go/rocl/internal/testkit/short"
	"github.com/rocl-go/rocl/internal/testkit/sshd"
	"github.com/rocl-go/rocl/internal/testkit/subprocess"
	"github.com/rocl-go/rocl/internal/testkit/try"
	"go.uber.org/goleak"
)

// The test binary is a program of package dataflow, or rocl, if the environment says so.
func TestMain(m *testing.M) {
	switch os.Getenv("BE_PROGRAM") {
	case "flow":
		dataflow.Main(build)
	case "rocl":
		_ = os.Setenv("BE_PROGRAM", "flow")
		ctx, stop := interrupt.Context(context.Background())
		root := cli.Root()
		root.AddCommand(Commands()...)
		code := cli.Run(ctx, root, os.Args[1:])
		stop()
		os.Exit(code)
	}
	goleak.VerifyTestMain(m)
}

// build returns the graph of the program: numbers in group a, a stage in group b, their sum in c.
// Each prints its process number. The first argument says what the stage does.
func build(args []string) (*dataflow.Graph, error) {
	const n = 5000
	src := dataflow.From(func(ctx context.Context, out dataflow.Out[int]) error {
		fmt.Printf("pid %d\n", os.Getpid())
		for i := range n {
			if err := out.Send(ctx, i); err != nil {
				return err
			}
		}
		return nil
	}, dataflow.Name("numbers"), dataflow.Size(n))
	mid := dataflow.Do(dataflow.Func[int, int](func(ctx context.Context, in dataflow.Item[int], out dataflow.Out[int]) error {
		if in.Value == n/2 {
			fmt.Printf("pid %d\n", os.Getpid())
			if err := misbehave(ctx, args[0]); err != nil {
				return err
			}
		}
		return out.Send(ctx, in.Value)
	}), dataflow.Name("stage"))
	if args[0] == "late" {
		mid = dataflow.Pipeline(mid, dataflow.Do(dataflow.Func[int, int](endLate)))
	}
	sum, isFirst := 0, true
	sink := dataflow.To(func(_ context.Context, in dataflow.Item[int]) error {
		if isFirst {
			isFirst = false
			fmt.Printf("pid %d\n", os.Getpid())
		}
		if sum += in.Value; in.Value == n-1 {
			fmt.Printf("the sum is %d%s\n", sum, os.Getenv("SUFFIX"))
		}
		return nil
	}, dataflow.Name("sum"))
	g, err := dataflow.New("launched", dataflow.Pipeline3(src, mid, sink))
	if err != nil {
		return nil, err
	}
	return g, errors.Join(g.Group("a", src), g.Group("b", mid), g.Group("c", sink))
}

// isLate is closed when endLate waits for a failure.
var isLate = make(chan struct{})

// endLate is a stage that returns after the other groups have heard of a failure. Then SIGTERM
// kills the process, as it kills a program that does not handle it.
func endLate(ctx context.Context, in dataflow.Item[int], out dataflow.Out[int]) error {
	if in.Value == 2000 { // so many that the stage before can come to its failure
		close(isLate)
		signal.Reset(syscall.SIGTERM)
		<-ctx.Done()
		time.Sleep(3 * time.Second) // the other groups wait for 2 s for this one, and end
	}
	return out.Send(ctx, in.Value)
}

// misbehave does what a test asks of the stage.
func misbehave(ctx context.Context, how string) error {
	switch how {
	case "late":
		<-isLate
		fallthrough
	case "fail":
		return errors.New("the stage is broken")
	case "panic":
		panic("a stage in panic")
	case "exit":
		os.Exit(7)
	case "killed":
		_ = posix.Kill(os.Getpid(), syscall.SIGKILL)
	case "block":
		<-ctx.Done()
		return context.Cause(ctx)
	case "deaf":
		signal.Ignore(syscall.SIGTERM, syscall.SIGHUP, syscall.SIGINT)
		select {}
	case "leave": // a child that the program leaves behind, with its output open
		c := exec.Command("sleep", "1000")
		c.Stdout, c.Stderr = os.Stdout, os.Stderr
		if err := c.Start(); err != nil {
			return err
		}
		fmt.Printf("pid %d\n", c.Process.Pid)
	}
	return nil
}

// said is an output that goroutines may write and read at once.
type said struct {
	mu  sync.Mutex
	buf bytes.Buffer
}

func (s *said) Write(p []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.buf.Write(p)
}

func (s *said) String() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.buf.String()
}

// A bench is a folder in which a test runs rocl.
type bench struct {
	*testing.T
	dir      string
	out, err said
}

// config is the groups of the program, without commas at the ends.
const config = `{"name": "a"}, {"name": "b"}, {"name": "c"}`

func newBench(t *testing.T) *bench {
	b := &bench{T: t, dir: t.TempDir()}
	t.Setenv("BE_PROGRAM", "flow")
	t.Setenv("ROCL_SOCKET", filepath.Join(b.dir, "socket"))
	b.write("flow.json", `{"groups": [`+config+`]}`)
	return b
}

func (b *bench) path(name string) string { return filepath.Join(b.dir, name) }

func (b *bench) write(name, text string) {
	b.Helper()
	try.OK(b, os.WriteFile(b.path(name), []byte(text), 0o700))
}

// flow runs rocl flow run, with flags and the program's argument, and returns the exit code.
func (b *bench) flow(ctx context.Context, flags, how string) int {
	b.Helper()
	root := cli.Root()
	root.AddCommand(Commands()...)
	root.SetOut(&b.out)
	root.SetErr(&b.err)
	self := try.Get(os.Executable())(b)
	args := append([]string{"flow", "run", "-f", b.path("flow.json")}, strings.Fields(flags)...)
	return cli.Run(ctx, root, append(args, self, how))
}

var pidLine = regexp.MustCompile(`pid (\d+)`)

// pids returns the processes that the output names.
func pids(text string) (all []int) {
	for _, m := range pidLine.FindAllStringSubmatch(text, -1) {
		n, _ := strconv.Atoi(m[1])
		all = append(all, n)
	}
	return all
}

// checkNoneLeft checks that no process is left of those that the output names.
func (b *bench) checkNoneLeft(atLeast int) {
	b.Helper()
	all := pids(b.out.String() + b.err.String())
	if len(all) < atLeast {
		b.Errorf("%d processes: %s%s", len(all), &b.out, &b.err)
	}
	for _, pid := range all {
		eventually.True(b, fmt.Sprintf("process %d has ended", pid), func() bool { return !lives(pid) })
	}
}

// lives reports whether a process has not ended.
func lives(pid int) bool {
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	_, state, _ := strings.Cut(string(stat), ") ")
	return err == nil && !strings.HasPrefix(state, "Z")
}

// has checks that the text has a part.
func (b *bench) has(text fmt.Stringer, part string) {
	b.Helper()
	if !strings.Contains(text.String(), part) {
		b.Errorf("no %q in\n%s", part, text)
	}
}

// lastLine checks the end of the error output.
func (b *bench) lastLine(want string) {
	b.Helper()
	all := strings.Split(strings.TrimSpace(b.err.String()), "\n")
	try.Equal(b, all[len(all)-1], want)
}

// Promise (Dataflow): The launcher starts a process for each group. Each line has the group's name
// in front.
func TestRun(t *testing.T) {
	b := newBench(t)
	b.write("flow.json", `{"groups": [{"name": "a"}, {"name": "b", "preCmd": "nice -n 1"}, {"name": "c", "env": {"SUFFIX": " 'so"}}]}`)
	try.Equal(t, b.flow(t.Context(), "-V", "ok"), 0, b.err.String())
	b.has(&b.out, "[c] the sum is 12497500 'so\n")
	b.has(&b.out, "[a] pid ")
	b.has(&b.err, "rocl: the run took ")
	b.checkNoneLeft(3)
}

// Only the groups that -v names are shown.
func TestRunShows(t *testing.T) {
	b := newBench(t)
	try.Equal(t, b.flow(t.Context(), "-v a,c", "ok"), 0, b.err.String())
	b.has(&b.out, "[a] pid ")
	b.has(&b.out, "[c] pid ")
	if strings.Contains(b.out.String(), "[b]") {
		t.Errorf("%s", &b.out)
	}
	try.Equal(t, b.flow(t.Context(), "-v d", "ok"), 64)
	b.has(&b.err, `groups: no group has the name "d"`)
}

// The first group that fails ends the others, and is shown last, also if others have heard of the
// failure and end before.
func TestRunFails(t *testing.T) {
	for _, c := range []struct{ how, last, says string }{
		{"fail", `rocl: group "b" failed: exit code 1`, "group b: stage stage: the stage is broken"},
		{"late", `rocl: group "b" failed: exit code 1`, "group b: stage stage: the stage is broken"},
		{"panic", `rocl: group "b" failed: exit code 1`, "a stage in panic"},
		{"exit", `rocl: group "b" failed: exit code 7`, "[b] pid "},
		{"killed", `rocl: group "b" failed: signal 9: killed`, "[b] pid "},
	} {
		t.Run(c.how, func(t *testing.T) {
			b := newBench(t)
			try.Equal(t, b.flow(t.Context(), "", c.how), 1)
			b.lastLine(c.last)
			b.has(&b.err, c.says)
			b.checkNoneLeft(1)
		})
	}
}

// With --keep-going the others end by themselves, because a group is lost.
func TestRunKeepGoing(t *testing.T) {
	b := newBench(t)
	try.Equal(t, b.flow(t.Context(), "-V --keep-going", "killed"), 1)
	b.lastLine(`rocl: group "b" failed: signal 9: killed`)
	b.has(&b.err, "[a] flow.test: dataflow: run launched: group b")
	b.has(&b.err, "[c] flow.test: dataflow: run launched: group b")
	b.checkNoneLeft(3)
}

// The time limit ends all groups.
func TestRunLimit(t *testing.T) {
	b := newBench(t)
	for limit := 2 * time.Second; ; limit *= 2 { // on a busy machine the groups need time to begin
		try.Equal(t, b.flow(t.Context(), fmt.Sprintf("-V -t %v", limit.Seconds()), "block"), 1)
		b.lastLine(fmt.Sprintf("rocl: the time limit was reached after %v: all groups were ended", limit))
		if len(pids(b.out.String())) >= 2 || limit > eventually.Timeout {
			break
		}
		b = newBench(t)
	}
	b.checkNoneLeft(2)
	for _, wrong := range []string{"0", "-1s", "soon"} {
		try.Equal(t, b.flow(t.Context(), "-t "+wrong, "ok"), 64)
	}
}

// Promise (Dataflow): An interrupt ends all groups, even one that ignores SIGTERM, and what they
// have started.
func TestRunInterrupted(t *testing.T) {
	for _, how := range []string{"block", "deaf"} {
		t.Run(how, func(t *testing.T) {
			newBench(t).interrupt("-V", how)
		})
	}
}

// interrupt runs rocl flow run, interrupts it when the stage runs, and checks that no process is
// left.
func (b *bench) interrupt(flags, how string) {
	b.Helper()
	ctx, cancel := context.WithCancel(b.Context())
	defer cancel()
	b.out.buf.Reset()
	stop := b.whenStarted(cancel)
	defer stop()
	try.Equal(b, b.flow(ctx, flags, how), 130)
	b.checkNoneLeft(2)
}

// whenStarted calls f when the stage has printed its process number.
func (b *bench) whenStarted(f func()) (stop func()) {
	done := make(chan struct{})
	var wg sync.WaitGroup
	wg.Go(func() {
		eventually.True(b, "the stage runs", func() bool {
			select {
			case <-done:
				return true
			default:
				return strings.Contains(b.out.String(), "[b] pid ")
			}
		})
		f()
	})
	return func() { close(done); wg.Wait() }
}

// A process that a group leaves behind is ended.
func TestRunLeaves(t *testing.T) {
	b := newBench(t)
	try.Equal(t, b.flow(t.Context(), "-V", "leave"), 0, b.err.String())
	b.checkNoneLeft(4)
}

// Promise (Dataflow): No process of a run is left when the launcher is killed.
func TestLauncherKilled(t *testing.T) {
	b := newBench(t)
	t.Setenv("BE_PROGRAM", "rocl")
	self := try.Get(os.Executable())(t)
	cmd := subprocess.Self("flow", "run", "-V", "-f", b.path("flow.json"), self, "block")
	cmd.Stdout, cmd.Stderr = &b.out, &b.err
	p := try.Get(subprocess.Start(cmd))(t)
	t.Cleanup(p.Kill)
	eventually.True(t, "the stage runs", func() bool { return strings.Contains(b.out.String(), "[b] pid ") })
	p.Kill()
	b.checkNoneLeft(2)
}

// A wrong configuration and a program that does not exist are refused before
// anything starts.
func TestRunRefused(t *testing.T) {
	b := newBench(t)
	b.write("flow.json", `{"groups": [{"name": "a", "batchSize": 0}]}`)
	try.Equal(t, b.flow(t.Context(), "-V", "ok"), 1)
	b.lastLine("rocl: dataflow: " + b.path("flow.json") + ": groups[0].batchSize: 0 is not a whole number from 1 to 2147483647")
	b.write("flow.json", `{"groups": [`+config+`, {"name": "d"}]}`)
	try.Equal(t, b.flow(t.Context(), "-V", "ok"), 1)
	b.has(&b.err, `flow.json: groups[3].name: the program has no group "d"; its groups are ["a" "b" "c"]`)
	if strings.Contains(b.out.String()+b.err.String(), "pid") {
		t.Errorf("a group has begun: %s%s", &b.out, &b.err)
	}
	b.write("flow.json", `{"groups": [`+config+`]}`)
	root := cli.Root()
	root.AddCommand(Commands()...)
	root.SetErr(&b.err)
	try.Equal(t, cli.Run(t.Context(), root, []string{"flow", "run", "-f", b.path("flow.json"), "./none"}), 1)
	b.has(&b.err, "./none")
	try.Equal(t, cli.Run(t.Context(), root, []string{"flow", "run", "-f", b.path("flow.json"), "/bin/true"}), 1)
	b.lastLine("rocl: /bin/true has written no graph: dataflow.Main or Launch.Run does that")
	try.Equal(t, cli.Run(t.Context(), root, []string{"flow", "graph", "-o", b.path("graph.pdf"), "/bin/true"}), 64)
	try.Equal(t, cli.Run(t.Context(), root, []string{"flow", "run", "-f", b.path("flow.json")}), 64)
	try.Equal(t, b.flow(t.Context(), "-p UDP", "ok"), 64)
}

// The commands that -n prints do what the launcher does, but for the end of the others.
func TestRunPrints(t *testing.T) {
	b := newBench(t)
	b.write("flow.json", `{"protocol": "TCP", "groups": [{"name": "a"}, {"name": "b", "endpoint": "node2.invalid:7001", "preCmd": "nice"}, {"name": "c"}]}`)
	try.Equal(t, b.flow(t.Context(), "-n -p SHM", "it's"), 0, b.err.String())
	b.has(&b.out, `'it'\''s'`)
	b.has(&b.out, "[b] ssh -T 'node2.invalid' 'export ROCL_FLOW_GROUP=")
	b.has(&b.out, `"protocol": "SHM"`)
	try.Equal(t, len(pids(b.out.String())), 0)
}

// fakeSSH is a command in place of ssh: it runs the last argument, which is the command, in a
// session of its own, as sshd does. It ends when that ends.
const fakeSSH = "#!/bin/sh\nfor last in \"$@\"; do :; done\nexec setsid -w sh -c \"$last\"\n"

// Promise (Dataflow): Groups on other hosts are started by ssh, and end with the launcher.
func TestRunOverSSH(t *testing.T) {
	b := newBench(t)
	b.write("ssh", fakeSSH)
	b.write("flow.json", `{"groups": [{"name": "a", "endpoint": "node1.invalid:1"}, {"name": "b", "endpoint": "node2.invalid:1"}, {"name": "c", "endpoint": "localhost:1"}]}`)
	t.Setenv("TPVM_SSH", b.path("ssh"))
	try.Equal(t, b.flow(t.Context(), "-V", "ok"), 0, b.err.String())
	b.has(&b.out, "[c] the sum is 12497500\n")
	b.checkNoneLeft(3)
	for _, how := range []string{"block", "deaf"} {
		b.interrupt("-V", how)
	}
	try.Equal(t, b.flow(t.Context(), "-V", "exit"), 1)
	b.lastLine(`rocl: group "b" failed: exit code 7`)
	b.checkNoneLeft(3)
}

// Over ssh, an interrupt ends all groups, also one that ignores SIGTERM, and
// what they have started.
func TestRunOverRealSSH(t *testing.T) {
	b := newBench(t)
	config := sshd.Run(t, map[string]string{"BE_PROGRAM": "flow", "ROCL_SOCKET": os.Getenv("ROCL_SOCKET")})
	b.write("flow.json", `{"groups": [{"name": "a", "endpoint": "one:1"}, {"name": "b", "endpoint": "two:1"}, {"name": "c", "endpoint": "one:2"}]}`)
	try.Equal(t, b.flow(t.Context(), "-V -F "+config, "ok"), 0, b.err.String())
	b.has(&b.out, "[c] the sum is 12497500\n")
	b.checkNoneLeft(3)
	b.interrupt("-V -F "+config, "block")
	if !short.Form(t) {
		b.interrupt("-V -F "+config, "deaf") // takes 5 s
	}
	try.Equal(t, b.flow(t.Context(), "-V -F "+config, "exit"), 1)
	b.lastLine(`rocl: group "b" failed: exit code 7`)
	b.checkNoneLeft(3)
}

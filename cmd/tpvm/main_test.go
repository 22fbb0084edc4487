// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/rocl-go/rocl"
	"github.com/rocl-go/rocl/cmd/internal/interrupt"
	"github.com/rocl-go/rocl/internal/testkit/freeaddr"
	"github.com/rocl-go/rocl/internal/testkit/nice"
	"github.com/rocl-go/rocl/internal/testkit/posix"
	"github.com/rocl-go/rocl/internal/testkit/subprocess"
	"github.com/rocl-go/rocl/internal/testkit/try"
	"github.com/rocl-go/rocl/rocltest"
	"github.com/rocl-go/rocl/tpvm"
)

// The test binary is the command tpvm, or a task, if the environment says so.
func TestMain(m *testing.M) {
	switch os.Getenv("BE_TPVM") {
	case "tpvm":
		nice.Session() // a pod has a session of its own
		ctx, stop := interrupt.Context(context.Background())
		code := execute(ctx, os.Args[1:])
		stop()
		os.Exit(code)
	case "task": // enrols, prints that, and stays
		t, err := tpvm.Enrol(context.Background())
		if err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		fmt.Println(t.ID())
		select {}
	case "orphan": // enrols, prints its parent, and ends
		err := tpvm.Run(context.Background(), func(_ context.Context, t *tpvm.Task) error {
			fmt.Println("parent", t.Parent())
			return nil
		})
		if err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	goleak.VerifyTestMain(m)
}

// long is far more time than any part of these tests takes.
const long = time.Minute

// shell is a directory and a virtual machine for one test.
type shell struct {
	t   *testing.T
	env []string
}

func newShell(t *testing.T) *shell {
	sock := freeaddr.Socket(t)
	race := os.Getenv("GORACE") + " atexit_sleep_ms=0" // a process of a race build sleeps a second at its end otherwise
	return &shell{t: t, env: append(os.Environ(), "GORACE="+race, "BE_TPVM=tpvm", "HOME="+filepath.Dir(sock), "ROCL_SOCKET="+sock, "TPVM_VM=test")}
}

// command returns a command that has not been started.
func (s *shell) command(args ...string) *exec.Cmd {
	s.t.Helper()
	cmd := subprocess.Self(args...)
	cmd.Env = s.env
	cmd.WaitDelay = long // for programs that hold the output open
	return cmd
}

// run runs tpvm to its end.
func (s *shell) run(in string, args ...string) (out, errOut string, code int) {
	s.t.Helper()
	cmd := s.command(args...)
	cmd.Stdin = strings.NewReader(in)
	ctx, cancel := context.WithTimeout(context.Background(), long)
	defer cancel()
	out, errOut, code, err := subprocess.Run(ctx, cmd)
	try.OK(s.t, err, "%q, %q", out, errOut)
	return out, errOut, code
}

// start starts tpvm. Its output is read by lines.
func (s *shell) start(args ...string) (p *subprocess.Process, lines *bufio.Scanner) {
	s.t.Helper()
	cmd := s.command(args...)
	r, w, err := os.Pipe()
	try.OK(s.t, err)
	cmd.Stdout, cmd.Stderr = w, w // one pipe, which ends with the last process that holds it
	s.t.Cleanup(func() { r.Close() })
	p = launch(s.t, cmd)
	w.Close()
	limit := time.AfterFunc(long, func() { p.Signal(syscall.SIGKILL) })
	s.t.Cleanup(func() { limit.Stop() })
	return p, bufio.NewScanner(r)
}

// launch starts a command.
func launch(t *testing.T, cmd *exec.Cmd) *subprocess.Process {
	t.Helper()
	p := try.Get(subprocess.Start(cmd))(t)
	t.Cleanup(p.Kill)
	return p
}

// next returns the next line of output.
func next(t *testing.T, lines *bufio.Scanner) string {
	t.Helper()
	if !lines.Scan() {
		t.Fatal("there is no further line:", lines.Err())
	}
	return lines.Text()
}

// remainingLines waits until the last process that writes to the output has ended, and returns the
// lines.
func remainingLines(lines *bufio.Scanner) (all []string) {
	for lines.Scan() {
		all = append(all, lines.Text())
	}
	return all
}

// Programs that know nothing of tpvm run on a node without a directory. Their output has their
// names in front, and the exit code is theirs.
func TestRun(t *testing.T) {
	s := newShell(t)
	out, errOut, code := s.run("", "run", "-n", "3", "sh", "-c", "echo out $0; echo err >&2", "arg")
	if code != 0 {
		t.Fatal(code, errOut)
	}
	for i := range 3 {
		if !strings.Contains(out, fmt.Sprintf("[sh.%d] out arg\n", i)) || !strings.Contains(errOut, fmt.Sprintf("[sh.%d] err\n", i)) {
			t.Errorf("output %q, error output %q", out, errOut)
		}
	}
	if _, errOut, code = s.run("", "run", "-n", "2", "sh", "-c", "exit 3"); code != 3 || strings.Count(errOut, "exit status 3") != 2 || !strings.Contains(errOut, "tpvm: sh.1 (process ") {
		t.Errorf("exit code %d: %q", code, errOut)
	}
	if _, errOut, code = s.run("", "run", "sh", "-c", "kill -9 $$"); code != 137 || !strings.Contains(errOut, "signal 9 (killed)") {
		t.Errorf("exit code %d: %q", code, errOut)
	}
	if out, errOut, code = s.run("", "run", "--env", "WHAT=that", "--dir", "/", "--host", ".", "sh", "-c", "echo $WHAT; pwd"); code != 0 || out != "[sh] that\n[sh] /\n" {
		t.Errorf("exit code %d: %q %q", code, out, errOut)
	}
}

// A program that tpvm run or the console has started has no parent. It would send messages to its
// parent that nothing receives.
func TestNoParent(t *testing.T) {
	s := newShell(t)
	want := fmt.Sprintln("parent", tpvm.TID{})
	for _, args := range [][]string{{"run", "--env", "BE_TPVM=orphan", try.Get(os.Executable())(t)}, {"console"}} {
		out, errOut, code := s.run("setenv BE_TPVM orphan\nspawn -> "+try.Get(os.Executable())(t), args...)
		if code != 0 || !strings.Contains(out, want) || errOut != "" {
			t.Errorf("%s: exit code %d, %q, %q", args[0], code, out, errOut)
		}
	}
}

// Errors name the cause and say what to do.
func TestRunErrors(t *testing.T) {
	s := newShell(t)
	for _, c := range []struct {
		args, says string
		code       int
	}{
		{"run", "run needs a program", exitUsage},
		{"run -n 0 true", "-n 0 is not more than zero", exitUsage},
		{"run --where x true", `--where "x" is not name=value`, exitUsage},
		{"run --host elsewhere true", `tpvm: start "true": there is no host "elsewhere"; 'tpvm hosts' lists them` + "\n", exitFailed},
		{"run --arch none true", "'tpvm hosts' lists the hosts", exitFailed},
		{"run --where zone=a true", "no host satisfies", exitFailed},
		{"run no-such-program", `tpvm: spawn "no-such-program": 1 of 1 not started`, exitFailed},
		{"run no-such-program", `the name is neither exported nor a program: "no-such-program" on `, exitFailed},
		{"run no-such-program", "Give the program's path", exitFailed},
		{"kill 1-2", "no directory serves this node", exitNoDirectory},
		{"kill 1-2", "Nothing runs on this node", exitNoDirectory},
		{"ps --socket /dev/null", "it is not a socket", exitNoDirectory},
		{"kill 1-2", "'dirserver'", exitNoDirectory},
		{"add", "add needs a host: tpvm add HOST...\n", exitUsage},
		{"delete", "delete needs a host", exitUsage},
		{"ps x", "takes no arguments", exitUsage},
		{"kill", "kill needs an identifier", exitUsage},
		{"sig NONE 1", `there is no signal "NONE"`, exitUsage},
		{"nothing", `unknown command "nothing"`, exitUsage},
		{"ps --timeout 0s", "--timeout 0s is not more than zero", exitUsage},
	} {
		if _, errOut, code := s.run("", strings.Fields(c.args)...); code != c.code || !strings.Contains(errOut, c.says) {
			t.Errorf("%s: exit code %d, %q, want %d, %q", c.args, code, errOut, c.code, c.says)
		}
	}
}

// For a host that exists and starts no programs, run says how to change that.
func TestRunOnIdleHost(t *testing.T) {
	ctx := t.Context()
	c := rocltest.Cluster(t, 2)
	task := try.Get(tpvm.Enrol(ctx, tpvm.WithContext(c.Open(0))))(t)
	defer task.Exit(ctx)
	node := fmt.Sprintf("%012x", uint64(c.Open(1).ID().Node()))
	_, err := task.Start(ctx, "true", 1, tpvm.OnHost(node))
	got := explain(ctx, task, "true", node, err).Error()
	if !strings.HasPrefix(got, `start "true" on host "`+node+`": nothing starts programs there. Run 'tpvm add `) {
		t.Error(got)
	}
}

// A program that has ended is not waited for because of a process that it has left behind with its
// output open. What the program has printed is printed.
//
// Promise (Commands): `tpvm run` does not wait for a process that a program has left behind. See
// also TestLeftProcessGoesOn.
func TestRunLeavesProcess(t *testing.T) {
	s := newShell(t)
	path := filepath.Join(t.TempDir(), "held")
	try.OK(t, posix.Mkfifo(path))
	hold := try.Get(os.OpenFile(path, os.O_RDWR, 0))(t) // the process that is left behind reads until the end
	defer hold.Close()
	out, errOut, code := s.run("", "run", "sh", "-c", "cat "+path+" & i=0; while [ $i -lt 1000 ]; do echo line $i; i=$((i+1)); done")
	if code != 0 || strings.Count(out, "\n") != 1000 || !strings.HasSuffix(out, "line 999\n") {
		t.Errorf("exit code %d, %d lines: %q", code, strings.Count(out, "\n"), errOut)
	}
}

// Tasks are listed below their parents, and ended by a short identifier.
func TestPsKill(t *testing.T) {
	s := newShell(t)
	self := try.Get(os.Executable())(t)
	p, lines := s.start("run", "-n", "2", "--env", "BE_TPVM=task", self)
	var ids []string
	for range 2 {
		_, id, _ := strings.Cut(next(t, lines), "] ")
		ids = append(ids, id)
	}
	out, errOut, code := s.run("", "ps")
	if code != 0 || !strings.Contains(out, "tpvm run\n") || strings.Count(out, "─ "+filepath.Base(self)+"\n") != 2 || !strings.HasSuffix(out, "3 tasks, 0 threads on 1 host\n") {
		t.Errorf("ps: %d\n%s%s", code, out, errOut)
	}
	out, _, code = s.run("", "ps", "--json")
	var e entry
	if err := json.Unmarshal([]byte(strings.SplitAfter(out, "\n")[2]), &e); code != 0 || err != nil || e.Kind != "task" || e.Parent == nil || !slices.Contains(ids, e.ID.String()) {
		t.Errorf("ps --json: %d %v %q", code, err, out)
	}
	if out, _, code = s.run("", "hosts"); code != 0 || strings.Count(out, "\n") != 2 || !strings.HasSuffix(strings.TrimSpace(out), " 3      task      -") {
		t.Errorf("hosts: %q", out)
	}
	if _, errOut, code = s.run("", "kill", "99-99"); code != exitFailed || !strings.Contains(errOut, `"99-99"`) && !strings.Contains(errOut, "99-99") || !strings.Contains(errOut, "'tpvm ps' lists the tasks") {
		t.Errorf("kill of no task: %d %q", code, errOut)
	}
	_, rest1, _ := strings.Cut(ids[0], "-")
	if _, errOut, code = s.run("", "sig", "STOP", rest1); code != 0 {
		t.Errorf("sig: %d %q", code, errOut)
	}
	if _, errOut, code = s.run("", "sig", "9", rest1); code != 0 {
		t.Errorf("sig: %d %q", code, errOut)
	}
	if l := next(t, lines); !strings.Contains(l, "signal 9 (killed)") {
		t.Error(l)
	}
	if _, errOut, code = s.run("", "kill", ids[1][:4]+ids[1][12:]); code != 0 {
		t.Errorf("kill: %d %q", code, errOut)
	}
	remainingLines(lines)
	_ = p.Wait()
	try.Equal(t, p.Cmd.ProcessState.ExitCode(), 137, "run: exit code")
}

// On a node on which nothing runs, there are no tasks and one host: this one.
func TestNothingRuns(t *testing.T) {
	s := newShell(t)
	for args, want := range map[string]string{"ps": "no tasks\n", "ps --json": ""} {
		if out, errOut, code := s.run("", strings.Fields(args)...); code != 0 || out != want || errOut != "" {
			t.Errorf("%s: exit code %d, %q, %q", args, code, out, errOut)
		}
	}
	if out, errOut, code := s.run("", "hosts"); code != 0 || strings.Count(out, "\n") != 2 || !strings.Contains(out, "  0      -         -\n") {
		t.Errorf("hosts: exit code %d, %q, %q", code, out, errOut)
	}
}

// The console reads a script, goes on after an error, and waits for output.
func TestConsole(t *testing.T) {
	t.Parallel()
	s := newShell(t)
	file, log := filepath.Join(t.TempDir(), "out"), filepath.Join(t.TempDir(), "log")
	for _, f := range []string{file, log} {
		try.OK(t, os.WriteFile(f, []byte("before\n"), 0o600))
	}
	out, errOut, code := s.run(strings.Join([]string{
		"# a script", "id", "conf", "setenv WHAT 'two words'", "setenv WHAT", "version", "help spawn",
		`spawn -2 -> sh -c 'echo $WHAT'`,
		"spawn ->" + file + " echo first",
		"spawn -. echo second ->> " + log,
		"spawn sleep 1000", "jobs", "ps", "bad", "sig TERM 99-99", "reset", "quit", "echo not any more",
	}, "\n"), "console")
	if code != exitFailed || strings.Count(errOut, "tpvm: ") != 2 || !strings.Contains(errOut, `line 14: there is no command "bad"`) {
		t.Errorf("exit code %d: %q", code, errOut)
	}
	for _, want := range []string{"[sh.0] two words\n", "[sh.1] two words\n", "[1] 2 started\n", "two words\n", "[4] 1 sleep\n", "─ [sleep]\n", "NODE ", "spawn [option...] PROGRAM"} {
		if !strings.Contains(out, want) {
			t.Errorf("there is no %q in %q", want, out)
		}
	}
	if strings.Contains(out, "not any more") {
		t.Error("it went on behind quit")
	}
	// Each has a file of its own, because two programs may print in either order.
	for f, want := range map[string]string{file: "[echo] first\n", log: "before\n[echo] second\n"} {
		try.Equal(t, string(try.Get(os.ReadFile(f))(t)), want)
	}
	if _, errOut, code = s.run("halt\n", "console"); code != 0 {
		t.Errorf("halt: %d %q", code, errOut)
	}
}

// A hundred tasks have a line each. Ten thousand threads of them have a few.
func TestPrintTree(t *testing.T) {
	id := func(c uint64, serial int) tpvm.TID {
		return try.Get(rocl.ParseGID(fmt.Sprintf("%012x-%x-%x", 0xabcdef, c, serial)))(t)
	}
	root := id(1, 2)
	all := []entry{{ID: root, Kind: "task", Name: "master", Host: "a", PID: 1}}
	for i := range 99 {
		all = append(all, entry{ID: id(uint64(i+2), 2), Parent: &root, Kind: "task", Name: "worker", Host: "h" + strconv.Itoa(i%2), Node: strconv.Itoa(i % 2), PID: 100 + i})
	}
	worker := all[1].ID
	for i := range 10_000 {
		all = append(all, entry{ID: id(2, 3+i), Parent: &worker, Kind: "thread", Name: "square", Host: "h0", Node: "0"})
	}
	all = append(all, entry{ID: id(3, 3), Parent: &worker, Kind: "thread", Name: "lone", Host: "h1", Node: "1"})
	slices.SortFunc(all, byHost)
	var b strings.Builder
	try.OK(t, printTree(&b, all, false))
	got := b.String()
	try.Equal(t, strings.Count(got, "\n"), 1+100+2+1, "lines")
	for _, want := range []string{"\n1-2   1    a     master\n", "2-2   100  h0    ├─ worker\n", "2-3…  -    h0    │  ├─ square (10000 threads)\n", "│  └─ lone (thread)\n", "└─ worker\n", "100 tasks, 10001 threads on 3 hosts\n"} {
		if !strings.Contains(got, want) {
			t.Errorf("there is no %q in\n%.800s", want, got)
		}
	}
	if first, last := strings.Index(got, " h1 "), strings.LastIndex(got, " h0 "); strings.Count(got[:last], " h1 ") != 1 || first > last {
		t.Errorf("tasks are not grouped by host:\n%.800s", got) // except the lone thread, which is below a task of h0
	}
	b.Reset()
	if err := printTree(&b, all, true); err != nil || strings.Count(b.String(), "\n") != 1+100+10_001+1 {
		t.Error(err, strings.Count(b.String(), "\n"))
	}
}

func TestResolve(t *testing.T) {
	a, b := try.Get(rocl.ParseGID("00000000aaaa-5-2"))(t), try.Get(rocl.ParseGID("00000000bbbb-5-2"))(t)
	c := try.Get(rocl.ParseGID("10000000bbbb-6-2"))(t)
	all := []entry{{ID: a, Name: "a"}, {ID: b, Name: "b"}, {ID: c, Name: "c"}}
	for _, x := range []struct {
		what string
		want tpvm.TID
		says string
	}{
		{"00000000aaaa-5-2", a, ""}, {"6-2", c, ""}, {"1-6-2", c, ""}, {"00000000b-5-2", b, ""},
		{"5-2", tpvm.TID{}, `"5-2" is ambiguous: there are 00000000aaaa-5-2 (a), 00000000bbbb-5-2 (b)`},
		{"6", tpvm.TID{}, `"6" is incomplete: there are 6-2 (c)`}, {"0", tpvm.TID{}, `"0" is incomplete: there are 00000000aaaa-5-2 (a), 00000000bbbb-5-2 (b)`},
		{"1-6", tpvm.TID{}, "no such task"},
		{"7-2", tpvm.TID{}, "no such task"}, {"", tpvm.TID{}, "no such task"}, {"\x1b", tpvm.TID{}, `\x1b`},
	} {
		got, err := resolve(all, x.what)
		if x.says == "" && (err != nil || got != x.want) || x.says != "" && (err == nil || !strings.Contains(err.Error(), x.says)) {
			t.Errorf("%q: %v %v", x.what, got, err)
		}
	}
	if got := shorten(all); got[a] != a.String() || got[c] != "6-2" {
		t.Error(got)
	}
}

func TestParseSpawn(t *testing.T) {
	for _, x := range []struct {
		line string
		want request
		says string
	}{
		{line: "a b", want: request{n: 1, args: []string{"a", "b"}}},
		{line: "-3 -host -linux/arm64 -> a -x", want: request{n: 3, host: "host", arch: "linux/arm64", args: []string{"a", "-x"}, prints: true}},
		{line: "->f a", want: request{n: 1, args: []string{"a"}, prints: true, file: "f"}},
		{line: "->>'f g' a", want: request{n: 1, args: []string{"a"}, prints: true, file: "f g", appendsToFile: true}},
		{line: "a b -> f", want: request{n: 1, args: []string{"a", "b"}, prints: true, file: "f"}},
		{line: "-- -a", want: request{n: 1, args: []string{"-a"}}},
		{line: "--host=12 -? a", want: request{n: 1, host: "12", debugs: true, args: []string{"a"}}},
		{line: "-one:/tmp a", want: request{n: 1, host: "one", dir: "/tmp", args: []string{"a"}}},
		{line: "-linux/arm64:/tmp a", want: request{n: 1, arch: "linux/arm64", dir: "/tmp", args: []string{"a"}}},
		{line: "-:/tmp a", want: request{n: 1, dir: "/tmp", args: []string{"a"}}},
		{line: "", says: "which program?"}, {line: "-0 a", says: "not more than zero"}, {line: "->> f a", says: "needs a file"},
		{line: "- a", says: "- is no option"}, {line: "--count=3 a", says: "--count=3 is no option"},
	} {
		words, err := split(x.line)
		if err != nil {
			t.Error(err)
		}
		r, err := parseSpawn(words)
		if x.says == "" && (err != nil || !reflect.DeepEqual(r, x.want)) || x.says != "" && (err == nil || !strings.Contains(err.Error(), x.says)) {
			t.Errorf("%s: %+v %v, want %+v %s", x.line, r, err, x.want, x.says)
		}
	}
	try.Rejects(split("a 'b"))(t, "a quote that does not end")
}

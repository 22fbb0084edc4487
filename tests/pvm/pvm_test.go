// SPDX-License-Identifier: Apache-2.0

// Package pvm runs the example programs of Debian's package pvm-examples, unmodified, over PVM 3.4
// and over libpvm3. It compares their output and their exit codes. Numbers of tasks, message
// contexts and times differ, and are masked. The order of lines of different processes differs too,
// so lines are sorted.
//
// The tests are skipped if gcc or one of the packages pvm, pvm-dev and pvm-examples is missing.
// With ROCL_PVM=must they fail instead.
package pvm

import (
	"bufio"
	"bytes"
	"context"
	"fmt"
	"log/slog"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/rocl-go/rocl"
	dircluster "github.com/rocl-go/rocl/directory/cluster"
	"github.com/rocl-go/rocl/internal/testkit/eventually"
	"github.com/rocl-go/rocl/internal/testkit/freeaddr"
	"github.com/rocl-go/rocl/internal/testkit/nice"
	"github.com/rocl-go/rocl/internal/testkit/posix"
	"github.com/rocl-go/rocl/internal/testkit/subprocess"
	"github.com/rocl-go/rocl/internal/testkit/try"
	"github.com/rocl-go/rocl/tpvm"
)

// testTimeout is how long a program may run.
const testTimeout = eventually.Timeout

// A machine is a virtual machine: of PVM, or of tpvm.
type machine struct {
	name string
	bin  string   // the programs
	env  []string // of the programs
	log  string   // the file to which PVM writes the output of spawned programs

	// The rest is for a machine of tpvm:
	dir, key string // of the cluster; the key's file
	address  string // in the cluster
	deaths   deaths
}

// need skips the test if ok is false, and fails it with ROCL_PVM=must. what names the missing tool.
func need(t testing.TB, ok bool, what string) {
	t.Helper()
	if ok {
		return
	}
	if os.Getenv("ROCL_PVM") == "must" {
		t.Fatalf("ROCL_PVM=must, and %s is missing", what)
	}
	t.Skipf("%s is missing: apt-get install gcc pvm pvm-dev pvm-examples", what)
}

const (
	docs    = "/usr/share/doc/pvm-examples/"
	pvmRoot = "/usr/lib/pvm3"
	cflags  = "-w -O1 -DHASSTDLIB -std=gnu89" // the programs are in the C of their time
)

// programs are the example programs, with their sources, and options of the compiler.
var programs = map[string][]string{
	"hello": nil, "hello_other": nil, "master1": nil, "slave1": nil, "spmd": nil, "timing": nil, "timing_slave": nil,
	"gexample": nil, "inherit1": nil, "inherit2": nil, "inherit3": nil, "inherita": nil, "inheritb": nil,
	"mbox": nil, "ptest": nil, "ge": nil, "gexamp": nil, "gs": nil, "joinleave": nil, "thb": nil, "tnb": nil,
	"tst": nil, "tjl": nil, "trsg": nil,
	"task0": {"taskf.c"}, "task1": {"taskf.c"}, "task_end": {"taskf.c"}, "rme": {"taskf.c"}, "gmbi": {"taskf.c"},
	"lmbi": {"taskf.c"}, "mhf_server": nil, "mhf_tickle": nil,
	"dbwtest": {"bwtest.c", "-DPACK", "-DENCODE=PvmDataDefault"},
	"rbwtest": {"bwtest.c", "-DPACK", "-DENCODE=PvmDataRaw"},
	"ibwtest": {"bwtest.c", "-DPACK", "-DENCODE=PvmDataInPlace"},
	"pbwtest": {"bwtest.c"},
	"starter": {"-include", "exit.h"}, // it calls exit without an argument
	// The programs of testdata:
	"calls": nil, "codes": nil, "buffers": nil, "handlers": nil, "notices": nil, "spawns": nil, "hosts": nil,
	"jumps": nil,
}

// exitHeader lets a program call exit without an argument, as C did before it had prototypes.
const exitHeader = "#include <stdlib.h>\n#define exit(...) (exit)(__VA_ARGS__ + 0)\n"

// build compiles the programs of a directory of sources against a library.
func build(t *testing.T, src, out, include, lib string) {
	t.Helper()
	try.OK(t, os.MkdirAll(out, 0o755))
	work := make(chan string)
	var wg sync.WaitGroup
	for range runtime.NumCPU() {
		wg.Go(func() {
			for name := range work {
				args := strings.Fields(cflags)
				args = append(args, "-I"+include, "-o", filepath.Join(out, name))
				more := programs[name]
				if len(more) == 0 || more[0] != "bwtest.c" {
					args = append(args, name+".c")
				}
				args = append(append(args, more...), "-L"+lib, "-Wl,-rpath,"+lib, "-lgpvm3", "-lpvm3")
				cmd := exec.Command("gcc", args...)
				cmd.Dir = src
				if b, err := cmd.CombinedOutput(); err != nil {
					t.Errorf("gcc %s: %v\n%s", strings.Join(args, " "), err, b)
				}
			}
		})
	}
	for name := range programs {
		work <- name
	}
	close(work)
	wg.Wait()
	if t.Failed() {
		t.FailNow()
	}
}

// sources unpacks the example programs into one directory.
func sources(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	for _, f := range []string{"examples.tar.gz", "gexamples.tar.gz"} {
		b, err := exec.Command("tar", "-xzf", docs+f, "-C", dir, "--strip-components=1", "--wildcards", "*.c").CombinedOutput()
		if err != nil {
			t.Fatalf("tar %s: %v\n%s", f, err, b)
		}
	}
	try.OK(t, os.CopyFS(dir, os.DirFS("testdata")))
	try.OK(t, os.WriteFile(filepath.Join(dir, "exit.h"), []byte(exitHeader), 0o644))
	return dir
}

// startPVM starts PVM's daemon.
func startPVM(t *testing.T, src string) *machine {
	t.Helper()
	tmp := t.TempDir()
	m := &machine{name: "PVM", bin: filepath.Join(tmp, "bin"), log: filepath.Join(tmp, fmt.Sprintf("pvml.%d", os.Getuid()))}
	libs, err := filepath.Glob("/usr/lib/*/libpvm3.so")
	if err != nil || len(libs) == 0 {
		need(t, false, "libpvm3.so of pvm-dev")
	}
	build(t, src, m.bin, "/usr/include", filepath.Dir(libs[0]))
	try.OK(t, os.Symlink(filepath.Join(pvmRoot, "lib/pvmgs"), filepath.Join(m.bin, "pvmgs")))
	m.env = append(os.Environ(), "PVM_ALLOW_ROOT=1", "PVM_ROOT="+pvmRoot, "PVM_TMP="+tmp, "PATH="+m.bin+":"+os.Getenv("PATH"))
	host := try.Get(os.Hostname())(t)
	hosts := filepath.Join(tmp, "hosts")
	try.OK(t, os.WriteFile(hosts, []byte("* ep="+m.bin+" wd="+tmp+"\n"+host+"\n"), 0o644))
	console := func(in string, args ...string) string {
		cmd := exec.Command("pvm", args...)
		cmd.Env, cmd.Stdin, cmd.WaitDelay = m.env, strings.NewReader(in), time.Second
		b, _ := cmd.CombinedOutput() // the exit status of the console has no meaning
		return string(b)
	}
	if out := console("conf\nquit\n", hosts); !strings.Contains(out, "1 host") {
		t.Fatalf("pvmd does not start:\n%s", out)
	}
	t.Cleanup(func() { console("halt\n") })
	return m
}

// startOurs builds libpvm3 and starts a task that stays while the programs run, as pvmd does:
// it keeps the persistent entries of the mailbox.
func startOurs(t *testing.T, src string) *machine {
	t.Helper()
	tmp := t.TempDir()
	m := &machine{name: "libpvm3", bin: filepath.Join(tmp, "bin"), dir: tmp, key: filepath.Join(tmp, "key")}
	try.OK(t, os.WriteFile(m.key, []byte("0123456789abcdef0123456789abcdef\n"), 0o600))
	m.address = try.Get(freeaddr.Loopback())(t)
	lib := filepath.Join(tmp, "lib")
	cmd := exec.Command("go", "build", "-buildmode=c-shared", "-ldflags", "-extldflags -Wl,-soname,libpvm3.so",
		"-o", filepath.Join(lib, "libpvm3.so"), "github.com/rocl-go/rocl/tpvm/libpvm3")
	cmd.Env = append(os.Environ(), "CGO_ENABLED=1")
	if b, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("go build libpvm3: %v\n%s", err, b)
	}
	try.OK(t, os.Symlink("libpvm3.so", filepath.Join(lib, "libgpvm3.so")))
	header := try.Get(filepath.Abs("../../tpvm/libpvm3"))(t)
	build(t, src, m.bin, header, lib)
	sock := filepath.Join(tmp, "rocl")
	m.env = append(os.Environ(), "ROCL_SOCKET="+sock, tpvm.EnvVM+"="+vm, "TPVM_ENROL_TIME=5s", "PATH="+m.bin+":"+os.Getenv("PATH"))
	ctx, cancel := context.WithTimeout(context.Background(), testTimeout)
	defer cancel()
	keeper := try.Get(tpvm.Enrol(ctx, tpvm.WithVM(vm), tpvm.WithoutLaunch(), tpvm.WithRocl(
		rocl.WithSocket(sock), rocl.WithCluster(cluster), rocl.WithMember(dircluster.Member{Bind: m.address, KeyFile: m.key}),
		rocl.WithLogger(slog.New(slog.NewTextHandler(&m.deaths, &slog.HandlerOptions{Level: slog.LevelDebug}))))))(t)
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), testTimeout)
		defer cancel()
		try.Check(t, keeper.Exit(ctx))
	})
	return m
}

// The names of tpvm's virtual machine and of its cluster.
const (
	vm      = "tests-pvm"
	cluster = "tests-pvm"
)

// deaths counts, in a log of a member of a cluster, how often one member took another one for dead.
type deaths struct{ n atomic.Int64 }

func (d *deaths) Write(line []byte) (int, error) {
	for _, said := range []string{"as failed, suspect timeout reached", "Refuting a dead message"} { // of another one, of itself
		if bytes.Contains(line, []byte(said)) {
			d.n.Add(1)
		}
	}
	return len(line), nil
}

// envPod, in the environment of this test's binary, makes it serve a pod as long as the process
// with that number runs.
const envPod = "TESTS_PVM_POD"

func TestMain(m *testing.M) {
	if pid, err := strconv.Atoi(os.Getenv(envPod)); err == nil {
		if err := servePod(pid); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	goleak.VerifyTestMain(m)
}

// servePod does what tpvm pod does. It ends with the process pid.
func servePod(pid int) error {
	nice.Session()
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	go func() {
		for posix.Kill(pid, 0) == nil && ctx.Err() == nil {
			time.Sleep(100 * time.Millisecond) // that process is not the parent: it is looked for now and then
		}
		cancel()
	}()
	return tpvm.RunPod(ctx)
}

// withHosts returns the environment for a program that adds the host "one". The remote shell is a
// script, which gives the command on that host a node of its own, whose socket is in dir. The host
// ends with the process pid.
func (m *machine) withHosts(t *testing.T, dir string, pid int) []string {
	t.Helper()
	self := try.Get(os.Executable())(t)
	script := fmt.Sprintf(`#!/bin/sh
[ "$1" = one ] || { echo "ssh: connect to host $1 port 22: Connection refused" >&2; exit 255; }
shift
ROCL_SOCKET=%s/one ROCL_BIND=%s ROCL_JOIN=%s ROCL_KEY_FILE=%s ROCL_CLUSTER=%s %s=%d exec sh -c "$*"
`, dir, try.Get(freeaddr.Loopback())(t), m.address, m.key, cluster, envPod, pid)
	ssh := filepath.Join(dir, "ssh")
	try.OK(t, os.WriteFile(ssh, []byte(script), 0o700))
	return append(slices.Clone(m.env), tpvm.EnvSSH+"="+ssh, tpvm.EnvPod+"="+self)
}

// hostsPrint is the output of hosts.c. PVM adds no host without a second machine.
const hostsPrint = `pvm_config(&n, NULL, &list) = 0
1 host
pvm_notify(PvmHostAdd, 1, -1, NULL) = 0
pvm_addhosts(names, 4, infos) = 1
added 1, then -29 -28 -2
pvm_trecv(-1, 1, &long_enough) > 0 = 1
pvm_upkint(v, 2, 1) = 0
told of 1: 1
pvm_nrecv(-1, 1) = 0
named("one") == one = 1
one != pvm_tidtohost(me) = 1
pvm_mstat("one") = 0
pvm_addhosts(again, 1, infos) = 0
-28
pvm_hostsync(one, NULL, NULL) = -24
pvm_spawn("hello_other", NULL, PvmTaskHost, "one", 1, &child) = 1
pvm_tidtohost(child) == one = 1
pvm_trecv(child, 1, &long_enough) > 0 = 1
pvm_notify(PvmHostDelete, 2, 1, &one) = 0
pvm_notify(PvmHostDelete, 3, 1, &one) = 0
pvm_nrecv(-1, 2) = 0
pvm_delhosts(away, 3, infos) = 1
-6 -2 0
pvm_trecv(-1, 2, &long_enough) > 0 = 1
pvm_upkint(v, 1, 1) = 0
v[0] == one = 1
pvm_trecv(-1, 3, &long_enough) > 0 = 1
pvm_upkint(v, 1, 1) = 0
v[0] == one = 1
nothing else is told
named("one") = 0
pvm_mstat("one") = -6
pvm_notify(PvmHostDelete, 2, 1, &one) = 0
pvm_trecv(-1, 2, &long_enough) > 0 = 1
pvm_exit() = 0
`

// testHosts adds and deletes a host by libpvm3. In a cluster of two members no third member
// confirms that one of them is dead. If the machine that runs the test is so busy that one is taken
// for dead, the test tries again.
func testHosts(t *testing.T, ours *machine) {
	nice.Raise(t) // the task that keeps the machine is in this process
	for attempt := 1; ; attempt++ {
		before := ours.deaths.n.Load()
		got := addHosts(t, ours)
		if got == hostsPrint {
			return
		}
		if lost := ours.deaths.n.Load() - before; lost == 0 || attempt == 4 {
			t.Fatalf("hosts printed the following, and a member was taken for dead %d times:\n%s", lost, got)
		}
	}
}

// testJumps runs jumps.c: signal handlers leave pvm_recv and pvm_trecv by siglongjmp.
func testJumps(t *testing.T, ours *machine) {
	ctx, cancel := context.WithTimeout(context.Background(), testTimeout)
	defer cancel()
	cmd := exec.CommandContext(ctx, filepath.Join(ours.bin, "jumps"))
	cmd.Env = ours.env
	if out, err := cmd.CombinedOutput(); err != nil || string(out) != "80 jumps, 41\n" {
		t.Errorf("%s: %v", out, err)
	}
}

// addHosts runs hosts.c, and returns its output.
func addHosts(t *testing.T, ours *machine) string {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), testTimeout)
	defer cancel()
	ends := try.Get(subprocess.Start(exec.Command("sleep", "infinity")))(t) // the host ends when this does, or this test's process
	defer ends.Kill()
	defer context.AfterFunc(ctx, ends.Kill)() // a host that holds the output open ends, too
	cmd := exec.CommandContext(ctx, filepath.Join(ours.bin, "hosts"))
	cmd.Dir, cmd.Env, cmd.WaitDelay = ours.bin, ours.withHosts(t, t.TempDir(), ends.Cmd.Process.Pid), testTimeout
	out, err := cmd.CombinedOutput()
	if err != nil {
		return fmt.Sprintf("%s\n%v\n", out, err)
	}
	return string(out)
}

// A run is the programs of one test on one machine, and their output.
type run struct {
	t   *testing.T
	m   *machine
	mu  sync.Mutex
	out bytes.Buffer
}

func (r *run) add(text string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.out.WriteString(text)
}

// A process is a running program.
type process struct {
	*subprocess.Process
	r    *run
	mu   sync.Mutex
	more chan struct{} // closed when the process has printed more
	text bytes.Buffer
}

// Write takes output of the process.
func (p *process) Write(b []byte) (int, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	close(p.more)
	p.more = make(chan struct{})
	return p.text.Write(b)
}

// start starts a program. Its output is written line by line.
func (r *run) start(name string, args ...string) *process {
	r.t.Helper()
	p := &process{r: r, more: make(chan struct{})}
	// The name is found in PATH, which is also argv[0]: some programs spawn it.
	cmd := exec.Command("stdbuf", append([]string{"-oL", name}, args...)...)
	cmd.Env, cmd.Dir, cmd.Stdout, cmd.Stderr = r.m.env, r.m.bin, p, p
	cmd.WaitDelay = testTimeout // for programs that it has spawned and that hold its output open
	var err error
	if p.Process, err = subprocess.Start(cmd); err != nil {
		r.t.Fatalf("%s: start %s: %v", r.m.name, name, err)
	}
	r.t.Cleanup(p.Kill)
	return p
}

// until waits for output that matches, and returns the submatches of the last one.
func (p *process) until(pattern string) []string {
	p.r.t.Helper()
	re, late := regexp.MustCompile(pattern), time.After(testTimeout)
	for {
		p.mu.Lock()
		found, more := re.FindAllStringSubmatch(p.text.String(), -1), p.more
		p.mu.Unlock()
		if len(found) > 0 {
			return found[len(found)-1]
		}
		select {
		case <-more:
		case <-late:
			p.r.t.Fatalf("%s: %v: no %q within %v in:\n%s", p.r.m.name, p.Cmd.Args[2:], pattern, testTimeout, p.text.String())
		}
	}
}

// say writes a line for the program to read.
func (p *process) say(lines ...string) {
	for _, l := range lines {
		_ = p.WriteLine(l) // wait finds out if the program has ended
	}
}

// wait waits for the end of the program and records its output.
func (p *process) wait() {
	p.r.t.Helper()
	p.CloseInput()
	select {
	case <-p.Ended():
	case <-time.After(testTimeout):
		p.r.t.Fatalf("%s: %v runs still after %v:\n%s", p.r.m.name, p.Cmd.Args[2:], testTimeout, p.text.String())
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.r.add(p.text.String())
	p.r.add(fmt.Sprintf("\n%s: exit code %d\n", p.Cmd.Args[2], p.Cmd.ProcessState.ExitCode()))
}

// run runs a program to its end.
func (r *run) run(name string, args ...string) { r.t.Helper(); r.start(name, args...).wait() }

var (
	number  = regexp.MustCompile(`(\bt|0x)?[0-9a-f]{5,}|\b[0-9]{5,}\b`)
	logged  = regexp.MustCompile(`(?m)^\[t80040000\] \S+ \S+ (\[t[0-9a-f]+\] )?`)
	ownLog  = regexp.MustCompile(`(?m)^\[t80040000\] \S+ \S+ [^[].*\n`)
	figures = regexp.MustCompile(`[0-9]+(\.[0-9]+)?`)
)

// normal returns the lines of a text, masked and sorted.
func normal(text string, m *machine, c example) (lines []string) {
	text = strings.ReplaceAll(text, m.bin+"/", "")
	s := bufio.NewScanner(strings.NewReader(text))
	for s.Scan() {
		l := s.Text()
		if c.drop != nil && c.drop.MatchString(l) {
			continue
		}
		l = number.ReplaceAllStringFunc(l, func(w string) string {
			if !strings.ContainsAny(w, "0123456789") {
				return w
			}
			return "N"
		})
		if c.timed {
			l = figures.ReplaceAllString(l, "N")
		}
		if l = strings.Join(strings.Fields(l), " "); l != "" {
			lines = append(lines, l)
		}
	}
	slices.Sort(lines)
	if c.repeats {
		lines = slices.Compact(lines)
	}
	return lines
}

// An example is a test of some programs.
type example struct {
	name    string
	run     func(r *run)
	drop    *regexp.Regexp // lines that are not compared
	timed   bool           // all figures are masked
	repeats bool           // lines are repeated as often as time permits
}

// do returns an example of one program that takes no input, or the lines given.
func do(in string, args ...string) func(r *run) {
	return func(r *run) {
		p := r.start(args[0], args[1:]...)
		if in != "" {
			p.say(in)
		}
		p.wait()
	}
}

// pair runs two instances of a program, the second when the first is in its group.
func pair(name string) func(r *run) {
	return func(r *run) {
		a := r.start(name)
		a.until(`myinst is 0`)
		b := r.start(name)
		a.wait()
		b.wait()
	}
}

// The examples of the mailbox come first, because PVM's group server has an entry there.
var examples = []example{
	{name: "calls", run: do("", "calls")},
	{name: "mbox", run: do("", "mbox")},
	{name: "mbox default33", run: do("", "mbox", "default33")},
	{name: "mbox noreset", run: do("", "mbox", "noreset", "querynoreset")},
	{name: "mbox spawn", run: do("", "mbox", "spawn")},
	{name: "mbox direct", run: do("", "mbox", "direct")},
	{name: "mbox default", run: func(r *run) {
		r.run("mbox", "default")
		r.run("mbox", "info")
		r.run("mbox", "delete")
	}},
	{name: "lmbi, gmbi", run: func(r *run) {
		r.run("lmbi", "2", "pm", "e")
		r.run("gmbi")
		r.run("gmbi", "lmbi*")
		r.run("rme", "nosuch", "0")
	}},
	{name: "task0, task1, rme, task_end", run: func(r *run) {
		s := r.start("task0", "svc", "d")
		s.until(`waiting for service request`)
		r.run("task1", "svc")
		r.run("task1", "nosvc")
		r.run("gmbi", "svc")
		r.run("rme", "svc", "0")
		r.run("task_end", "svc", "0")
		s.wait()
		r.run("gmbi", "svc")
	}},
	// The table of handlers that the server prints is PVM's own, apart from the numbers of
	// handlers.
	{name: "mhf_server, mhf_tickle", drop: regexp.MustCompile(`pvm_delmhf|dhandles|free list|Enter Selection|^ +[0-9]\. |---`), run: func(r *run) {
		s := r.start("mhf_server")
		ctx := s.until(`just inserted server <mhf_server>.* context (\d+)\.`)[1]
		c := r.start("mhf_tickle")
		c.say("0")
		s.until(`PMH: Are you talking`)
		c.say("1", "50", ctx, "2") // a handler of strings for tag 50
		s.until(`loaded SC2`)
		c.say("1", "51", ctx, "6") // a handler of ints for tag 51
		s.until(`loaded IC1`)
		c.say("1", "51", ctx, "6") // once more
		s.until(`handler already exists`)
		c.say("4", "50", ctx, "2", "hello there")
		s.until(`strings match <hello there>`)
		c.say("4", "51", ctx, "6", "77")
		s.until(`magic_numbers match 77`)
		c.say("2", "9") // PVM's own contexts are 0 to 8
		s.until(`mhid = 9 `)
		c.say("4", "50", ctx, "2", "nobody")
		c.say("3") // leave and enrol again
		s.until(`just registered server`)
		c.say("", "9")
		c.wait()
		s.wait()
	}},
	{name: "hello", run: do("", "hello")},
	{name: "master1", run: do("", "master1")},
	{name: "spmd", run: do("", "starter", "-n", "4", "spmd")},
	{name: "starter", run: do("", "starter", "-n", "3", "hello_other")},
	{name: "inherit1", run: do("", "inherita", "inherit1")},
	{name: "inherit3", run: do("", "inherita", "inherit3")},
	{name: "inheritb", run: do("", "inheritb")},
	{name: "timing", run: do("", "timing"), timed: true},
	{name: "tst", run: do("", "tst")},
	{name: "joinleave", run: do("", "joinleave", "300")},
	// A member asks for other members that may have left: with PVM, too, they are gone at times.
	{name: "ge", run: do("", "ge", "4"), drop: regexp.MustCompile(`doesn't match up`)},
	{name: "gexamp", run: do("", "gexamp", "4")},
	// The first member says that it waits, unless all have joined when it first looks.
	{name: "gs", run: do("", "gs", "3"), drop: regexp.MustCompile(`waiting on kids to join`)},
	{name: "thb", run: do("", "thb", "3")},
	{name: "tjl", run: do("", "tjl")},
	{name: "gexample", run: do("100\n4", "gexample")},
	{name: "trsg", run: do("4\n5", "trsg")},
	{name: "ptest", run: func(r *run) {
		var ps []*process
		for range 4 {
			ps = append(ps, r.start("ptest", "4"))
		}
		for _, p := range ps {
			p.wait()
		}
	}},
	{name: "dbwtest", run: pair("dbwtest"), timed: true, repeats: true},
	{name: "rbwtest", run: pair("rbwtest"), timed: true, repeats: true},
	{name: "ibwtest", run: pair("ibwtest"), timed: true, repeats: true},
	{name: "pbwtest", run: pair("pbwtest"), timed: true, repeats: true},
	// The programs of testdata.
	{name: "codes", run: do("", "codes")},
	{name: "buffers", run: do("", "buffers")},
	{name: "handlers", run: do("", "handlers")},
	{name: "notices", run: do("", "notices")},
	{name: "spawns", run: do("", "spawns")},
}

// TestExamples runs every example program over PVM and over libpvm3.
//
// Promise (Package tpvm): PVM's C examples, unchanged, print over `libpvm3` what they print over
// PVM, also with jumps out of a receive.
func TestExamples(t *testing.T) {
	if testing.Short() {
		t.Skip("the programs are in C")
	}
	for _, tool := range []string{"gcc", "pvm", "stdbuf", "tar"} {
		_, err := exec.LookPath(tool)
		need(t, err == nil, tool)
	}
	_, err := os.Stat(docs + "examples.tar.gz")
	need(t, err == nil, "pvm-examples")
	_, err = os.Stat("/usr/include/pvm3.h")
	need(t, err == nil, "pvm-dev")
	name, err := os.Hostname()
	if err == nil {
		_, err = net.LookupHost(name) // pvmd does so, and does not start otherwise
	}
	need(t, err == nil, "an address of this machine's name")
	src := sources(t)
	theirs, ours := startPVM(t, src), startOurs(t, src)
	for _, c := range examples {
		t.Run(c.name, func(t *testing.T) {
			began := size(theirs.log)
			a, b := &run{t: t, m: theirs}, &run{t: t, m: ours}
			c.run(a)
			c.run(b)
			got := normal(b.out.String(), ours, c)
			var want []string
			defer func() {
				if !slices.Equal(got, want) {
					t.Logf("libpvm3 and PVM differ:\n%s", difference(want, got))
				}
			}()
			eventually.True(t, "libpvm3 and PVM print the same", func() bool {
				want = normal(a.out.String()+printed(t, theirs.log, began), theirs, c) // pvmd writes its log later
				return slices.Equal(got, want)
			})
		})
	}
	t.Run("hosts", func(t *testing.T) { testHosts(t, ours) })
	t.Run("jumps", func(t *testing.T) { testJumps(t, ours) })
}

// size returns the size of a file, or 0.
func size(path string) int64 {
	if i, err := os.Stat(path); err == nil {
		return i.Size()
	}
	return 0
}

// printed returns the output of spawned programs since the log had the size since.
func printed(t *testing.T, log string, since int64) string {
	b := try.Get(os.ReadFile(log))(t)
	return logged.ReplaceAllString(ownLog.ReplaceAllString(string(b[since:]), ""), "")
}

// difference lists the lines that only one side has.
func difference(want, got []string) (text string) {
	for _, l := range want {
		if !slices.Contains(got, l) {
			text += "only PVM:     " + l + "\n"
		}
	}
	for _, l := range got {
		if !slices.Contains(want, l) {
			text += "only libpvm3: " + l + "\n"
		}
	}
	return text
}

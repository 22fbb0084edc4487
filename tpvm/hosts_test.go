// SPDX-License-Identifier: Apache-2.0

package tpvm_test

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/rocl-go/rocl"
	"github.com/rocl-go/rocl/directory/cluster"
	"github.com/rocl-go/rocl/internal/testkit/eventually"
	"github.com/rocl-go/rocl/internal/testkit/freeaddr"
	"github.com/rocl-go/rocl/internal/testkit/nice"
	"github.com/rocl-go/rocl/internal/testkit/posix"
	"github.com/rocl-go/rocl/internal/testkit/try"
	"github.com/rocl-go/rocl/rocltest"
	"github.com/rocl-go/rocl/tpvm"
)

func init() {
	programs["pod"] = func() error { // as tpvm pod is
		nice.Session()
		ctx, cancel := context.WithCancel(context.Background())
		defer cancel()
		pid, err := strconv.Atoi(os.Getenv("TPVM_TEST_PID"))
		if err != nil {
			return err
		}
		go func() { // the pod does not outlive the test
			for posix.Kill(pid, 0) == nil && ctx.Err() == nil {
				time.Sleep(100 * time.Millisecond) // the test is not the parent: it is looked for now and then
			}
			cancel()
		}()
		return tpvm.RunPod(ctx)
	}
	programs["worker"] = func() error { // it lives until it is ended
		ctx := context.Background()
		t, err := tpvm.Enrol(ctx, tpvm.WithRocl(rocl.WithSocket(os.Getenv("TPVM_TEST_SOCKET"))))
		if err != nil {
			return err
		}
		_, err = t.Recv(ctx, t.Parent(), 2)
		return err
	}
}

// farm is a cluster of real nodes. The test's own node is served by its context. The others are
// directories of files, from which a fake ssh reads the environment of a remote command.
type farm struct {
	t       *testing.T
	dir     string
	key     string
	address string // of the test's node in the cluster
	c       *rocl.Context
	task    *tpvm.Task
	pids    map[tpvm.TID]int
}

// farmGiveUp is how long a host that is lost is out of reach before its end is reported.
const farmGiveUp = 2 * time.Second

func newFarm(t *testing.T) *farm {
	t.Helper()
	nice.Raise(t)
	f := &farm{t: t, dir: try.Get(os.MkdirTemp("", "farm"))(t), pids: map[tpvm.TID]int{}}
	t.Cleanup(func() { // a pod may use it until its process has ended
		eventually.True(t, "the folder is removed", func() bool { return os.RemoveAll(f.dir) == nil })
	})
	f.key = filepath.Join(f.dir, "key")
	try.OK(t, os.WriteFile(f.key, []byte("0123456789abcdef0123456789abcdef\n"), 0o600))
	f.address = freeAddress(t)
	f.c = try.Get(rocl.Open(deadline(t), rocl.WithSocket(node(t)), rocl.WithCluster("farm"), rocl.WithMember(cluster.Member{Bind: f.address, KeyFile: f.key}), rocl.WithGiveUp(farmGiveUp)))(t)
	t.Cleanup(func() { f.c.Close() })
	f.task = enrol(t, f.c)
	ssh := filepath.Join(f.dir, "ssh")
	script := `#!/bin/sh
host=$1
shift
case $host in
refused) echo "ssh: connect to host refused port 22: Connection refused" >&2; exit 255;;
esac
echo "Welcome to $host"
. ` + f.dir + `/$host.env
exec sh -c "$*"
`
	try.OK(t, os.WriteFile(ssh, []byte(script), 0o700))
	t.Setenv(tpvm.EnvSSH, ssh)
	t.Setenv(tpvm.EnvPod, self(t))
	return f
}

func freeAddress(t *testing.T) string {
	t.Helper()
	return try.Get(freeaddr.Loopback())(t)
}

// env returns the environment of commands on a host whose pod serves the node.
func (f *farm) env(name string) map[string]string {
	f.t.Helper()
	sock := filepath.Join(f.dir, name+".sock")
	return map[string]string{
		"ROCL_SOCKET": sock, "ROCL_BIND": freeAddress(f.t), "ROCL_JOIN": f.address, "ROCL_KEY_FILE": f.key, "ROCL_CLUSTER": "farm",
		"TPVM_TEST_SOCKET": sock, "TPVM_TEST_PROGRAM": "pod", "TPVM_TEST_PID": strconv.Itoa(os.Getpid()),
	}
}

// host makes a host that the fake ssh reaches.
func (f *farm) host(name string, more map[string]string) {
	f.t.Helper()
	env := f.env(name)
	maps.Copy(env, more)
	var s strings.Builder
	for k, v := range env {
		fmt.Fprintf(&s, "%s=%s\nexport %s\n", k, v, k)
	}
	try.OK(f.t, os.WriteFile(filepath.Join(f.dir, name+".env"), []byte(s.String()), 0o600))
}

// add adds hosts, and removes them when the test ends.
func (f *farm) add(names ...string) ([]tpvm.Host, error) {
	f.t.Helper()
	hs, err := f.task.AddHosts(deadline(f.t), names...)
	f.t.Cleanup(func() {
		for _, h := range hs {
			if err := f.task.DelHosts(deadline(f.t), h.Node); err != nil && !errors.Is(err, tpvm.ErrNoPod) {
				f.t.Error(err)
			}
		}
	})
	return hs, err
}

// spawn spawns the worker.
func (f *farm) spawn(n int, opts ...tpvm.SpawnOption) ([]tpvm.TID, error) {
	ids, err := f.task.Spawn(deadline(f.t), self(f.t), n, append(opts, tpvm.Env("TPVM_TEST_PROGRAM=worker"))...)
	for i, bad := range f.task.Tasks(deadline(f.t)) {
		if bad == nil && slices.Contains(ids, i.ID) {
			f.pids[i.ID] = i.PID
		}
	}
	return ids, err
}

// pod returns the process of the pod that serves a host.
func (f *farm) pod(name string) int {
	f.t.Helper()
	p := try.Get(f.c.Find(deadline(f.t), rocl.Match{"type": "systhread", "vm": "test", "added": name}))(f.t)
	v, _ := p.Attrs.Get("pid")
	return try.Get(strconv.Atoi(string(v)))(f.t)
}

// killAll kills the processes of tasks, as the loss of their host does.
func (f *farm) killAll(ids []tpvm.TID) {
	for _, id := range ids {
		if pid := f.pids[id]; pid != 0 {
			_ = posix.Kill(pid, syscall.SIGKILL)
		}
	}
}

// on counts tasks by the names of their nodes.
func (f *farm) on(ids []tpvm.TID) map[string]int {
	f.t.Helper()
	is := map[tpvm.TID]bool{}
	for _, id := range ids {
		is[id] = true
	}
	n := map[string]int{}
	for i, err := range f.task.Tasks(deadline(f.t)) {
		try.OK(f.t, err)
		if is[i.ID] {
			n[i.Node]++
		}
	}
	return n
}

// end kills tasks and waits for their ends.
func (f *farm) end(ids ...tpvm.TID) {
	f.t.Helper()
	ctx := deadline(f.t)
	try.Get(f.task.Notify(ctx, 99, ids...))(f.t)
	for _, id := range ids {
		_ = f.task.Kill(ctx, id)
	}
	wantEnds(f.t, f.task, 99, ids...)
}

// Hosts are added over a remote shell. For each host that cannot be added the error says why. Spawn
// uses the other hosts, and they are removed with their programs.
//
// Promise (Package tpvm): Hosts can be added and deleted at run time, and `NotifyHosts` tells of
// it. See also TestFarmLosesHost.
func TestAddHosts(t *testing.T) {
	f := newFarm(t)
	ctx := deadline(t)
	f.host("one", nil)
	f.host("two", nil)
	f.host("nopod", map[string]string{"PATH": "/nowhere"})
	f.host("elsewhere", map[string]string{"ROCL_JOIN": "", "ROCL_CLUSTER": "another"})
	f.host("badkey", map[string]string{"ROCL_KEY_FILE": filepath.Join(f.dir, "nowhere")})
	hs, err := f.add("one", "refused", "nopod", "two", "badkey", "-oProxyCommand=x", "one")
	if len(hs) != 2 || hs[0].Added != "one" || hs[1].Added != "two" || hs[0].Launcher != tpvm.LauncherPod {
		t.Fatalf("added %+v: %v", hs, err)
	}
	var e *tpvm.HostsError
	if !errors.As(err, &e) || len(e.Hosts) != 5 {
		t.Fatal(err)
	}
	for i, want := range [][]string{
		{"host refused", "255", "Connection refused", "ssh refused true"},
		{"host nopod", "127", "PATH"},
		{"host badkey", "nowhere"},
		{"host -oProxyCommand=x", "invalid argument"},
		{"host one", "twice"},
	} {
		for _, w := range want {
			if !strings.Contains(e.Hosts[i].Error(), w) {
				t.Errorf("%q does not say %q", e.Hosts[i], w)
			}
		}
	}
	hasty := enrol(t, f.c, tpvm.WithFoundTime(100*time.Millisecond))
	if _, err := hasty.AddHosts(ctx, "elsewhere"); err == nil || !strings.Contains(err.Error(), "host elsewhere") ||
		!strings.Contains(err.Error(), "not found from here") || !strings.Contains(err.Error(), "--join") {
		t.Errorf("a host of another cluster: %v", err)
	}
	try.OK(t, hasty.Exit(ctx))
	try.Fails(f.add("one"))(t, tpvm.ErrHostAdded)
	all, err := f.task.Hosts(ctx)
	if err != nil || len(all) != 3 {
		t.Fatalf("hosts: %+v: %v", all, err)
	}
	ids := try.Get(f.spawn(6))(t)
	if n := f.on(ids); len(n) != 3 || n[hs[0].Node] != 2 || n[hs[1].Node] != 2 {
		t.Errorf("tasks by node: %v", n)
	}
	two, err := f.spawn(2, tpvm.OnHost("two"))
	if n := f.on(two); err != nil || n[hs[1].Node] != 2 {
		t.Errorf("on two: %v: %v", n, err)
	}
	try.Get(f.task.Notify(ctx, 5, two...))(t)
	try.OK(t, f.task.DelHosts(ctx, "two"))
	wantEnds(f.t, f.task, 5, two...)
	try.Fails(f.spawn(1, tpvm.OnHost("two")))(t, tpvm.ErrNoHost)
	try.Fails(f.task.DelHosts(ctx, "two", f.task.Host()+"x"))(t, tpvm.ErrNoPod)
	f.end(ids...)
}

// A canceled AddHosts leaves no pod behind.
func TestAddHostsCanceled(t *testing.T) {
	f := newFarm(t)
	ctx, cancel := context.WithCancel(deadline(t))
	s := starter(func(ctx context.Context, host string, argv []string) *exec.Cmd {
		cancel()
		return exec.Command("sleep", "3600")
	})
	task := enrol(t, f.c, tpvm.WithHostStarter(s))
	try.Fails(task.AddHosts(ctx, "any"))(t, context.Canceled)
}

type starter func(ctx context.Context, host string, argv []string) *exec.Cmd

func (s starter) Command(ctx context.Context, host string, argv []string) *exec.Cmd {
	return s(ctx, host, argv)
}

// NotifyHosts reports hosts that join and hosts that are lost, all or those that are asked for.
func TestNotifyHosts(t *testing.T) {
	f := newFarm(t)
	ctx := deadline(t)
	own, err := f.task.Hosts(ctx)
	if err != nil || len(own) != 1 {
		t.Fatal(own, err)
	}
	stop := try.Get(f.task.NotifyHosts(ctx, 3))(t)
	event := func(tag int) tpvm.HostEvent {
		t.Helper()
		m := try.Get(f.task.Recv(ctx, tpvm.AnyTask, tag))(t)
		defer m.Release()
		return try.Get(m.HostEvent())(t)
	}
	f.host("one", nil)
	hs := try.Get(f.add("one"))(t) // its pod serves the node
	joined := event(3)
	if joined.IsGone || joined.ID != hs[0].ID || joined.Cores != hs[0].Cores || joined.Name == "" || joined.Arch != hs[0].Arch {
		t.Errorf("joined: %+v, added: %+v", joined, hs[0])
	}
	try.Get(f.task.NotifyHosts(ctx, 4, joined.ID, own[0].ID))(t)
	ids := try.Get(f.spawn(1, tpvm.OnHost("one")))(t)
	try.Get(f.task.Notify(ctx, 5, ids...))(t)
	pod := f.pod("one")
	if err := posix.Kill(pod, syscall.SIGKILL); err != nil { // the node ends with its pod
		t.Fatal(err)
	}
	f.killAll(ids)
	wantEnds(f.t, f.task, 5, ids...)
	for _, tag := range []int{3, 4} {
		if e := event(tag); !e.IsGone || e.ID != joined.ID || e.Node != joined.Node {
			t.Errorf("lost: %+v", e)
		}
	}
	if _, err := f.task.NotifyHosts(ctx, 6, joined.ID); err != nil { // it is lost already
		t.Fatal(err)
	}
	if e := event(6); !e.IsGone || e.ID != joined.ID {
		t.Errorf("lost before: %+v", e)
	}
	stop()
	two, err := f.spawn(2) // elsewhere
	if n := f.on(two); err != nil || n[own[0].Node] != 2 {
		t.Errorf("after the loss: %v: %v", n, err)
	}
	try.Fails(f.spawn(1, tpvm.OnHost("one")))(t, tpvm.ErrNoHost)
	f.end(two...)
}

// A pod that is killed while it starts programs fails the slots of its host, and no other slots.
func TestPodKilledWhileItStarts(t *testing.T) {
	f := newFarm(t)
	ctx := deadline(t)
	begun := filepath.Join(f.dir, "begun")
	f.host("one", map[string]string{"TPVM_TEST_BEGUN": begun})
	try.Get(f.add("one"))(t)
	slow := filepath.Join(f.dir, "slow") // it enrols only if the test's own pod starts it
	script := "#!/bin/sh\n[ -z \"$TPVM_TEST_BEGUN\" ] && TPVM_TEST_PROGRAM=worker exec " + self(t) + "\necho $$ >$TPVM_TEST_BEGUN.new; mv $TPVM_TEST_BEGUN.new $TPVM_TEST_BEGUN; exec sleep 30\n"
	try.OK(t, os.WriteFile(slow, []byte(script), 0o700))
	pod := f.pod("one")
	type result struct {
		ids []tpvm.TID
		err error
	}
	spawned := make(chan result, 1)
	go func() {
		ids, err := f.task.Spawn(ctx, slow, 2)
		spawned <- result{ids, err}
	}()
	var text []byte
	eventually.True(t, "the program runs", func() bool { // and has not enrolled
		text, _ = os.ReadFile(begun)
		return len(text) > 0
	})
	try.OK(t, posix.Kill(pod, syscall.SIGKILL))
	r := <-spawned
	if pid, err := strconv.Atoi(strings.TrimSpace(string(text))); err == nil {
		_ = posix.Kill(pid, syscall.SIGKILL)
	}
	var e *tpvm.SpawnError
	if !errors.As(r.err, &e) || len(r.ids) != 1 || len(e.Slots) != 2 || len(e.Unwrap()) != 1 {
		t.Fatal(r.ids, r.err)
	}
	// The pod served its node, so that its end is that of the node.
	if !errors.Is(r.err, rocl.ErrGone) && !errors.Is(r.err, rocl.ErrUnreachable) || !strings.Contains(r.err.Error(), "host one") {
		t.Error(r.err)
	}
	f.end(r.ids...)
}

// With a token that was never given or is no longer valid, the program starts as by hand. A start
// message that cannot be read is an error.
func TestTokens(t *testing.T) {
	c := rocltest.Cluster(t, 1)
	a := enrol(t, c.Open(0))
	for what, token := range map[string]string{"stale": "NZ4HYAZLDSJKHD2LMQXFTMQ6OI", "none": "x", "large": strings.Repeat("x", 1<<20)} {
		t.Setenv(tpvm.EnvToken, token)
		if b := enrol(t, c.Open(0)); !b.Parent().IsZero() || os.Getenv(tpvm.EnvToken) != "" {
			t.Errorf("%s: the parent is %v", what, b.Parent())
		}
	}
	try.Get(a.Task().Rocl().Register(deadline(t), rocl.Attrs{"type": "tmp", "vm": "test", "token": "forged", "start": "\xff\xff"}))(t)
	t.Setenv(tpvm.EnvToken, "forged")
	if b, err := tpvm.Enrol(deadline(t), tpvm.WithContext(c.Open(0)), tpvm.WithVM("test")); err == nil {
		t.Errorf("a start that cannot be read: %v", b)
	}
}

// Threads are dealt in turn to the tasks that export their name, over several spawns.
func TestTurns(t *testing.T) {
	ctx := deadline(t)
	c := rocltest.Cluster(t, 3)
	tasks := make([]*tpvm.Task, 3)
	for i := range tasks {
		tasks[i] = enrol(t, c.Open(i))
		try.Get(tasks[i].Export(ctx, "wait", func(ctx context.Context, _ *tpvm.Thread) error {
			<-ctx.Done()
			return nil
		}))(t)
	}
	f := &farm{t: t, task: tasks[0]}
	var ids []tpvm.TID
	for _, n := range []int{1, 1, 1, 2, 1, 4, 1, 1} {
		some := try.Get(f.task.Spawn(ctx, "wait", n))(t)
		if ids = append(ids, some...); len(ids) == 1 && f.on(ids)[node12(tasks[0])] != 1 {
			t.Error("the first is not at the caller's")
		}
	}
	for node, n := range f.on(ids) {
		try.Equal(t, n, 4, "threads on %s", node)
	}
	// Spawns with conditions on hosts.
	other := node12(tasks[1])
	for what, opts := range map[string][]tpvm.SpawnOption{
		"OnHost":     {tpvm.OnHost(other)},
		"Where":      {tpvm.Where(rocl.Match{rocl.AttrNode: other})},
		"At":         {tpvm.Where(rocl.Match{rocl.AttrNode: other}, rocl.At(rocl.AttrCores, rocl.Ge, 1)), tpvm.OnArch(runtime.GOOS + "/" + runtime.GOARCH)},
		"ByCores":    {tpvm.Where(rocl.Match{rocl.AttrNode: other}), tpvm.ByCores()},
		"Complement": {tpvm.Where(rocl.Match{rocl.AttrNode: other}), tpvm.Complement()},
		"not here":   {tpvm.OnHost("."), tpvm.Complement()},
	} {
		some := try.Get(f.task.Spawn(ctx, "wait", 4, opts...))(t, "%v", what)
		n := f.on(some)
		switch what {
		case "Complement":
			if n[other] != 0 || len(n) != 2 {
				t.Errorf("%s: %v", what, n)
			}
		case "not here":
			if n[node12(tasks[0])] != 0 || len(n) != 2 {
				t.Errorf("%s: %v", what, n)
			}
		default:
			try.Equal(t, n[other], 4, "%s: %v, on %s", what, n, other)
		}
	}
	for what, opts := range map[string][]tpvm.SpawnOption{
		"no such host": {tpvm.OnHost("nowhere")},
		"no such arch": {tpvm.OnArch("plan9/mips")},
		"no such node": {tpvm.Where(nil, rocl.At(rocl.AttrCores, rocl.Gt, 1<<30))},
		"no other":     {tpvm.Complement()},
		"all":          {tpvm.OnArch(runtime.GOOS + "/" + runtime.GOARCH), tpvm.Complement()},
	} {
		_, err := f.task.Spawn(ctx, "wait", 1, opts...)
		if !errors.Is(err, tpvm.ErrNoHost) || what == "no such host" && !strings.Contains(err.Error(), `"nowhere"`) {
			t.Errorf("%s: %v", what, err)
		}
	}
}

// node12 returns the number of a task's node, in the form of Host.Node.
func node12(t *tpvm.Task) string { return fmt.Sprintf("%012x", uint64(t.ID().Node())) }

// Programs that are started one at a time are dealt to the hosts in turn.
func TestStartInTurn(t *testing.T) {
	f := newFarm(t)
	f.host("one", nil)
	try.Get(f.add("one"))(t)
	own := 0
	for range 4 {
		ps := try.Get(f.task.Start(deadline(t), self(t), 1, tpvm.Args("0"), program("exits")))(t)
		try.Get(ps[0].Wait(deadline(t)))(t)
		if ps[0].ID().Node() == f.c.ID().Node() {
			own++
		}
	}
	try.Equal(t, own, 2, "programs of 4 on the own host of 2")
}

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
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/rocl-go/rocl"
	"github.com/rocl-go/rocl/internal/freeaddr"
	"github.com/rocl-go/rocl/tpvm"
)

func init() {
	programs["pod"] = func() error { // as tpvm pod is
		ctx, cancel := context.WithCancel(context.Background())
		defer cancel()
		pid, err := strconv.Atoi(os.Getenv("TPVM_TEST_PID"))
		if err != nil {
			return err
		}
		go func() { // it does not outlive the test
			for syscall.Kill(pid, 0) == nil && ctx.Err() == nil {
				time.Sleep(100 * time.Millisecond)
			}
			cancel()
		}()
		return tpvm.RunPod(ctx)
	}
	programs["worker"] = func() error { // lives until it is ended
		ctx := context.Background()
		t, err := tpvm.Enrol(ctx, tpvm.WithRocl(rocl.WithSocket(os.Getenv("TPVM_TEST_SOCKET"))))
		if err != nil {
			return err
		}
		_, err = t.Recv(ctx, t.Parent(), 2)
		return err
	}
}

// farm is a cluster of real nodes. The test's own is served by its context; the others are
// directories of files, by which a fake ssh gives a remote command its environment.
type farm struct {
	t       *testing.T
	dir     string
	key     string
	address string // of the test's node in the cluster
	c       *rocl.Context
	task    *tpvm.Task
}

func newFarm(t *testing.T) *farm {
	t.Helper()
	f := &farm{t: t, dir: t.TempDir()}
	f.key = filepath.Join(f.dir, "key")
	if err := os.WriteFile(f.key, []byte("0123456789abcdef0123456789abcdef\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	f.address = freeAddress(t)
	var err error
	f.c, err = rocl.Open(deadline(t), rocl.WithSocket(node(t)), rocl.WithCluster("farm"), rocl.WithMember(rocl.Member{Bind: f.address, KeyFile: f.key}))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { f.c.Close() })
	f.task = enrol(t, f.c)
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
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
	if err := os.WriteFile(ssh, []byte(script), 0o700); err != nil {
		t.Fatal(err)
	}
	t.Setenv(tpvm.EnvSSH, ssh)
	t.Setenv(tpvm.EnvPod, self)
	return f
}

func freeAddress(t *testing.T) string {
	t.Helper()
	a, err := freeaddr.Loopback()
	if err != nil {
		t.Fatal(err)
	}
	return a
}

// host makes a host that a remote shell reaches. Its pod serves the node.
func (f *farm) host(name string, more map[string]string) {
	f.t.Helper()
	sock := filepath.Join(f.dir, name+".sock")
	env := map[string]string{
		"ROCL_SOCKET": sock, "ROCL_BIND": freeAddress(f.t), "ROCL_JOIN": f.address, "ROCL_KEY_FILE": f.key, "ROCL_CLUSTER": "farm",
		"TPVM_TEST_SOCKET": sock, "TPVM_TEST_PROGRAM": "pod", "TPVM_TEST_PID": strconv.Itoa(os.Getpid()),
	}
	maps.Copy(env, more)
	var s strings.Builder
	for k, v := range env {
		fmt.Fprintf(&s, "%s=%s\nexport %s\n", k, v, k)
	}
	if err := os.WriteFile(filepath.Join(f.dir, name+".env"), []byte(s.String()), 0o600); err != nil {
		f.t.Fatal(err)
	}
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
	self, err := os.Executable()
	if err != nil {
		f.t.Fatal(err)
	}
	return f.task.Spawn(deadline(f.t), self, n, append(opts, tpvm.Env("TPVM_TEST_PROGRAM=worker"))...)
}

// on counts tasks by their nodes.
func (f *farm) on(ids []tpvm.TID) map[string]int {
	f.t.Helper()
	is := map[tpvm.TID]bool{}
	for _, id := range ids {
		is[id] = true
	}
	n := map[string]int{}
	for i, err := range f.task.Tasks(deadline(f.t)) {
		if err != nil {
			f.t.Fatal(err)
		}
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
	if _, err := f.task.Notify(ctx, 99, ids...); err != nil {
		f.t.Fatal(err)
	}
	for _, id := range ids {
		_ = f.task.Kill(ctx, id)
	}
	f.gone(99, ids...)
}

func (f *farm) gone(tag int, ids ...tpvm.TID) {
	f.t.Helper()
	for _, id := range ids {
		m, err := f.task.Recv(deadline(f.t), id, tag)
		if err != nil || !m.IsGone() {
			f.t.Fatal(m, err)
		}
		m.Release()
	}
}

// Hosts are added over a remote shell. Each that cannot be added says why; the others are used
// by Spawn, and are removed with their programs.
func TestAddHosts(t *testing.T) {
	f := newFarm(t)
	ctx := deadline(t)
	f.host("one", nil)
	f.host("two", nil)
	f.host("nopod", map[string]string{"PATH": "/nowhere"})
	f.host("elsewhere", map[string]string{"ROCL_JOIN": "", "ROCL_CLUSTER": "another"})
	f.host("badkey", map[string]string{"ROCL_KEY_FILE": filepath.Join(f.dir, "nowhere")})
	hs, err := f.add("one", "refused", "nopod", "two", "elsewhere", "badkey", "-oProxyCommand=x", "one")
	if len(hs) != 2 || hs[0].Added != "one" || hs[1].Added != "two" || hs[0].Launcher != tpvm.LauncherPod {
		t.Fatalf("added %+v: %v", hs, err)
	}
	var e *tpvm.HostsError
	if !errors.As(err, &e) || len(e.Hosts) != 6 {
		t.Fatal(err)
	}
	for i, want := range [][]string{
		{"host refused", "255", "Connection refused", "ssh refused true"},
		{"host nopod", "127", "PATH"},
		{"host elsewhere", "not found from here", "--join"},
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
	if _, err := f.add("one"); !errors.Is(err, tpvm.ErrHostAdded) {
		t.Errorf("a host is added again: %v", err)
	}
	all, err := f.task.Hosts(ctx)
	if err != nil || len(all) != 3 {
		t.Fatalf("hosts: %+v: %v", all, err)
	}
	ids, err := f.spawn(6)
	if err != nil {
		t.Fatal(err)
	}
	if n := f.on(ids); len(n) != 3 || n[hs[0].Node] != 2 || n[hs[1].Node] != 2 {
		t.Errorf("tasks by node: %v", n)
	}
	two, err := f.spawn(2, tpvm.OnHost("two"))
	if n := f.on(two); err != nil || n[hs[1].Node] != 2 {
		t.Errorf("on two: %v: %v", n, err)
	}
	if _, err := f.task.Notify(ctx, 5, two...); err != nil {
		t.Fatal(err)
	}
	if err := f.task.DelHosts(ctx, "two"); err != nil {
		t.Fatal(err)
	}
	f.gone(5, two...)
	if _, err := f.spawn(1, tpvm.OnHost("two")); !errors.Is(err, tpvm.ErrNoHost) {
		t.Errorf("spawn on a host that was removed: %v", err)
	}
	if err := f.task.DelHosts(ctx, "two", f.task.Host()+"x"); !errors.Is(err, tpvm.ErrNoPod) {
		t.Errorf("a host is removed again: %v", err)
	}
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
	if _, err := task.AddHosts(ctx, "any"); !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
}

type starter func(ctx context.Context, host string, argv []string) *exec.Cmd

func (s starter) Command(ctx context.Context, host string, argv []string) *exec.Cmd {
	return s(ctx, host, argv)
}

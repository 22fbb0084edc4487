// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/rocl-go/rocl"
	"github.com/rocl-go/rocl/internal/testkit/posix"
	"github.com/rocl-go/rocl/internal/testkit/try"
	"github.com/rocl-go/rocl/tpvm"
	"github.com/rocl-go/rocl/tpvm/pack"
)

// The tags of the farm.
const (
	tagJob = iota
	tagResult
	tagEnd
	tagHost
)

const (
	farmJobs  = 200
	farmBegun = 20 // number of results after which the test goes on
)

// farmMain is the main function of a master, a worker or a pod.
func farmMain(role string) int {
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Minute)
	defer cancel()
	f := map[string]func(context.Context) error{
		"master": farmMaster, "worker": farmWorker, "pod": func(ctx context.Context) error { return tpvm.RunPod(ctx) },
	}[role]
	if err := f(ctx); err != nil {
		fmt.Fprintf(os.Stderr, "%s: %v\n", role, err)
		return 1
	}
	return 0
}

// netns is a HostStarter that starts pods in the namespaces of other nodes.
type netns struct{}

// Command returns a command that runs argv in the namespace NAME of a host NAME:SOCKET.
func (netns) Command(ctx context.Context, host string, argv []string) *exec.Cmd {
	ns, socket, _ := strings.Cut(host, ":")
	args := append([]string{"netns", "exec", ns, "env", "ROCL_SOCKET=" + socket, "ROCL_LAB_TPVM=pod"}, argv...)
	return exec.CommandContext(ctx, "ip", args...)
}

// farmMaster gives jobs to two workers on each host, and gives out again the jobs that were lost
// with a host. Its arguments are the hosts to add.
func farmMaster(ctx context.Context) error {
	t, err := tpvm.Enrol(ctx, tpvm.WithVM("lab"), tpvm.WithHostStarter(netns{}), tpvm.WithRocl(rocl.JoinOnly()))
	if err != nil {
		return err
	}
	add := os.Args[1:]
	if len(add) > 0 {
		if _, err := t.AddHosts(ctx, append(add, "rocl-no-such-namespace:")...); err == nil || strings.Count(err.Error(), "host ") != 1 {
			return fmt.Errorf("a host that is not there: %w", err)
		}
	}
	hosts, err := t.Hosts(ctx)
	if err != nil {
		return err
	}
	if _, err := t.NotifyHosts(ctx, tagHost); err != nil {
		return err
	}
	self, err := os.Executable()
	if err != nil {
		return err
	}
	inHand := map[tpvm.TID]int32{}
	spawn := func(n int) error {
		ids, err := t.Spawn(ctx, self, n, tpvm.Env("ROCL_LAB_TPVM=worker"), tpvm.EndWithParent())
		if err != nil {
			return err
		}
		for _, id := range ids {
			inHand[id] = -1
		}
		_, err = t.Notify(ctx, tagEnd, ids...)
		return err
	}
	if err := spawn(2 * len(hosts)); err != nil {
		return err
	}
	if f, err := t.Task().Rocl().Find(ctx, rocl.Match{"type": "tmp"}); !errors.Is(err, rocl.ErrNotFound) {
		return fmt.Errorf("the resource of a start is found after it: %v: %v", f.ID, err)
	}
	nodes := map[string]int{}
	for i, err := range t.Tasks(ctx) {
		if _, ok := inHand[i.ID]; ok && err == nil {
			nodes[i.Node]++
		}
	}
	var todo []int32
	for i := range farmJobs {
		todo = append(todo, int32(i))
	}
	give := func(id tpvm.TID) error {
		if inHand[id] = -1; len(todo) == 0 {
			return nil
		}
		b := t.Buffer(pack.Default)
		if err := pack.Pack(b, todo[:1], 1); err != nil {
			return err
		}
		if err := t.Send(ctx, id, tagJob, b); err != nil {
			return nil // the worker has ended, and Notify reports that
		}
		inHand[id], todo = todo[0], todo[1:]
		return nil
	}
	for id := range inHand {
		if err := give(id); err != nil {
			return err
		}
	}
	results := map[int32]int32{}
	var lost string
	ended := 0
	for len(results) < farmJobs || lost == "" {
		m, err := t.Recv(ctx, tpvm.AnyTask, tpvm.AnyTag)
		if err != nil {
			return err
		}
		switch m.Tag() {
		case tagHost:
			e, err := m.HostEvent()
			if err != nil {
				return err
			}
			if e.IsGone {
				lost = e.Node
			}
		case tagEnd:
			ended++
			if j := inHand[m.From()]; j >= 0 {
				todo = append(todo, j)
			}
			delete(inHand, m.From())
			for id, j := range inHand {
				if j < 0 {
					err = errors.Join(err, give(id))
				}
			}
			if err != nil {
				return err
			}
		case tagResult:
			var v [2]int32
			if err := pack.Unpack(&m.Reader, v[:], 1); err != nil {
				return err
			}
			if results[v[0]] = v[1]; len(results) == farmBegun {
				fmt.Println("begun", len(nodes), len(hosts))
			}
			if _, ok := inHand[m.From()]; ok {
				if err := give(m.From()); err != nil {
					return err
				}
			}
		}
		m.Release()
	}
	for i, v := range results {
		if v != i*i {
			return fmt.Errorf("result of %d: %d", i, v)
		}
	}
	if err := spawn(4); err != nil { // on another host
		return err
	}
	for i, err := range t.Tasks(ctx) {
		if _, ok := inHand[i.ID]; ok && err == nil && i.Node == lost {
			return fmt.Errorf("%v is on the lost host", i.ID)
		}
	}
	left, err := t.Hosts(ctx)
	if err != nil {
		return err
	}
	for _, h := range left {
		if h.Launcher == tpvm.LauncherPod {
			if err := t.DelHosts(ctx, h.Added); err != nil {
				return err
			}
		}
	}
	fmt.Println("done", lost, ended, len(left))
	if err := t.Exit(ctx); err != nil && !errors.Is(err, rocl.ErrGone) && !errors.Is(err, rocl.ErrUnreachable) {
		return err // a job that was sent to the lost host may be undelivered
	}
	return nil
}

// farmWorker squares numbers, slowly.
func farmWorker(ctx context.Context) error {
	t, err := tpvm.Enrol(ctx, tpvm.WithRocl(rocl.JoinOnly()))
	if err != nil {
		return err
	}
	for {
		m, err := t.Recv(ctx, t.Parent(), tagJob)
		if err != nil {
			return err
		}
		var i [1]int32
		err = pack.Unpack(&m.Reader, i[:], 1)
		m.Release()
		if err != nil {
			return err
		}
		time.Sleep(50 * time.Millisecond) // the work: a host is lost while jobs are in hand
		b := t.Buffer(pack.Default)
		if err := pack.Pack(b, []int32{i[0], i[0] * i[0]}, 1); err != nil {
			return err
		}
		if err := t.Send(ctx, t.Parent(), tagResult, b); err != nil {
			return err
		}
	}
}

// killAll kills every process of a node, as a loss of power does.
func (n *node) killAll() {
	out, _ := exec.Command("ip", "netns", "pids", n.ns).Output()
	for _, pid := range strings.Fields(string(out)) {
		if pid, err := strconv.Atoi(pid); err == nil && pid != os.Getpid() { // the test may have a thread in it
			_ = posix.Kill(pid, syscall.SIGKILL)
		}
	}
}

// A master on one of three machines adds the others as hosts, or finds that their daemons start
// programs, and has workers on all. One machine is lost. The master learns of it, does the lost
// jobs again, and spawns on other hosts.
func TestFarmLosesHost(t *testing.T) {
	for _, how := range []string{"AddHosts", "dirserver"} {
		t.Run(how, func(t *testing.T) {
			t.Parallel()
			l := newLab(t, 3)
			t.Cleanup(func() { // runs before the machines are removed
				for _, n := range l.nodes {
					n.killAll()
				}
			})
			var hosts []string
			if how == "dirserver" {
				l.args = []string{"--tpvm", "lab"}
				l.nodes[1].box = true // process numbers of this node mean nothing on the others
			}
			for i, n := range l.nodes {
				n.serve(l.nodes[:i]...)
				if how == "AddHosts" && i > 0 {
					hosts = append(hosts, n.ns+":"+n.socket())
				}
			}
			l.together(l.nodes...)
			self := try.Get(os.Executable())(t)
			cmd := exec.Command(self, hosts...)
			cmd.Env = append(os.Environ(), "ROCL_LAB_TPVM=master", "ROCL_SOCKET="+l.nodes[0].socket(), tpvm.EnvPod+"="+self)
			var said bytes.Buffer
			cmd.Stderr = &said
			out, w := io.Pipe()
			cmd.Stdout = w
			master := try.Get(in(l.nodes[0].ns, cmd))(t)
			t.Cleanup(master.Kill)
			go func() {
				<-master.Ended()
				w.Close()
			}()
			var done []string
			for s := bufio.NewScanner(out); s.Scan(); {
				switch f := strings.Fields(s.Text()); {
				case len(f) == 3 && f[0] == "begun":
					if f[1] != "3" || f[2] != "3" {
						t.Errorf("workers run on %s of %s hosts", f[1], f[2])
					}
					l.nodes[2].killAll()
				case len(f) > 0 && f[0] == "done":
					done = f
				}
			}
			<-master.Ended()
			if len(done) != 4 || done[1] != l.nodes[2].id || done[2] != "2" || done[3] != "2" || !cmd.ProcessState.Success() {
				t.Fatalf("the master: %v: %v: %s", cmd.ProcessState, done, said.String())
			}
		})
	}
}

// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/rocl-go/rocl/internal/testkit/eventually"
	"github.com/rocl-go/rocl/internal/testkit/freeaddr"
	"github.com/rocl-go/rocl/internal/testkit/nice"
	"github.com/rocl-go/rocl/internal/testkit/posix"
	"github.com/rocl-go/rocl/internal/testkit/subprocess"
	"github.com/rocl-go/rocl/internal/testkit/try"
)

// wrapped is a script that runs a program. Both have a file open, so that its reader sees the end
// of the file when both have ended.
type wrapped struct {
	t    *testing.T
	path string
}

func newWrapped(t *testing.T) wrapped {
	t.Helper()
	path := filepath.Join(t.TempDir(), "held")
	try.OK(t, posix.Mkfifo(path))
	return wrapped{t, path}
}

// run returns the arguments of tpvm run for the script.
func (w wrapped) run(flags ...string) []string {
	return slices.Concat([]string{"run"}, flags, []string{"sh", "-c", "exec 3>" + w.path + "; echo runs; sleep 1000; true"})
}

// begun waits until the script runs. end waits until both processes have ended.
func (w wrapped) begun() (end func()) {
	w.t.Helper()
	limit := time.AfterFunc(long, func() { // lets the opening return
		if f, err := os.OpenFile(w.path, os.O_WRONLY|syscall.O_NONBLOCK, 0); err == nil {
			f.Close()
		}
	})
	held, err := os.Open(w.path) // waits until the script has opened it
	if err != nil {
		w.t.Fatal(err)
	}
	if !limit.Stop() {
		w.t.Fatal("the script does not begin")
	}
	return func() {
		w.t.Helper()
		defer held.Close()
		_ = held.SetReadDeadline(time.Now().Add(long))
		try.Works(io.ReadAll(held))(w.t, "the script or its program goes on")
	}
}

// killScript ends the only program by tpvm kill.
func killScript(s *shell) {
	s.t.Helper()
	out, _, _ := s.run("", "ps", "--json")
	for line := range strings.Lines(out) {
		var e entry
		if err := json.Unmarshal([]byte(line), &e); err == nil && e.Name == "sh" {
			if _, errOut, code := s.run("", "kill", e.ID.String()); code != 0 {
				s.t.Errorf("kill: %d %q", code, errOut)
			}
			return
		}
	}
	s.t.Errorf("the script is not listed: %s", out)
}

// A script that runs a program ends together with it, when tpvm is interrupted or killed and when
// the script is ended by tpvm kill. When tpvm is interrupted, it says so.
func TestRunWrapped(t *testing.T) {
	for how, end := range map[string]func(*shell, *subprocess.Process){
		"interrupted": func(_ *shell, p *subprocess.Process) { p.Signal(syscall.SIGINT) },
		"ctrl-C":      func(_ *shell, p *subprocess.Process) { _ = posix.Kill(-p.Cmd.Process.Pid, syscall.SIGINT) }, // as a terminal does
		"terminated":  func(_ *shell, p *subprocess.Process) { p.Signal(syscall.SIGTERM) },
		"quit":        func(_ *shell, p *subprocess.Process) { p.Signal(syscall.SIGQUIT) },
		"hung up":     func(_ *shell, p *subprocess.Process) { p.Signal(syscall.SIGHUP) },
		"killed":      func(_ *shell, p *subprocess.Process) { p.Signal(syscall.SIGKILL) },
		"tpvm kill":   func(s *shell, _ *subprocess.Process) { killScript(s) },
	} {
		t.Run(how, func(t *testing.T) {
			s, w := newShell(t), newWrapped(t)
			p, lines := s.start(w.run()...)
			ended := w.begun()
			if l := next(t, lines); !strings.HasSuffix(l, "] runs") {
				t.Fatal(l)
			}
			end(s, p)
			ended()
			said := remainingLines(lines)
			_ = p.Wait()
			if code := p.Cmd.ProcessState.ExitCode(); (how == "interrupted" || how == "ctrl-C") && (code != exitInterrupted || !slices.Contains(said, "tpvm: interrupted: ending what runs")) {
				t.Errorf("exit code %d: %q", code, said)
			}
		})
	}
}

// cluster returns shells of some nodes of a cluster.
func cluster(t *testing.T, nodes int) (all []*shell) {
	t.Helper()
	nice.Raise(t)
	s := newShell(t)
	dir := filepath.Dir(s.socket())
	key := filepath.Join(dir, "key")
	try.OK(t, os.WriteFile(key, []byte("0123456789abcdef0123456789abcdef\n"), 0o600))
	first := try.Get(freeaddr.Loopback())(t)
	for bind := first; len(all) < nodes; bind = try.Get(freeaddr.Loopback())(t) {
		all = append(all, &shell{t: t, env: append(slices.Clone(s.env), "ROCL_BIND="+bind, "ROCL_JOIN="+first, "ROCL_KEY_FILE="+key,
			"ROCL_CLUSTER=test", fmt.Sprintf("ROCL_SOCKET=%s/%d", dir, len(all)))})
	}
	return all
}

// hosts returns shells of two nodes of a cluster. A pod serves the first one.
func hosts(t *testing.T) (one, two *shell) {
	t.Helper()
	all := cluster(t, 2)
	all[0].pod()
	return all[0], all[1]
}

// socket returns the path of the directory's socket.
func (s *shell) socket() string {
	for _, e := range slices.Backward(s.env) {
		if path, ok := strings.CutPrefix(e, "ROCL_SOCKET="); ok {
			return path
		}
	}
	return ""
}

// pod starts a pod, and returns it when tasks can start programs there, with its node and its
// further output.
func (s *shell) pod() (p *subprocess.Process, node string, lines *bufio.Scanner) {
	s.t.Helper()
	p, lines = s.start("pod")
	for {
		if id, ok := strings.CutPrefix(next(s.t, lines), "pod "); ok {
			node, _, _ = strings.Cut(id, "-")
			return p, node, lines
		}
	}
}

// find waits until a node is a host.
func (s *shell) find(node string) {
	s.t.Helper()
	eventually.True(s.t, "the host is found", func() bool {
		out, _, _ := s.run("", "hosts")
		return strings.Contains(out, node)
	})
}

// A script that runs a program on another host ends together with it: when tpvm run is interrupted
// or killed, by tpvm kill, when tpvm delete removes the host, and when its pod is interrupted or
// killed.
func TestRunWrappedElsewhere(t *testing.T) {
	one, two := hosts(t)
	for how, end := range map[string]func(run, pod *subprocess.Process, node string){
		"interrupted":     func(run, _ *subprocess.Process, _ string) { run.Signal(syscall.SIGINT) },
		"killed":          func(run, _ *subprocess.Process, _ string) { run.Signal(syscall.SIGKILL) },
		"tpvm kill":       func(_, _ *subprocess.Process, _ string) { killScript(one) },
		"pod interrupted": func(_, pod *subprocess.Process, _ string) { pod.Signal(syscall.SIGINT) },
		"pod killed":      func(_, pod *subprocess.Process, _ string) { pod.Signal(syscall.SIGKILL) },
		"tpvm delete": func(_, _ *subprocess.Process, node string) {
			if _, errOut, code := one.run("", "delete", node); code != 0 {
				one.t.Errorf("delete: %d %q", code, errOut)
			}
		},
	} {
		t.Run(how, func(t *testing.T) {
			pod, node, podLines := two.pod()
			one.find(node)
			w := newWrapped(t)
			run, lines := one.start(w.run("--host", node)...)
			ended := w.begun()
			if l := next(t, lines); !strings.HasSuffix(l, "] runs") {
				t.Fatal(l)
			}
			end(run, pod, node)
			ended()
			run.Signal(syscall.SIGKILL) // otherwise it waits until the cluster has declared a killed pod dead
			remainingLines(lines)
			_ = run.Wait()
			pod.Signal(syscall.SIGINT)
			remainingLines(podLines)
			_ = pod.Wait()
		})
	}
}

// tpvm hosts prints the hosts that answer, and says that another one does not, unless the cluster
// has declared that one dead.
//
// `tpvm hosts` prints the hosts that answer, and names one that does not.
func TestHostsSilent(t *testing.T) {
	one, two := hosts(t)
	pod, node, _ := two.pod()
	one.find(node)
	pod.Signal(posix.SIGSTOP)
	defer pod.Signal(syscall.SIGKILL)
	for _, args := range [][]string{{"hosts", "--timeout", "1s"}, {"hosts", "--json", "--timeout", "1s"}} {
		out, errOut, code := one.run("", args...)
		if !strings.Contains(out, "pod") || code != 0 && errOut == "" {
			t.Errorf("%v: exit code %d, %q %q", args, code, out, errOut)
		}
	}
}

// As process 1 a pod reaps the orphans that its programs leave.
func TestPodAsProcessOne(t *testing.T) {
	unshare, err := exec.LookPath("unshare")
	if err != nil || os.Geteuid() != 0 {
		t.Skip("unshare makes namespaces for root:", err)
	}
	one, two := hosts(t)
	cmd := exec.Command(unshare, "--pid", "--fork", "--kill-child", "--mount", "--mount-proc", try.Get(os.Executable())(t), "pod")
	cmd.Env = two.env
	p := launch(t, cmd)
	id, ok := strings.CutPrefix(<-p.Lines, "pod ")
	if !ok {
		t.Fatal(id)
	}
	node, _, _ := strings.Cut(id, "-")
	one.find(node)
	file := filepath.Join(t.TempDir(), "pid")
	out, errOut, code := one.run("", "run", "--host", node, "sh", "-c", orphan, file)
	if code != 0 || !strings.HasSuffix(out, "] reaped\n") {
		t.Errorf("exit code %d: %q %q", code, out, errOut)
	}
}

// orphan is a script that makes an orphan, and waits until the orphan has ended and was reaped. Its
// argument is a file for the orphan's number. It fails unless process 1 has started it.
const orphan = `[ $PPID = 1 ] || exit 8
(sh -c 'echo $$ >$0.new; mv $0.new $0' "$0" &)
while ! [ -s "$0" ]; do sleep 0.01; done
i=0
while [ -e /proc/$(cat "$0") ]; do
	[ $((i+=1)) -lt 3000 ] || { cat /proc/$(cat "$0")/status >&2; exit 9; }
	sleep 0.01
done
echo reaped`

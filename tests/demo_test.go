// SPDX-License-Identifier: Apache-2.0

package tests

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"github.com/rocl-go/rocl/internal/testkit/eventually"
	"github.com/rocl-go/rocl/internal/testkit/posix"
	"github.com/rocl-go/rocl/internal/testkit/try"
)

// A play is a demonstration with a process that is stopped. It delays the run for as long as
// necessary, so that the test does not depend on which process is faster.
type play struct {
	demo *child
	want string // the number that grep counts
	pid  int    // of the stopped process
}

// startPlay begins a demonstration, stops the first process of a role as soon as it appears, and
// waits until all processes have been found.
func startPlay(t *testing.T, stopped string) *play {
	t.Helper()
	dir := t.TempDir()
	const files = 2000     // the run takes longer than this test needs to stop a process
	for i := range files { // many units of work for each process
		text := strings.Repeat("filler ", i%400) + map[bool]string{true: "Alpha", false: "alphas"}[i%3 == 0]
		try.OK(t, os.WriteFile(filepath.Join(dir, fmt.Sprint(i)), []byte(text), 0o644))
	}
	cmd := exec.Command("grep", "-rIliw", "alpha", dir)
	cmd.Env = append(os.Environ(), "LC_ALL=C")
	out, err := cmd.Output()
	if err != nil {
		t.Skip("no grep to compare with: ", err)
	}
	p := &play{want: fmt.Sprintf("%q is in %d of %d text files", "alpha", bytes.Count(out, []byte("\n")), files)}
	sock := socket(t)
	start(t, `"serving"`, dirserver, "--socket", sock)
	w := start(t, "synced", rocl, "watch", "--json", "--socket", sock, "role="+stopped)
	p.demo = start(t, "coordinator", rocl, "demo", dir, "--word", "alpha", "--socket", sock)
	var ev struct{ Attrs struct{ PID string } }
	try.OK(t, json.Unmarshal([]byte(w.until(t, "appeared")), &ev))
	p.pid = try.Get(strconv.Atoi(ev.Attrs.PID))(t)
	signal(t, p.pid, posix.SIGSTOP)
	t.Cleanup(func() { _ = posix.Kill(p.pid, posix.SIGCONT) }) // a stopped process does not end with the demo
	for range 6 {                                              // two crawlers, three indexers, the front end
		p.demo.until(t, "found ")
	}
	return p
}

// signal sends s to a process. If s is SIGSTOP, signal returns when the process has stopped: on a
// busy machine its threads run on for a while.
func signal(t *testing.T, pid int, s syscall.Signal) {
	t.Helper()
	try.OK(t, posix.Kill(pid, s), "%v to process %d", s, pid)
	eventually.True(t, "the process has stopped", func() bool { return s != posix.SIGSTOP || standsStill(t, pid) })
}

// standsStill reports whether each thread of a process is stopped.
func standsStill(t *testing.T, pid int) bool {
	t.Helper()
	threads := try.Get(filepath.Glob(fmt.Sprintf("/proc/%d/task/*/stat", pid)))(t)
	for _, path := range threads {
		stat, err := os.ReadFile(path)
		if err != nil {
			continue // the thread has ended
		}
		if _, state, _ := strings.Cut(string(stat), ") "); !strings.HasPrefix(state, "T") && !strings.HasPrefix(state, "Z") {
			return false
		}
	}
	return true
}

// The run cannot end while a crawler holds its share of the work; then the crawler is killed. The
// answer is right, and the loss is reported.
func TestDemoCrawlerKilled(t *testing.T) {
	p := startPlay(t, "crawler")
	signal(t, p.pid, syscall.SIGKILL)
	if l := p.demo.until(t, fmt.Sprintf("(process %d) is gone", p.pid)); !strings.Contains(l, "crawler ") {
		t.Errorf("reported as %q", l)
	}
	p.demo.until(t, p.want)
	if l := p.demo.until(t, "messages"); !strings.Contains(l, "; 1 process lost, ") {
		t.Errorf("the loss is not reported: %q", l)
	}
	try.OK(t, p.demo.Wait())
}

// The environment may name the directory of the node. The demonstration then runs on that node, and
// other programs can find it.
func TestDemoSocketOfEnvironment(t *testing.T) {
	sock := socket(t)
	start(t, `"serving"`, dirserver, "--socket", sock)
	w := start(t, "synced", rocl, "watch", "--json", "--socket", sock, "role=front")
	dir := t.TempDir()
	try.OK(t, os.WriteFile(filepath.Join(dir, "a"), []byte("alpha"), 0o644))
	t.Setenv("ROCL_SOCKET", sock)
	if out, code := run(t, "", rocl, "demo", dir, "--word", "alpha"); code != 0 || !strings.Contains(out, "is in 1 of 1 text files") {
		t.Errorf("exit code %d, %q", code, out)
	}
	w.until(t, "appeared")
	w.until(t, "gone")
}

// Without the front end there is no answer: the demonstration prints the reason.
func TestDemoFrontKilled(t *testing.T) {
	p := startPlay(t, "front")
	p.demo.until(t, "all is indexed")
	signal(t, p.pid, syscall.SIGKILL)
	p.demo.until(t, "the front end has died")
	if err := p.demo.Wait(); err == nil || p.demo.Cmd.ProcessState.ExitCode() != 1 {
		t.Errorf("ended with %v", err)
	}
}

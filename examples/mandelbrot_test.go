// SPDX-License-Identifier: Apache-2.0

package examples

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"github.com/rocl-go/rocl"
	"github.com/rocl-go/rocl/internal/testkit/posix"
	"github.com/rocl-go/rocl/internal/testkit/try"
)

// picture returns the arguments to draw a picture of x times y pixels.
func picture(x, y, samples int, out string, more ...string) []string {
	return append(strings.Fields(fmt.Sprintf("-re -0.7435 -im 0.1314 -width 0.01 -limit 1000 -x %d -y %d -samples %d -o %s",
		x, y, samples, out)), more...)
}

// checkPicture compares a picture with the same one by a single process, on a node of its own.
func checkPicture(n node, x, y, samples int, path string) {
	n.t.Helper()
	dir := n.t.TempDir()
	n.socket = filepath.Join(dir, "directory.sock")
	alone := filepath.Join(dir, "alone.png")
	n.must(picture(x, y, samples, alone, "-p", "1")...)
	want := try.Get(os.ReadFile(alone))(n.t)
	if got, err := os.ReadFile(path); err != nil || !bytes.Equal(got, want) {
		n.t.Errorf("the picture differs from the one drawn by one process: %v", err)
	}
}

// A process that has joined before takes part, besides those that the master starts.
func drawWithJoined(t *testing.T, n node) {
	out := filepath.Join(t.TempDir(), "m.png")
	c := n.open()
	cmd := n.command("-join")
	var printed bytes.Buffer
	cmd.Stdout = &printed
	joined := n.launch(cmd)
	try.Get(c.Await(t.Context(), rocl.Match{"type": "threaddef"}, 1))(t)
	prints("^60 tiles.* of 3 processes", picture(300, 170, 2, out, "-p", "2")...)(t, n)
	n.interrupt(joined)
	if !strings.HasPrefix(printed.String(), "rendering for virtual machine ") {
		t.Errorf("the process that joined says %q", &printed)
	}
	checkPicture(n, 300, 170, 2, out)
}

// The picture is right even if one of the processes that the program names is killed, and the
// program prints that.
func drawAndKill(t *testing.T, n node) {
	for samples := 3; !isDrawnAgain(n, samples); samples *= 2 { // the picture may be complete before the process is killed
		if samples >= 12 {
			t.Fatal("no tile was rendered again")
		}
	}
}

// isDrawnAgain draws a picture on a new node while the test kills a process. It checks the picture,
// and reports whether the process had work.
func isDrawnAgain(n node, samples int) bool {
	dir := n.t.TempDir()
	n.socket = filepath.Join(dir, "directory.sock")
	out := filepath.Join(dir, "m.png")
	cmd := n.command(picture(400, 300, samples, out, "-p", "3")...)
	r, w, err := os.Pipe()
	try.OK(n.t, err)
	defer r.Close()
	var said bytes.Buffer
	cmd.Stdout, cmd.Stderr = &said, w
	p := n.launch(cmd)
	w.Close()
	lines := bufio.NewScanner(r)
	for lines.Scan() {
		if pids, ok := strings.CutPrefix(lines.Text(), "kill one of: "); ok {
			killSecond(n, strings.Fields(pids))
		}
	}
	try.OK(n.t, p.Wait())
	checkPicture(n, 400, 300, samples, out)
	return strings.HasSuffix(said.String(), "processes that ended early: 1\n")
}

// killSecond kills the second of three processes.
func killSecond(n node, pids []string) {
	n.t.Helper()
	if len(pids) != 3 {
		n.t.Fatal(pids)
	}
	pid, err := strconv.Atoi(pids[1])
	if err == nil {
		err = posix.Kill(pid, syscall.SIGKILL)
	}
	if err != nil && !errors.Is(err, syscall.ESRCH) { // it may have ended
		n.t.Fatal(err)
	}
}

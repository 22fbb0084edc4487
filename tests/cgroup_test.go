// SPDX-License-Identifier: Apache-2.0

package tests

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	lib "github.com/rocl-go/rocl" // the name rocl is that of the command
	"github.com/rocl-go/rocl/internal/testkit/eventually"
	"github.com/rocl-go/rocl/internal/testkit/subprocess"
	"github.com/rocl-go/rocl/internal/testkit/try"
)

// hoard is a peer that takes memory until it gets no more, and keeps it.
func hoard(t testing.TB, c *lib.Context, _ lib.Attrs) {
	for n := range 256 {
		_, err := c.Buffer(1 << 20)
		if errors.Is(err, lib.ErrLimit) {
			f := try.Get(c.Find(bg, lib.Match{lib.AttrKind: "node"}, lib.Want(lib.AttrMemory)))(t)
			fmt.Printf("registered %d MiB of a node with %s bytes\n", n, f.Attrs.GetString(lib.AttrMemory))
			return
		}
		try.OK(t, err)
	}
	t.Fatal("there is no limit")
}

// inGroup makes a control group with a memory limit, and returns the command with which a process
// joins the group. It skips the test if it cannot.
func inGroup(t *testing.T, limit int) string {
	t.Helper()
	name := fmt.Sprintf("rocl-test-%d", os.Getpid())
	var reason error
	for root, file := range map[string]string{"/sys/fs/cgroup": "memory.max", "/sys/fs/cgroup/memory": "memory.limit_in_bytes"} {
		dir := filepath.Join(root, name)
		if err := os.Mkdir(dir, 0o755); err != nil {
			reason = err
			continue
		}
		t.Cleanup(func() { eventually.True(t, "the control group is empty", func() bool { return os.Remove(dir) == nil }) })
		f, err := os.OpenFile(filepath.Join(dir, file), os.O_WRONLY, 0)
		if err == nil {
			_, err = f.WriteString(strconv.Itoa(limit))
			err = errors.Join(err, f.Close())
		}
		if err == nil {
			return "echo $$ > " + filepath.Join(dir, "cgroup.procs")
		}
		reason = err
	}
	t.Skip("no control group with a memory limit: ", reason)
	return ""
}

// In a control group with 128 MiB, a context with the default limit gets ErrLimit before the kernel
// ends the process.
func TestMemoryOfGroup(t *testing.T) {
	if raceDetector {
		t.Skip("the race detector needs several times the memory of the program")
	}
	const limit = 128 << 20
	join := inGroup(t, limit)
	t.Setenv("ROCL_TEST_SHM", "yes")
	peer := subprocess.Self("peer", "hoard", socket(t), "me")
	c := launch(t, exec.Command("/bin/sh", append([]string{"-ec", join + `; exec "$@"`, "sh"}, peer.Args...)...))
	line := c.until(t, "registered")
	var got int
	if _, err := fmt.Sscanf(line, "registered %d MiB", &got); err != nil || got < 16 || got > limit>>21 || !strings.HasSuffix(line, fmt.Sprintf(" %d bytes", limit)) {
		t.Errorf("%s", line)
	}
}

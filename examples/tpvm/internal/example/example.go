// SPDX-License-Identifier: Apache-2.0

// Package example runs the examples of tpvm in tests, as real processes.
package example

import (
	"bytes"
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	"go.uber.org/goleak"
)

const isExample = "TPVM_EXAMPLE"

// Main is the body of TestMain: the test binary also runs as the example, even if the example
// spawns itself.
func Main(m *testing.M, main func()) {
	if os.Getenv(isExample) != "" {
		main()
		return
	}
	goleak.VerifyTestMain(m)
}

// A Node is a node with its own directory, so that examples do not see other programs of the user.
type Node struct {
	t      testing.TB
	Socket string // of the directory
}

// New returns a Node whose socket is in a folder of the test.
func New(t testing.TB) Node {
	return Node{t, filepath.Join(t.TempDir(), "directory.sock")}
}

// Command returns the command of the example, to be started on the node.
func (n Node) Command(args ...string) *exec.Cmd {
	self, err := os.Executable()
	if err != nil {
		n.t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(n.t.Context(), 2*time.Minute) // in case something hangs
	n.t.Cleanup(cancel)
	c := exec.CommandContext(ctx, self, args...)
	c.Env = append(os.Environ(), isExample+"=1", "ROCL_SOCKET="+n.Socket)
	c.Stderr = os.Stderr
	return c
}

// Run runs the example and returns the standard output of it and its processes.
func (n Node) Run(args ...string) string {
	n.t.Helper()
	c := n.Command(args...)
	var out bytes.Buffer
	c.Stdout = &out
	if err := c.Run(); err != nil {
		n.t.Fatalf("%v: %v, %s", args, err, &out)
	}
	return out.String()
}

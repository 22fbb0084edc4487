// SPDX-License-Identifier: Apache-2.0

// Package example runs the examples in tests, as real processes.
package example

import (
	"bytes"
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/rocl-go/rocl"
	"github.com/rocl-go/rocl/internal/eventually"
	"github.com/rocl-go/rocl/internal/subprocess"
	"go.uber.org/goleak"
)

const isExample = "ROCL_TEST_EXAMPLE"

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
	self := subprocess.Self(args...)
	ctx, cancel := context.WithTimeout(n.t.Context(), 2*time.Minute) // in case something hangs
	n.t.Cleanup(cancel)
	c := exec.CommandContext(ctx, self.Path, args...)
	c.WaitDelay = time.Minute // for processes of the example that hold the output
	c.Env = append(os.Environ(), isExample+"=1", "ROCL_SOCKET="+n.Socket)
	c.Stderr = os.Stderr
	return c
}

// Launch starts a command of the example. Its standard input, if c names none, is empty.
func (n Node) Launch(c *exec.Cmd) *subprocess.Process {
	n.t.Helper()
	p, err := subprocess.Start(c)
	if err != nil {
		n.t.Fatal(err)
	}
	n.t.Cleanup(p.Kill)
	p.CloseInput()
	return p
}

// Serve starts the example, and returns when it has printed a line, which must begin with says.
func (n Node) Serve(says string, args ...string) *subprocess.Process {
	n.t.Helper()
	p := n.Launch(n.Command(args...))
	if line, err := p.Line(n.t.Context()); err != nil || !strings.HasPrefix(line, says) {
		n.t.Fatalf("%q prints %q, %v", args, line, err)
	}
	return p
}

// Run runs the example and returns the standard output of it and its processes.
func (n Node) Run(args ...string) string {
	n.t.Helper()
	c := n.Command(args...)
	var out bytes.Buffer
	c.Stdout = &out
	if err := n.Launch(c).Wait(); err != nil {
		n.t.Fatalf("%v: %v, %s", args, err, &out)
	}
	return out.String()
}

// Both runs the example and returns what it and its processes print, on either output.
func (n Node) Both(args ...string) (string, error) {
	c := n.Command(args...)
	var out bytes.Buffer
	c.Stdout, c.Stderr = &out, &out
	err := n.Launch(c).Wait()
	return out.String(), err
}

// Fails runs the example, which must fail and print what.
func (n Node) Fails(what string, args ...string) {
	n.t.Helper()
	if out, err := n.Both(args...); err == nil || !strings.Contains(out, what) {
		n.t.Errorf("%q: %v, %q, and not %q", args, err, out, what)
	}
}

// Open opens a context on the node. It is closed when the test ends, if not before.
func (n Node) Open() *rocl.Context {
	n.t.Helper()
	c, err := rocl.Open(n.t.Context(), rocl.WithSocket(n.Socket))
	if err != nil {
		n.t.Fatal(err)
	}
	n.t.Cleanup(func() { c.Close() })
	return c
}

// Start starts the example once for each list of arguments. It returns when as many resources match
// the pattern. The test then serves the node no more: one of the processes does.
func (n Node) Start(pattern rocl.Match, each ...[]string) (started []*subprocess.Process) {
	n.t.Helper()
	c := n.Open()
	defer c.Close()
	for _, args := range each {
		started = append(started, n.Launch(n.Command(args...)))
	}
	if _, err := c.Await(n.t.Context(), pattern, len(each)); err != nil {
		n.t.Fatal(err)
	}
	return started
}

// Remain returns when only as many resources as left match the pattern.
func (n Node) Remain(c *rocl.Context, pattern rocl.Match, left int) {
	n.t.Helper()
	eventually.True(n.t, "no other resources are left", func() bool {
		found := 0
		for _, err := range c.FindAll(n.t.Context(), pattern) {
			if err != nil {
				n.t.Fatal(err)
			}
			found++
		}
		return found == left
	})
}

// Kill kills a process and waits for its end.
func (n Node) Kill(p *subprocess.Process) {
	n.t.Helper()
	if err := p.Cmd.Process.Kill(); err != nil {
		n.t.Fatal(err)
	}
	_ = p.Wait()
}

// Interrupt interrupts processes, all at once, each of which must then end without an error.
func (n Node) Interrupt(all ...*subprocess.Process) {
	n.t.Helper()
	for _, p := range all {
		if err := p.Cmd.Process.Signal(os.Interrupt); err != nil {
			n.t.Fatal(err)
		}
	}
	for _, p := range all {
		if err := p.Wait(); err != nil {
			n.t.Errorf("%q ended with %v", p.Cmd.Args[1:], err)
		}
	}
}

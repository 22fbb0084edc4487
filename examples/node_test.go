// SPDX-License-Identifier: Apache-2.0

package examples

import (
	"bytes"
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"runtime/debug"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/rocl-go/rocl"
	"github.com/rocl-go/rocl/internal/testkit/eventually"
	"github.com/rocl-go/rocl/internal/testkit/subprocess"
	"github.com/rocl-go/rocl/internal/testkit/try"
)

// A node runs a program on a node with its own directory, so that the program does not see other
// programs of the user.
type node struct {
	t       testing.TB
	program string // path of the executable
	socket  string // of the directory
}

// build builds the programs in a folder of the examples and those below it, with the flags given,
// and returns the folder of the executables.
func build(t testing.TB, example string, flags ...string) (dir string) {
	t.Helper()
	dir = t.TempDir()
	args := append([]string{"build", "-o", dir + string(filepath.Separator)}, flags...)
	cmd := exec.CommandContext(t.Context(), "go", append(args, "./"+example+"/...")...)
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%v: %v\n%s", cmd.Args, err, out)
	}
	return dir
}

// own returns the flags of the build of this test that the programs are built with too: the race
// detector and the tags.
func own() (flags []string) {
	info, _ := debug.ReadBuildInfo()
	for _, s := range info.Settings {
		if s.Key == "-race" || s.Key == "-tags" {
			flags = append(flags, s.Key+"="+s.Value)
		}
	}
	return flags
}

// of returns the node with another program of the same example.
func (n node) of(program string) node {
	n.program = filepath.Join(filepath.Dir(n.program), program)
	return n
}

// command returns the command of the program, to be started on the node.
func (n node) command(args ...string) *exec.Cmd {
	ctx, cancel := context.WithTimeout(n.t.Context(), eventually.Timeout) // in case something hangs
	n.t.Cleanup(cancel)
	c := exec.CommandContext(ctx, n.program, args...)
	c.WaitDelay = time.Minute // for processes of the program that hold the output
	c.Env = append(os.Environ(), "ROCL_SOCKET="+n.socket)
	c.Stderr = os.Stderr
	return c
}

// launch starts a command of the program. Its standard input, if c names none, is empty.
func (n node) launch(c *exec.Cmd) *subprocess.Process {
	n.t.Helper()
	p := try.Get(subprocess.Start(c))(n.t)
	n.t.Cleanup(p.Kill)
	p.CloseInput()
	return p
}

// serve starts the program, and returns when it has printed a line, which must begin with says.
func (n node) serve(says string, args ...string) *subprocess.Process {
	n.t.Helper()
	p := n.launch(n.command(args...))
	if line, err := p.Line(n.t.Context()); err != nil || !strings.HasPrefix(line, says) {
		n.t.Fatalf("%q prints %q, %v", args, line, err)
	}
	return p
}

// run runs the program and returns what it and its processes print, on either output.
func (n node) run(args ...string) (string, error) {
	c := n.command(args...)
	var out bytes.Buffer
	c.Stdout, c.Stderr = &out, &out
	err := n.launch(c).Wait()
	return out.String(), err
}

// must runs the program, which must succeed, and returns its standard output.
func (n node) must(args ...string) string {
	n.t.Helper()
	c := n.command(args...)
	var out bytes.Buffer
	c.Stdout = &out
	if err := n.launch(c).Wait(); err != nil {
		n.t.Fatalf("%q: %v, %s", args, err, &out)
	}
	return out.String()
}

// fails runs the program, which must fail and print what.
func (n node) fails(what string, args ...string) {
	n.t.Helper()
	if out, err := n.run(args...); err == nil || !strings.Contains(out, what) {
		n.t.Errorf("%q: %v, %q, and not %q", args, err, out, what)
	}
}

// open opens a context on the node. It is closed when the test ends, if not before.
func (n node) open() *rocl.Context {
	n.t.Helper()
	c := try.Get(rocl.Open(n.t.Context(), rocl.WithSocket(n.socket)))(n.t)
	n.t.Cleanup(func() { c.Close() })
	return c
}

// start starts the program once for each list of arguments. It returns when as many resources match
// the pattern. Unless the test has another context open, one of the processes then serves the node.
func (n node) start(pattern rocl.Match, each ...[]string) (started []*subprocess.Process) {
	n.t.Helper()
	c := n.open()
	defer c.Close()
	for _, args := range each {
		started = append(started, n.launch(n.command(args...)))
	}
	try.Get(c.Await(n.t.Context(), pattern, len(each)))(n.t)
	return started
}

// remain returns when only as many resources as left match the pattern.
func (n node) remain(c *rocl.Context, pattern rocl.Match, left int) {
	n.t.Helper()
	eventually.True(n.t, "no other resources are left", func() bool {
		found := 0
		for _, err := range c.FindAll(n.t.Context(), pattern) {
			try.OK(n.t, err)
			found++
		}
		return found == left
	})
}

// kill kills a process and waits for its end.
func (n node) kill(p *subprocess.Process) {
	n.t.Helper()
	try.OK(n.t, p.Cmd.Process.Kill())
	_ = p.Wait()
}

// interrupt interrupts processes, all at once, each of which must then end without an error.
func (n node) interrupt(all ...*subprocess.Process) {
	n.t.Helper()
	n.end(os.Interrupt, all)
}

// terminate is interrupt with SIGTERM.
func (n node) terminate(all ...*subprocess.Process) {
	n.t.Helper()
	n.end(syscall.SIGTERM, all)
}

func (n node) end(s os.Signal, all []*subprocess.Process) {
	n.t.Helper()
	for _, p := range all {
		try.OK(n.t, p.Cmd.Process.Signal(s))
	}
	for _, p := range all {
		try.Check(n.t, p.Wait(), "%q ended with", p.Cmd.Args[1:])
	}
}

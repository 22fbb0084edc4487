// SPDX-License-Identifier: Apache-2.0

package programs

import (
	"bufio"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/rocl-go/rocl/internal/testkit/posix"
	"github.com/rocl-go/rocl/internal/testkit/try"
)

// The test binary is another program if the environment says so.
func TestMain(m *testing.M) {
	switch os.Getenv("BE_PROGRAM") {
	case "guarded": // starts a script under a guard, and stays
		g, err := NewGuard()
		if err == nil {
			var p *Program
			if p, err = Start(exec.Command("/bin/sh", "-c", os.Args[1])); err == nil {
				g.Add(p)
				fmt.Println("added")
				select {}
			}
		}
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	case "subreaper":
		subreaper()
		os.Exit(0)
	}
	goleak.VerifyTestMain(m)
}

// shell returns a command that runs a shell script with a pipe for its descriptor 3. The reading
// end ends with the last process that has the pipe open.
func shell(t *testing.T, text string) (cmd *exec.Cmd, held *bufio.Reader) {
	t.Helper()
	r, w, err := os.Pipe()
	try.OK(t, err)
	t.Cleanup(func() { r.Close(); w.Close() })
	cmd = exec.Command("/bin/sh", "-c", text)
	cmd.ExtraFiles = []*os.File{w}
	return cmd, bufio.NewReader(r)
}

// start starts cmd, and waits until it has written a line to its descriptor 3.
func start(t *testing.T, cmd *exec.Cmd, held *bufio.Reader) *Program {
	t.Helper()
	p := try.Get(Start(cmd))(t)
	cmd.ExtraFiles[0].Close()
	t.Cleanup(func() { _ = p.kill(syscall.SIGKILL); _ = p.Wait() })
	try.Get(held.ReadString('\n'))(t)
	return p
}

// A signal reaches all processes of a program, and the program has ended when all have.
//
// Promise (Commands): A signal to a command reaches the processes that its programs started. Those
// left after 5 s are killed. See also TestRunWrapped.
func TestGroupEnds(t *testing.T) {
	for name, end := range map[string]func(*Program){
		"End":     func(p *Program) { p.End() },
		"SIGINT":  func(p *Program) { _ = p.Signal(syscall.SIGINT) },
		"SIGKILL": func(p *Program) { _ = p.Signal(syscall.SIGKILL) },
	} {
		t.Run(name, func(t *testing.T) {
			cmd, held := shell(t, "sleep 1000 & echo runs >&3; wait; true")
			p := start(t, cmd, held)
			if name == "SIGINT" { // a background process of a shell ignores SIGINT
				p.mu.Lock()
				p.grace = time.Millisecond
				p.mu.Unlock()
			}
			end(p)
			_ = p.Wait()
			try.Works(io.ReadAll(held))(t)
			try.Fails(p.Signal(syscall.SIGTERM))(t, os.ErrProcessDone, "a signal to a program that has ended")
		})
	}
}

// A process that does not end by SIGTERM is killed, also if the first process of the group has
// ended.
func TestStubbornProcessIsKilled(t *testing.T) {
	for name, text := range map[string]string{
		"first": "trap '' TERM; echo runs >&3; while :; do sleep 1000; done",
		"inner": "(trap '' TERM; echo runs >&3; exec sleep 1000) & wait",
	} {
		t.Run(name, func(t *testing.T) {
			cmd, held := shell(t, text)
			p := start(t, cmd, held)
			p.mu.Lock()
			p.grace = 10 * time.Millisecond
			p.mu.Unlock()
			p.End()
			_ = p.Wait()
			try.Works(io.ReadAll(held))(t)
		})
	}
}

// A program that ends by itself is not waited for because of a process that it has left behind, and
// that process goes on.
func TestLeftProcessGoesOn(t *testing.T) {
	cmd, held := shell(t, "exec 4<&0; (read line <&4; echo $line >&3) & echo runs >&3")
	r, w, err := os.Pipe()
	try.OK(t, err)
	cmd.Stdin = r
	p := start(t, cmd, held)
	r.Close()
	try.Check(t, p.Wait())
	try.Fails(p.Signal(syscall.SIGTERM))(t, os.ErrProcessDone, "a signal")
	fmt.Fprintln(w, "on")
	w.Close()
	if rest, err := io.ReadAll(held); string(rest) != "on\n" {
		t.Errorf("the process that was left said %q: %v", rest, err)
	}
}

// When the process that has started a program is killed, the program ends with all its processes.
func TestGuard(t *testing.T) {
	path := filepath.Join(t.TempDir(), "held")
	try.OK(t, posix.Mkfifo(path))
	cmd := exec.Command(try.Get(os.Executable())(t), "exec 3>"+path+"; sleep 1000; true")
	cmd.Env = append(os.Environ(), "BE_PROGRAM=guarded")
	cmd.Stderr = os.Stderr
	out := try.Get(cmd.StdoutPipe())(t)
	try.OK(t, cmd.Start())
	held := try.Get(os.Open(path))(t) // waits until the script has opened it
	defer held.Close()
	if line, err := bufio.NewReader(out).ReadString('\n'); err != nil {
		t.Fatal(line, err)
	}
	_ = cmd.Process.Kill()
	_ = cmd.Wait()
	try.Works(io.ReadAll(held))(t)
}

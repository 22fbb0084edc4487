// SPDX-License-Identifier: Apache-2.0

package subprocess

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/rocl-go/rocl/internal/testkit/eventually"
	"github.com/rocl-go/rocl/internal/testkit/try"
	"go.uber.org/goleak"
)

// TestMain runs the tests, or the part of a child.
func TestMain(m *testing.M) {
	if len(os.Args) > 1 {
		switch os.Args[1] {
		case "child-echo": // answers each line until the input ends
			for s := bufio.NewScanner(os.Stdin); s.Scan(); {
				fmt.Println("heard", s.Text())
			}
			fmt.Print("end")
			os.Exit(3)
		case "child-errors":
			fmt.Fprintln(os.Stderr, "an error")
			fmt.Println("a line")
			os.Exit(0)
		case "child-deaf": // ignores the end of its input
			for {
				time.Sleep(time.Hour) // select {} would be a deadlock
			}
		case "child-parent": // starts a child that it does not end
			p, err := Start(Self("child-deaf"))
			if err != nil {
				fmt.Println(err)
				os.Exit(1)
			}
			fmt.Println(p.Cmd.Process.Pid)
			<-p.Ended()
			os.Exit(0)
		}
	}
	goleak.VerifyTestMain(m)
}

func start(t *testing.T, cmd *exec.Cmd, opts ...Option) *Process {
	t.Helper()
	p := try.Get(Start(cmd, opts...))(t)
	t.Cleanup(p.Kill)
	return p
}

func (p *Process) mustLine(t *testing.T) string {
	t.Helper()
	return try.Get(p.Line(t.Context()))(t)
}

// A child answers lines, ends with its input, and its exit code comes with the end of its lines.
func TestLines(t *testing.T) {
	p := start(t, Self("child-echo"))
	for i := range 3 {
		try.OK(t, p.WriteLine("line", i))
		try.Equal(t, p.mustLine(t), fmt.Sprint("heard line ", i), "line %d", i)
	}
	try.OK(t, p.WriteLine("more"))
	if err := p.Expect(t.Context(), "heard less"); err == nil || !strings.Contains(err.Error(), `"heard more"`) {
		t.Errorf("another line than was expected: %v", err)
	}
	p.CloseInput()
	try.Equal(t, p.mustLine(t), "end", "the line without an end")
	_, err := p.Line(t.Context())
	var code *exec.ExitError
	if !errors.Is(err, ErrEnded) || !errors.As(err, &code) || code.ExitCode() != 3 {
		t.Errorf("after the end: %v", err)
	}
	ctx, cancel := context.WithCancelCause(t.Context())
	cause := errors.New("given up")
	cancel(cause)
	q := start(t, Self("child-echo"))
	try.Fails(q.Line(ctx))(t, cause, "a line that never comes")
	if err := q.Stop(); !errors.As(err, &code) || code.ExitCode() != 3 {
		t.Errorf("stopped: %v", err)
	}
}

// Lines has both outputs of a child, if they are merged.
func TestMerged(t *testing.T) {
	p := start(t, Self("child-errors"), Merged())
	if a, b := p.mustLine(t), p.mustLine(t); a != "an error" || b != "a line" {
		t.Errorf("%q and %q", a, b)
	}
	try.Check(t, p.Wait())
}

// Run returns both outputs and the exit code of a child, and ends a child with its context.
func TestRun(t *testing.T) {
	cmd := Self("child-echo")
	cmd.Stdin = strings.NewReader("a line\n")
	if out, errOut, code, err := Run(t.Context(), cmd); out != "heard a line\nend" || errOut != "" || code != 3 || err != nil {
		t.Errorf("%q, %q, %d, %v", out, errOut, code, err)
	}
	if out, _, code, err := Run(t.Context(), Self("child-echo")); out != "end" || code != 3 || err != nil {
		t.Errorf("without an input: %q, %d, %v", out, code, err)
	}
	cmd = Self("child-errors")
	var place strings.Builder
	cmd.Stdout = &place
	if out, errOut, code, err := Run(t.Context(), cmd); out != "" || place.String() != "a line\n" || errOut != "an error\n" || code != 0 || err != nil {
		t.Errorf("with another place for the output: %q, %q, %q, %d, %v", out, place.String(), errOut, code, err)
	}
	ctx, cancel := context.WithCancelCause(t.Context())
	cause := errors.New("given up")
	cancel(cause)
	if _, _, code, err := Run(ctx, Self("child-deaf")); code != -1 || !errors.Is(err, cause) {
		t.Errorf("a child that is killed: %d, %v", code, err)
	}
	try.Fails(Run(t.Context(), exec.Command("/no/such/program")))(t, os.ErrNotExist, "no program")
}

// A program that does not exist is an error.
func TestNoProgram(t *testing.T) {
	try.Fails(Start(exec.Command("/no/such/program")))(t, os.ErrNotExist)
}

// Stop kills a child that does not end with its input.
func TestStopKills(t *testing.T) {
	t.Parallel()
	var code *exec.ExitError
	if err := start(t, Self("child-deaf")).Stop(); !errors.As(err, &code) || code.Sys().(syscall.WaitStatus).Signal() != syscall.SIGKILL {
		t.Errorf("%v", err)
	}
}

// A child ends when its parent is killed.
func TestEndsWithParent(t *testing.T) {
	p := start(t, Self("child-parent"))
	pid := try.Get(strconv.Atoi(p.mustLine(t)))(t)
	if !isRunning(pid) {
		t.Fatal("the child of the child does not run")
	}
	p.Kill()
	eventually.True(t, "the child of the killed child ends", func() bool { return !isRunning(pid) })
}

// isRunning reports whether a process exists and is not a zombie.
func isRunning(pid int) bool {
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return false
	}
	_, state, _ := strings.Cut(string(b), ") ")
	return !strings.HasPrefix(state, "Z")
}

// A child that writes more lines than the channel holds waits. Stop and Kill do not.
func TestUnreadLines(t *testing.T) {
	for name, end := range map[string]func(*Process){"Stop": func(p *Process) { _ = p.Stop() }, "Kill": (*Process).Kill} {
		p := start(t, exec.Command("/bin/sh", "-c", "yes a line | head -n 20000"))
		eventually.True(t, "the channel is full", func() bool { return len(p.Lines) == unreadLines })
		end(p)
		n := 0
		for range p.Lines {
			n++
		}
		if n < unreadLines || n > 20_000 {
			t.Errorf("%s: %d lines", name, n)
		}
	}
}

// UntilEnd ends with the input.
func TestUntilEnd(t *testing.T) {
	ctx, cancel := UntilEnd(t.Context(), strings.NewReader("a line\n"))
	defer cancel()
	<-ctx.Done()
}

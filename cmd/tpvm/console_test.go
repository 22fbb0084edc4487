// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/rocl-go/rocl/internal/testkit/eventually"
	"github.com/rocl-go/rocl/internal/testkit/posix"
	"github.com/rocl-go/rocl/internal/testkit/try"
)

// The start-up file comes first. A bad line in it is reported with its place, and does not make the
// script fail.
func TestConsoleRC(t *testing.T) {
	s := newShell(t)
	home, other := filepath.Join(t.TempDir(), "home"), filepath.Join(t.TempDir(), "rc")
	s.env = append(s.env, "HOME="+home)
	try.OK(t, os.Mkdir(home, 0o700))
	for path, text := range map[string]string{filepath.Join(home, rcName): "alias say echo home\nbad\n", other: "alias say echo other"} {
		try.OK(t, os.WriteFile(path, []byte(text), 0o600))
	}
	out, errOut, code := s.run("say it", "console")
	if code != 0 || out != "home it\n" || !strings.HasPrefix(errOut, "tpvm: "+filepath.Join(home, rcName)+`:2: there is no command "bad"`) {
		t.Errorf("exit code %d: %q %q", code, out, errOut)
	}
	if out, errOut, code = s.run("say it", "console", "--rc", other); code != 0 || out != "other it\n" || errOut != "" {
		t.Errorf("--rc: exit code %d: %q %q", code, out, errOut)
	}
	if out, errOut, code = s.run("echo it", "console", "--rc", other+"x"); code != exitFailed || out != "" || !strings.Contains(errOut, "start-up file") {
		t.Errorf("--rc of no file: exit code %d: %q %q", code, out, errOut)
	}
}

// Each line has its result, and a wrong line has its error.
func TestConsoleCommands(t *testing.T) {
	t.Parallel()
	s := newShell(t)
	for _, x := range []struct{ lines, out, says string }{
		{"alias e echo an\ne alias\nalias e\nunalias e\ne x", "an alias\ne\techo an\n", `line 5: there is no command "e"`},
		{"alias echo echo twice\necho x", "twice x\n", ""},
		{"unalias e", "", `unalias: there is no alias e`},
		{"? quit", "quit\nend the console; what it has spawned goes on\n", ""},
		{"help trace", "", `help: there is no command "trace"; 'help' lists them`},
		{"setenv V 'a b'\nsetenv V\nexport V W\nexport\nunexport W\nexport", "a b\nV\nW\nV\n", ""},
		{"setenv V x\nspawn -> sh -c 'echo $V'", "[sh] x\n[1] finished: sh\n", ""},
		{"spawn -> sh -c 'echo x; exit 2'", "[sh] x\n[1] finished: sh: exit status 2\n", ""},
		{"spawn -2 -> sh -c 'kill -9 $$'", "[1] finished: sh: 2 of 2 failed, the first sh.0 (process ", ""},
		{"spawn ->/dev/full echo x", "[1] finished: echo\n", "no space left on device"},
		{"spawn -:/ -> pwd", "[pwd] /\n", ""},
		{"setenv TPVM_DEBUGGER 'sh -c'\nspawn -? -> 'echo debugged'", "[sh] debugged\n", ""},
		{"spawn -? true", "", "-? needs a debugger"},
		{"mstat nowhere", "nowhere  no host of the virtual machine\n", ""},
		{"pstat 9-9", "9-9  does not run\n", ""},
		{"spawn sleep 1000\njobs -l\nreset", "[1] 1 sleep\n    sleep.0 (process ", ""},
		{"ps -x", "", "there is no option -x"},
		{"kill", "", "line 1: usage: kill ID..."},
		{"conf x", "", "usage: conf"},
		{"delete nowhere", "", "delete: delete hosts: 1 of 1 failed: host nowhere"},
		{"quit\nbad", "", ""},
	} {
		out, errOut, code := s.run(x.lines, "console")
		if !strings.Contains(out, x.out) || !strings.Contains(errOut, x.says) || (code == 0) != (x.says == "") || x.says == "" && errOut != "" {
			t.Errorf("%q: exit code %d, %q, %q", x.lines, code, out, errOut)
		}
	}
}

// An interrupt at the terminal of the console, which all of its process group gets, does not reach
// the programs that it has spawned.
func TestConsoleInterrupted(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithTimeout(t.Context(), long)
	defer cancel()
	p := launch(t, newShell(t).command("console")) // which leads a process group
	try.OK(t, p.WriteLine(`spawn -> sh -c 'echo $$; exec sleep 1000'`))
	pid := 0
	for pid == 0 {
		line := try.Get(p.Line(ctx))(t)
		text, ok := strings.CutPrefix(line, "[sh] ")
		if !ok {
			continue
		}
		pid = try.Get(strconv.Atoi(text))(t)
	}
	defer func() { _ = posix.Kill(pid, syscall.SIGKILL) }()
	try.OK(t, posix.Kill(-p.Cmd.Process.Pid, syscall.SIGINT))
	_ = p.Wait()
	if b, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid)); err != nil || strings.Contains(string(b), ") Z ") {
		t.Errorf("the program has ended: %s, %v", b, err)
	}
}

// The identifiers of a job come before its output, and the report of its end after it, even if the
// program prints at once.
func TestConsoleOrder(t *testing.T) {
	const jobs = 5
	var commands strings.Builder
	for k := range jobs {
		fmt.Fprintf(&commands, "spawn -> echo of %d\n", k+1)
	}
	out, errOut, code := newShell(t).run(commands.String(), "console")
	if code != 0 {
		t.Fatal(code, errOut)
	}
	lines := strings.Split(out, "\n")
	for k := range jobs {
		started := slices.Index(lines, fmt.Sprintf("[%d] 1 started", k+1))
		printed := slices.Index(lines, fmt.Sprintf("[echo] of %d", k+1))
		finished := slices.Index(lines, fmt.Sprintf("[%d] finished: echo", k+1))
		if started < 0 || !strings.Contains(lines[started+1], "-") || printed < started+2 || finished < printed {
			t.Errorf("job %d: lines %d, %d and %d of\n%s", k+1, started, printed, finished, out)
		}
	}
	if strings.Count(out, "[echo] ") != jobs || strings.Count(out, "finished: echo\n") != jobs {
		t.Error(out)
	}
}

// On a terminal, the text that a user has typed stays below the output that comes meanwhile.
func TestConsoleTerminal(t *testing.T) {
	in, typed := io.Pipe()
	shown := &screen{grown: make(chan struct{}, 1)}
	cmd := consoleCommand()
	cmd.SetIn(in)
	c := &console{cmd: cmd, out: shown}
	c.useTerminal()
	lines := make(chan string)
	go func() {
		line, _ := c.line.ReadLine()
		lines <- line
	}()
	try.Get(typed.Write([]byte("echo ha")))(t)
	shown.await(t, "tpvm> echo ha")
	fmt.Fprint(c.out, "[x] hi\n")
	shown.await(t, "[x] hi\r\ntpvm> echo ha")
	try.Get(typed.Write([]byte("lf\r")))(t)
	try.Equal(t, <-lines, "echo half")
}

// A screen keeps the text that is written to it.
type screen struct {
	mu    sync.Mutex
	text  string
	grown chan struct{}
}

func (s *screen) Write(b []byte) (int, error) {
	s.mu.Lock()
	s.text += string(b)
	s.mu.Unlock()
	select {
	case s.grown <- struct{}{}:
	default:
	}
	return len(b), nil
}

// await waits until the text ends with want.
func (s *screen) await(t *testing.T, want string) {
	t.Helper()
	for {
		s.mu.Lock()
		got := s.text
		s.mu.Unlock()
		if strings.HasSuffix(got, want) {
			return
		}
		select {
		case <-s.grown:
		case <-time.After(long):
			t.Fatalf("%q does not end with %q", got, want)
		}
	}
}

// Every command of the table has a help text, and is in the list, which is sorted.
func TestConsoleHelp(t *testing.T) {
	var lines, names []string
	for _, k := range consoleCommands {
		names = append(names, k.name)
		lines = append(lines, fmt.Sprintf("%-9s %s\n", k.name, k.what))
	}
	if !slices.IsSorted(names) {
		t.Error(names)
	}
	out, errOut, code := newShell(t).run("help\nhelp "+strings.Join(names, "\nhelp "), "console")
	if code != 0 || !strings.HasPrefix(out, strings.Join(lines, "")) || !strings.Contains(out, "there is no tracing") {
		t.Errorf("exit code %d: %q %q", code, out, errOut)
	}
}

// Hosts are added and used. halt ends their pods, but no pod that an operator has started.
func TestConsoleHosts(t *testing.T) {
	nodes := cluster(t, 3)
	main, one, operated := nodes[0], nodes[1], nodes[2]
	ssh := filepath.Join(t.TempDir(), "ssh")
	script := "#!/bin/sh\nshift\nexport"
	for _, v := range one.env {
		if strings.HasPrefix(v, "ROCL_") {
			script += " '" + v + "'"
		}
	}
	try.OK(t, os.WriteFile(ssh, []byte(script+"\nexec sh -c \"$*\"\n"), 0o700))
	t.Cleanup(func() {
		if t.Failed() { // halt may have failed
			one.run("", "delete", "one")
		}
	})
	main.env = append(main.env, "TPVM_SSH="+ssh, "TPVM_POD="+try.Get(os.Executable())(t)+" pod")
	serving, lines := operated.start("pod")
	if l := next(t, lines); !strings.Contains(l, "tasks can start programs here") {
		t.Fatal(l)
	}
	out, errOut, code := main.run("add one\nconf\nmstat one\nsetenv V x\nexport V\nspawn -one -> sh -c 'echo $V $ROCL_SOCKET'\nspawn -one sleep 1000\nhalt", "console")
	if code != 0 || errOut != "" {
		t.Errorf("exit code %d: %s", code, errOut)
	}
	for _, want := range []string{"one: node ", " pod       one\n", "one   ok\n", "x " + one.socket() + "\n"} {
		if !strings.Contains(out, want) {
			t.Errorf("there is no %q in %s", want, out)
		}
	}
	// The pod served its node. halt returns when the pod's resource is gone, and the process ends
	// soon after it.
	eventually.True(t, "the node is not served", func() bool {
		_, _, code := one.run("", "kill", "1-1")
		return code == exitNoDirectory
	})
	if _, errOut, code := operated.run("", "kill", "1-1"); code != exitFailed {
		t.Errorf("the operator's host: exit code %d: %s", code, errOut)
	}
	serving.Signal(syscall.SIGINT)
	remainingLines(lines)
	_ = serving.Wait()
}

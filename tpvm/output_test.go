// SPDX-License-Identifier: Apache-2.0

package tpvm_test

import (
	"context"
	"errors"
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

	"github.com/rocl-go/rocl"
	"github.com/rocl-go/rocl/internal/testkit/eventually"
	"github.com/rocl-go/rocl/internal/testkit/logged"
	"github.com/rocl-go/rocl/internal/testkit/posix"
	"github.com/rocl-go/rocl/internal/testkit/try"
	"github.com/rocl-go/rocl/rocltest"
	"github.com/rocl-go/rocl/tpvm"
)

func init() {
	programs["prints"] = asTask(func(ctx context.Context, t *tpvm.Task) error { // both outputs, the last line without its end
		fmt.Println("to output")
		fmt.Fprintln(os.Stderr, "to error")
		fmt.Print("no end")
		return nil
	})
	programs["long"] = func() error { // a line without end; the program does not enrol
		_, err := fmt.Print(strings.Repeat("x", 40_000), "\nshort\n")
		return err
	}
	programs["endless"] = asTask(func(ctx context.Context, t *tpvm.Task) error { // prints until it is killed
		line := []byte(strings.Repeat("y", 1000) + "\n")
		for {
			if _, err := os.Stdout.Write(line); err != nil {
				return errors.Join(err, t.Exit(ctx))
			}
		}
	})
	programs["spawns"] = asTask(func(ctx context.Context, t *tpvm.Task) error { // spawns the programs of its arguments, and ends before them
		ids, err := t.Spawn(ctx, tpvm.Self, 1, tpvm.Args("waits"), program(t.Args()[0]))
		if err != nil {
			return err
		}
		fmt.Println("spawned")
		if err := t.SendPacked(ctx, t.Parent(), 1, ids[0].String()); err != nil {
			return err
		}
		if len(t.Args()) > 1 && t.Args()[1] == "stays" {
			select {}
		}
		return nil
	})
	programs["told"] = asTask(func(ctx context.Context, t *tpvm.Task) error { // prints a line for each message with tag 1, until one with tag 2
		for n := 1; ; n++ {
			m, err := t.Recv(ctx, tpvm.AnyTask, tpvm.AnyTag)
			if err != nil {
				return err
			}
			from, tag := m.From(), m.Tag()
			m.Release()
			if tag == 2 {
				return nil
			}
			fmt.Println("line", n)
			if err := t.Send(ctx, from, 3, nil); err != nil {
				return err
			}
		}
	})
	programs["exits"] = func() error {
		code, err := strconv.Atoi(os.Args[1])
		if err == nil {
			os.Exit(code)
		}
		return err
	}
	programs["sleeps"] = func() error {
		time.Sleep(time.Hour) // select {} would be a deadlock, without cgo
		return nil
	}
	programs["sleeps as task"] = asTask(func(context.Context, *tpvm.Task) error { select {} })
}

// lines is a writer that keeps the lines that are written.
type lines struct{ logged.Log }

func (l *lines) all() []string { return strings.Split(strings.TrimSuffix(l.String(), "\n"), "\n") }

// ending returns how many lines end with s.
func (l *lines) ending(s string) (n int) {
	for _, line := range l.all() {
		if strings.HasSuffix(line, s) {
			n++
		}
	}
	return n
}

// exit exits a task whose programs may still print. Exit waits for them.
func exit(t testing.TB, task *tpvm.Task) {
	t.Helper()
	try.OK(t, task.Exit(deadline(t)))
}

// The output of programs comes line by line with labels in front, partial last lines included, and
// Exit waits for it.
//
// Promise (Package tpvm): Output is gathered line by line with the task's name, in bounded memory.
// See also TestCatchoutOfHosts.
func TestCatchout(t *testing.T) {
	ctx := deadline(t)
	task := enrol(t, alone(t))
	l := new(lines)
	try.OK(t, task.Catchout(l))
	try.Get(task.Spawn(ctx, self(t), 2, program("prints")))(t)
	exit(t, task)
	got := l.all()
	base := filepath.Base(self(t))
	for i := range 2 {
		label := fmt.Sprintf("[%s.%d] ", base, i)
		var own []string
		for _, s := range got {
			if rest, ok := strings.CutPrefix(s, label); ok {
				own = append(own, rest)
			}
		}
		if want := []string{"to output", "to error", "no end"}; !slices.Equal(own, want) {
			t.Errorf("program %d printed %q, want %q (of %q)", i, own, want, got)
		}
	}
	try.Equal(t, len(got), 6, "lines: %q", got)
}

// A line that is longer than maxLine is cut, and standard error may go elsewhere.
func TestCatchoutCutsAndSplits(t *testing.T) {
	ctx := deadline(t)
	task := enrol(t, alone(t))
	out, err := new(lines), new(lines)
	try.OK(t, task.CatchSplit(out, err))
	try.Get(task.Start(ctx, self(t), 1, program("long")))(t)
	try.Get(task.Start(ctx, self(t), 1, program("silent")))(t)
	exit(t, task)
	n, text := 0, ""
	for i, s := range out.all() {
		label, rest, ok := strings.Cut(s, "] ")
		if !ok || strings.HasSuffix(label, "+") != (n > 0 && i > 0 && text != "" && len(text) < 40_000) {
			t.Errorf("line %d: %.60q", i, s)
		}
		n++
		text += rest
	}
	if text != strings.Repeat("x", 40_000)+"short" || n != 4 {
		t.Errorf("%d lines, %d bytes", n, len(text))
	}
	if got := err.all(); len(got) != 1 || !strings.HasSuffix(got[0], "] does not enrol") {
		t.Errorf("standard error: %q", got)
	}
}

// The output of descendants is gathered as well, even if their parent, which started them, has
// ended: they pass it on themselves then.
func TestCatchoutOfDescendants(t *testing.T) {
	ctx := deadline(t)
	task := enrol(t, alone(t))
	l := new(lines)
	try.OK(t, task.Catchout(l))
	for i, kill := range []bool{false, true} {
		args := []string{"told"}
		if kill {
			args = append(args, "stays")
		}
		parents := try.Get(task.Spawn(ctx, self(t), 1, tpvm.Args(args...), program("spawns")))(t)
		parent := parents[0]
		m := try.Get(task.Recv(ctx, parent, 1))(t)
		text, err := m.UnpackString()
		m.Release()
		try.OK(t, err)
		id := try.Get(rocl.ParseGID(text))(t)
		if kill {
			try.OK(t, task.Signal(ctx, parent, syscall.SIGKILL))
		}
		status, err := task.Wait(ctx, parent)
		if want := (tpvm.Status{}); !kill && (err != nil || status != want) {
			t.Fatal(status, err)
		} else if kill && (err != nil || status.Signal != syscall.SIGKILL) {
			t.Fatal(status, err)
		}
		child := processOf(t, task, id)
		defer func() {
			try.OK(t, child.wait())
		}()
		for range 3 { // the child prints after the end of its launcher
			try.OK(t, task.Send(ctx, id, 1, nil))
			if m, err = task.Recv(ctx, id, 3); err != nil {
				t.Fatal(err)
			}
			m.Release()
		}
		// The child passes its output on itself now, by another way. When it exits, it waits for
		// that a second at most.
		eventually.True(t, "the child's lines are gathered", func() bool { return l.ending("] line 3") == i+1 })
		try.OK(t, task.Send(ctx, id, 2, nil))
	}
	exit(t, task)
	base := filepath.Base(self(t))
	count := map[string]int{}
	for _, s := range l.all() {
		_, rest, _ := strings.Cut(s, "] ")
		count[rest]++
		if !strings.HasPrefix(s, "["+base) {
			t.Errorf("line %q", s)
		}
	}
	if count["spawned"] != 2 || count["line 1"] != 2 || count["line 2"] != 2 || count["line 3"] != 2 {
		t.Errorf("gathered %v of %q", count, l.all())
	}
}

// stuck is a writer that takes nothing until it is released.
type stuck struct {
	begun chan struct{}
	once  sync.Once
	free  chan struct{}
	mu    sync.Mutex
	bytes int
}

func (s *stuck) Write(p []byte) (int, error) {
	s.once.Do(func() { close(s.begun) })
	<-s.free
	s.mu.Lock()
	s.bytes += len(p)
	s.mu.Unlock()
	return len(p), nil
}

// The output of a task that never ends, and that is not read, takes little memory. The task can be
// killed meanwhile.
func TestEndlessOutput(t *testing.T) {
	ctx := deadline(t)
	task := enrol(t, alone(t))
	s := &stuck{begun: make(chan struct{}), free: make(chan struct{})}
	try.OK(t, task.Catchout(s))
	ids := try.Get(task.Spawn(ctx, self(t), 2, program("endless")))(t)
	<-s.begun
	for _, id := range ids {
		try.OK(t, task.Kill(ctx, id))
		try.Equal(t, try.Get(task.Wait(ctx, id))(t).Signal, syscall.SIGTERM)
	}
	close(s.free)
	exit(t, task)
	// The bytes that were on the way: in the pipes, in the pods, and in the mailbox.
	if most := 1 << 20; s.bytes == 0 || s.bytes > most {
		t.Errorf("%d bytes were kept, more than %d", s.bytes, most)
	}
}

// Exit does not wait longer than its context for output that does not end.
func TestExitGivesUpOnOutput(t *testing.T) {
	ctx := deadline(t)
	task := enrol(t, alone(t))
	l := new(lines)
	try.OK(t, task.Catchout(l))
	ps := try.Get(task.Start(ctx, self(t), 1, program("sleeps")))(t)
	ended, cancel := context.WithCancel(ctx)
	cancel()
	try.Fails(task.Exit(ended))(t, context.Canceled)
	try.OK(t, posix.Kill(ps[0].PID(), syscall.SIGKILL))
}

// CatchLines also reports the beginning and the end of each output.
func TestCatchLines(t *testing.T) {
	ctx := deadline(t)
	task := enrol(t, alone(t))
	var got []string
	err := task.CatchLines(func(o *tpvm.Output) {
		got = append(got, fmt.Sprint(o.Kind, o.Index, o.IsError, " ", string(o.Text), o.Task.IsZero()))
	}, false)
	if err != nil {
		t.Fatal(err)
	}
	ids, err := task.Spawn(ctx, self(t), 1, program("prints"))
	if err != nil || len(ids) != 1 {
		t.Fatal(ids, err)
	}
	exit(t, task)
	want := []string{"0 0 false true", "1 0 false to output", "1 0 false to error", "1 0 false no end", "2 0 false false"}
	if len(got) != 5 || got[0][0] != '0' || got[4][0] != '2' || !strings.Contains(got[3], "no end") {
		t.Errorf("got %q, want such as %q", got, want)
	}
}

// Programs on several hosts have the host in their label. The host's pod passes their output on.
func TestCatchoutOfHosts(t *testing.T) {
	ctx := deadline(t)
	c := rocltest.Cluster(t, 2)
	a, b := enrol(t, c.Open(0)), enrol(t, c.Open(1))
	l := new(lines)
	try.OK(t, a.Catchout(l))
	if ps, err := a.Start(ctx, self(t), 4, program("silent")); err != nil || len(ps) != 4 {
		t.Fatal(ps, err)
	}
	exit(t, a)
	got := l.all()
	slices.Sort(got)
	var want []string
	for i := range 4 {
		want = append(want, fmt.Sprintf("[%s.%d@%s] does not enrol", filepath.Base(self(t)), i, b.Host()))
	}
	if !slices.Equal(got, want) {
		t.Errorf("got %q, want %q", got, want)
	}
}

// errFull is the error of the writer below.
var errFull = errors.New("no space left")

type full struct{}

func (full) Write([]byte) (int, error) { return 0, errFull }

// Output that cannot be written does not stop the programs, and Exit returns the error.
func TestCatchoutFails(t *testing.T) {
	ctx := deadline(t)
	task := enrol(t, alone(t), tpvm.WithLogger(nil))
	try.OK(t, task.Catchout(full{}))
	ps := try.Get(task.Start(ctx, self(t), 2, program("long")))(t)
	for _, p := range ps {
		if s, err := p.Wait(ctx); err != nil || !s.Success() {
			t.Error(s, err)
		}
	}
	try.Fails(task.Exit(ctx))(t, errFull)
}

// NoOutput discards output, and Catchout of nil ends the gathering.
func TestNoOutput(t *testing.T) {
	ctx := deadline(t)
	task := enrol(t, alone(t))
	l := new(lines)
	try.OK(t, task.Catchout(l))
	try.Get(task.Start(ctx, self(t), 1, program("long"), tpvm.NoOutput()))(t)
	try.OK(t, task.Catchout(nil))
	try.Get(task.Start(ctx, self(t), 1, program("silent")))(t)
	exit(t, task)
	if got := l.all(); len(got) != 1 || got[0] != "" {
		t.Errorf("%q was gathered", got)
	}
}

func init() {
	// printer starts a program that prints and does not enrol, tells its parent of the process, and
	// stays.
	programs["printer"] = asTask(func(ctx context.Context, t *tpvm.Task) error {
		if err := t.Catchout(io.Discard); err != nil {
			return err
		}
		ps, err := t.Start(ctx, "yes", 1)
		if err != nil {
			return err
		}
		if err := t.SendPacked(ctx, t.Parent(), 1, ps[0].PID()); err != nil {
			return err
		}
		select {}
	})
}

// A program that does not enrol gets SIGPIPE when the launcher, which reads its output, has ended.
func TestOutputWithoutReader(t *testing.T) {
	task := enrol(t, alone(t))
	ctx := deadline(t)
	ids := try.Get(task.Spawn(ctx, tpvm.Self, 1, program("printer")))(t)
	var pid int
	try.Get(task.RecvInto(ctx, ids[0], 1, &pid))(t)
	printer := try.Get(pidfd(pid))(t)
	kill(t, task, ids[0])
	if err := printer.wait(); err != nil {
		t.Error(err)
		_ = posix.Kill(pid, syscall.SIGKILL)
	}
}

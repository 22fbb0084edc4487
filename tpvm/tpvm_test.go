// SPDX-License-Identifier: Apache-2.0

package tpvm_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"syscall"
	"testing"

	"github.com/rocl-go/rocl"
	"github.com/rocl-go/rocl/internal/testkit/eventually"
	"github.com/rocl-go/rocl/internal/testkit/ownnode"
	"github.com/rocl-go/rocl/internal/testkit/try"
	"github.com/rocl-go/rocl/rocltest"
	"github.com/rocl-go/rocl/tpvm"
)

// The test binary also runs as the programs that tests spawn.
func TestMain(m *testing.M) {
	if p := programs[os.Getenv("TPVM_TEST_PROGRAM")]; p != nil {
		if err := p(); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	ownnode.Main(m)
}

var programs = map[string]func() error{
	"hello": asTask(func(ctx context.Context, t *tpvm.Task) error { // sends its parent its arguments, and ends when a message says so
		if err := t.SendPacked(ctx, t.Parent(), 1, fmt.Sprint(t.Args())); err != nil {
			return err
		}
		if m, err := t.Recv(ctx, t.Parent(), 2); err == nil {
			m.Release()
		}
		return nil
	}),
	"silent": func() error { return errors.New("does not enrol") },
}

// deadline returns a context that ends when a test hangs.
func deadline(t testing.TB) context.Context { return eventually.Context(t) }

// second returns the error of a call that returns a value too.
func second[T any](_ T, err error) error { return err }

// enrol enrols a task of the test.
func enrol(t testing.TB, c *rocl.Context, opts ...tpvm.Option) *tpvm.Task {
	t.Helper()
	opts = append([]tpvm.Option{tpvm.WithContext(c), tpvm.WithVM("test"), tpvm.WithSignal(func(syscall.Signal) {})}, opts...)
	task := try.Get(tpvm.Enrol(deadline(t), opts...))(t)
	t.Cleanup(func() {
		if t.Failed() { // the programs may wait for messages that the test would have sent
			task.KillChildren()
		}
		task.WaitChildren()
		try.Check(t, task.Exit(deadline(t)))
	})
	return task
}

// wantEnds receives the messages of Notify with a tag about the ends of tasks or threads.
func wantEnds(t testing.TB, task *tpvm.Task, tag int, ids ...tpvm.TID) {
	t.Helper()
	for _, id := range ids {
		m := try.Get(task.Recv(deadline(t), id, tag))(t)
		if !m.IsGone() || m.From() != id {
			t.Fatal(m)
		}
		m.Release()
	}
}

// program makes the test binary run as one of programs.
func program(name string) tpvm.SpawnOption { return tpvm.Env("TPVM_TEST_PROGRAM=" + name) }

// self returns the path of the test binary.
func self(t testing.TB) string {
	t.Helper()
	return try.Get(os.Executable())(t)
}

// alone opens a context on a node of the test's own, for real processes.
func alone(t testing.TB) *rocl.Context {
	t.Helper()
	c := try.Get(rocl.Open(deadline(t), rocl.WithSocket(node(t))))(t)
	t.Cleanup(func() { _ = c.Close() })
	return c
}

// joined enrols the process of a program that a test has spawned.
func joined(opts ...tpvm.Option) (*tpvm.Task, error) {
	node := tpvm.WithRocl(rocl.WithSocket(os.Getenv("TPVM_TEST_SOCKET")))
	return tpvm.Enrol(context.Background(), append(opts, node)...)
}

// asTask returns a program that enrols, calls f, and exits if f has not failed.
func asTask(f func(ctx context.Context, t *tpvm.Task) error) func() error {
	return func() error {
		ctx := context.Background()
		t, err := joined()
		if err == nil {
			err = f(ctx, t)
		}
		if err == nil {
			err = t.Exit(ctx)
		}
		return err
	}
}

// Threads are spawned by name on two nodes, know their parent and siblings, and answer.
//
// Promise (Package tpvm): `Spawn` returns an identifier for each thread or program that started,
// and a `*SpawnError` with the cause for each other. See also TestSpawnPrograms.
func TestSpawnThreads(t *testing.T) {
	ctx := deadline(t)
	c := rocltest.Cluster(t, 2)
	a, b := enrol(t, c.Open(0)), enrol(t, c.Open(1))
	echo := func(ctx context.Context, th *tpvm.Thread) error {
		sibs, err := th.Siblings(ctx)
		if err != nil {
			return err
		}
		var s string
		if _, err := th.RecvInto(ctx, th.Parent(), 7, &s); err != nil {
			return err
		}
		return th.SendPacked(ctx, th.Parent(), 8, fmt.Sprint(s, len(sibs), th.Args()))
	}
	for _, task := range []*tpvm.Task{a, b} {
		try.Get(task.Export(ctx, "echo", echo))(t)
	}
	ids, err := a.Spawn(ctx, "echo", 5, tpvm.Args("x", "y"))
	if err != nil || len(ids) != 5 {
		t.Fatal(ids, err)
	}
	try.Get(a.Notify(ctx, 9, ids...))(t)
	try.OK(t, a.Mcast(ctx, ids, 7, str(t, a.Thread, "hi")))
	for _, id := range ids {
		try.Equal(t, recv(t, a, id, 8), "hi5 [x y]")
		wantEnds(t, a, 9, id)
	}
}

// node starts a directory of its own for real processes, and returns its socket.
func node(t testing.TB) string {
	sock := filepath.Join(t.TempDir(), "s")
	t.Setenv("TPVM_TEST_SOCKET", sock)
	return sock
}

// Programs are spawned, know their parent, and end when a message says so.
//
// Promise (Package tpvm): A program finds its parent, arguments and message context. See also
// TestInherit.
func TestSpawnPrograms(t *testing.T) {
	ctx := deadline(t)
	task := enrol(t, alone(t))
	ids, err := task.Spawn(ctx, self(t), 3, tpvm.Args("one"), program("hello"))
	if err != nil || len(ids) != 3 {
		t.Fatal(ids, err)
	}
	if f, err := task.Rocl().Find(ctx, rocl.Match{"type": "tmp"}); !errors.Is(err, rocl.ErrNotFound) {
		t.Errorf("the resource of a start is found after it: %v: %v", f.ID, err)
	}
	try.Get(task.Notify(ctx, 9, ids...))(t)
	for _, id := range ids {
		try.Equal(t, recv(t, task, id, 1), "[one]")
		try.OK(t, task.Send(ctx, id, 2, nil))
		wantEnds(t, task, 9, id)
	}
	_, err = task.Spawn(ctx, self(t), 2, program("silent"))
	var spawn *tpvm.SpawnError
	if !errors.Is(err, tpvm.ErrNotEnrolled) || !errors.As(err, &spawn) || len(spawn.Slots) != 2 {
		t.Errorf("a program that does not enrol: %v", err)
	}
	if _, err = task.Spawn(ctx, "no-such-program", 1); !errors.Is(err, tpvm.ErrNoProgram) {
		t.Errorf("a missing program: %v", err)
	}
}

func TestIsGone(t *testing.T) {
	for _, err := range []error{rocl.ErrGone, rocl.ErrUnreachable} {
		if !tpvm.IsGone(fmt.Errorf("send: %w", err)) {
			t.Errorf("%v is not", err)
		}
	}
	for _, err := range []error{nil, tpvm.ErrNoTask, rocl.ErrNotFound, context.Canceled} {
		if tpvm.IsGone(err) {
			t.Errorf("%v is", err)
		}
	}
}

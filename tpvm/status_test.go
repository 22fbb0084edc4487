// SPDX-License-Identifier: Apache-2.0

package tpvm_test

import (
	"errors"
	"os"
	"path/filepath"
	"syscall"
	"testing"

	"github.com/rocl-go/rocl/internal/testkit/posix"
	"github.com/rocl-go/rocl/internal/testkit/try"
	"github.com/rocl-go/rocl/rocltest"
	"github.com/rocl-go/rocl/tpvm"
)

// A program that never enrols is started, and Wait returns how it ended, even if that was before
// the call, and wherever the program was started.
func TestStart(t *testing.T) {
	ctx := deadline(t)
	c := rocltest.Cluster(t, 2)
	task, other := enrol(t, c.Open(0)), enrol(t, c.Open(1))
	ps, err := task.Start(ctx, self(t), 3, tpvm.Args("7"), program("exits"))
	if err != nil || len(ps) != 3 {
		t.Fatal(ps, err)
	}
	for range 2 {
		for i, p := range ps {
			if s, err := p.Wait(ctx); err != nil || s.ExitCode() != 7 || s.Success() || p.Index() != i {
				t.Error(p, s, err)
			}
			try.Equal(t, try.Get(other.Wait(ctx, p.ID()))(t).Code, 7, "asked by another task")
		}
	}
	try.Fails(ps[0].Task(ctx))(t, tpvm.ErrNotEnrolled)
	ps = try.Get(task.Start(ctx, self(t), 1, program("sleeps")))(t)
	if err := other.Signal(ctx, ps[0].ID(), syscall.SIGTERM); err != nil { // SIGINT is ignored by all processes of a shell's background job
		t.Error(err)
	}
	if s, err := ps[0].Wait(ctx); err != nil || s.ExitCode() != 143 || s.String() != "signal 15 (terminated)" {
		t.Error(s, err)
	}
	ps = try.Get(task.Start(ctx, self(t), 2, program("sleeps"), tpvm.EndWithParent()))(t)
	for _, p := range ps {
		try.OK(t, p.Signal(ctx, syscall.SIGKILL))
		try.Equal(t, try.Get(p.Wait(ctx))(t).Signal, syscall.SIGKILL)
	}
	try.Fails(other.Start(ctx, "no-such-program", 2))(t, tpvm.ErrNoProgram)
	try.Fails(task.Wait(ctx, other.ID()))(t, tpvm.ErrNoStatus)
	try.Fails(task.Wait(ctx, task.Rocl().ID()))(t, tpvm.ErrNoStatus)
}

// SIGSTOP, SIGCONT and SIGKILL reach a process that cannot handle them.
func TestSignalStopped(t *testing.T) {
	ctx := deadline(t)
	task := enrol(t, alone(t))
	ids := try.Get(task.Spawn(ctx, self(t), 1, program("sleeps as task")))(t)
	for _, s := range []syscall.Signal{posix.SIGSTOP, posix.SIGCONT, posix.SIGSTOP, syscall.SIGKILL} {
		try.Check(t, task.Signal(ctx, ids[0], s), "%v", s)
	}
	try.Equal(t, try.Get(task.Wait(ctx, ids[0]))(t).Signal, syscall.SIGKILL)
}

// Programs over the limit of a host are refused one by one: the other programs run.
func TestSpawnTooMany(t *testing.T) {
	ctx := deadline(t)
	task := enrol(t, alone(t), tpvm.WithMaxPrograms(3))
	ids, err := task.Spawn(ctx, self(t), 5, program("sleeps as task"))
	var spawn *tpvm.SpawnError
	if len(ids) != 3 || !errors.As(err, &spawn) || !errors.Is(err, tpvm.ErrTooMany) || len(spawn.Slots) != 5 {
		t.Fatal(ids, err)
	}
	n := 0
	for _, err := range spawn.Slots {
		if err != nil {
			n++
		}
	}
	try.Equal(t, n, 2, "slots have failed: %v", err)
	for _, id := range ids {
		try.OK(t, task.Kill(ctx, id))
		try.Get(task.Wait(ctx, id))(t)
	}
	if ps, err := task.Start(ctx, self(t), 3, tpvm.Args("0"), program("exits")); err != nil || len(ps) != 3 {
		t.Error("when the others have ended:", ps, err)
	}
}

// A program that cannot be executed, and a name that no task exports, are errors of each slot.
func TestSpawnMissing(t *testing.T) {
	ctx := deadline(t)
	task := enrol(t, alone(t))
	script := filepath.Join(t.TempDir(), "script")
	try.OK(t, os.WriteFile(script, []byte("#!/no/such/interpreter\n"), 0o755))
	for _, name := range []string{"no-such-program", "/no/such/program", script} {
		var spawn *tpvm.SpawnError
		if ids, err := task.Spawn(ctx, name, 2); len(ids) > 0 || !errors.As(err, &spawn) || len(spawn.Slots) != 2 || spawn.Slots[1] == nil {
			t.Errorf("%s: %v %v", name, ids, err)
		}
	}
	try.Fails(task.Spawn(ctx, "no task exports this", 1, tpvm.Threads()))(t, tpvm.ErrNoProgram)
}

// An observer is not listed, and starts no programs for other tasks.
func TestObserving(t *testing.T) {
	ctx := deadline(t)
	c := alone(t)
	seen, hidden := enrol(t, c), enrol(t, c, tpvm.Observing())
	for i, err := range hidden.Tasks(ctx) {
		if err != nil || i.ID != seen.ID() {
			t.Error(i, err)
		}
	}
	ps := try.Get(hidden.Start(ctx, self(t), 1, tpvm.Args("0"), program("exits")))(t)
	if s, err := ps[0].Wait(ctx); err != nil || !s.Success() {
		t.Error(s, err)
	}
}

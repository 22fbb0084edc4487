// SPDX-License-Identifier: Apache-2.0

package tpvm_test

import (
	"context"
	"errors"
	"fmt"
	"syscall"
	"testing"

	"github.com/rocl-go/rocl"
	"github.com/rocl-go/rocl/internal/testkit/posix"
	"github.com/rocl-go/rocl/internal/testkit/try"
	"github.com/rocl-go/rocl/tpvm"
)

func init() {
	// family spawns a program that enrols and starts one that does not. It tells its own parent of
	// them, and stays. Both end with it if its argument says so.
	programs["family"] = asTask(func(ctx context.Context, t *tpvm.Task) error {
		var opts []tpvm.SpawnOption
		if t.Args()[0] == "end" {
			opts = append(opts, tpvm.EndWithParent())
		}
		ids, err := t.Spawn(ctx, tpvm.Self, 1, append(opts, program("reports"), tpvm.Args(t.Args()[0]))...)
		if err != nil {
			return err
		}
		ps, err := t.Start(ctx, tpvm.Self, 1, append(opts, program("sleeps"))...)
		if err != nil {
			return err
		}
		if err := t.SendPacked(ctx, t.Parent(), 1, ids[0].String(), ps[0].PID()); err != nil {
			return err
		}
		select {}
	})
	// reports waits for a message, sends to its parent, and reports how that went.
	programs["reports"] = asTask(func(ctx context.Context, t *tpvm.Task) error {
		m, err := t.Recv(ctx, tpvm.AnyTask, 2)
		if err != nil {
			return err
		}
		from := m.From()
		m.Release()
		if t.Args()[0] == "stay" { // and the test kills the parent
			if _, err = t.Notify(ctx, 6, t.Parent()); err != nil {
				return err
			}
			if m, err = t.Recv(ctx, t.Parent(), 6); err != nil {
				return err
			}
			m.Release()
		}
		err = t.Send(ctx, t.Parent(), 5, nil)
		for err == nil && t.Args()[0] == "stay" {
			// The link to the parent has ended. What a new one accepts before it has found out that
			// the parent has ended is reported as lost.
			err = t.Send(ctx, t.Parent(), 5, nil)
		}
		tag := 3
		if errors.Is(err, rocl.ErrGone) {
			tag = 4
		}
		return t.SendPacked(ctx, from, tag, fmt.Sprint(err))
	})
}

// family spawns a parent, and returns it with its children: a task, and a process that is not a
// task.
func family(t *testing.T, task *tpvm.Task, how string) (parent, child tpvm.TID, pid int) {
	t.Helper()
	ctx := deadline(t)
	ids := try.Get(task.Spawn(ctx, self(t), 1, tpvm.Args(how), program("family")))(t)
	var s string
	try.Get(task.RecvInto(ctx, ids[0], 1, &s, &pid))(t)
	return ids[0], try.Get(rocl.ParseGID(s))(t), pid
}

// kill kills the process of a task that the test has spawned.
func kill(t *testing.T, task *tpvm.Task, id tpvm.TID) {
	t.Helper()
	try.OK(t, task.Signal(deadline(t), id, syscall.SIGKILL))
	try.Equal(t, try.Get(task.Wait(deadline(t), id))(t).Signal, syscall.SIGKILL)
}

// Programs that shall end with their parent end when it is killed, whether they have enrolled or
// not.
//
// Promise (Package tpvm): Programs spawned with `EndWithParent` end with their parent. Others go
// on. See also TestParentKilled.
func TestEndWithParent(t *testing.T) {
	ctx := deadline(t)
	task := enrol(t, alone(t))
	parent, child, pid := family(t, task, "end")
	sibling, other, otherPID := family(t, task, "end") // the sibling has another parent
	try.Get(task.Notify(ctx, 9, child))(t)
	process := try.Get(pidfd(pid))(t)
	kill(t, task, parent)
	wantEnds(t, task, 9, child)
	try.OK(t, process.wait())
	try.Check(t, posix.Kill(otherPID, 0), "the child of a sibling has ended too")
	otherProcess := processOf(t, task, other)
	try.OK(t, task.Send(ctx, other, 2, nil))
	recv(t, task, other, 3)
	process = try.Get(pidfd(otherPID))(t)
	kill(t, task, sibling)
	try.OK(t, process.wait())
	try.OK(t, otherProcess.wait())
}

// Programs that shall not end with their parent go on when it is killed. They learn that it has
// ended when they send to it.
func TestParentKilled(t *testing.T) {
	ctx := deadline(t)
	task := enrol(t, alone(t))
	parent, child, pid := family(t, task, "stay")
	process := processOf(t, task, child)
	kill(t, task, parent)
	try.OK(t, task.Send(ctx, child, 2, nil))
	m := try.Get(task.Recv(ctx, child, tpvm.AnyTag))(t)
	if m.Tag() != 4 {
		text, _ := m.UnpackString()
		t.Errorf("the error of the send to the parent that was killed is %s", text)
	}
	m.Release()
	try.OK(t, process.wait())
	try.Check(t, posix.Kill(pid, syscall.SIGKILL), "a child that is no task has ended with its parent")
}

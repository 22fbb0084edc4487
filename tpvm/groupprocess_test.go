// SPDX-License-Identifier: Apache-2.0

package tpvm_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"

	"github.com/rocl-go/rocl"
	"github.com/rocl-go/rocl/internal/testkit/try"
	"github.com/rocl-go/rocl/tpvm"
	"github.com/rocl-go/rocl/tpvm/pack"
)

// The tags of the messages between a test and its members.
const (
	tagEnd = iota + 20
	tagReport
	tagCount
	tagMet
)

func init() {
	programs["members"] = asTask(func(ctx context.Context, t *tpvm.Task) error { // exports functions of members until a message ends it
		for name, f := range memberFuncs {
			if _, err := t.Export(ctx, name, f); err != nil {
				return err
			}
		}
		if err := t.Send(ctx, t.Parent(), tagReport, nil); err != nil {
			return err
		}
		if m, err := t.Recv(ctx, t.Parent(), tagEnd); err == nil {
			m.Release()
		}
		return nil
	})
}

var memberFuncs = map[string]tpvm.ThreadFunc{
	// survivor meets the other members in barriers, and reports the first. It reports each member
	// that is missing, and then gets the number of remaining members.
	"survivor": func(ctx context.Context, th *tpvm.Thread) error {
		count, err := strconv.Atoi(th.Args()[0])
		if err != nil {
			return err
		}
		g, err := th.Join(ctx, "survivors")
		if err != nil {
			return err
		}
		for {
			for {
				if err = g.Barrier(ctx, count); err == nil {
					break
				}
				if !errors.Is(err, tpvm.ErrMemberGone) && !errors.Is(err, tpvm.ErrBarrierCount) {
					return err
				}
			}
			if err := th.Send(ctx, th.Parent(), tagMet, nil); err != nil {
				return err
			}
			for err == nil {
				err = g.Barrier(ctx, count)
			}
			if err := th.SendPacked(ctx, th.Parent(), tagReport, fmt.Sprint(errors.Is(err, tpvm.ErrMemberGone), err)); err != nil {
				return err
			}
			if _, err := th.RecvInto(ctx, th.Parent(), tagCount, &count); err != nil {
				return err
			}
		}
	},
	// holder joins a group, which it coordinates then, and leaves it.
	"holder": func(ctx context.Context, th *tpvm.Thread) error {
		if _, err := th.Join(ctx, th.Args()[0]); err != nil {
			return err
		}
		if err := th.Send(ctx, th.Parent(), tagReport, nil); err != nil {
			return err
		}
		m, err := th.Recv(ctx, th.Parent(), tagCount)
		if err != nil {
			return err
		}
		m.Release()
		if err := th.LeaveGroup(ctx, th.Args()[0]); err != nil {
			return err
		}
		return th.Send(ctx, th.Parent(), tagReport, nil)
	},
}

// members enrols the test and starts programs that export memberFuncs.
func members(t testing.TB, n int) (*tpvm.Task, []tpvm.TID) {
	ctx := deadline(t)
	task := enrol(t, alone(t))
	ids := try.Get(task.Spawn(ctx, self(t), n, program("members")))(t)
	t.Cleanup(func() {
		for _, id := range ids {
			_ = task.Send(deadline(t), id, tagEnd, nil)
		}
	})
	for _, id := range ids {
		recv(t, task, id, tagReport)
	}
	return task, ids
}

// recv receives a message, and returns the string in it.
func recv(t testing.TB, task *tpvm.Task, from tpvm.TID, tag int) string {
	t.Helper()
	m := try.Get(task.Recv(deadline(t), from, tag))(t)
	defer m.Release()
	if m.Len() == 0 {
		return ""
	}
	return try.Get(m.UnpackString())(t)
}

// Processes with members are killed with SIGKILL while all wait in barriers, each time the one that
// coordinates the group. Each remaining member learns which are missing, and they meet again.
func TestGroupProcessKilled(t *testing.T) {
	const procs, each = 4, 2
	ctx := deadline(t)
	task, ids := members(t, procs)
	pids := map[tpvm.TID]int{} // by the contexts of the processes
	for i, err := range task.Tasks(ctx) {
		try.OK(t, err)
		pids[i.ID.Context()] = i.PID
	}
	ths := try.Get(task.Spawn(ctx, "survivor", procs*each, tpvm.Args(fmt.Sprint(procs*each))))(t)
	for {
		for _, id := range ths { // a member that has met the others knows them
			recv(t, task, id, tagMet)
		}
		if len(ids) == 1 {
			return
		}
		f := try.Get(task.Rocl().Find(ctx, rocl.Match{"type": "groupsync", "group": "survivors"}))(t)
		victim := f.ID.Context()
		p, err := os.FindProcess(pids[victim])
		if err == nil {
			err = p.Kill()
		}
		try.OK(t, err)
		isVictim := func(id tpvm.TID) bool { return id.Context() == victim }
		var killed, left []tpvm.TID
		for _, id := range ths {
			if isVictim(id) {
				killed = append(killed, id)
			} else {
				left = append(left, id)
			}
		}
		if len(killed) != each {
			t.Fatalf("%d threads killed", len(killed))
		}
		for _, id := range left {
			s := recv(t, task, id, tagReport)
			if !strings.HasPrefix(s, "true") || !strings.Contains(s, killed[0].String()) && !strings.Contains(s, killed[1].String()) {
				t.Errorf("report of %v: %q does not name %v", id, s, killed)
			}
		}
		b := task.Buffer(pack.Default)
		try.OK(t, b.PackValues(len(left)))
		try.OK(t, task.Mcast(ctx, left, tagCount, b))
		ths = left
		for i, id := range ids {
			if isVictim(id) {
				ids = append(ids[:i:i], ids[i+1:]...)
				break
			}
		}
	}
}

// A process that coordinates groups, and has no members any more, is killed with SIGKILL while the
// members of each group meet in barriers. All members pass all barriers, and none gets an error.
func TestGroupCoordinatorKilled(t *testing.T) {
	const groups, tasks, rounds = 8, 3, 100
	ctx := deadline(t)
	task, ids := members(t, 1)
	ts := &team{t: t}
	for range tasks {
		c := try.Get(rocl.Open(ctx, rocl.WithSocket(os.Getenv("TPVM_TEST_SOCKET"))))(t)
		t.Cleanup(func() { _ = c.Close() })
		ts.tasks = append(ts.tasks, enrol(t, c))
	}
	var all [groups][]*tpvm.Group
	for i := range all {
		name := fmt.Sprint("held", i)
		holder := try.Get(task.Spawn(ctx, "holder", 1, tpvm.Args(name)))(t)
		recv(t, task, holder[0], tagReport)
		for j := range tasks {
			g := try.Get(ts.start(j).Join(ctx, name))(t)
			all[i] = append(all[i], g)
		}
		try.OK(t, task.Send(ctx, holder[0], tagCount, nil))
		recv(t, task, holder[0], tagReport)
	}
	var wg sync.WaitGroup
	for i, gs := range all {
		for j, g := range gs {
			wg.Go(func() {
				for k := range rounds {
					if i == 0 && j == 0 && k == rounds/4 {
						try.Check(t, task.Signal(ctx, ids[0], syscall.SIGKILL))
					}
					if err := g.Barrier(ctx, tasks); err != nil {
						t.Errorf("group %d, member %d, barrier %d: %v", i, j, k, err)
						return
					}
				}
			})
		}
	}
	wg.Wait()
}

// SPDX-License-Identifier: Apache-2.0

package tpvm_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"testing"

	"github.com/rocl-go/rocl"
	"github.com/rocl-go/rocl/internal/testkit/eventually"
	"github.com/rocl-go/rocl/internal/testkit/try"
	"github.com/rocl-go/rocl/rocltest"
	"github.com/rocl-go/rocl/tpvm"
)

// spawnBy spawns threads of a name, and counts the threads in each context.
func spawnBy(t *testing.T, task *tpvm.Task, name string, n int) (by map[tpvm.TID]int, err error) {
	t.Helper()
	ids, err := task.Spawn(deadline(t), name, n, tpvm.Threads())
	by = map[tpvm.TID]int{}
	for _, id := range ids {
		by[id.Context()]++
	}
	return by, err
}

func returns(context.Context, *tpvm.Thread) error { return nil }

// A name can be spawned from another node as long as a task exports it. Two tasks may export the
// same name, but one task may not export it twice.
func TestExport(t *testing.T) {
	ctx := deadline(t)
	c := rocltest.Cluster(t, 3)
	a, b, d := enrol(t, c.Open(0)), enrol(t, c.Open(1)), enrol(t, c.Open(2))
	ofB := try.Get(b.Export(ctx, "returns", returns))(t)
	ofD := try.Get(d.Export(ctx, "returns", returns))(t)
	try.Fails(b.Export(ctx, "returns", returns))(t, tpvm.ErrExported)
	if by, err := spawnBy(t, a, "returns", 4); err != nil || by[b.ID().Context()] != 2 || by[d.ID().Context()] != 2 {
		t.Error("exported by two tasks:", by, err)
	}
	try.OK(t, ofB.Close())
	try.Equal(t, try.Get(spawnBy(t, a, "returns", 4))(t)[d.ID().Context()], 4, "exported by one task")
	try.OK(t, ofD.Close())
	if by, err := spawnBy(t, a, "returns", 1); !errors.Is(err, tpvm.ErrNoProgram) {
		t.Error("exported by none:", by, err)
	}
	try.Works(b.Export(ctx, "returns", returns))(t, "exported again")
}

// The exports of a killed process vanish. Those of another process under the same name stay.
func TestExportOfKilled(t *testing.T) {
	task := enrol(t, alone(t))
	ids := try.Get(task.Spawn(deadline(t), self(t), 2, program("run")))(t)
	first, second := ids[0].Context(), ids[1].Context()
	if by, err := spawnBy(t, task, "greet", 4); err != nil || by[first] != 2 || by[second] != 2 {
		t.Fatal(by, err)
	}
	kill(t, task, ids[0])
	eventually.True(t, "the directory has noticed the end of the first", func() bool {
		by, err := spawnBy(t, task, "greet", 4)
		return err == nil && by[second] == 4
	})
	kill(t, task, ids[1])
	eventually.True(t, "no process exports the program", func() bool {
		_, err := spawnBy(t, task, "greet", 1)
		return errors.Is(err, tpvm.ErrNoProgram)
	})
}

// If some threads cannot be started, the others run, and each slot has its own result.
func TestSpawnPartly(t *testing.T) {
	ctx := deadline(t)
	c := rocltest.Cluster(t, 2)
	a, b := enrol(t, c.Open(0)), enrol(t, c.Open(1))
	for task, name := range map[*tpvm.Task]string{a: "partly", b: "another"} {
		try.Get(task.Export(ctx, name, returns))(t)
	}
	f := try.Get(a.Rocl().Find(ctx, rocl.Match{"type": "threaddef", "name": "another"}))(t)
	pod, _ := f.Attrs.Get("systhread")
	stale := rocl.Attrs{"type": "threaddef", "vm": "test", "name": "partly", "systhread": string(pod)}
	try.Get(a.Rocl().Register(ctx, stale))(t)
	ids, err := a.Spawn(ctx, "partly", 4)
	var e *tpvm.SpawnError
	if len(ids) != 2 || !errors.As(err, &e) || len(e.Slots) != 4 || len(e.Unwrap()) != 2 || !errors.Is(err, tpvm.ErrNoProgram) {
		t.Errorf("%v: %v", ids, err)
	}
}

// A thread that a thread spawns on another node has that thread as its parent, over three hops.
func TestNestedSpawn(t *testing.T) {
	ctx := deadline(t)
	const hops = 3
	c := rocltest.Cluster(t, hops)
	tasks := make([]*tpvm.Task, hops)
	for i := range tasks {
		tasks[i] = enrol(t, c.Open((i+1)%hops))
		try.Get(tasks[i].Export(ctx, fmt.Sprint("hop", i), func(ctx context.Context, th *tpvm.Thread) error {
			family := th.Parent().String() + " " + th.ID().String()
			if i+1 < hops {
				ids, err := th.Spawn(ctx, fmt.Sprint("hop", i+1), 1)
				if err != nil {
					return err
				}
				var child string
				if _, err := th.RecvInto(ctx, ids[0], 1, &child); err != nil {
					return err
				}
				family += " " + child
			}
			return th.SendPacked(ctx, th.Parent(), 1, family)
		}))(t)
	}
	root := tasks[hops-1]
	ids := try.Get(root.Spawn(ctx, "hop0", 1))(t)
	var family string
	try.Get(root.RecvInto(ctx, ids[0], 1, &family))(t)
	fields := strings.Fields(family) // the parent and the identifier of each hop
	if len(fields) != 2*hops {
		t.Fatal(family)
	}
	parent := root.ID()
	for i := range hops {
		id, err := rocl.ParseGID(fields[2*i+1])
		if err != nil || fields[2*i] != parent.String() || id.Context() != tasks[i].ID().Context() {
			t.Errorf("hop %d: %v: %v", i, fields, err)
		}
		parent = id
	}
}

func init() {
	programs["orphan"] = asTask(func(ctx context.Context, t *tpvm.Task) error { // prints what it knows of its family
		siblings, err := t.Siblings(context.Background())
		fmt.Println("parent", t.Parent(), "siblings", len(siblings))
		return err
	})
}

// A program that was spawned with NoParent sees no parent. Its spawner still gets its output and
// its status, and is its parent in lists.
func TestNoParent(t *testing.T) {
	ctx := deadline(t)
	task := enrol(t, alone(t))
	var out strings.Builder
	try.OK(t, task.Catchout(&out))
	ps := try.Get(task.Start(ctx, self(t), 2, program("orphan"), tpvm.NoParent(), tpvm.EndWithParent()))(t)
	for _, p := range ps {
		if s, err := p.Wait(ctx); err != nil || !s.Success() {
			t.Error(s, err)
		}
	}
	ids := try.Get(task.Spawn(ctx, self(t), 1, program("sleeps as task"), tpvm.NoParent()))(t)
	for i, err := range task.Tasks(ctx) {
		if err != nil || i.ID == ids[0] && i.Parent != task.ID() {
			t.Error(i, err)
		}
	}
	kill(t, task, ids[0])
	parents := make(chan tpvm.TID, 1)
	try.Get(task.Export(ctx, "orphan", func(_ context.Context, th *tpvm.Thread) error {
		parents <- th.Parent()
		return nil
	}))(t)
	try.Get(task.Spawn(ctx, "orphan", 1, tpvm.NoParent()))(t)
	if p := <-parents; !p.IsZero() {
		t.Error("the parent of the thread:", p)
	}
	if err := task.Exit(ctx); err != nil { // Exit waits for the output
		t.Fatal(err)
	}
	try.Equal(t, strings.Count(out.String(), fmt.Sprint("parent ", tpvm.TID{}, " siblings 2\n")), 2, "%v", out.String())
}

// The resource by which a program finds its parent is listed while the program has not enrolled. It
// is gone when the program has enrolled, has ended, or could not be started.
func TestProgramsListed(t *testing.T) {
	ctx := deadline(t)
	task := enrol(t, alone(t))
	listed := func() (all []tpvm.TaskInfo) {
		t.Helper()
		for i, err := range task.Programs(ctx) {
			try.OK(t, err)
			all = append(all, i)
		}
		return all
	}
	await := func() { // the launcher deletes the resource after its answer
		t.Helper()
		for len(listed()) > 0 {
			if ctx.Err() != nil {
				t.Fatal("left behind:", listed())
			}
		}
	}
	ids := try.Get(task.Spawn(ctx, self(t), 2, program("sleeps as task")))(t)
	await()
	ps := try.Get(task.Start(ctx, self(t), 1, program("sleeps")))(t)
	if all := listed(); len(all) != 1 || all[0].ID != ps[0].ID() || all[0].Parent != task.ID() || all[0].PID != ps[0].PID() {
		t.Error("not enrolled:", all)
	}
	kill(t, task, ps[0].ID())
	for _, id := range ids {
		kill(t, task, id)
	}
	try.Fails(task.Spawn(ctx, self(t), 1, program("silent")))(t, tpvm.ErrNotEnrolled)
	await()
}

// A program in its own PID namespace finds its parent.
func TestSpawnInNamespace(t *testing.T) {
	if out, err := exec.Command("unshare", "--pid", "--fork", "true").CombinedOutput(); err != nil {
		t.Skipf("no PID namespaces: %v: %s", err, out)
	}
	ctx := deadline(t)
	task := enrol(t, alone(t))
	ids := try.Get(task.Spawn(ctx, "unshare", 1, tpvm.Args("--pid", "--fork", "--kill-child", self(t), "inside"), program("hello")))(t)
	var said string
	if _, err := task.RecvInto(ctx, ids[0], 1, &said); err != nil || said != "[inside]" {
		t.Error(said, err)
	}
	for i, err := range task.Tasks(ctx) {
		if err != nil || i.ID == ids[0] && (i.Parent != task.ID() || i.PID != 1) {
			t.Error(i, err)
		}
	}
	try.OK(t, task.Send(ctx, ids[0], 2, nil))
	if s, err := task.Wait(ctx, ids[0]); err != nil || !s.Success() {
		t.Error(s, err)
	}
}

func init() {
	programs["surroundings"] = asTask(func(ctx context.Context, t *tpvm.Task) error { // sends its parent its directory and two variables
		dir, err := os.Getwd()
		if err != nil {
			return err
		}
		return t.SendPacked(ctx, t.Parent(), 1, dir, os.Getenv("TPVM_TEST_SPAWN"), os.Getenv("TPVM_TEST_POD"))
	})
}

// Programs have the directory and the environment that Dir, Env and WithEnv give.
func TestSurroundings(t *testing.T) {
	ctx := deadline(t)
	task := enrol(t, alone(t), tpvm.WithEnv("TPVM_TEST_POD=pod", "TPVM_TEST_SPAWN=pod"))
	want := t.TempDir()
	ids := try.Get(task.Spawn(ctx, self(t), 1, program("surroundings"), tpvm.Dir(want), tpvm.Env("TPVM_TEST_SPAWN=spawn")))(t)
	var dir, ofSpawn, ofPod string
	if _, err := task.RecvInto(ctx, ids[0], 1, &dir, &ofSpawn, &ofPod); err != nil || dir != want || ofSpawn != "spawn" || ofPod != "pod" {
		t.Error(dir, ofSpawn, ofPod, err)
	}
}

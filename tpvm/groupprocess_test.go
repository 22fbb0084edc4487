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
	"time"

	"github.com/rocl-go/rocl"
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
	// survivor meets the other members in barriers. It reports each member that is missing, and
	// then gets the number of remaining members.
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
			for err == nil {
				err = g.Barrier(ctx, count)
			}
			if err := report(ctx, th, tagReport, fmt.Sprint(errors.Is(err, tpvm.ErrMemberGone), err)); err != nil {
				return err
			}
			m, err2 := th.Recv(ctx, th.Parent(), tagCount)
			if err2 != nil {
				return err2
			}
			left, err2 := pack.UnpackOne[int32](&m.Reader)
			m.Release()
			if err2 != nil {
				return err2
			}
			count = int(left)
			for {
				if err = g.Barrier(ctx, count); err == nil {
					break
				}
				if !errors.Is(err, tpvm.ErrMemberGone) && !errors.Is(err, tpvm.ErrBarrierCount) {
					return err
				}
			}
			if err := report(ctx, th, tagMet, ""); err != nil {
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
	"barriers": timed(func(ctx context.Context, g *tpvm.Group, count int) error { return g.Barrier(ctx, count) }),
	"reduces": timed(func(ctx context.Context, g *tpvm.Group, count int) error {
		_, err := tpvm.Reduce(ctx, g, 1, 0, make([]float64, 128), tpvm.Sum)
		return err
	}),
	"frozen-reduces": timed(func(ctx context.Context, g *tpvm.Group, count int) error {
		_, err := tpvm.Reduce(ctx, g, 1, 0, make([]float64, 128), tpvm.Sum)
		return err
	}),
}

func report(ctx context.Context, th *tpvm.Thread, tag int, s string) error {
	b := th.Buffer(pack.Default)
	if err := b.PackString(s); err != nil {
		return err
	}
	return th.Send(ctx, th.Parent(), tag, b)
}

// timed returns the function of a member that calls f often between two barriers, and reports the
// time.
func timed(f func(context.Context, *tpvm.Group, int) error) tpvm.ThreadFunc {
	return func(ctx context.Context, th *tpvm.Thread) error {
		count, err := strconv.Atoi(th.Args()[0])
		rounds, err2 := strconv.Atoi(th.Args()[1])
		if err := errors.Join(err, err2); err != nil {
			return err
		}
		g, err := th.Join(ctx, th.Args()[2])
		if err != nil {
			return err
		}
		sync := func() error { return g.Barrier(ctx, count) }
		if strings.HasPrefix(th.Name(), "frozen") {
			err = g.Freeze(ctx, count)
		}
		if err == nil {
			err = sync()
		}
		start := time.Now()
		for range rounds {
			if err == nil {
				err = f(ctx, g, count)
			}
		}
		if err == nil {
			err = sync()
		}
		s := strconv.FormatInt(time.Since(start).Nanoseconds(), 10)
		if err != nil {
			s = err.Error()
		}
		return report(ctx, th, tagReport, s)
	}
}

// members enrols the test and starts programs that export memberFuncs.
func members(t testing.TB, n int) (*tpvm.Task, []tpvm.TID) {
	ctx := deadline(t)
	task := enrol(t, alone(t))
	ids := must(task.Spawn(ctx, self(t), n, program("members")))(t)
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
	m := must(task.Recv(deadline(t), from, tag))(t)
	defer m.Release()
	if m.Len() == 0 {
		return ""
	}
	return must(m.UnpackString())(t)
}

// Processes with members are killed with SIGKILL while all wait in barriers, each time the one that
// coordinates the group. Each remaining member learns which are missing, and they meet again.
func TestGroupProcessKilled(t *testing.T) {
	const procs, each = 4, 2
	ctx := deadline(t)
	task, ids := members(t, procs)
	pids := map[tpvm.TID]int{} // by the contexts of the processes
	for i, err := range task.Tasks(ctx) {
		if err != nil {
			t.Fatal(err)
		}
		pids[i.ID.Context()] = i.PID
	}
	ths := must(task.Spawn(ctx, "survivor", procs*each, tpvm.Args(fmt.Sprint(procs*each))))(t)
	for { // until all have joined
		n := must(task.GroupSize(ctx, "survivors"))(t)
		if n == procs*each {
			break
		}
	}
	for len(ids) > 1 {
		f := must(task.Rocl().Find(ctx, rocl.Match{"type": "groupsync", "group": "survivors"}))(t)
		victim := f.ID.Context()
		p, err := os.FindProcess(pids[victim])
		if err == nil {
			err = p.Kill()
		}
		if err != nil {
			t.Fatal(err)
		}
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
		check(t, pack.PackOne(b, int32(len(left))))
		check(t, task.Mcast(ctx, left, tagCount, b))
		for _, id := range left {
			recv(t, task, id, tagMet)
		}
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
		c := must(rocl.Open(ctx, rocl.WithSocket(os.Getenv("TPVM_TEST_SOCKET"))))(t)
		t.Cleanup(func() { _ = c.Close() })
		ts.tasks = append(ts.tasks, enrol(t, c))
	}
	var all [groups][]*tpvm.Group
	for i := range all {
		name := fmt.Sprint("held", i)
		holder := must(task.Spawn(ctx, "holder", 1, tpvm.Args(name)))(t)
		recv(t, task, holder[0], tagReport)
		for j := range tasks {
			g := must(ts.start(j).Join(ctx, name))(t)
			all[i] = append(all[i], g)
		}
		check(t, task.Send(ctx, holder[0], tagCount, nil))
		recv(t, task, holder[0], tagReport)
	}
	var wg sync.WaitGroup
	for i, gs := range all {
		for j, g := range gs {
			wg.Go(func() {
				for k := range rounds {
					if i == 0 && j == 0 && k == rounds/4 {
						if err := task.Signal(ctx, ids[0], syscall.SIGKILL); err != nil {
							t.Error(err)
						}
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

// benchmarkMembers runs a function in 64 threads over processes.
func benchmarkMembers(b *testing.B, name string, procs int) {
	const threads = 64
	task, _ := members(b, procs)
	ctx := deadline(b)
	ids := must(task.Spawn(ctx, name, threads, tpvm.Args(fmt.Sprint(threads), fmt.Sprint(b.N), fmt.Sprint("g", b.N))))(b)
	var ns int64
	for i, id := range ids {
		s := recv(b, task, id, tagReport)
		n, err := strconv.ParseInt(s, 10, 64)
		if err != nil {
			b.Fatal(s)
		}
		if i == 0 {
			ns = n
		}
	}
	b.ReportMetric(float64(ns)/float64(b.N), "ns/op")
}

// BenchmarkGroupBarrier measures the barrier of 64 threads, beside a barrier of sync.Cond within
// one process.
func BenchmarkGroupBarrier(b *testing.B) {
	b.Run("Cond", func(b *testing.B) {
		const threads = 64
		var mu sync.Mutex
		cond, n, round := sync.NewCond(&mu), 0, 0
		var wg sync.WaitGroup
		b.ResetTimer()
		for range threads {
			wg.Go(func() {
				for range b.N {
					mu.Lock()
					n++
					if n == threads {
						n = 0
						round++
						cond.Broadcast()
					} else {
						for r := round; r == round; {
							cond.Wait()
						}
					}
					mu.Unlock()
				}
			})
		}
		wg.Wait()
	})
	for _, procs := range []int{1, 2, 4} {
		b.Run(fmt.Sprintf("Processes%d", procs), func(b *testing.B) { benchmarkMembers(b, "barriers", procs) })
	}
}

// BenchmarkGroupReduce measures a reduction of 128 float64 by 64 threads in 4 processes.
func BenchmarkGroupReduce(b *testing.B) {
	b.Run("Open", func(b *testing.B) { benchmarkMembers(b, "reduces", 4) })
	b.Run("Frozen", func(b *testing.B) { benchmarkMembers(b, "frozen-reduces", 4) })
}

// BenchmarkGroupJoin64 measures 64 threads in one process that join a group and leave it.
func BenchmarkGroupJoin64(b *testing.B) {
	ctx := deadline(b)
	ts := &team{t: b, tasks: []*tpvm.Task{enrol(b, alone(b))}}
	var hs []handle
	for range 64 {
		hs = append(hs, ts.start(0))
	}
	for b.Loop() {
		var wg sync.WaitGroup
		for _, h := range hs {
			wg.Go(func() {
				if _, err := h.Join(ctx, "join"); err != nil {
					b.Error(err)
				}
			})
		}
		wg.Wait()
		b.StopTimer()
		for _, h := range hs {
			if err := h.LeaveGroup(ctx, "join"); err != nil {
				b.Error(err)
			}
		}
		b.StartTimer()
	}
}

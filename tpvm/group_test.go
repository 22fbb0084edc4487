// SPDX-License-Identifier: Apache-2.0

package tpvm_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/rocl-go/rocl"
	"github.com/rocl-go/rocl/internal/testkit/eventually"
	"github.com/rocl-go/rocl/internal/testkit/try"
	"github.com/rocl-go/rocl/rocltest"
	"github.com/rocl-go/rocl/tpvm"
	"github.com/rocl-go/rocl/tpvm/pack"
)

// A team is threads that a test uses from its own goroutine.
type team struct {
	t        testing.TB
	contexts []*rocl.Context
	tasks    []*tpvm.Task
	n        int
}

// newThreads enrols tasks, each on a node of its own.
func newThreads(t testing.TB, tasks int) *team {
	c := rocltest.Cluster(t, tasks)
	ts := &team{t: t}
	for i := range tasks {
		ts.contexts = append(ts.contexts, c.Open(i))
		ts.tasks = append(ts.tasks, enrol(t, ts.contexts[i]))
	}
	return ts
}

// A handle is a thread, whose function returns when end is called.
type handle struct {
	*tpvm.Thread
	end func()
}

// start starts a thread of a task. The thread lives until end, or the end of the test.
func (ts *team) start(task int) handle {
	ts.t.Helper()
	ctx := deadline(ts.t)
	ts.n++
	name := fmt.Sprintf("thread%d", ts.n)
	got, end := make(chan *tpvm.Thread, 1), make(chan struct{})
	x := try.Get(ts.tasks[task].Export(ctx, name, func(ctx context.Context, th *tpvm.Thread) error {
		got <- th
		select {
		case <-end:
		case <-ctx.Done():
		}
		return nil
	}))(ts.t)
	try.Get(ts.tasks[task].Spawn(ctx, name, 1, tpvm.Threads()))(ts.t)
	_ = x.Close()
	return handle{<-got, sync.OnceFunc(func() { close(end) })}
}

// group starts n threads over the tasks and joins them to a group, in this order.
func (ts *team) group(name string, n int) (gs []*tpvm.Group, hs []handle) {
	ts.t.Helper()
	for i := range n {
		h := ts.start(i % len(ts.tasks))
		g := try.Get(h.Join(deadline(ts.t), name))(ts.t)
		if g.Instance() != i {
			ts.t.Fatalf("instance %d, want %d", g.Instance(), i)
		}
		gs, hs = append(gs, g), append(hs, h)
	}
	return gs, hs
}

// each calls f for all members at the same time, and returns the errors.
func each(gs []*tpvm.Group, f func(i int, g *tpvm.Group) error) []error {
	errs := make([]error, len(gs))
	var wg sync.WaitGroup
	for i, g := range gs {
		wg.Go(func() { errs[i] = f(i, g) })
	}
	wg.Wait()
	return errs
}

func noErrors(t testing.TB, errs []error) {
	t.Helper()
	try.OK(t, errors.Join(errs...))
}

// gone checks that err names the members.
func gone(t testing.TB, err error, left bool, ids ...tpvm.TID) {
	t.Helper()
	var e *tpvm.MemberError
	if !errors.As(err, &e) || !errors.Is(err, tpvm.ErrMemberGone) {
		t.Fatalf("want a MemberError: %v", err)
	}
	for _, id := range ids {
		if !slices.ContainsFunc(e.Members, func(m tpvm.Member) bool { return m.TID == id && m.Left == left }) {
			t.Fatalf("%v, left %v, is not named: %v", id, left, err)
		}
	}
}

// Leave returns the cause of the end of its context if the coordinator has not answered by then.
// The member is out of the group all the same.
func TestLeaveWithoutAnswer(t *testing.T) {
	ts := newThreads(t, 2)
	gs, hs := ts.group("g", 2)
	release := ts.tasks[0].HoldGroup("g")
	ctx, cancel := context.WithCancelCause(deadline(t))
	why := errors.New("why")
	cancel(why)
	try.Fails(gs[1].Leave(ctx))(t, why)
	release()
	eventually.True(t, "the group has one member", func() bool {
		n, err := hs[0].GroupSize(deadline(t), "g")
		return err == nil && n == 1
	})
}

// Numbers, sizes, and lookups by members and by threads that are none, as in PVM's examples ge, gs
// and tst.
func TestGroupMembers(t *testing.T) {
	ctx := deadline(t)
	ts := newThreads(t, 3)
	gs, hs := ts.group("g", 7)
	other := ts.start(0)
	for i, g := range gs {
		for _, by := range gs {
			if id, err := by.TID(ctx, i); err != nil || id != hs[i].ID() {
				t.Fatal(id, err)
			}
			if n, err := by.InstanceOf(ctx, hs[i].ID()); err != nil || n != i {
				t.Fatal(n, err)
			}
		}
		if n, err := g.Size(ctx); err != nil || n != 7 {
			t.Fatal(n, err)
		}
		if id, err := other.GroupTID(ctx, "g", i); err != nil || id != hs[i].ID() {
			t.Fatal(id, err)
		}
		if n, err := other.GroupInstance(ctx, "g", hs[i].ID()); err != nil || n != i {
			t.Fatal(n, err)
		}
		try.Fails(hs[i].Join(ctx, "g"))(t, tpvm.ErrInGroup)
		if same, ok := hs[i].Group("g"); !ok || same != g {
			t.Fatal("no membership")
		}
	}
	if n, err := other.GroupSize(ctx, "g"); err != nil || n != 7 {
		t.Fatal(n, err)
	}
	if n, err := other.GroupSize(ctx, "none"); err != nil || n != 0 {
		t.Fatal(n, err)
	}
	for _, c := range []struct{ err, want error }{
		{second(other.GroupTID(ctx, "g", 7)), tpvm.ErrNoInstance},
		{second(other.GroupTID(ctx, "none", 0)), tpvm.ErrNoGroup},
		{second(other.GroupInstance(ctx, "g", other.ID())), tpvm.ErrNotInGroup},
		{second(other.GroupInstance(ctx, "none", other.ID())), tpvm.ErrNoGroup},
		{second(gs[0].TID(ctx, 7)), tpvm.ErrNoInstance},
		{second(gs[0].InstanceOf(ctx, other.ID())), tpvm.ErrNotInGroup},
		{other.LeaveGroup(ctx, "g"), tpvm.ErrNotInGroup},
		{other.LeaveGroup(ctx, "none"), tpvm.ErrNoGroup},
		{other.GroupBcast(ctx, "none", 1, nil), tpvm.ErrNoGroup},
		{second(other.Join(ctx, "")), tpvm.ErrBadParam},
		{second(other.GroupSize(ctx, "")), tpvm.ErrBadParam},
		{gs[0].Barrier(ctx, 0), tpvm.ErrBadParam},
	} {
		try.Fails(c.err)(t, c.want)
	}
	for i, g := range gs {
		try.OK(t, g.Leave(ctx))
		if n, err := other.GroupSize(ctx, "g"); err != nil || n != 6-i {
			t.Fatal(n, err)
		}
		try.Fails(g.Leave(ctx))(t, tpvm.ErrNotInGroup)
		try.Fails(g.Barrier(ctx, 1))(t, tpvm.ErrNotInGroup)
		try.Fails(g.Size(ctx))(t, tpvm.ErrNotInGroup)
	}
}

// The number of a thread that has ended is given again.
func TestGroupNumbers(t *testing.T) {
	ctx := deadline(t)
	ts := newThreads(t, 2)
	gs, hs := ts.group("g", 3)
	hs[0].end()
	eventually.True(t, "the end of the member is known", func() bool {
		id, err := gs[2].TID(ctx, 0)
		if err == nil && id != hs[0].ID() {
			t.Fatal(id)
		}
		return errors.Is(err, tpvm.ErrNoInstance)
	})
	try.Equal(t, try.Get(ts.start(1).Join(ctx, "g"))(t).Instance(), 0)
}

// Several threads join and leave at once, as in PVM's example joinleave: no number is shared, and
// none is skipped. With few threads, a Join often meets the end of the group, and succeeds.
func TestGroupJoinLeaveStorm(t *testing.T) {
	ctx := deadline(t)
	ts := newThreads(t, 3)
	for _, threads := range []int{2, 9} {
		var mu sync.Mutex
		in := map[int]bool{}
		var wg sync.WaitGroup
		for i := range threads {
			h := ts.start(i % 3)
			wg.Go(func() {
				for range 30 {
					g, err := h.Join(ctx, "storm")
					if err != nil {
						t.Error(err)
						return
					}
					mu.Lock()
					if in[g.Instance()] || g.Instance() >= threads {
						t.Errorf("number %d", g.Instance())
					}
					in[g.Instance()] = true
					mu.Unlock()
					mu.Lock()
					delete(in, g.Instance())
					mu.Unlock()
					if err := g.Leave(ctx); err != nil {
						t.Error(err)
						return
					}
				}
			})
		}
		wg.Wait()
		try.Gives(ts.tasks[0].GroupSize(ctx, "storm"))(t, 0)
	}
}

// While the program uses all memory of its context, its groups go on: their messages need none.
func TestGroupWithoutMemory(t *testing.T) {
	for name, opts := range map[string][]rocl.Option{"inproc": nil, "tcp": {rocltest.TCP()}} {
		t.Run(name, func(t *testing.T) {
			cl := rocltest.Cluster(t, 1)
			var groups []*tpvm.Group
			var held []*rocl.Buffer
			for range 3 {
				c := cl.Open(0, append(opts, rocl.WithMemory(1<<20))...)
				g := try.Get(enrol(t, c).Join(deadline(t), "workers"))(t)
				groups = append(groups, g)
				for n := 1 << 20; n > 0; n /= 2 {
					for b, err := c.Buffer(n); err == nil; b, err = c.Buffer(n) {
						held = append(held, b)
					}
				}
			}
			var wg sync.WaitGroup
			for _, g := range groups {
				wg.Go(func() {
					for range 3 {
						try.Check(t, g.Barrier(deadline(t), 3))
						try.Gives(g.Size(deadline(t)))(t, 3)
					}
				})
			}
			wg.Wait()
			for _, b := range held {
				b.Release()
			}
		})
	}
}

// No member leaves a barrier before all have come, in barrier after barrier.
//
// Promise (Package tpvm): A barrier lets all members pass together. If one ends, the others get a
// `*MemberError` that names it. See also TestGroupBarrierMemberGone.
func TestGroupBarrier(t *testing.T) {
	ctx := deadline(t)
	const n, rounds = 12, 100
	gs, _ := newThreads(t, 3).group("g", n)
	var came atomic.Int64
	noErrors(t, each(gs, func(_ int, g *tpvm.Group) error {
		for r := range rounds {
			came.Add(1)
			if err := g.Barrier(ctx, n); err != nil {
				return err
			}
			if c := came.Load(); c < int64((r+1)*n) {
				return fmt.Errorf("round %d: %d have come", r, c)
			}
		}
		return nil
	}))
}

// A barrier of fewer than all members ends each time so many have called it. It ends each call
// once.
func TestGroupBarrierOfFewer(t *testing.T) {
	ctx := deadline(t)
	const n, count, rounds = 8, 4, 200
	ts := newThreads(t, 3)
	gs, _ := ts.group("g", n)
	var passed atomic.Int64
	until, stop := context.WithCancel(ctx)
	noErrors(t, each(gs, func(_ int, g *tpvm.Group) error {
		for {
			if err := g.Barrier(until, count); err != nil {
				if errors.Is(err, context.Canceled) {
					return nil
				}
				return err
			}
			if passed.Add(1) == rounds*count {
				stop()
			}
		}
	}))
	// Two members alone do not pass a barrier of three. The group is another one, because the
	// coordinator of the first may not have learned yet which barriers of four were given up.
	gs, _ = ts.group("h", 3)
	short, cancel := context.WithTimeout(ctx, 20*time.Millisecond)
	defer cancel()
	for _, err := range each(gs[:2], func(_ int, g *tpvm.Group) error { return g.Barrier(short, 3) }) {
		try.Fails(err)(t, context.DeadlineExceeded)
	}
	// Calls that were given up do not count.
	noErrors(t, each(gs[:3], func(_ int, g *tpvm.Group) error { return g.Barrier(ctx, 3) }))
}

// A barrier of more than those that have called waits for members that join, in whatever task.
// Calls that were held back for other members of their task are counted when a member joins in
// another task and makes those superfluous.
func TestGroupBarrierOfMore(t *testing.T) {
	ctx := deadline(t)
	for _, c := range []struct{ members, joins []int }{ // members that call, and the tasks in which others join
		{[]int{0, 1, 2, 3}, []int{0, 1, 2}},
		{[]int{0, 1, 4}, []int{1}}, // 3, in the task of 0, never comes
	} {
		ts := newThreads(t, 3)
		all, _ := ts.group("g", 5)
		count := len(c.members) + len(c.joins)
		var gs []*tpvm.Group
		for _, i := range c.members {
			gs = append(gs, all[i])
		}
		var joining sync.WaitGroup
		for _, task := range c.joins {
			h := ts.start(task)
			joining.Go(func() {
				g, err := h.Join(ctx, "g")
				if err == nil {
					err = g.Barrier(ctx, count)
				}
				try.Check(t, err)
			})
		}
		noErrors(t, each(gs, func(_ int, g *tpvm.Group) error { return g.Barrier(ctx, count) }))
		joining.Wait()
	}
}

// Members that call with another count than the waiting ones get an error. The waiting members are
// not disturbed.
func TestGroupBarrierCounts(t *testing.T) {
	for _, tasks := range []int{1, 3} {
		ctx := deadline(t)
		ts := newThreads(t, tasks)
		gs, _ := ts.group("g", 3)
		var wg sync.WaitGroup
		for _, g := range gs[:2] {
			wg.Go(func() {
				for { // the last may have been first once
					if err := g.Barrier(ctx, 3); err == nil {
						return
					} else if !errors.Is(err, tpvm.ErrBarrierCount) {
						t.Error(err)
						return
					}
				}
			})
		}
		for {
			short, cancel := context.WithTimeout(ctx, 5*time.Millisecond)
			err := gs[2].Barrier(short, 2)
			cancel()
			if errors.Is(err, tpvm.ErrBarrierCount) {
				break
			}
			if !errors.Is(err, context.DeadlineExceeded) {
				t.Fatal(err)
			}
		}
		try.OK(t, gs[2].Barrier(ctx, 3))
		wg.Wait()
	}
}

// A member that is missing in a barrier is named to each of the other members, once, however it
// ends and whenever: before or while they wait. They meet again in a barrier of fewer.
func TestGroupBarrierMemberGone(t *testing.T) {
	endings := map[string]func(context.Context, *team, *tpvm.Group, handle) error{
		"returns": func(_ context.Context, _ *team, _ *tpvm.Group, h handle) error { h.end(); return nil },
		"killed": func(ctx context.Context, ts *team, _ *tpvm.Group, h handle) error {
			return ts.tasks[0].Kill(ctx, h.ID())
		},
		"leaves": func(ctx context.Context, _ *team, g *tpvm.Group, _ handle) error { return g.Leave(ctx) },
	}
	for how, end := range endings {
		for _, tasks := range []int{1, 3} {
			for victim := range 3 {
				for _, before := range []bool{false, true} {
					t.Run(fmt.Sprintf("%s/%d/%d/%v", how, tasks, victim, before), func(t *testing.T) {
						ctx := deadline(t)
						ts := newThreads(t, tasks)
						gs, hs := ts.group("g", 6)
						others := slices.Delete(slices.Clone(gs), victim, victim+1)
						if before {
							try.OK(t, end(ctx, ts, gs[victim], hs[victim]))
						}
						errs := make(chan []error)
						go func() {
							errs <- each(others, func(_ int, g *tpvm.Group) error { return g.Barrier(ctx, 6) })
						}()
						if !before {
							try.OK(t, end(ctx, ts, gs[victim], hs[victim]))
						}
						for _, err := range <-errs {
							gone(t, err, how == "leaves", hs[victim].ID())
						}
						noErrors(t, each(others, func(_ int, g *tpvm.Group) error { return g.Barrier(ctx, 5) }))
					})
				}
			}
		}
	}
}

// A barrier for which enough members are left goes on when one of them ends.
func TestGroupBarrierEnoughLeft(t *testing.T) {
	ctx := deadline(t)
	ts := newThreads(t, 2)
	gs, hs := ts.group("g", 4)
	errs := make(chan []error)
	go func() {
		errs <- each(gs[:2], func(_ int, g *tpvm.Group) error { return g.Barrier(ctx, 3) })
	}()
	hs[3].end()
	try.OK(t, gs[2].Barrier(ctx, 3))
	noErrors(t, <-errs)
}

// The task that coordinates the group exits: the other members go on, with the same numbers.
//
// Promise (Package tpvm): A group needs no server. It goes on when its coordinating process is
// killed, and what that process decided holds. See also TestGroupTakeoverBarrier.
func TestGroupCoordinatorExits(t *testing.T) {
	ctx := deadline(t)
	ts := newThreads(t, 3)
	gs, hs := ts.group("g", 6) // the coordinator is with 0 and 3
	others := []*tpvm.Group{gs[1], gs[2], gs[4], gs[5]}
	errs := make(chan []error)
	go func() {
		errs <- each(others, func(_ int, g *tpvm.Group) error { return g.Barrier(ctx, 6) })
	}()
	try.OK(t, ts.tasks[0].Exit(ctx))
	for _, err := range <-errs {
		if !errors.Is(err, tpvm.ErrMemberGone) {
			t.Fatal(err)
		}
	}
	// The waiting members may learn of the two at once or one after the other.
	noErrors(t, each(others, func(_ int, g *tpvm.Group) error {
		for {
			if err := g.Barrier(ctx, 4); !errors.Is(err, tpvm.ErrBarrierCount) {
				return err
			}
		}
	}))
	try.Fails(gs[1].TID(ctx, 0))(t, tpvm.ErrNoInstance)
	try.Gives(gs[1].TID(ctx, 4))(t, hs[4].ID())
	try.Equal(t, try.Get(ts.start(1).Join(ctx, "g"))(t).Instance(), 0)
}

// A task that coordinates and has no members any more exits: no member gets an error.
func TestGroupCoordinatorWithoutMembers(t *testing.T) {
	ctx := deadline(t)
	ts := newThreads(t, 3)
	first := ts.start(0)
	f := try.Get(first.Join(ctx, "g"))(t)
	var gs []*tpvm.Group
	for i := range 4 {
		g := try.Get(ts.start(1+i%2).Join(ctx, "g"))(t)
		gs = append(gs, g)
	}
	try.OK(t, f.Leave(ctx))
	noErrors(t, each(gs, func(_ int, g *tpvm.Group) error { return g.Barrier(ctx, 4) }))
	errs := make(chan []error)
	go func() {
		errs <- each(gs[:3], func(_ int, g *tpvm.Group) error { return g.Barrier(ctx, 4) })
	}()
	try.OK(t, ts.tasks[0].Exit(ctx))
	try.OK(t, gs[3].Barrier(ctx, 4))
	noErrors(t, <-errs)
}

// A frozen group has no new members, and no barrier once one is gone.
func TestGroupFreeze(t *testing.T) {
	ctx := deadline(t)
	ts := newThreads(t, 3)
	gs, hs := ts.group("g", 5)
	noErrors(t, each(gs, func(i int, g *tpvm.Group) error { return g.Freeze(ctx, []int{5, -1}[i%2]) }))
	try.Fails(ts.start(0).Join(ctx, "g"))(t, tpvm.ErrFrozen)
	try.Fails(gs[0].Freeze(ctx, -1))(t, tpvm.ErrFrozen)
	noErrors(t, each(gs, func(_ int, g *tpvm.Group) error { return g.Barrier(ctx, 5) }))
	try.Gives(gs[3].Size(ctx))(t, 5)
	errs := make(chan []error)
	go func() {
		errs <- each(gs[:4], func(_ int, g *tpvm.Group) error { return g.Barrier(ctx, 5) })
	}()
	try.OK(t, gs[4].Leave(ctx))
	for _, err := range <-errs {
		gone(t, err, true, hs[4].ID())
	}
	for range 2 {
		for _, err := range each(gs[:4], func(_ int, g *tpvm.Group) error { return g.Barrier(ctx, 4) }) {
			gone(t, err, true, hs[4].ID())
		}
	}
	for _, g := range gs[:4] {
		try.OK(t, g.Leave(ctx))
	}
	if g, err := ts.start(2).Join(ctx, "g"); err != nil || g.Instance() != 0 { // a new group
		t.Fatal(g, err)
	}
}

// A bcast reaches all but its sender, which need not be a member; a member that has ended is named.
func TestGroupBcast(t *testing.T) {
	ctx := deadline(t)
	ts := newThreads(t, 2)
	gs, hs := ts.group("g", 5)
	b := hs[0].Buffer(pack.Default)
	try.OK(t, pack.PackOne(b, int32(42)))
	recv := func(hs []handle, from tpvm.TID) {
		t.Helper()
		for _, h := range hs {
			m := try.Get(h.Recv(ctx, from, 63))(t)
			try.Gives(pack.UnpackOne[int32](&m.Reader))(t, 42)
			m.Release()
			try.Fails(h.TryRecv(tpvm.AnyTask, tpvm.AnyTag))(t, rocl.ErrEmpty)
		}
	}
	try.OK(t, gs[0].Bcast(ctx, 63, b))
	recv(hs[1:], hs[0].ID())
	other := ts.start(1)
	try.OK(t, other.GroupBcast(ctx, "g", 63, b))
	recv(hs, other.ID())
	try.Fails(gs[0].Bcast(ctx, -1, b))(t, tpvm.ErrBadParam)
	hs[4].end()
	if err := gs[0].Bcast(ctx, 63, b); err != nil { // its end may be known already, and then is no error
		gone(t, err, false, hs[4].ID())
	}
	recv(hs[1:4], hs[0].ID())
}

type pair struct {
	N int32
	F float64
}

func TestGroupGatherScatter(t *testing.T) {
	ctx := deadline(t)
	ts := newThreads(t, 3)
	gs, _ := ts.group("g", 6)
	noErrors(t, each(gs, func(i int, g *tpvm.Group) error {
		for root := range 6 {
			parts, err := tpvm.Gather(ctx, g, 3, root, []pair{{int32(i), float64(root)}, {int32(-i), 0}})
			if err != nil {
				return err
			}
			if i != root {
				if parts != nil {
					return errors.New("parts at a member that is not root")
				}
				continue
			}
			for j, p := range parts {
				if !slices.Equal(p, []pair{{int32(j), float64(root)}, {int32(-j), 0}}) {
					return fmt.Errorf("root %d: part %d: %v", root, j, p)
				}
			}
		}
		for root := range 6 {
			var parts [][]int64
			if i == root {
				for j := range 6 {
					parts = append(parts, []int64{int64(j), int64(root)}[:2-j%2])
				}
			}
			p, err := tpvm.Scatter(ctx, g, 3, root, parts)
			if err != nil {
				return err
			}
			if !slices.Equal(p, []int64{int64(i), int64(root)}[:2-i%2]) {
				return fmt.Errorf("root %d: %v", root, p)
			}
		}
		return nil
	}))
	// A number that no member has is left out.
	try.OK(t, gs[2].Leave(ctx))
	rest := slices.Delete(slices.Clone(gs), 2, 3)
	noErrors(t, each(rest, func(_ int, g *tpvm.Group) error {
		parts, err := tpvm.Gather(ctx, g, 4, 5, []byte{byte(g.Instance())})
		if err == nil && g.Instance() == 5 && (len(parts) != 6 || parts[2] != nil || parts[4][0] != 4) {
			err = fmt.Errorf("parts %v", parts)
		}
		return err
	}))
	// The parts of members that have left since count, also those with the highest numbers.
	for i, g := range gs[4:] {
		try.Get(tpvm.Gather(ctx, g, 6, 3, []int{4 + i}))(t)
		try.OK(t, g.Leave(ctx))
	}
	for i, g := range gs[:2] {
		try.Get(tpvm.Gather(ctx, g, 6, 3, []int{i}))(t)
	}
	if parts, err := tpvm.Gather(ctx, gs[3], 6, 3, []int{3}); fmt.Sprint(parts) != "[[0] [1] [] [3] [4] [5]]" {
		t.Error(parts, err)
	}
	for _, c := range []struct{ err, want error }{
		{second(tpvm.Gather(ctx, gs[0], 4, 2, []int{1})), tpvm.ErrMemberGone},
		{second(tpvm.Gather(ctx, gs[0], 4, 9, []int{1})), tpvm.ErrNoInstance},
		{second(tpvm.Gather(ctx, gs[0], -1, 0, []int{1})), tpvm.ErrBadParam},
		{second(tpvm.Scatter(ctx, gs[0], 4, 0, [][]int{{1}})), tpvm.ErrBadParam},
		{second(tpvm.Gather(ctx, gs[2], 4, 0, []int{1})), tpvm.ErrNotInGroup},
	} {
		try.Fails(c.err)(t, c.want)
	}
}

func TestGroupReduce(t *testing.T) {
	ctx := deadline(t)
	gs, _ := newThreads(t, 3).group("g", 6)
	noErrors(t, each(gs, func(i int, g *tpvm.Group) error {
		own := []float64{float64(i), -float64(i), 2}
		for root := range 6 {
			sum, err := tpvm.Reduce(ctx, g, 1, root, own, tpvm.Sum)
			most, err2 := tpvm.Reduce(ctx, g, 2, root, own, tpvm.Max)
			product, err3 := tpvm.Reduce(ctx, g, 3, root, own, tpvm.Product)
			order, err4 := tpvm.Reduce(ctx, g, 4, root, []string{fmt.Sprint(i)}, func(acc, x []string) { acc[0] += x[0] })
			if err := errors.Join(err, err2, err3, err4); err != nil {
				return err
			}
			if i != root {
				if sum != nil {
					return errors.New("a result at a member that is not root")
				}
				continue
			}
			if !slices.Equal(sum, []float64{15, -15, 12}) || !slices.Equal(most, []float64{5, 0, 2}) ||
				product[2] != 64 || order[0] != "012345" || !slices.Equal(own, []float64{float64(i), -float64(i), 2}) {
				return fmt.Errorf("root %d: %v %v %v %v %v", root, sum, most, product, order, own)
			}
		}
		return nil
	}))
	errs := each(gs[:], func(i int, g *tpvm.Group) error {
		_, err := tpvm.Reduce(ctx, g, 5, 0, make([]int, 1+i/5), tpvm.Sum)
		return err
	})
	try.Fails(errs[0])(t, tpvm.ErrBadParam)
}

// A member that has ended is named to the members that wait for it: the root of Gather and Reduce,
// and all others in Scatter. The next operation with the same tag is not confused.
func TestGroupCollectMemberGone(t *testing.T) {
	for _, tasks := range []int{1, 3} {
		ctx := deadline(t)
		ts := newThreads(t, tasks)
		gs, hs := ts.group("g", 6)
		others := slices.Delete(slices.Clone(gs), 2, 3)
		errs := make(chan []error)
		go func() {
			errs <- each(others, func(_ int, g *tpvm.Group) error {
				_, err := tpvm.Gather(ctx, g, 1, 0, []int{g.Instance()})
				return err
			})
		}()
		hs[2].end()
		for i, err := range <-errs {
			if i > 0 && err != nil {
				t.Error(err)
			}
			if i == 0 {
				gone(t, err, false, hs[2].ID())
			}
		}
		noErrors(t, each(others, func(_ int, g *tpvm.Group) error {
			sum, err := tpvm.Reduce(ctx, g, 1, 0, []int{1}, tpvm.Sum)
			if err == nil && g.Instance() == 0 && sum[0] != 5 {
				err = fmt.Errorf("sum %v", sum)
			}
			return err
		}))
		go func() {
			errs <- each(others[1:], func(_ int, g *tpvm.Group) error {
				_, err := tpvm.Scatter[int](ctx, g, 1, 0, nil)
				return err
			})
		}()
		hs[0].end()
		for _, err := range <-errs {
			gone(t, err, false, hs[0].ID())
		}
	}
}

// Data that members have sent before they left or ended counts, whenever the root calls. The root
// does not wait for a member that has left without a call, and names once a member that has ended
// without a call.
func TestGroupCollectLeft(t *testing.T) {
	for _, tasks := range []int{1, 3} {
		ctx := deadline(t)
		ts := newThreads(t, tasks)
		gs, hs := ts.group("g", 6)
		var err error
		reduce := func(g *tpvm.Group, tag int, s string) (string, error) {
			all, err := tpvm.Reduce(ctx, g, tag, 0, []string{s}, func(acc, x []string) { acc[0] += x[0] })
			if len(all) > 0 {
				return all[0], err
			}
			return "", err
		}
		for i, g := range gs[1:5] {
			try.Get(reduce(g, 1, fmt.Sprint(i+1)))(t)
		}
		try.Get(reduce(gs[1], 2, "x"))(t)
		for _, i := range []int{1, 3, 5} { // 5 has not called
			try.OK(t, gs[i].Leave(ctx))
		}
		hs[2].end()
		for n := 0; n != 2; { // until the end is known
			if n, err = gs[0].Size(ctx); err != nil {
				t.Fatal(err)
			}
		}
		again, err := hs[1].Join(ctx, "g") // its data is for the second operation
		if err != nil || again.Instance() != 1 {
			t.Fatal(again.Instance(), err)
		}
		try.Get(reduce(again, 1, "n"))(t)
		try.Gives(reduce(gs[0], 1, "0"))(t, "01234")
		try.Get(reduce(gs[4], 1, "4"))(t)
		_, err = reduce(gs[0], 1, "0")
		gone(t, err, false, hs[2].ID())
		for _, tag := range []int{1, 2} { // after the error the root does not wait for 5
			for _, g := range []*tpvm.Group{again, gs[4]} {
				try.Get(reduce(g, tag, "y"))(t)
			}
		}
		try.Gives(reduce(gs[0], 1, "0"))(t, "0yy")
		try.Gives(reduce(gs[0], 2, "0"))(t, "0xy")
	}
}

// The connection of a root tells of the end of a member, and later the coordinator does. Each kind
// of operation names the member once.
//
// Promise (Package tpvm): Group operations name a member that has ended once.
func TestGroupNamedOnce(t *testing.T) {
	ctx := deadline(t)
	ts := newThreads(t, 3)
	gs, hs := ts.group("g", 3)
	noErrors(t, each(gs, func(_ int, g *tpvm.Group) error { return g.Freeze(ctx, 3) })) // lists need no coordinator

	for range 3 { // for all calls of Gather below
		try.Get(tpvm.Gather(ctx, gs[0], 1, 1, []int{0}))(t)
	}
	release := sync.OnceFunc(ts.tasks[0].HoldGroup("g"))
	defer release() // if the test fails
	hs[2].end()
	b := gs[1].Thread().Buffer(pack.Default)
	try.OK(t, b.PackString("x"))
	ops := map[string]func() error{
		"gather":  func() error { return second(tpvm.Gather(ctx, gs[1], 1, 1, []int{1})) },
		"scatter": func() error { return second(tpvm.Scatter(ctx, gs[1], 1, 1, make([][]int, 3))) },
		"bcast":   func() error { return gs[1].Bcast(ctx, 1, b) },
	}
	for i, op := range []string{"gather", "gather", "scatter", "scatter", "bcast", "bcast"} {
		if err := ops[op](); i%2 == 0 {
			gone(t, err, false, hs[2].ID())
		} else if err != nil {
			t.Errorf("%s again: %v", op, err)
		}
	}
	release()
	for n := 3; n > 2; { // until the coordinator has told
		ms := try.Get(gs[1].Members(ctx))(t)
		n = len(ms)
	}
	for op, f := range ops {
		try.Check(t, f(), "%s after all know", op)
	}
}

// A thread is told of the end of another member: it is no member any more, and a message to it
// fails. Many rounds, since a thread ends in a few microseconds.
func TestGroupEndBehindThread(t *testing.T) {
	ctx := deadline(t)
	ts := newThreads(t, 2)
	gs, _ := ts.group("g", 1)
	for range 200 {
		h := ts.start(1)
		g := try.Get(h.Join(ctx, "g"))(t)
		try.Get(gs[0].Thread().Resource().Monitor(ctx, g.ResourceID(), 9))(t)
		h.end()
		m := try.Get(gs[0].Thread().Resource().Recv(ctx, rocl.Tag(9)))(t)
		m.Release()
		try.Fails(gs[0].Thread().SendPacked(ctx, h.ID(), 1, 1))(t, rocl.ErrGone)
	}
}

// The tasks of a virtual machine keep memory for a group until its last member has left or ended.
// That member may be in the task of the coordinator or in another one.
func TestGroupEndsWithLastMember(t *testing.T) {
	ctx := deadline(t)
	ts := newThreads(t, 2)
	keeps := func() (n int) {
		for _, typ := range []string{"group", "grouptask", "groupsync"} {
			for _, err := range ts.contexts[0].FindAll(ctx, rocl.Match{"vm": ts.tasks[0].VM(), "type": typ}) {
				try.OK(t, err, "%d resources or more are left", n)
				n++
			}
		}
		return n
	}
	a, b := ts.start(0), ts.start(1)
	for i := range 6 {
		hs := []handle{a, b}
		if i%2 == 1 {
			hs = []handle{b, a}
		}
		var gs []*tpvm.Group
		for _, h := range hs[:1+i/2%2] {
			g := try.Get(h.Join(ctx, fmt.Sprint("job", i)))(t)
			gs = append(gs, g)
		}
		for _, g := range gs {
			try.OK(t, g.Leave(ctx))
		}
	}
	for _, h := range []handle{a, b} {
		try.Get(h.Join(ctx, "ends"))(t)
	}
	a.end()
	b.end()
	for keeps() > 0 { // until the ends are known, or ctx ends
	}
}

// A resource of another process with an absurd instance number is no member.
func TestGroupInstanceFromDirectory(t *testing.T) {
	ctx := deadline(t)
	c := alone(t)
	main := enrol(t, c)
	attrs := rocl.Attrs{"type": "group", "vm": main.VM(), "group": "g", "inst": "2000000", "tid": main.ID().String()}
	try.Get(c.Register(ctx, attrs))(t)
	g := try.Get(main.Join(ctx, "g"))(t)
	parts, err := tpvm.Gather(ctx, g, 1, 0, []int{1})
	if err != nil || len(parts) != 1 {
		t.Error(len(parts), err)
	}
	try.Gives(main.GroupSize(ctx, "g"))(t, 1)
}

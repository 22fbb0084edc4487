// SPDX-License-Identifier: Apache-2.0

package tpvm

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"github.com/rocl-go/rocl"
	"github.com/rocl-go/rocl/internal/testkit/eventually"
	"github.com/rocl-go/rocl/internal/testkit/try"
	"github.com/rocl-go/rocl/rocltest"
)

// A groupWorld has the agents and coordinators of one group, without goroutines and connections:
// the test delivers each message, and ends tasks between any two of them.
type groupWorld struct {
	t      rapid.TB
	names  []*groupNames
	agents []*groupAgent
	groups []*Group
	dead   map[TID]bool // contexts of ended tasks
	links  map[groupLink][]*groupMessage
	watch  map[TID][]TID // by the resource that is monitored: the resources that monitor it
	seek   map[int]TID   // agents without a coordinator, and the last one that they had
	now    *groupCoordinator
	made   map[TID]*groupCoordinator
	passed []int        // the number of barriers that each member has passed
	gone   map[TID]bool // members' resources that Leave has deleted
	ended  []*modelCall // calls that have ended, of which the agents do not know yet
	mayErr bool         // contexts are given up: barriers may fail
}

// groupNames are the resources of one task. The tests use only their identifiers.
type groupNames struct {
	agent        *rocl.Resource
	members      []*rocl.Resource
	coordinators []*rocl.Resource
}

// groupLink is a pair of resources. The messages of a link keep their order; nil is the end of
// from.
type groupLink struct{ from, to TID }

// groupTasks registers the resources of tasks with two members each.
func groupTasks(t *testing.T, n int) (all []*groupNames) {
	ctx := eventually.Context(t)
	cluster := rocltest.Cluster(t, 1)
	for range n {
		c := cluster.Open(0)
		next := func(n int) (rs []*rocl.Resource) {
			for range n {
				r := try.Get(c.Register(ctx, nil))(t)
				rs = append(rs, r)
			}
			return rs
		}
		all = append(all, &groupNames{next(1)[0], next(6), next(2)})
	}
	return all
}

// newGroupWorld makes a group with an agent in each task, and the coordinator in task 0. members
// lists the numbers of the members of each task.
func newGroupWorld(t rapid.TB, names []*groupNames, members [][]int) *groupWorld {
	w := &groupWorld{
		t: t, names: names, dead: map[TID]bool{}, links: map[groupLink][]*groupMessage{}, watch: map[TID][]TID{},
		seek: map[int]TID{}, made: map[TID]*groupCoordinator{}, gone: map[TID]bool{},
	}
	for i, n := range names {
		a := makeAgent(nil, "g", n.agent, modelPost{w, n.agent.ID()})
		w.agents = append(w.agents, a)
		for j, inst := range members[i] {
			r := n.members[j]
			g := &Group{t: &Thread{r: r}, a: a, r: r, inst: inst, isIn: true, joined: make(chan struct{}), wake: make(chan error, 1)}
			close(g.joined)
			a.local[r.ID()] = g
			w.groups = append(w.groups, g)
		}
		w.seek[i] = TID{}
	}
	slices.SortFunc(w.groups, func(a, b *Group) int { return a.inst - b.inst })
	w.passed = make([]int, len(w.groups))
	w.settle()
	return w
}

// A modelPost is the groupPost of a resource in a groupWorld.
type modelPost struct {
	w    *groupWorld
	from TID
}

func (p modelPost) send(to TID, m *groupMessage) {
	b, err := m.appendTo(nil)
	v := new(groupMessage)
	if err == nil {
		err = v.decode(b)
	}
	try.OK(p.w.t, err)
	if !p.w.dead[to.Context()] {
		l := groupLink{p.from, to}
		p.w.links[l] = append(p.w.links[l], v)
	}
}

// call implements groupPost. The message keeps its order with those of send.
func (p modelPost) call(_ context.Context, to TID, m *groupMessage, dropped func()) {
	p.send(to, m)
	if q := p.w.links[groupLink{p.from, to}]; len(q) > 0 {
		q[len(q)-1].call = &modelCall{p.w, p.from, dropped}
	}
}

// A modelCall is the call of an agent. The agent learns of its end unless the agent is dead.
type modelCall struct {
	w       *groupWorld
	agent   TID
	dropped func()
}

func (c *modelCall) Release() { c.w.ended = append(c.w.ended, c) }

func (p modelPost) monitor(id TID) bool {
	if p.w.dead[id.Context()] || p.w.gone[id] {
		return false
	}
	p.w.watch[id] = append(p.w.watch[id], p.from)
	return true
}

// tell tells agents of the ends of their calls.
func (w *groupWorld) tell() {
	for len(w.ended) > 0 {
		c := w.ended[0]
		w.ended = w.ended[1:]
		if !w.dead[c.agent.Context()] {
			c.dropped()
		}
	}
}

// busy returns the links with messages, in a fixed order.
func (w *groupWorld) busy() (ls []groupLink) {
	w.tell()
	for l, q := range w.links {
		if len(q) > 0 && !w.dead[l.to.Context()] {
			ls = append(ls, l)
		}
	}
	slices.SortFunc(ls, func(a, b groupLink) int {
		return strings.Compare(a.from.String()+a.to.String(), b.from.String()+b.to.String())
	})
	return ls
}

// deliver delivers the first message of a link.
func (w *groupWorld) deliver(l groupLink) {
	v := w.links[l][0]
	w.links[l] = w.links[l][1:]
	if c := w.made[l.to]; c != nil {
		c.receive(l.from, v, nil)
		if v != nil && v.call != nil {
			v.call.Release()
		}
		return
	}
	i := w.index(l.to)
	if i >= 0 && w.agents[i].receive(l.from, v, nil) {
		w.seek[i] = l.from
	}
}

func (w *groupWorld) index(agent TID) int {
	return slices.IndexFunc(w.agents, func(a *groupAgent) bool { return a.r.ID() == agent })
}

// connect attaches agent i, which has no coordinator, to the living coordinator, or makes one in
// its task.
func (w *groupWorld) connect(i int) {
	a := w.agents[i]
	delete(w.seek, i)
	var here *groupCoordinator
	if w.now == nil {
		r := w.names[i].coordinators[0]
		w.now = makeCoordinator(nil, "g", r, a, modelPost{w, r.ID()})
		w.made[r.ID()] = w.now
		here = w.now
		for j, b := range w.agents {
			if !w.isDead(j) {
				w.now.await(b.r.ID())
			}
		}
	}
	id := w.now.r.ID()
	modelPost{w, a.r.ID()}.monitor(id)
	a.mu.Lock()
	a.attachLocked(id, here)
	a.unlock()
}

func (w *groupWorld) isDead(i int) bool { return w.dead[w.agents[i].r.ID().Context()] }

// kill ends task i. kept says how many of n messages on a link from the task still arrive.
func (w *groupWorld) kill(i int, kept func(n int) int) {
	at := w.agents[i].r.ID().Context()
	w.dead[at] = true
	delete(w.seek, i)
	for _, l := range w.busy() {
		if l.from.Context() == at {
			w.lose(l, kept(len(w.links[l])))
		}
	}
	for _, r := range append(append(slices.Clone(w.names[i].members), w.names[i].coordinators...), w.names[i].agent) {
		for _, to := range w.watch[r.ID()] {
			l := groupLink{r.ID(), to}
			w.links[l] = append(w.links[l], nil)
		}
	}
	if w.now != nil && w.now.r.ID().Context() == at {
		w.now = nil
	}
}

// lose drops all but the first kept messages of a link. It drops no news of monitors.
func (w *groupWorld) lose(l groupLink, kept int) {
	w.links[l] = slices.DeleteFunc(w.links[l], func(v *groupMessage) bool {
		kept--
		isLost := kept < 0 && v != nil && v.Op != opLost
		if isLost && v.call != nil {
			v.call.Release() // the call fails
		}
		return isLost
	})
}

// giveUp makes one of the coordinator and agent i, which are both alive, give the other up. kept
// says how many of n messages on a link between their tasks still arrive.
func (w *groupWorld) giveUp(i int, isAgent bool, kept func(n int) int) {
	agent, coordinator := w.agents[i].r.ID().Context(), w.now.r.ID().Context()
	if agent == coordinator {
		return
	}
	for _, l := range w.busy() {
		if from, to := l.from.Context(), l.to.Context(); from == agent && to == coordinator || from == coordinator && to == agent {
			w.lose(l, kept(len(w.links[l])))
		}
	}
	if at := w.now.agents[w.agents[i].r.ID()]; isAgent && at != nil {
		w.ended = append(w.ended, at.call.(*modelCall)) // the call fails at the agent
	}
	gives, given := agent, coordinator
	if !isAgent {
		gives, given = coordinator, agent
	}
	for of, by := range w.watch {
		if of.Context() != given {
			continue
		}
		w.watch[of] = slices.DeleteFunc(by, func(to TID) bool {
			if to.Context() != gives {
				return false
			}
			l := groupLink{of, to}
			w.links[l] = append(w.links[l], &groupMessage{Op: opLost})
			return true
		})
	}
}

// settle delivers all messages.
func (w *groupWorld) settle() {
	for n := 0; ; n++ {
		if n == 100_000 {
			w.t.Fatalf("messages without end: %v", w.busy())
		}
		for i := range w.agents {
			if _, ok := w.seek[i]; ok {
				w.connect(i)
			}
		}
		ls := w.busy()
		if len(ls) == 0 {
			return
		}
		w.deliver(ls[0])
	}
}

// arrive makes a member wait in a barrier.
func (w *groupWorld) arrive(member, count int, freeze bool) {
	w.t.Helper()
	g := w.groups[member]
	if _, err := g.a.arrive(g, count, freeze); err != nil && !w.mayErr {
		w.t.Fatalf("member %d: %v", member, err)
	}
	w.look()
}

// look counts the barriers that members have passed.
func (w *groupWorld) look() {
	w.t.Helper()
	for i, g := range w.groups {
		select {
		case err := <-g.wake:
			switch {
			case err == nil:
				w.passed[i]++
			case !w.mayErr:
				w.t.Fatalf("member %d: %v", i, err)
			}
		default:
		}
	}
}

func none(int) int { return 0 }

// draw draws a number below n.
func draw(rt *rapid.T, n int, what string) int { return rapid.IntRange(0, n-1).Draw(rt, what) }

// kept draws how many of n messages on a link arrive.
func kept(rt *rapid.T) func(n int) int { return func(n int) int { return draw(rt, n+1, "kept") } }

// steps returns the steps of a model: messages are delivered, agents look for a coordinator, and
// those of more.
func (w *groupWorld) steps(more map[string]func(*rapid.T)) map[string]func(*rapid.T) {
	more["deliver"] = func(rt *rapid.T) {
		if ls := w.busy(); len(ls) > 0 {
			w.deliver(ls[draw(rt, len(ls), "link")])
		}
	}
	more["connect"] = func(rt *rapid.T) {
		i := draw(rt, len(w.names), "task")
		if _, is := w.seek[i]; is {
			w.connect(i)
		}
	}
	return more
}

// killCoordinator ends the task of the coordinator if it has no members, and fewer than most tasks
// are dead.
func (w *groupWorld) killCoordinator(rt *rapid.T, most int) {
	if w.now == nil {
		return
	}
	if i := w.index(w.now.own.r.ID()); len(w.agents[i].local) == 0 && len(w.dead) < most {
		w.kill(i, kept(rt))
	}
}

// withdraw takes a member that waits out of its barrier.
func (w *groupWorld) withdraw(g *Group) {
	g.a.mu.Lock()
	if g.waiting {
		g.a.withdrawLocked(g)
	}
	g.a.unlock()
}

// The coordinator is in a task without members, and is killed while it tells the agents that a
// barrier is complete: each agent may have got the message or not. All members have passed the
// barrier then, and none passes another one before the others.
func TestGroupTakeoverBarrier(t *testing.T) {
	names := groupTasks(t, 4)
	for _, freeze := range []bool{false, true} {
		for got := range 8 { // the tasks that get the message
			w := newGroupWorld(t, names, [][]int{nil, {0, 1}, {2}, {3}})
			coordinator := w.now.r.ID()
			for i := range w.groups {
				w.arrive(i, 4, freeze)
			}
			for _, l := range w.busy() {
				w.deliver(l) // the arrivals
			}
			for i := range 3 {
				if got&(1<<i) != 0 {
					w.deliver(groupLink{coordinator, names[1+i].agent.ID()})
				}
			}
			w.kill(0, none)
			w.look()
			early := slices.Clone(w.passed)
			for i, n := range early {
				if n > 0 {
					w.arrive(i, 4, false)
				}
			}
			w.settle()
			w.look()
			if got < 7 && !slices.Equal(w.passed, []int{1, 1, 1, 1}) {
				t.Fatalf("freeze %v, tasks %b got the message: the members have passed %v barriers", freeze, got, w.passed)
			}
			for i, n := range early {
				if n == 0 {
					w.arrive(i, 4, false)
				}
			}
			w.settle()
			w.look()
			if !slices.Equal(w.passed, []int{2, 2, 2, 2}) {
				t.Fatalf("freeze %v, tasks %b got the message: the members have passed %v barriers", freeze, got, w.passed)
			}
			for _, a := range w.agents[1:] {
				if a.frozen != freeze {
					t.Fatalf("frozen: %v, want %v", a.frozen, freeze)
				}
			}
		}
	}
}

// Tasks that coordinate and have no members are killed between any two messages. Members that meet
// in barriers of all stay together. Of barriers of fewer members, each is passed by that number.
func TestGroupTakeoverModel(t *testing.T) {
	names := groupTasks(t, 8)
	rapid.Check(t, func(rt *rapid.T) {
		const members = 4 // task 0 and the last four tasks have no members
		w := newGroupWorld(rt, names, [][]int{nil, {0, 1}, {2}, {3}, nil, nil, nil, nil})
		count := rapid.IntRange(2, members).Draw(rt, "count")
		isCut := rapid.Bool().Draw(rt, "cuts")
		waits := func(i int) bool { return w.groups[i].waiting }
		check := func(rt *rapid.T) {
			w.look()
			if low, high := slices.Min(w.passed), slices.Max(w.passed); count == members && high-low > 1 {
				rt.Fatalf("the members have passed %v barriers", w.passed)
			}
		}
		rt.Repeat(w.steps(map[string]func(*rapid.T){
			"arrive": func(rt *rapid.T) {
				if i := draw(rt, members, "member"); !waits(i) {
					w.arrive(i, count, false)
				}
			},
			"giveUp": func(rt *rapid.T) {
				if !isCut || w.now == nil {
					rt.Skip()
				}
				w.giveUp(1+draw(rt, 3, "task"), true, kept(rt))
			},
			"kill": func(rt *rapid.T) { w.killCoordinator(rt, len(names)) },
			"":     check,
		}))
		w.settle()
		check(rt)
		if sum := w.passed[0] + w.passed[1] + w.passed[2] + w.passed[3]; sum%count != 0 {
			rt.Fatalf("barriers of %d members: the members have passed %v", count, w.passed)
		}
		if count < members {
			return
		}
		for last := slices.Max(w.passed) + 1; slices.Min(w.passed) < last; {
			stuck := true
			for i := range w.groups {
				if !waits(i) && w.passed[i] < last {
					w.arrive(i, count, false)
					stuck = false
				}
			}
			if stuck {
				rt.Fatalf("members wait for ever; they have passed %v barriers", w.passed)
			}
			w.settle()
			check(rt)
		}
	})
}

// A task gives the coordinator up, by which an arrival or its withdrawal is lost, and its next
// arrival gets there before the task has heard of the loss. It does not count: members pass in
// pairs.
func TestGroupTakeoverLostMessage(t *testing.T) {
	names := groupTasks(t, 4)
	for _, withdraws := range []bool{false, true} {
		w := newGroupWorld(t, names, [][]int{nil, {0, 1}, {2}, {3}})
		fromTask := func(i int) groupLink { return groupLink{names[i].agent.ID(), w.now.r.ID()} }
		w.arrive(0, 2, false)
		if withdraws {
			w.deliver(fromTask(1))
			w.withdraw(w.groups[0])
		} else {
			w.arrive(2, 2, false)
			w.deliver(fromTask(2))
		}
		w.giveUp(1, true, none)
		w.arrive(1, 2, false)
		w.deliver(fromTask(1))
		if withdraws {
			w.arrive(2, 2, false)
		}
		w.settle()
		w.look()
		want := []int{1, 1, 0, 0} // in their own task, while member 2 waits
		if withdraws {
			want = []int{0, 1, 1, 0}
		}
		if !slices.Equal(w.passed, want) {
			t.Errorf("withdrawn %v: the members have passed %v barriers, want %v", withdraws, w.passed, want)
		}
	}
}

// Contexts are given up although they live, by either side and between any two messages, and tasks
// that coordinate are killed. Each member is in the group, or is told that it is not. The members
// that are left, and no others, meet in a barrier.
func TestGroupTakeoverGivenUp(t *testing.T) {
	names := groupTasks(t, 7)
	rapid.Check(t, func(rt *rapid.T) {
		w := newGroupWorld(rt, names, [][]int{nil, {0, 1}, {2}, {3}, nil, nil, nil}) // as in TestGroupTakeoverModel
		w.mayErr = true
		freeze := rapid.Bool().Draw(rt, "freeze")
		rt.Repeat(w.steps(map[string]func(*rapid.T){
			"arrive": func(rt *rapid.T) {
				w.look()
				if g := w.groups[draw(rt, len(w.groups), "member")]; !g.waiting && g.closed == nil {
					_, _ = g.a.arrive(g, max(1, len(g.a.members)), freeze)
				}
			},
			"giveUp": func(rt *rapid.T) {
				i := 1 + draw(rt, 3, "task")
				if w.now != nil && !w.isDead(i) {
					w.giveUp(i, rapid.Bool().Draw(rt, "agent"), kept(rt))
				}
			},
			"kill": func(rt *rapid.T) { w.killCoordinator(rt, 3) },
		}))
		w.settle()
		w.look()
		var left []int
		for i, g := range w.groups {
			if g.closed != nil || w.dead[g.r.ID().Context()] {
				continue
			}
			left = append(left, i)
			w.withdraw(g) // with another count, perhaps
		}
		w.settle()
		if w.now == nil || len(left) == 0 {
			return
		}
		if len(w.now.members) != len(left) {
			rt.Fatalf("members %v do not know that they are out: the coordinator has %v", left, w.now.members)
		}
		for try := 0; ; try++ {
			before := slices.Clone(w.passed)
			for _, i := range left {
				g := w.groups[i]
				if _, err := g.a.arrive(g, len(left), false); err != nil && !errors.Is(err, ErrMemberGone) {
					rt.Fatalf("member %d: %v", i, err)
				}
			}
			w.settle()
			w.look()
			all := true
			for _, i := range left {
				all = all && w.passed[i] == before[i]+1
				w.withdraw(w.groups[i])
			}
			broken := w.groups[left[0]].a.broken != nil // then each barrier fails
			for _, i := range left {
				if is := w.groups[i].a.broken != nil; is != broken {
					rt.Fatalf("member %d: the frozen group has lost a member: %v, %v", i, is, broken)
				}
			}
			if all || broken {
				return
			}
			if try == 4 {
				rt.Fatalf("members %v: of %d barriers, they have passed %v", left, try, w.passed)
			}
			w.settle()
		}
	})
}

// Members freeze the group with a size that is too small, and the coordinator is killed while it
// tells them. All of them learn of it, and can freeze the group with another size.
func TestGroupTakeoverRefusedFreeze(t *testing.T) {
	names := groupTasks(t, 4)
	for got := range 8 { // the tasks that get the message
		w := newGroupWorld(t, names, [][]int{nil, {0}, {1}, {2}})
		coordinator := w.now.r.ID()
		for i := range w.groups[:2] {
			w.arrive(i, 2, true)
		}
		for _, l := range w.busy() {
			w.deliver(l) // the arrivals
		}
		for i := range 3 {
			if l := (groupLink{coordinator, names[1+i].agent.ID()}); got&(1<<i) != 0 && len(w.links[l]) > 0 {
				w.deliver(l)
			}
		}
		refused := func(i int) {
			select {
			case err := <-w.groups[i].wake:
				if !errors.Is(err, ErrBarrierCount) {
					t.Fatalf("tasks %b got the message: member %d: %v", got, i, err)
				}
			default:
				t.Fatalf("tasks %b got the message: member %d waits", got, i)
			}
		}
		w.kill(0, none)
		for i := range 2 {
			if got&(1<<i) != 0 {
				refused(i)
			}
		}
		for i := range 2 {
			if got&(1<<i) != 0 {
				w.arrive(i, 3, true)
			}
		}
		w.settle()
		for i := range 2 {
			if got&(1<<i) == 0 {
				refused(i)
			}
		}
		for i := range w.groups {
			if !w.groups[i].waiting {
				w.arrive(i, 3, true)
			}
		}
		w.settle()
		w.look()
		if !slices.Equal(w.passed, []int{1, 1, 1}) {
			t.Errorf("tasks %b got the message: the members have passed %v", got, w.passed)
		}
	}
}

// A member whose number was reserved before the group was frozen does not join it. A coordinator
// that has taken over refuses it too.
func TestGroupTakeoverFrozenJoin(t *testing.T) {
	names := groupTasks(t, 4)
	for _, killed := range []bool{false, true} {
		w := newGroupWorld(t, names, [][]int{nil, {0}, {1}, nil})
		joiner, reply := w.agents[3], make(chan int, 1)
		joiner.last, joiner.joins[1] = 1, reply
		joiner.mu.Lock()
		joiner.sendLocked(groupMessage{Op: opJoin, Tokens: []uint64{1}})
		joiner.unlock()
		w.settle()
		inst := <-reply
		if inst != 2 {
			t.Fatal(inst)
		}
		for i := range w.groups {
			w.arrive(i, 2, true)
		}
		if killed {
			for _, l := range w.busy() {
				w.deliver(l)
			}
			w.deliver(groupLink{w.now.r.ID(), names[1].agent.ID()})
			w.kill(0, none)
		} else {
			w.settle()
		}
		r := names[3].members[0]
		g := &Group{t: &Thread{r: r}, a: joiner, r: r, inst: inst, token: 1, joined: make(chan struct{}), wake: make(chan error, 1)}
		joiner.mu.Lock()
		joiner.local[r.ID()] = g
		joiner.sendJoinedLocked(g)
		joiner.unlock()
		w.settle()
		w.look()
		if !slices.Equal(w.passed, []int{1, 1}) {
			t.Fatalf("killed %v: the members have passed %v", killed, w.passed)
		}
		if g.isIn || g.closed != ErrFrozen {
			t.Errorf("killed %v: a frozen group has a new member: %v", killed, g.closed)
		}
		select {
		case <-g.joined:
		default:
			t.Errorf("killed %v: Join waits", killed)
		}
	}
}

// The coordinator is killed while it tells the agents that a member has left. Each agent learns of
// it once, and that the member has left and not that it has ended, unless Leave has returned
// before.
func TestGroupTakeoverLeave(t *testing.T) {
	names := groupTasks(t, 4)
	for got := range 8 {
		w := newGroupWorld(t, names, [][]int{nil, {0}, {1}, {2}})
		coordinator := w.now.r.ID()
		a, g := w.agents[1], w.groups[0]
		l := &groupLeave{member: g.member(), isSent: true, done: make(chan struct{})}
		a.mu.Lock()
		a.removeLocked(g, ErrNotInGroup)
		a.leaves[l.ID] = l
		a.sendLeaveLocked(l)
		a.unlock()
		w.deliver(w.busy()[0])
		for i := range 3 {
			if got&(1<<i) != 0 {
				w.deliver(groupLink{coordinator, names[1+i].agent.ID()})
			}
		}
		w.kill(0, none)
		w.settle()
		select {
		case <-l.done:
		default:
			t.Errorf("tasks %b got the message: Leave waits", got)
		}
		for i, b := range w.agents[2:] {
			if all := b.log.since(0); len(all) != 1 || all[0].ID != l.ID || !all[0].left && got&1 == 0 {
				t.Errorf("tasks %b got the message: agent %d has noted %v", got, i, fmt.Sprint(all))
			}
			try.Equal(t, len(b.members), 2, "tasks %b got the message: agent %d has the members %v", got, i, b.members)
		}
	}
}

// A modelJoin is a Join and a Leave in a groupWorld.
type modelJoin struct {
	task  int
	token uint64
	reply chan int
	g     *Group
	leave *groupLeave
	left  bool // Leave has returned
}

// step goes on with a Join or a Leave if its answer has come.
func (w *groupWorld) step(j *modelJoin, all []*modelJoin) (moved bool) {
	if w.isDead(j.task) || j.left {
		return false
	}
	a := w.agents[j.task]
	switch {
	case j.g != nil && j.g.closed != nil && j.leave == nil: // excluded
		j.left = true
		w.end(j.g.r.ID())
		return true
	case j.g == nil:
		select {
		case inst := <-j.reply:
			for _, o := range all { // as a registration with Unique does
				if o.g != nil && o.g.inst == inst && !w.dead[o.g.r.ID().Context()] && !w.gone[o.g.r.ID()] {
					a.cancel(j.token)
					w.reserve(j)
					return true
				}
			}
			n := w.names[j.task]
			r := n.members[0]
			n.members = append(n.members[1:len(n.members):len(n.members)], r)
			j.g = &Group{t: &Thread{r: r}, a: a, r: r, inst: inst, token: j.token, joined: make(chan struct{}), wake: make(chan error, 1)}
			a.mu.Lock()
			a.local[r.ID()] = j.g
			a.sendJoinedLocked(j.g)
			a.unlock()
			return true
		default:
		}
	case j.leave != nil:
		select {
		case <-j.leave.done:
			delete(a.leaves, j.leave.ID)
			j.left = true
			w.end(j.g.r.ID())
			return true
		default:
		}
	}
	return false
}

// end deletes the resource of a member.
func (w *groupWorld) end(id TID) {
	w.gone[id] = true
	for _, to := range w.watch[id] {
		l := groupLink{id, to}
		w.links[l] = append(w.links[l], nil)
	}
	delete(w.watch, id)
}

// reserve asks for a number.
func (w *groupWorld) reserve(j *modelJoin) {
	a := w.agents[j.task]
	j.reply = make(chan int, 1)
	a.mu.Lock()
	a.last++
	j.token = a.last
	a.joins[j.token] = j.reply
	a.sendLocked(groupMessage{Op: opJoin, Tokens: []uint64{j.token}})
	a.unlock()
}

// Members join and leave while tasks are killed between any two messages. In the end all agents and
// the coordinator know the members that are left, no two of them have one number, and no Join or
// Leave waits.
func TestGroupTakeoverMembers(t *testing.T) {
	const tasks, most = 6, 6
	names := groupTasks(t, tasks)
	rapid.Check(t, func(rt *rapid.T) {
		w := newGroupWorld(rt, names, make([][]int, tasks))
		var joins []*modelJoin
		rt.Repeat(w.steps(map[string]func(*rapid.T){
			"join": func(rt *rapid.T) {
				j := &modelJoin{task: draw(rt, tasks, "task")}
				if w.isDead(j.task) || len(joins) == most {
					return
				}
				joins = append(joins, j)
				w.reserve(j)
			},
			"leave": func(rt *rapid.T) {
				if len(joins) == 0 {
					return
				}
				j := joins[draw(rt, len(joins), "join")]
				if j.g == nil || !j.g.isIn || j.g.closed != nil || w.isDead(j.task) {
					return
				}
				a := w.agents[j.task]
				j.leave = &groupLeave{member: j.g.member(), isSent: true, done: make(chan struct{})}
				a.mu.Lock()
				a.removeLocked(j.g, ErrNotInGroup)
				a.leaves[j.leave.ID] = j.leave
				a.sendLeaveLocked(j.leave)
				a.unlock()
			},
			"step": func(rt *rapid.T) {
				if len(joins) > 0 {
					w.step(joins[draw(rt, len(joins), "join")], joins)
				}
			},
			"kill": func(rt *rapid.T) {
				i := draw(rt, tasks, "task")
				if w.isDead(i) || len(w.dead) == tasks-2 {
					return
				}
				w.kill(i, kept(rt))
			},
			"giveUp": func(rt *rapid.T) {
				i := draw(rt, tasks, "task")
				if w.now == nil || w.isDead(i) {
					return
				}
				isAgent := rapid.Bool().Draw(rt, "agent")
				w.giveUp(i, isAgent, kept(rt))
			},
		}))
		for n, moved := 0, true; moved; n++ {
			if n == 1000 {
				rt.Fatalf("a Join tries again and again; the coordinator knows the members %v", w.now.insts)
			}
			w.settle()
			moved = false
			for _, j := range joins {
				moved = w.step(j, joins) || moved
			}
		}
		want := map[int]TID{}
		for _, j := range joins {
			switch {
			case w.isDead(j.task) || j.left:
			case j.g == nil || !j.g.isIn:
				rt.Fatalf("a Join in task %d waits: %v", j.task, j.g)
			case j.leave != nil:
				rt.Fatalf("a Leave in task %d waits", j.task)
			case j.g.closed != nil:
				rt.Fatalf("task %d, member %d: %v", j.task, j.g.inst, j.g.closed)
			case !want[j.g.inst].IsZero():
				rt.Fatalf("two members %d", j.g.inst)
			default:
				want[j.g.inst] = j.g.r.ID()
			}
		}
		for i, a := range w.agents {
			if w.isDead(i) {
				continue
			}
			got := map[int]TID{}
			for inst, m := range a.members {
				got[inst] = m.ID
			}
			if !maps.Equal(got, want) {
				rt.Fatalf("the agent of task %d knows the members %v, want %v", i, got, want)
			}
		}
		if !maps.Equal(w.now.insts, want) {
			rt.Fatalf("the coordinator knows the members %v, want %v", w.now.insts, want)
		}
	})
}

// The coordinator is killed while it tells the agents that a member has joined. If an agent with
// members has heard of it, and the member has ended with the coordinator, the barriers of all
// agents fail with its name. If it lives, it joins, and nobody is told that it is gone.
func TestGroupTakeoverJoin(t *testing.T) {
	names := groupTasks(t, 4)
	for got := range 16 { // the tasks that get the message
		for _, killed := range [][]int{{0}, {0, 1}} {
			for task := range 2 { // of the member that joins
				w := newGroupWorld(t, names, [][]int{nil, nil, {0}, {1}})
				w.mayErr = true
				coordinator := w.now.r.ID()
				j := &modelJoin{task: task}
				w.reserve(j)
				w.settle()
				w.step(j, nil)
				for i := range w.groups {
					w.arrive(i, 3, false)
				}
				if task > 0 {
					w.deliver(groupLink{names[task].agent.ID(), coordinator})
				}
				isKnown := false
				for i := range 4 {
					l := groupLink{coordinator, names[i].agent.ID()}
					if got&(1<<i) != 0 && len(w.links[l]) > 0 {
						w.deliver(l)
						isKnown = isKnown || !slices.Contains(killed, i) && len(w.agents[i].local) > 0
					}
				}
				for _, i := range killed {
					w.kill(i, none)
				}
				w.settle()
				for i, g := range w.groups {
					var err error
					select {
					case err = <-g.wake:
					default:
					}
					var e *MemberError
					isNamed := errors.As(err, &e) && len(e.Members) == 1 && e.Members[0].Instance == j.g.inst
					if isNamed != (isKnown && w.isDead(task)) || !isNamed && err != nil {
						t.Errorf("tasks %b got the message of a join in task %d, killed %v: the barrier of member %d: %v", got, task, killed, i, err)
					}
				}
				if !w.isDead(task) && !j.g.isIn {
					t.Errorf("tasks %b got the message of a join in task %d, killed %v: it has not joined", got, task, killed)
				}
			}
		}
	}
}

// SPDX-License-Identifier: Apache-2.0

package tpvm

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strconv"
	"sync"
	"time"

	"github.com/rocl-go/rocl"
)

// A groupAgent knows, for a task, a group that threads of the task have joined. At barriers it
// collects the arrivals of the task's members, so that one message tells the coordinator of all of
// them. A barrier for which only members of the task are needed takes no message.
//
// The agent's goroutine receives from the coordinator, and finds or makes another coordinator when
// that has ended. Methods that end in Locked need mu, which unlock releases.
//
// An agent ends when the task has no members of the group, unless the coordinator is in this task
// and is still needed. The next Join makes another agent.
type groupAgent struct {
	t    *Task
	name string
	r    *rocl.Resource
	key  uint64 // names the agent in messages to other agents
	post groupPost

	ended context.Context // done when the agent or the task has ended
	end   context.CancelFunc

	mu          sync.Mutex
	coordinator TID               // zero: none
	here        *groupCoordinator // the coordinator, if it is in this task
	monitors    []func()          // end the monitors of the coordinator: one for each attachment since it was lost
	attachment  uint64            // the number of the attachment to the coordinator
	attached    bool
	in, out     uint64       // the numbers of the last messages from and to the coordinator
	failure     error        // why there is no coordinator
	outage      *groupOutage // ends the calls that wait for the coordinator when that is out of reach

	version  uint64
	members  map[int]member // by number
	sorted   []member       // members sorted by number, or nil
	departed map[int]Member // the last member of each free number
	log      departures
	frozen   bool
	broken   *MemberError // a frozen group has lost a member

	returned map[TID]bool // members that the coordinator still counts, and the agent knows to be gone

	released []released // what the coordinator has told of complete barriers, for the next coordinator
	lost     []TID      // members that the coordinator has given up, for the next coordinator

	excluded []*rocl.Resource // of members of this task that the coordinator does not count; unlock closes them

	users    int                 // calls of Join and Leave under way
	local    map[TID]*Group      // members of this task, by their resource
	waiting  []*Group            // in a barrier, in the order of their calls
	sent     int                 // number of arrivals in waiting that were sent to the coordinator
	joins    map[uint64]chan int // calls of Join that wait for an instance number
	leaves   map[TID]*groupLeave
	syncing  *groupSync // the callers whose answer the coordinator has been asked for
	nextSync *groupSync // the callers for whom it is asked after syncing is answered
	last     uint64     // the last token that was given
}

// groupLeave is a call of Leave. The coordinator counts the member until it is told.
type groupLeave struct {
	member
	isSent bool          // the data of the member is delivered, and the coordinator is or will be told
	done   chan struct{} // closed when the coordinator has removed the member
}

// A groupOutage is the next loss of the coordinator because it is out of reach. Calls that wait for
// the coordinator then end.
type groupOutage struct {
	began chan struct{} // closed when err is set
	err   error
}

func newOutage() *groupOutage { return &groupOutage{began: make(chan struct{})} }

// groupSync stands for callers that wait until the agent knows the members as the coordinator does.
type groupSync struct {
	token uint64
	done  chan struct{}
}

// groupAgent returns the agent of a group. The agent does not end before the caller has called
// release.
func (t *Task) groupAgent(ctx context.Context, name string) (*groupAgent, error) {
	t.groupsMu.Lock()
	defer t.groupsMu.Unlock()
	if a := t.agents[name]; a != nil {
		a.mu.Lock()
		a.users++
		a.mu.Unlock()
		return a, nil
	}
	if t.ended.Err() != nil {
		return nil, ErrExited
	}
	r, err := t.c.Register(ctx, t.attrs(typeGroupAgent, rocl.Attrs{attrGroup: name}))
	if err != nil {
		return nil, err
	}
	a := makeAgent(t, name, r, &groupWire{t: t, r: r})
	a.ended, a.end = context.WithCancel(t.ended)
	if !t.work.goes(a.run) {
		_ = r.Close()
		return nil, ErrExited
	}
	if t.agents == nil {
		t.agents = map[string]*groupAgent{}
	}
	t.agents[name] = a
	return a, nil
}

// makeAgent returns an agent that the caller uses: see release.
func makeAgent(t *Task, name string, r *rocl.Resource, post groupPost) *groupAgent {
	return &groupAgent{
		t: t, name: name, r: r, key: rand.Uint64() | 1, post: post, users: 1, members: map[int]member{},
		departed: map[int]Member{}, local: map[TID]*Group{}, joins: map[uint64]chan int{},
		leaves: map[TID]*groupLeave{}, outage: newOutage(),
	}
}

// release ends a use of the agent by Join or Leave.
func (a *groupAgent) release() {
	a.mu.Lock()
	a.users--
	a.mu.Unlock()
	a.endIdle()
}

// endIdle ends the agent, and the coordinator in this task, if nothing needs them. An agent of
// another task that has just found this coordinator is told of its end, and makes another one.
func (a *groupAgent) endIdle() {
	a.mu.Lock()
	isIdle := a.isIdleLocked()
	a.mu.Unlock()
	if !isIdle {
		return
	}
	a.t.groupsMu.Lock()
	a.mu.Lock()
	isIdle = a.isIdleLocked() // no Join has found the agent meanwhile
	here := a.here
	if isIdle {
		delete(a.t.agents, a.name)
		a.end()
	}
	a.mu.Unlock()
	a.t.groupsMu.Unlock()
	if isIdle && here != nil {
		_ = here.r.Close()
	}
}

func (a *groupAgent) isIdleLocked() bool {
	return a.users == 0 && len(a.local) == 0 && a.ended.Err() == nil && (a.here == nil || a.here.isIdle())
}

// run is the agent's goroutine: it handles messages of the coordinator until the agent or the task
// ends. When the coordinator has ended, run connects to another one, which waits for that, unless
// the agent is about to end. When the coordinator is out of reach, run also connects to the same
// one again.
func (a *groupAgent) run() {
	a.t.receiveGroup(a.ended, a.r, a.name, func(from TID, v *groupMessage, gone error) {
		if a.receive(from, v, gone) {
			a.connect(a.ended, from)
		}
		a.endIdle()
	})
}

// receive handles a message. If v is nil, or its operation is opLost, the coordinator has ended, or
// was given up, because of gone. receive reports whether the agent needs a coordinator.
func (a *groupAgent) receive(from TID, v *groupMessage, gone error) (needs bool) {
	a.mu.Lock()
	defer a.unlock()
	switch {
	case from == a.r.ID() && v != nil && v.Op == opDropped && v.token() == a.attachment:
		a.detachLocked() // if this context has given the coordinator up, the monitor tells of that too
	case from != a.coordinator:
	case v == nil || v.Op == opLost:
		a.lostLocked(gone)
	case v.Op == opView, v.Number == a.in+1: // otherwise the coordinator has given this task up, and will end the call
		a.in = v.Number
		a.handleLocked(v)
	}
	return a.coordinator.IsZero() && (len(a.local) > 0 || a.users > 0)
}

// sendLocked sends to the coordinator. If the send fails, the coordinator has ended, and the
// monitor reports that.
func (a *groupAgent) sendLocked(v groupMessage) {
	if a.attached {
		a.out++
		v.Number = a.out
		a.sendToLocked(a.coordinator, v)
	}
}

func (a *groupAgent) sendToLocked(to TID, v groupMessage) {
	if a.here != nil && to == a.coordinator {
		a.here.ask(&v)
		return
	}
	a.post.send(to, &v)
}

// unlock handles what the coordinator in this task has answered, releases mu, and then closes the
// resources of members that are excluded: their numbers are free.
func (a *groupAgent) unlock() {
	for a.here != nil {
		vs := a.here.answers()
		if len(vs) == 0 {
			break
		}
		for i := range vs {
			a.handleLocked(&vs[i])
		}
	}
	rs := a.excluded
	a.excluded = nil
	a.mu.Unlock()
	for _, r := range rs {
		_ = r.Close()
	}
}

// lostLocked detaches the agent from a coordinator that has ended because of gone. If the
// coordinator is out of reach, the calls that wait for it fail: they have waited for as long as
// rocl.WithGiveUp says.
func (a *groupAgent) lostLocked(gone error) {
	for _, stop := range a.monitors {
		stop()
	}
	a.monitors = nil
	a.detachLocked()
	if errors.Is(gone, rocl.ErrUnreachable) {
		a.outage.err = fmt.Errorf("the coordinator of the group is out of reach: %w", gone)
		close(a.outage.began)
		a.outage = newOutage()
	}
}

// detachLocked detaches the agent from its coordinator.
func (a *groupAgent) detachLocked() {
	a.coordinator, a.here, a.attached = TID{}, nil, false
	if len(a.local) == 0 && len(a.leaves) == 0 {
		a.members, a.sorted, a.frozen, a.broken = map[int]member{}, nil, false, nil
	}
}

// connect finds a coordinator, or makes one, and attaches the agent to it. It retries until ctx
// ends. lost is the coordinator that has ended, or was given up. If the directory still has it
// after some retries, it lives, and the agent is attached to it again.
func (a *groupAgent) connect(ctx context.Context, lost TID) {
	const most = 100 * time.Millisecond
	for wait := time.Millisecond; ; wait = min(2*wait, most) {
		id, here, err := a.elect(ctx)
		if err == nil && (id != lost || wait == most) {
			var stop func()
			stop, err = a.r.Monitor(ctx, id, ownTag)
			a.mu.Lock()
			if err == nil && ctx.Err() == nil {
				a.failure, a.monitors = nil, append(a.monitors, stop)
				a.attachLocked(id, here)
				a.unlock()
				return
			}
			a.mu.Unlock()
			if here != nil {
				_ = here.r.Close()
			}
		}
		a.mu.Lock()
		a.failure = err
		a.unlock()
		select {
		case <-ctx.Done():
			return
		case <-time.After(wait):
		}
	}
}

// attachLocked tells a coordinator, which may be here, of the agent: of the members that an earlier
// coordinator has counted, and of what that has decided.
func (a *groupAgent) attachLocked(id TID, here *groupCoordinator) {
	a.coordinator, a.here, a.attached = id, here, false
	a.last++
	a.attachment = a.last
	a.out++
	v := groupMessage{Op: opAttach, Number: a.out, Tokens: []uint64{a.attachment}, Freeze: a.frozen, Key: a.key, Released: a.released, Lost: a.lost}
	for _, g := range a.local {
		if g.isIn {
			v.Members = append(v.Members, g.member())
		} else {
			v.Joining = append(v.Joining, g.member())
		}
	}
	for _, l := range a.leaves {
		v.Members = append(v.Members, l.member)
	}
	for _, m := range a.members {
		if a.local[m.ID] == nil && a.leaves[m.ID] == nil {
			v.Known = append(v.Known, m)
		}
	}
	if here != nil {
		here.ask(&v)
		return
	}
	dropped := groupMessage{Op: opDropped, Tokens: v.Tokens}
	a.post.call(a.ended, id, &v, func() {
		a.mu.Lock()
		a.post.send(a.r.ID(), &dropped)
		a.mu.Unlock()
	})
}

// elect returns the coordinator of the group. If there is none, elect makes one in this task.
func (a *groupAgent) elect(ctx context.Context) (TID, *groupCoordinator, error) {
	f, err := a.t.c.Find(ctx, a.t.match(typeCoordinator, rocl.Match{attrGroup: a.name}), rocl.Want(attrType))
	if errors.Is(err, rocl.ErrNotFound) {
		c, err := a.t.newCoordinator(ctx, a.name, a)
		if err != nil {
			return TID{}, nil, err
		}
		return c.r.ID(), c, nil
	}
	return f.ID, nil, err
}

// isClosed reports whether the membership has ended.
func (g *Group) isClosed() bool {
	g.a.mu.Lock()
	defer g.a.mu.Unlock()
	return g.closed != nil
}

func (g *Group) member() member { return member{Inst: g.inst, TID: g.t.ID(), ID: g.r.ID()} }

// handleLocked handles a message of the coordinator. Until opView has answered the attachment,
// other messages are ignored.
func (a *groupAgent) handleLocked(v *groupMessage) {
	if !a.attached && v.Op != opView || v.Op == opView && v.token() != a.attachment {
		return
	}
	switch v.Op {
	case opView:
		a.viewLocked(v)
	case opChange:
		if len(v.Members) == 1 {
			a.version = v.Version
			a.lost = append(a.lost, v.Lost...)
			if m := v.Members[0]; v.Gone {
				a.goneLocked(m, v.Left, v.reason())
			} else {
				a.addLocked(m)
				a.flushLocked() // arrivals may have been held back for a smaller group
			}
		}
	case opReserved:
		if reply := a.joins[v.token()]; reply != nil {
			delete(a.joins, v.token())
			reply <- v.Inst
		} else if v.Inst < 0 {
			a.refusedLocked(v.token())
		}
	case opSynced:
		if s := a.syncing; s != nil && s.token == v.token() {
			close(s.done)
			a.syncing, a.nextSync = a.nextSync, nil
			a.sendSyncLocked()
		}
	case opRelease:
		a.frozen = a.frozen || v.Freeze
		a.released = v.Released
		a.endLocked(v.Tokens, nil)
	case opMismatch:
		err := fmt.Errorf("%w: %d", ErrBarrierCount, v.Count)
		if a.frozen {
			err = ErrFrozen
		}
		a.endLocked(v.Tokens, err)
	}
}

// viewLocked takes the members from a coordinator that the agent is now attached to. It sends again
// the requests that an earlier coordinator has not answered.
func (a *groupAgent) viewLocked(v *groupMessage) {
	a.attached = true
	a.version = v.Version
	now := make(map[TID]bool, len(v.Members))
	for _, m := range v.Members {
		now[m.ID] = true
	}
	var gone []member
	for _, m := range a.members {
		if !now[m.ID] {
			gone = append(gone, m)
		}
	}
	for _, m := range v.Known { // of whose join and end the earlier coordinator has told other agents only
		if a.members[m.Inst].ID != m.ID && !a.log.has(m.ID) {
			gone = append(gone, m)
		}
	}
	a.returned = map[TID]bool{}
	for _, m := range v.Members {
		if a.members[m.Inst].ID != m.ID && a.log.has(m.ID) {
			a.returned[m.ID] = true // its Leave was not answered; the new coordinator will hear of it again
		} else {
			a.addLocked(m)
		}
	}
	a.frozen = a.frozen || v.Freeze
	a.released, a.lost = v.Released, v.Lost
	var passed []uint64 // the earlier coordinator has told other agents
	for _, r := range v.Released {
		for _, g := range a.waiting[:a.sent] {
			if r.Agent == a.key && g.token <= r.Token {
				passed = append(passed, g.token)
			}
		}
	}
	a.endLocked(passed, nil)
	a.sent = 0
	for _, m := range gone {
		a.goneLocked(m, false, nil)
	}
	a.flushLocked()
	for token := range a.joins {
		a.sendLocked(groupMessage{Op: opJoin, Tokens: []uint64{token}})
	}
	for _, g := range a.local {
		if !g.isIn {
			a.sendJoinedLocked(g)
		}
	}
	for _, l := range a.leaves {
		a.sendLeaveLocked(l)
	}
	a.sendSyncLocked()
}

// addLocked adds a member. If it belongs to this task, its Join can return.
func (a *groupAgent) addLocked(m member) {
	a.members[m.Inst] = m
	a.sorted = nil
	delete(a.departed, m.Inst)
	if g := a.local[m.ID]; g != nil && !g.isIn {
		g.isIn = true
		close(g.joined)
	}
}

// goneLocked removes a member that has ended, has left, or is out of reach, as why says. All
// arrivals at the barrier are void.
func (a *groupAgent) goneLocked(m member, left bool, why error) {
	was := m.public()
	was.Left = left
	if a.members[m.Inst].ID == m.ID {
		delete(a.members, m.Inst)
		a.departed[m.Inst] = was
		a.sorted = nil
	}
	if l := a.leaves[m.ID]; l != nil {
		close(l.done)
		delete(a.leaves, m.ID)
	}
	if a.frozen && a.broken == nil && !a.returned[m.ID] {
		a.broken = &MemberError{Group: a.name, Members: []Member{was}, Err: why}
	}
	a.sent = 0
	if g := a.local[m.ID]; g != nil { // the coordinator takes this task for ended, or has given it up
		a.removeLocked(g, ErrNotInGroup)
		a.excluded = append(a.excluded, g.r)
		if !g.isIn {
			close(g.joined) // Join tries again
		}
	}
	if !a.returned[m.ID] {
		a.log.add(absentee{m, left, why})
	}
	delete(a.returned, m.ID)
	still := a.waiting[:0]
	for _, g := range a.waiting {
		if err := a.lackLocked(g, g.count); err != nil {
			g.endLocked(err)
		} else {
			still = append(still, g)
		}
	}
	clear(a.waiting[len(still):])
	a.waiting = still
	a.flushLocked()
	if len(a.members) == 0 {
		a.frozen, a.broken = false, nil
	}
}

// mostUnreported is how many departures the error of a member's barrier names at most.
const mostUnreported = 64

// lackLocked returns an error if a barrier of count lacks members, and g has not been told of their
// end yet.
func (a *groupAgent) lackLocked(g *Group, count int) error {
	if a.broken != nil {
		return a.broken
	}
	if g.reported == a.log.end() || count <= len(a.members) {
		return nil
	}
	err := &MemberError{Group: a.name}
	for _, x := range a.log.since(max(g.reported, a.log.end()-min(a.log.end(), mostUnreported))) {
		m := x.public()
		m.Left = x.left
		err.Members, err.Err = append(err.Members, m), cmp.Or(err.Err, x.why)
	}
	g.reported = a.log.end()
	return err
}

// endLocked ends the barrier of a member. The caller has taken it out of waiting.
func (g *Group) endLocked(err error) {
	g.waiting = false
	if err == nil {
		g.reported = g.a.log.end()
	}
	g.wake <- err
}

// endLocked ends the barrier of the members with tokens, which are in ascending order.
func (a *groupAgent) endLocked(tokens []uint64, err error) {
	var ended []*Group
	still := a.waiting[:0]
	for i, g := range a.waiting {
		for i < a.sent && len(tokens) > 0 && tokens[0] < g.token {
			tokens = tokens[1:] // a cancelled arrival
		}
		if i < a.sent && len(tokens) > 0 && tokens[0] == g.token {
			tokens = tokens[1:]
			ended = append(ended, g)
		} else {
			still = append(still, g)
		}
	}
	clear(a.waiting[len(still):])
	a.waiting = still
	a.sent -= len(ended)
	for _, g := range ended {
		g.endLocked(err)
	}
}

// flushLocked ends the barriers that members of this task complete by themselves. It tells the
// coordinator of the other members that wait, unless more members of this task are still to come.
func (a *groupAgent) flushLocked() {
	if len(a.waiting) == 0 {
		return
	}
	count, freeze := a.waiting[0].count, a.waiting[0].freeze
	for !freeze && len(a.waiting)-a.sent >= count {
		for _, g := range a.waiting[a.sent : a.sent+count] {
			g.endLocked(nil)
		}
		a.waiting = slices.Delete(a.waiting, a.sent, a.sent+count)
	}
	isHeld := count >= len(a.members) && len(a.waiting) < len(a.local)
	if !a.attached || isHeld || a.sent == len(a.waiting) {
		return
	}
	v := groupMessage{Op: opArrive, Version: a.version, Count: count, Freeze: freeze, Tokens: make([]uint64, 0, len(a.waiting)-a.sent)}
	for _, g := range a.waiting[a.sent:] {
		a.last++
		g.token = a.last
		v.Tokens = append(v.Tokens, g.token)
	}
	a.sent = len(a.waiting)
	a.sendLocked(v)
}

// barrier waits in the barrier until count members have called it.
func (a *groupAgent) barrier(ctx context.Context, g *Group, count int, freeze bool) error {
	outage, err := a.arrive(g, count, freeze)
	if err != nil {
		return err
	}
	select {
	case err := <-g.wake:
		return err
	case <-outage.began:
	case <-ctx.Done():
	}
	a.mu.Lock()
	defer a.unlock()
	if !g.waiting {
		return <-g.wake
	}
	if ctx.Err() == nil {
		g.suspended = true
		return outage.err
	}
	a.withdrawLocked(g)
	return a.causeLocked(ctx, slices.Collect(maps.Values(a.members))...)
}

// arrive makes the member wait in the barrier. The result comes from g.wake. An earlier call that
// ended as the coordinator was out of reach goes on: it may have counted.
func (a *groupAgent) arrive(g *Group, count int, freeze bool) (*groupOutage, error) {
	a.mu.Lock()
	defer a.unlock()
	err := g.closed
	if g.suspended && err == nil {
		g.suspended = false
		if !g.waiting || g.count == count && g.freeze == freeze {
			return a.outage, nil
		}
		a.withdrawLocked(g)
	}
	switch {
	case err != nil:
	case g.waiting:
		err = fmt.Errorf("%w: the member waits in a barrier already", ErrBadParam)
	case freeze && a.frozen:
		err = ErrFrozen
	default:
		err = a.lackLocked(g, count)
	}
	if err == nil && len(a.waiting) > 0 && (a.waiting[0].count != count || a.waiting[0].freeze != freeze) {
		err = fmt.Errorf("%w: %d", ErrBarrierCount, a.waiting[0].count)
	}
	if err != nil {
		return nil, err
	}
	g.waiting, g.count, g.freeze = true, count, freeze
	a.waiting = append(a.waiting, g)
	a.flushLocked()
	return a.outage, nil
}

// withdrawLocked takes a member out of the barrier in which it waits.
func (a *groupAgent) withdrawLocked(g *Group) {
	g.waiting = false
	i := slices.Index(a.waiting, g)
	a.waiting = slices.Delete(a.waiting, i, i+1)
	if i < a.sent {
		a.sent--
		a.sendLocked(groupMessage{Op: opCancel, Tokens: []uint64{g.token}})
	}
}

// removeLocked ends a membership in the agent. A barrier in which the member waits fails with err.
func (a *groupAgent) removeLocked(g *Group, err error) {
	g.closed = err
	delete(a.local, g.r.ID())
	if g.waiting {
		a.withdrawLocked(g)
		g.endLocked(err)
	}
}

// drop ends the membership of a thread that has ended.
func (a *groupAgent) drop(g *Group) {
	a.mu.Lock()
	if g.closed == nil {
		a.removeLocked(g, ErrNotInGroup)
		a.flushLocked() // other members may have been held back for it
	}
	a.unlock()
	_ = g.r.Close() // the coordinator monitors it
	a.endIdle()
}

// leave ends a membership for Leave. It waits until the member's data is delivered and the
// coordinator has removed the member.
func (a *groupAgent) leave(ctx context.Context, g *Group) error {
	a.mu.Lock()
	if g.closed != nil {
		defer a.unlock()
		return g.closed
	}
	a.users++
	defer a.release()
	a.removeLocked(g, ErrNotInGroup)
	l := &groupLeave{member: g.member(), done: make(chan struct{})}
	a.leaves[l.ID] = l
	a.flushLocked()
	a.unlock()
	defer func() {
		a.mu.Lock()
		delete(a.leaves, l.ID)
		a.unlock()
	}()
	// A root that learns that the member has left relies on having its data.
	if err := delivered(g.r.Flush(ctx)); err != nil {
		return errors.Join(err, g.r.Close())
	}
	a.mu.Lock()
	l.isSent = true
	a.connectLocked()
	a.sendLeaveLocked(l)
	a.unlock()
	if _, err := wait(ctx, a, l.done); err != nil && !errors.Is(err, ErrExited) {
		return errors.Join(err, g.r.Close())
	}
	var err error
	if err = g.r.Delete(ctx); errors.Is(err, rocl.ErrClosed) { // the task has ended meanwhile
		return nil
	}
	return err
}

func (a *groupAgent) sendLeaveLocked(l *groupLeave) {
	if l.isSent {
		a.sendLocked(groupMessage{Op: opLeave, Members: []member{l.member}})
	}
}

func (a *groupAgent) sendJoinedLocked(g *Group) {
	a.sendLocked(groupMessage{Op: opJoined, Tokens: []uint64{g.token}, Members: []member{g.member()}})
}

// refusedLocked ends the Join of the member that has reserved a number with a token: the group was
// frozen before the member was counted.
func (a *groupAgent) refusedLocked(token uint64) {
	for _, g := range a.local {
		if !g.isIn && g.token == token && g.closed == nil {
			a.removeLocked(g, ErrFrozen)
			close(g.joined)
			return
		}
	}
}

// connectLocked wakes the agent's goroutine if it has no coordinator.
func (a *groupAgent) connectLocked() {
	if a.coordinator.IsZero() {
		a.sendToLocked(a.r.ID(), groupMessage{Op: opConnect})
	}
}

// wait waits for an answer of the coordinator on c.
func wait[T any](ctx context.Context, a *groupAgent, c <-chan T) (v T, err error) {
	a.mu.Lock()
	outage := a.outage
	a.unlock()
	select {
	case v = <-c:
		return v, nil
	case <-outage.began:
		return v, outage.err
	case <-a.ended.Done():
		if a.t.ended.Err() != nil {
			return v, ErrExited
		}
		return v, ErrNotInGroup
	case <-ctx.Done():
	}
	a.mu.Lock()
	defer a.unlock()
	return v, a.causeLocked(ctx)
}

// causeLocked returns why ctx has ended, and why the coordinator has not answered meanwhile, or the
// members ms have not arrived, as far as that is known.
func (a *groupAgent) causeLocked(ctx context.Context, ms ...member) error {
	if a.failure != nil {
		return fmt.Errorf("%w; the group has no coordinator: %w", context.Cause(ctx), a.failure)
	}
	ids := []TID{a.coordinator}
	for _, m := range ms {
		ids = append(ids, m.ID)
	}
	return a.r.Context().Explain(context.Cause(ctx), ids...)
}

// reserve asks the coordinator for an instance number.
func (a *groupAgent) reserve(ctx context.Context) (inst int, token uint64, err error) {
	reply := make(chan int, 1)
	a.mu.Lock()
	a.last++
	token = a.last
	a.joins[token] = reply
	a.connectLocked()
	a.sendLocked(groupMessage{Op: opJoin, Tokens: []uint64{token}})
	a.unlock()
	inst, err = wait(ctx, a, reply)
	if err == nil && inst < 0 {
		err = ErrFrozen
	}
	if err != nil {
		a.cancel(token)
	}
	return inst, token, err
}

// cancel gives a reservation back.
func (a *groupAgent) cancel(token uint64) {
	a.mu.Lock()
	delete(a.joins, token)
	a.sendLocked(groupMessage{Op: opCancel, Tokens: []uint64{token}})
	a.unlock()
}

// join reserves an instance number, registers the member's resource, and waits until the
// coordinator counts the member. If the number is still in use, join asks again.
func (a *groupAgent) join(ctx context.Context, t *Thread) (*Group, error) {
	for pause := 100 * time.Microsecond; ; pause = min(2*pause, 50*time.Millisecond) {
		inst, token, err := a.reserve(ctx)
		if err != nil {
			return nil, err
		}
		attrs := a.t.attrs(typeGroup, rocl.Attrs{attrGroup: a.name, attrInstance: strconv.Itoa(inst), attrTID: t.ID().String()})
		r, err := a.t.c.Register(ctx, attrs, rocl.Unique(attrType, attrVM, attrGroup, attrInstance))
		if errors.Is(err, rocl.ErrExists) { // a member has ended, or is about to be counted by a new coordinator
			a.cancel(token)
			select {
			case <-time.After(pause):
				continue
			case <-ctx.Done():
				return nil, context.Cause(ctx)
			}
		}
		if err != nil {
			a.cancel(token)
			return nil, err
		}
		g := &Group{t: t, a: a, r: r, inst: inst, token: token, joined: make(chan struct{}), wake: make(chan error, 1)}
		a.mu.Lock()
		g.reported, g.missed = a.log.end(), a.log.end()
		a.local[r.ID()] = g
		a.connectLocked()
		a.sendJoinedLocked(g)
		a.unlock()
		_, err = wait(ctx, a, g.joined)
		a.mu.Lock()
		if err == nil {
			err = g.closed
		}
		a.unlock()
		if errors.Is(err, ErrNotInGroup) && a.ended.Err() == nil { // the coordinator has given the task up meanwhile
			continue
		}
		if err != nil {
			a.drop(g)
			return nil, err
		}
		return g, nil
	}
}

// sendSyncLocked asks the coordinator for the answer that a.syncing waits for.
func (a *groupAgent) sendSyncLocked() {
	if s := a.syncing; s != nil {
		a.last++
		s.token = a.last
		a.sendLocked(groupMessage{Op: opSync, Tokens: []uint64{s.token}})
	}
}

// list returns the members in the order of their numbers, as the coordinator knows them after the
// call has begun. Callers must not change the result.
func (a *groupAgent) list(ctx context.Context, g *Group) ([]member, error) {
	a.mu.Lock()
	defer a.unlock()
	if g.closed != nil {
		return nil, g.closed
	}
	if !a.frozen {
		s := a.nextSync // one answer is for all callers that ask while another is under way
		if s == nil {
			s = &groupSync{done: make(chan struct{})}
			if a.syncing == nil {
				a.syncing = s
				a.sendSyncLocked()
			} else {
				a.nextSync = s
			}
		}
		a.unlock()
		_, err := wait(ctx, a, s.done)
		a.mu.Lock()
		if err != nil {
			return nil, err
		}
	}
	if a.sorted == nil {
		a.sorted = slices.SortedFunc(maps.Values(a.members), func(x, y member) int { return cmp.Compare(x.Inst, y.Inst) })
	}
	return a.sorted, nil
}

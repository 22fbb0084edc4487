// SPDX-License-Identifier: Apache-2.0

package tpvm

import (
	"context"
	"errors"
	"maps"
	"slices"
	"sync"

	"github.com/rocl-go/rocl"
)

// A groupCoordinator numbers the members of a group and counts the arrivals at its barriers. Each
// group has one in the virtual machine, in a task that has or had members of the group: its
// resource is Unique. The agents of the group, one in each task that has members, send to it. When
// its task has ended, the agents make another coordinator, from the resources in the directory, and
// send again the requests that have not been answered. A coordinator that no member and no agent of
// another task needs any more ends with the agent of its own task.
//
// The coordinator handles one message at a time, so that joins, ends and arrivals have one order.
// Each change of the membership has a version. An arrival whose agent had not learned of the last
// end of a member is dropped: the agent will learn of the end, and sends the arrival again if its
// members still wait then.
//
// A coordinator may be killed while it tells the agents of what it has decided: that a barrier is
// complete, that the group is frozen. Some agents know of it then, and some do not. So the message
// about a complete barrier names the arrivals of all agents, and each agent keeps that. The next
// coordinator begins with no decision: it waits until each agent in the directory has told what it
// knows, or has ended. Then it sends all of that to all agents: also which members an agent has
// heard of that are gone, since other agents may have heard of neither their join nor their end.
type groupCoordinator struct {
	t    *Task
	name string
	r    *rocl.Resource
	own  *groupAgent // the agent of the same task, which calls handle by ask instead of sending
	post groupPost

	mu       sync.Mutex     // locked after own.mu
	inbox    []groupMessage // messages for own
	version  uint64
	lastGone uint64 // the version at which a member departed last
	members  map[TID]member
	insts    map[int]TID
	reserved map[int]arrival
	leaving  map[TID]bool // members that have called Leave, and may still be found in the directory
	low      int          // no number below is free
	agents   map[TID]*attachment
	lost     map[TID]uint64 // the keys of agents that were given up, and may attach again
	excluded map[TID]bool   // members that were given up, and may live
	frozen   bool

	awaited  map[TID]bool      // agents of the previous coordinator that have not attached yet
	viewless []arrival         // attachments of agents that get their view when no agent is awaited any more
	joining  []member          // members of agents without a view that the previous coordinator may have counted
	known    map[TID]member    // members of any task that agents without a view know
	released map[uint64]uint64 // the last token whose barrier is complete, of each agent by its key

	count   int // of the barrier for which pending wait
	freeze  bool
	pending []arrival
}

// arrival names a request of an agent: an arrival at a barrier, a reservation, or an attachment.
type arrival struct {
	agent TID
	token uint64
}

// An attachment is what the coordinator knows of an agent that is attached to it.
type attachment struct {
	key     uint64
	call    groupCall // nil in the coordinator's task; ended when the agent is attached no more
	in, out uint64    // the numbers of the last messages from and to the agent
}

// newCoordinator makes this task the coordinator of a group. It fails with rocl.ErrExists if the
// group has a coordinator.
func (t *Task) newCoordinator(ctx context.Context, name string, own *groupAgent) (*groupCoordinator, error) {
	r, err := t.c.Register(ctx, t.attrs(typeCoordinator, rocl.Attrs{attrGroup: name}), rocl.Unique(attrType, attrVM, attrGroup))
	if err != nil {
		return nil, err
	}
	c := makeCoordinator(t, name, r, own, &groupWire{t: t, r: r})
	for f, err := range t.c.FindAll(ctx, t.match(typeGroupAgent, rocl.Match{attrGroup: name}), rocl.Want(attrType)) {
		if err != nil { // also rocl.ErrPartial: an agent that is not awaited may know of a decision
			_ = r.Close()
			return nil, err
		}
		c.await(f.ID)
	}
	if !t.work.goes(c.run) {
		_ = r.Close()
		return nil, ErrExited
	}
	return c, nil
}

func makeCoordinator(t *Task, name string, r *rocl.Resource, own *groupAgent, post groupPost) *groupCoordinator {
	return &groupCoordinator{
		t: t, name: name, r: r, own: own, post: post, members: map[TID]member{}, insts: map[int]TID{},
		reserved: map[int]arrival{}, leaving: map[TID]bool{}, agents: map[TID]*attachment{}, lost: map[TID]uint64{}, excluded: map[TID]bool{}, awaited: map[TID]bool{},
		known: map[TID]member{}, released: map[uint64]uint64{},
	}
}

// await makes the coordinator decide nothing before an agent has attached or has ended.
func (c *groupCoordinator) await(agent TID) {
	if c.post.monitor(agent) {
		c.awaited[agent] = true
	}
}

// run is the coordinator's goroutine: it handles messages of agents, and ends of agents and
// members, until the task or the resource ends. It makes the task's own agent handle its answers.
func (c *groupCoordinator) run() {
	c.t.receiveGroup(c.t.ended, c.r, c.name, func(from TID, v *groupMessage, gone error) {
		c.receive(from, v, gone)
		c.own.endIdle()
	})
	c.mu.Lock()
	defer c.mu.Unlock()
	for id := range c.agents {
		c.detach(id)
	}
}

// detach forgets an agent and ends its call, by which the agent learns of that.
func (c *groupCoordinator) detach(agent TID) {
	if at := c.agents[agent]; at != nil && at.call != nil {
		at.call.Release()
	}
	delete(c.agents, agent)
}

// receive handles a message. If v is nil, or its operation is opLost, an agent or a member has
// ended, or was given up, because of gone.
func (c *groupCoordinator) receive(from TID, v *groupMessage, gone error) {
	c.mu.Lock()
	if v == nil || v.Op == opLost {
		c.gone(from, v != nil, gone)
	} else if c.isNext(from, v) {
		c.handleLocked(from, v)
	}
	isForOwn := len(c.inbox) > 0
	c.mu.Unlock()
	if isForOwn {
		c.own.mu.Lock()
		c.own.unlock()
	}
}

// isNext reports whether no message of an agent was lost before this one, since it has attached. If
// one was, the agent has given the coordinator up, and attaches again.
func (c *groupCoordinator) isNext(from TID, v *groupMessage) bool {
	at := c.agents[from]
	if v.Op == opAttach || at == nil {
		return true
	}
	if v.Number != at.in+1 {
		return false
	}
	at.in++
	return true
}

// isIdle reports whether the group has no members, and no agent but the one of the same task.
func (c *groupCoordinator) isIdle() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	others := len(c.agents) + len(c.awaited)
	if c.isAttached(c.own.r.ID()) {
		others--
	}
	return others == 0 && len(c.members) == 0 && len(c.leaving) == 0 && len(c.reserved) == 0
}

// ask handles a message of the agent of the same task. The answers are in the inbox.
func (c *groupCoordinator) ask(v *groupMessage) {
	c.mu.Lock()
	c.handleLocked(c.own.r.ID(), v)
	c.mu.Unlock()
}

// answers takes the messages out of the inbox.
func (c *groupCoordinator) answers() []groupMessage {
	c.mu.Lock()
	defer c.mu.Unlock()
	vs := c.inbox
	c.inbox = nil
	return vs
}

// handleLocked handles a message. mu must be held.
func (c *groupCoordinator) handleLocked(from TID, v *groupMessage) {
	if v.Op != opAttach && !c.isAttached(from) {
		return // the end of the agent was reported before its last message, or it was given up
	}
	switch v.Op {
	case opAttach:
		if !c.isAttached(from) && !c.awaited[from] && !c.post.monitor(from) {
			return
		}
		c.detach(from)
		c.forgetRequests(from) // of an attachment that the agent has given up
		at := &attachment{key: v.Key, call: v.call, in: v.Number}
		v.call = nil
		for _, id := range v.Lost {
			c.exclude(id)
		}
		_, wasLost := c.lost[from]
		delete(c.lost, from)
		for _, m := range v.Members {
			switch _, isMember := c.members[m.ID]; {
			case m.ID.Context() != from.Context() || isMember:
			case wasLost || c.excluded[m.ID]:
				c.exclude(m.ID)
			default:
				c.addLocked(m)
			}
		}
		for _, m := range v.Joining {
			if m.ID.Context() == from.Context() {
				c.joining = append(c.joining, m)
			}
		}
		for _, m := range v.Known {
			c.known[m.ID] = m
		}
		delete(c.awaited, from)
		c.agents[from] = at
		c.frozen = c.frozen || v.Freeze
		for _, r := range v.Released {
			c.released[r.Agent] = max(c.released[r.Agent], r.Token)
		}
		c.viewless = append(c.viewless, arrival{from, v.token()})
		c.sendViews()
	case opJoin:
		c.send(from, groupMessage{Op: opReserved, Tokens: v.Tokens, Inst: c.reserve(arrival{from, v.token()})})
	case opJoined:
		c.cancelLocked(from, v.Tokens)
		switch {
		case len(v.Members) != 1 || v.Members[0].ID.Context() != from.Context():
		case c.frozen: // since the number was reserved
			c.send(from, groupMessage{Op: opReserved, Tokens: v.Tokens, Inst: -1})
		case c.excluded[v.Members[0].ID]:
			c.send(from, groupMessage{Op: opChange, Version: c.version, Members: v.Members, Gone: true})
		default:
			c.addLocked(v.Members[0])
		}
	case opLeave:
		if len(v.Members) == 1 && v.Members[0].ID.Context() == from.Context() {
			c.depart(v.Members[0].ID, true, nil)
		}
	case opSync:
		c.send(from, groupMessage{Op: opSynced, Tokens: v.Tokens})
	case opCancel:
		c.cancelLocked(from, v.Tokens)
	case opArrive:
		c.arrive(from, v)
	}
}

// send sends to an agent. If the send fails, the agent has ended, and its monitor reports that.
func (c *groupCoordinator) send(to TID, v groupMessage) {
	if to == c.own.r.ID() {
		v.Tokens = slices.Clone(v.Tokens)
		c.inbox = append(c.inbox, v)
		return
	}
	if at := c.agents[to]; at != nil {
		at.out++
		v.Number = at.out
		c.post.send(to, &v)
	}
}

// sendViews sends the agents that have no view yet what all of them know together, unless another
// agent is awaited.
func (c *groupCoordinator) sendViews() {
	if len(c.awaited) > 0 {
		return
	}
	for id := range c.excluded {
		c.depart(id, false, nil) // it has attached before an agent has told of this
	}
	c.frozen = c.frozen && len(c.members) > 0
	for _, m := range c.joining {
		if !c.frozen && !c.excluded[m.ID] { // otherwise its agent asks, and gets the answer
			c.addLocked(m)
		}
	}
	attached := map[uint64]bool{}
	for _, at := range c.agents {
		attached[at.key] = true
	}
	for _, key := range c.lost {
		attached[key] = true
	}
	maps.DeleteFunc(c.released, func(key, _ uint64) bool { return !attached[key] })
	view := groupMessage{Op: opView, Version: c.version, Freeze: c.frozen, Released: releasedOf(c.released), Lost: slices.Collect(maps.Keys(c.excluded))}
	for _, m := range c.members {
		view.Members = append(view.Members, m)
	}
	for id, m := range c.known {
		if _, isMember := c.members[id]; !isMember {
			view.Known = append(view.Known, m)
		}
	}
	for _, a := range c.viewless {
		view.Tokens = []uint64{a.token}
		c.send(a.agent, view)
	}
	c.viewless, c.joining = nil, nil
	clear(c.known)
}

func (c *groupCoordinator) isAttached(agent TID) bool {
	_, is := c.agents[agent]
	return is
}

func (c *groupCoordinator) sendAll(v groupMessage) {
	for id := range c.agents {
		c.send(id, v)
	}
}

// reserve returns the lowest free number. It returns -1 if the group is frozen.
func (c *groupCoordinator) reserve(by arrival) int {
	if c.frozen {
		return -1
	}
	for ; ; c.low++ {
		_, isMember := c.insts[c.low]
		_, isReserved := c.reserved[c.low]
		if !isMember && !isReserved {
			c.reserved[c.low] = by
			return c.low
		}
	}
}

func (c *groupCoordinator) free(inst int) { c.low = min(c.low, inst) }

// cancelLocked withdraws the arrivals and reservations of an agent that have these tokens. mu must
// be held.
func (c *groupCoordinator) cancelLocked(from TID, tokens []uint64) {
	is := func(a arrival) bool { return a.agent == from && slices.Contains(tokens, a.token) }
	c.pending = slices.DeleteFunc(c.pending, is)
	for inst, a := range c.reserved {
		if is(a) {
			delete(c.reserved, inst)
			c.free(inst)
		}
	}
}

// addLocked adds a member and tells all agents, unless the member is known already, is invalid or
// is leaving. mu must be held.
func (c *groupCoordinator) addLocked(m member) {
	if _, ok := c.members[m.ID]; ok || !m.isValid() || c.leaving[m.ID] {
		return
	}
	if id, ok := c.insts[m.Inst]; ok { // its end has not been reported yet
		c.depart(id, false, nil)
	}
	if !c.post.monitor(m.ID) {
		c.free(m.Inst)
		return
	}
	c.members[m.ID], c.insts[m.Inst] = m, m.ID
	c.version++
	c.sendAll(groupMessage{Op: opChange, Version: c.version, Members: []member{m}})
	c.refuseFreeze()
}

// depart removes a member. The arrivals at the barrier are void: agents send them again. If the
// member is out of reach, why says so.
func (c *groupCoordinator) depart(id TID, left bool, why error) {
	m, ok := c.members[id]
	if !ok {
		return
	}
	delete(c.members, id)
	delete(c.insts, m.Inst)
	c.free(m.Inst)
	if left {
		c.leaving[id] = true // until its end is reported
	}
	c.pending = nil
	c.frozen = c.frozen && len(c.members) > 0
	c.version++
	c.lastGone = c.version
	v := groupMessage{Op: opChange, Version: c.version, Members: []member{m}, Gone: true, Left: left}
	if c.excluded[id] {
		v.Lost = []TID{id}
	}
	if errors.Is(why, rocl.ErrUnreachable) {
		v.Why = why.Error()
	}
	c.sendAll(v)
}

// exclude makes a member that was given up, and may live, stay out of the group: other members may
// know that it is gone. Its agent learns that when it attaches again.
func (c *groupCoordinator) exclude(id TID) {
	if len(c.excluded) < mostLost {
		c.excluded[id] = true
	}
}

// gone handles the end of an agent or of a member because of why. With isLost, its context was
// given up, and may live. Such an agent learns of that by the end of its call, and attaches again.
func (c *groupCoordinator) gone(id TID, isLost bool, why error) {
	at := c.agents[id]
	if isLost && len(c.lost) < mostLost {
		switch {
		case at != nil:
			c.lost[id] = at.key
		case c.awaited[id]:
			c.lost[id] = 0
		}
	}
	if c.awaited[id] {
		delete(c.awaited, id)
		c.sendViews()
		return
	}
	if at == nil {
		if _, isMember := c.members[id]; isLost && isMember {
			c.exclude(id)
		}
		c.depart(id, false, why)
		delete(c.leaving, id)
		return
	}
	if !isLost {
		delete(c.released, at.key)
	}
	c.forgetRequests(id)
	c.detach(id)
}

// mostLost is how many agents and members that were given up a coordinator remembers.
const mostLost = 256

// forgetRequests forgets the reservations and arrivals of an agent, and that it needs a view. It
// leaves joining alone: a member of an agent that was given up may live, and other agents that know
// it would be told that it has ended.
func (c *groupCoordinator) forgetRequests(agent TID) {
	c.viewless = slices.DeleteFunc(c.viewless, func(a arrival) bool { return a.agent == agent })
	c.pending = slices.DeleteFunc(c.pending, func(a arrival) bool { return a.agent == agent })
	for inst, a := range c.reserved {
		if a.agent == agent {
			delete(c.reserved, inst)
			c.free(inst)
		}
	}
}

// arrive counts arrivals at a barrier, and ends the barriers that are complete.
func (c *groupCoordinator) arrive(from TID, v *groupMessage) {
	if v.Version < c.lastGone || v.Count < 1 {
		return
	}
	if len(c.pending) > 0 && (v.Count != c.count || v.Freeze != c.freeze) || v.Freeze && c.frozen {
		c.send(from, groupMessage{Op: opMismatch, Tokens: v.Tokens, Count: c.count})
		return
	}
	c.count, c.freeze = v.Count, v.Freeze
	for _, t := range v.Tokens {
		c.pending = append(c.pending, arrival{from, t})
	}
	c.refuseFreeze()
	for len(c.pending) >= c.count {
		op := groupMessage{Op: opRelease}
		if c.freeze {
			c.frozen, op.Freeze = true, true
		}
		c.release(op, c.pending[:c.count])
		c.pending = slices.Delete(c.pending, 0, c.count)
	}
}

// refuseFreeze ends the Freeze of the members that wait if the group has more members than its
// size. It depends on the membership alone, so another coordinator decides the same.
func (c *groupCoordinator) refuseFreeze() {
	if c.freeze && len(c.members) > c.count {
		c.release(groupMessage{Op: opMismatch, Count: len(c.members)}, c.pending)
		c.pending = nil
	}
}

// release sends op to the agents of arrivals, and to all agents if the group is frozen now.
func (c *groupCoordinator) release(op groupMessage, as []arrival) {
	if op.Op == opRelease {
		for _, a := range as {
			key := c.agents[a.agent].key
			c.released[key] = max(c.released[key], a.token)
		}
		op.Released = releasedOf(c.released)
	}
	if op.Freeze {
		for id := range c.agents {
			if !slices.ContainsFunc(as, func(a arrival) bool { return a.agent == id }) {
				c.send(id, op)
			}
		}
	}
	for len(as) > 0 {
		agent := as[0].agent
		if i := slices.IndexFunc(as, func(a arrival) bool { return a.agent != c.own.r.ID() }); i > 0 {
			agent = as[i].agent // messages to other tasks take longer than to the own agent
		}
		op.Tokens = op.Tokens[:0]
		rest := as[:0:0]
		for _, a := range as {
			if a.agent == agent {
				op.Tokens = append(op.Tokens, a.token)
			} else {
				rest = append(rest, a)
			}
		}
		c.send(agent, op)
		as = rest
	}
}

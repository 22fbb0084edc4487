// SPDX-License-Identifier: Apache-2.0

package tpvm

import (
	"context"
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
type groupCoordinator struct {
	t    *Task
	name string
	r    *rocl.Resource
	own  *groupAgent // the agent of the same task, which calls handle by ask instead of sending

	mu       sync.Mutex     // locked after own.mu
	inbox    []groupMessage // messages for own
	scratch  []byte
	version  uint64
	lastGone uint64 // the version at which a member departed last
	members  map[TID]member
	insts    map[int]TID
	reserved map[int]arrival
	leaving  map[TID]bool // members that have called Leave, and may still be found in the directory
	low      int          // no number below is free
	agents   map[TID]bool
	frozen   bool

	count   int // of the barrier for which pending wait
	freeze  bool
	pending []arrival
}

// arrival names a request of an agent: an arrival at a barrier, or a reservation.
type arrival struct {
	agent TID
	token uint64
}

// newCoordinator makes this task the coordinator of a group. It fails with rocl.ErrExists if the
// group has a coordinator.
func (t *Task) newCoordinator(ctx context.Context, name string, own *groupAgent) (*groupCoordinator, error) {
	r, err := t.c.Register(ctx, t.attrs(typeCoordinator, rocl.Attrs{attrGroup: name}), rocl.Unique(attrType, attrVM, attrGroup))
	if err != nil {
		return nil, err
	}
	c := &groupCoordinator{
		t: t, name: name, r: r, own: own, members: map[TID]member{}, insts: map[int]TID{}, reserved: map[int]arrival{},
		leaving: map[TID]bool{}, agents: map[TID]bool{},
	}
	if err := c.scan(ctx); err != nil {
		_ = r.Close()
		return nil, err
	}
	if !t.work.goes(c.run) {
		_ = r.Close()
		return nil, ErrExited
	}
	return c, nil
}

// scan adds the members that are in the directory.
func (c *groupCoordinator) scan(ctx context.Context) error {
	ms, err := c.t.findMembers(ctx, c.name, nil)
	for _, m := range ms {
		c.addLocked(m)
	}
	return err
}

// run is the coordinator's goroutine: it handles messages of agents, and ends of agents and
// members, until the task or the resource ends. It makes the task's own agent handle its answers.
func (c *groupCoordinator) run() {
	c.t.receiveGroup(c.t.ended, c.r, c.name, func(from TID, v *groupMessage) {
		c.mu.Lock()
		if v == nil {
			c.gone(from)
		} else {
			c.handleLocked(from, v)
		}
		isForOwn := len(c.inbox) > 0
		c.mu.Unlock()
		if isForOwn {
			c.own.mu.Lock()
			c.own.unlock()
		}
		c.own.endIdle()
	})
}

// isIdle reports whether the group has no members, and no agent but the one of the same task.
func (c *groupCoordinator) isIdle() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	others := len(c.agents)
	if c.agents[c.own.r.ID()] {
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
	if v.Op != opAttach && !c.agents[from] {
		return // the end of the agent was reported before its last message
	}
	switch v.Op {
	case opAttach:
		if !c.agents[from] && !c.monitor(from) {
			return
		}
		for _, m := range v.Members {
			if m.ID.Context() == from.Context() {
				c.addLocked(m)
			}
		}
		c.agents[from] = true
		c.frozen = c.frozen || v.Freeze && len(c.members) > 0
		view := groupMessage{Op: opView, Version: c.version, Freeze: c.frozen}
		for _, m := range c.members {
			view.Members = append(view.Members, m)
		}
		c.send(from, view)
	case opJoin:
		if v.Inst >= 0 {
			_ = c.scan(c.t.ended)
		}
		c.send(from, groupMessage{Op: opReserved, Tokens: v.Tokens, Inst: c.reserve(arrival{from, v.token()})})
	case opJoined:
		c.cancelLocked(from, v.Tokens)
		if len(v.Members) == 1 && v.Members[0].ID.Context() == from.Context() {
			c.addLocked(v.Members[0])
		}
	case opLeave:
		if len(v.Members) == 1 && v.Members[0].ID.Context() == from.Context() {
			c.depart(v.Members[0].ID, true)
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
	v.send(c.t.ended, c.r, to, &c.scratch)
}

func (c *groupCoordinator) sendAll(v groupMessage) {
	for id := range c.agents {
		c.send(id, v)
	}
}

// monitor monitors a resource, and reports whether that succeeded.
func (c *groupCoordinator) monitor(id TID) bool {
	_, err := c.r.Monitor(c.t.ended, id, ownTag)
	return err == nil
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
		c.depart(id, false)
	}
	if !c.monitor(m.ID) {
		c.free(m.Inst)
		return
	}
	c.members[m.ID], c.insts[m.Inst] = m, m.ID
	c.version++
	c.sendAll(groupMessage{Op: opChange, Version: c.version, Members: []member{m}})
}

// depart removes a member. The arrivals at the barrier are void: agents send them again.
func (c *groupCoordinator) depart(id TID, left bool) {
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
	c.sendAll(groupMessage{Op: opChange, Version: c.version, Members: []member{m}, Gone: true, Left: left})
}

// gone handles the end of an agent or of a member.
func (c *groupCoordinator) gone(id TID) {
	if !c.agents[id] {
		c.depart(id, false)
		delete(c.leaving, id)
		return
	}
	delete(c.agents, id)
	for inst, a := range c.reserved {
		if a.agent == id {
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
	for len(c.pending) >= c.count {
		op := groupMessage{Op: opRelease}
		if c.freeze {
			if len(c.members) > c.count {
				op.Op, op.Count = opMismatch, len(c.members)
			} else {
				c.frozen, op.Freeze = true, true
			}
		}
		c.release(op, c.pending[:c.count])
		c.pending = slices.Delete(c.pending, 0, c.count)
	}
}

// release sends op to the agents of arrivals, and to all agents if the group is frozen now.
func (c *groupCoordinator) release(op groupMessage, as []arrival) {
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

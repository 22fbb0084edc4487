// SPDX-License-Identifier: Apache-2.0

package tpvm

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"sync"

	"github.com/rocl-go/rocl"
	"github.com/rocl-go/rocl/tpvm/pack"
)

// The errors of groups.
var (
	// ErrNoGroup is returned for the name of a group that has no members.
	ErrNoGroup = errors.New("tpvm: the group has no members")
	// ErrNoInstance is returned for an instance number that no member of the group has.
	ErrNoInstance = errors.New("tpvm: no member has the instance number")
	// ErrInGroup is returned when a thread joins a group of which it is a member.
	ErrInGroup = errors.New("tpvm: the thread is a member of the group already")
	// ErrNotInGroup is returned for a thread that is not a member of the group, or no longer.
	ErrNotInGroup = errors.New("tpvm: the thread is not a member of the group")
	// ErrBarrierCount is returned by Barrier if other members wait in it with another count.
	ErrBarrierCount = errors.New("tpvm: members wait in the barrier with another count")
	// ErrFrozen is returned by Join of a frozen group, and by Freeze of a group that is frozen
	// already.
	ErrFrozen = errors.New("tpvm: the group is frozen")
	// ErrMemberGone is returned, as a *MemberError, by an operation for which a member is missing
	// that has ended or has left the group.
	ErrMemberGone = errors.New("tpvm: a member of the group is gone")
)

// A Member is a member of a group, as other members know it.
type Member struct {
	Instance int
	TID      TID
	Left     bool // in a MemberError: the member called Leave, and may still run
}

// A MemberError names members that an operation of a group needed and that have ended, have left
// the group, or are out of reach. It matches ErrMemberGone.
type MemberError struct {
	Group   string
	Members []Member
	Err     error // nil, or why a member cannot be reached: it matches rocl.ErrUnreachable
}

func (e *MemberError) Error() string {
	var s strings.Builder
	fmt.Fprintf(&s, "tpvm: group %q: ", e.Group)
	for i, m := range e.Members {
		if i > 0 {
			s.WriteString("; ")
		}
		how := "has ended"
		switch {
		case m.Left:
			how = "has left"
		case e.Err != nil:
			how = "has ended or is out of reach"
		}
		fmt.Fprintf(&s, "member %d (%v) %s", m.Instance, m.TID, how)
	}
	if e.Err != nil {
		fmt.Fprintf(&s, ": %v", e.Err)
	}
	return s.String()
}

// Unwrap returns Err.
func (e *MemberError) Unwrap() error { return e.Err }

// Is reports whether target is ErrMemberGone.
func (e *MemberError) Is(target error) bool { return target == ErrMemberGone }

// A Group is the membership of a thread in a group: a set of tasks and threads with a common name,
// each with an instance number. Its methods may be called by several goroutines, but a member is in
// one barrier at a time.
//
// There is no server for all groups. Each member is a resource of its task, with the attributes
// group, inst and tid. One of the tasks that have members counts the arrivals at barriers, and
// assigns instance numbers. When that task has ended, another one takes over. If that task is out
// of reach for as long as rocl.WithGiveUp says, the operations that wait for it fail with
// rocl.ErrUnreachable. The thread stays a member, and may try again.
//
// A member whose task the coordinating task has given up, after that time, counts as ended: see
// [MemberError]. When the two reach each other again, the member's calls fail with ErrNotInGroup,
// and the thread may Join again.
//
//	pvm_joingroup    Thread.Join
//	pvm_lvgroup      Group.Leave, Thread.LeaveGroup
//	pvm_gettid       Group.TID, Thread.GroupTID
//	pvm_getinst      Group.InstanceOf, Thread.GroupInstance
//	pvm_gsize        Group.Size, Thread.GroupSize
//	pvm_barrier      Group.Barrier
//	pvm_bcast        Group.Bcast, Thread.GroupBcast
//	pvm_gather       Gather
//	pvm_scatter      Scatter
//	pvm_reduce       Reduce
//	PvmMax, PvmMin, PvmSum, PvmProduct   Max, Min, Sum, Product
//	pvm_freezegroup  Group.Freeze
//
// The methods of Thread take the name of a group. Threads that are not members may call them too.
// PvmNoGroup is ErrNoGroup, PvmNoInst is ErrNoInstance, PvmDupGroup is ErrInGroup or ErrFrozen,
// PvmNotInGroup is ErrNotInGroup, PvmMismatch is ErrBarrierCount. pvm_gsize of a group that has no
// members is PvmNoGroup; GroupSize returns 0.
type Group struct {
	t    *Thread
	a    *groupAgent
	r    *rocl.Resource // the member's own; origin and target of the messages of Gather, Scatter and Reduce
	inst int

	// Guarded by a.mu.
	joined    chan struct{} // closed when the coordinator counts the member or refuses to
	isIn      bool          // joined has been closed
	closed    error         // why the thread is no longer a member; nil while it is one
	waiting   bool          // the member waits in a barrier
	count     int           // of that barrier
	freeze    bool          // the barrier is that of Freeze
	token     uint64        // of the reservation of the number; then of the arrival, once it has been sent
	reported  uint64        // errors of barriers have named the departures before this number
	missed    uint64        // absent has what collect needs of the departures before this number
	absent    []absentee    // departed members, for collect
	named     map[TID]by    // errors have named these members, of whose end the agent does not know yet
	wake      chan error    // the result of a barrier; has room for one
	suspended bool          // Barrier has failed with rocl.ErrUnreachable, and the next call goes on
}

// threadGroups are the groups of a thread.
type threadGroups struct {
	mu    sync.Mutex
	m     map[string]*Group // nil: the thread is about to join
	ended bool
}

// Join makes the thread a member of the group with a name. A group exists as long as it has
// members. The member gets the lowest free instance number: 0, if it is the first. The membership
// ends with Leave, or when the thread or its process ends. Join fails with ErrInGroup if the thread
// is a member already, and with ErrFrozen if the group is frozen.
func (t *Thread) Join(ctx context.Context, name string) (g *Group, err error) {
	defer wrap(&err, "tpvm: join group %q", name)
	if name == "" {
		return nil, errNoName
	}
	s := &t.groups
	s.mu.Lock()
	g, isIn := s.m[name]          // nil while the agent joins: a second Join fails
	if g != nil && g.isClosed() { // the group has excluded the member
		isIn = false
	}
	switch {
	case s.ended:
		s.mu.Unlock()
		return nil, ErrExited
	case isIn:
		s.mu.Unlock()
		return nil, ErrInGroup
	}
	if s.m == nil {
		s.m = map[string]*Group{}
	}
	s.m[name] = nil
	s.mu.Unlock()
	a, err := t.task.groupAgent(ctx, name)
	if err == nil {
		defer a.release()
		g, err = a.join(ctx, t)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case err != nil:
		delete(s.m, name)
		return nil, err
	case s.ended:
		a.drop(g)
		return nil, ErrExited
	}
	s.m[name] = g
	return g, nil
}

// Group returns the membership of the thread in a group. It reports false if the thread is not a
// member.
func (t *Thread) Group(name string) (*Group, bool) {
	t.groups.mu.Lock()
	defer t.groups.mu.Unlock()
	g := t.groups.m[name]
	return g, g != nil
}

// endGroups ends the memberships of a thread that has ended.
func (t *Thread) endGroups() {
	s := &t.groups
	s.mu.Lock()
	s.ended = true
	m := s.m
	s.m = nil
	s.mu.Unlock()
	for _, g := range m {
		if g != nil {
			g.a.drop(g)
		}
	}
}

// Name returns the name of the group.
func (g *Group) Name() string { return g.a.name }

// Instance returns the instance number of the member.
func (g *Group) Instance() int { return g.inst }

// Thread returns the thread that is the member.
func (g *Group) Thread() *Thread { return g.t }

// Leave ends the membership. When Leave returns, the instance number is free for the next thread
// that joins. A Barrier of the member fails with ErrNotInGroup.
//
// Leave waits until all data that the member has sent in Gather, Scatter and Reduce is delivered.
// So a root that calls the operation later still finds the data. If ctx ends first, the membership
// ends as if the thread had ended, and Leave returns the cause.
// If the coordinating task is killed when Leave returns, other members may take the member for
// ended.
func (g *Group) Leave(ctx context.Context) (err error) {
	defer wrap(&err, "tpvm: leave group %q", g.Name())
	s := &g.t.groups
	s.mu.Lock()
	if s.m[g.Name()] == g {
		delete(s.m, g.Name())
	}
	s.mu.Unlock()
	return g.a.leave(ctx, g)
}

// LeaveGroup is Leave by the name of the group. It fails with ErrNotInGroup if the thread is
// not a member, and with ErrNoGroup if the group has no members. ErrNoGroup comes with
// rocl.ErrPartial if a node did not answer, which may have members.
func (t *Thread) LeaveGroup(ctx context.Context, name string) error {
	if g, ok := t.Group(name); ok {
		return g.Leave(ctx)
	}
	ms, partial, err := t.groupMembers(ctx, name, nil)
	switch {
	case err == nil && len(ms) == 0:
		err = absent(ErrNoGroup, partial)
	case err == nil:
		err = ErrNotInGroup
	}
	return fmt.Errorf("tpvm: leave group %q: %w", name, err)
}

// Barrier waits until count members of the group have called it. Each of them must give the same
// count, usually the number of members. With a lower count, the members that call first go on
// together. With a higher count, Barrier waits for threads that join.
//
// Barrier fails with a *MemberError when fewer than count members can still arrive. Each lost
// member makes one barrier fail; the remaining members may then call Barrier with a lower count. If
// a new member joins in time, Barrier succeeds. If the coordinating task ends during the barrier,
// another one goes on as soon as each task with members has answered it or has ended.
//
// All waiting members get the same result. An exception is a barrier in which the coordinating task
// ends and also a member: members that know of the end may get a *MemberError, although others have
// passed.
//
// Barrier fails with ErrBarrierCount if members wait with another count, and with ErrNotInGroup if
// the thread has left the group, or its task was given up: see Group. If ctx ends, Barrier returns
// the cause, and the call does not count, unless the barrier becomes complete in another task at
// that moment. After rocl.ErrUnreachable the call may have counted; the next call goes on with it.
func (g *Group) Barrier(ctx context.Context, count int) (err error) {
	defer g.wrap("barrier", &err)
	if count < 1 {
		return badParam("count %d is not positive", count)
	}
	return g.a.barrier(ctx, g, count, false)
}

// Freeze fixes the size of the group, or, if size is -1, keeps its present size. All members must
// call it; it is a barrier. Afterwards Join fails with ErrFrozen. Size, TID and similar methods
// need no message, which makes Gather, Scatter, Reduce and Bcast faster. When a member ends or
// leaves, each later barrier fails with a *MemberError. A frozen group stays frozen until all
// members have left. Freezing it again fails with ErrFrozen. If the group has more members than
// size, Freeze fails with ErrBarrierCount at all members that have called it.
func (g *Group) Freeze(ctx context.Context, size int) (err error) {
	defer g.wrap("freeze", &err)
	if size == -1 {
		if size, err = g.Size(ctx); err != nil {
			return err
		}
	}
	if size < 1 {
		return badParam("size %d is not positive", size)
	}
	return g.a.barrier(ctx, g, size, true)
}

func (g *Group) wrap(op string, err *error) {
	wrap(err, "tpvm: %s of group %q as member %d", op, g.Name(), g.inst)
}

// Members returns the members, in the order of their instance numbers. A member whose Join returned
// before the call is among them. A member that has ended is listed until the group has learned of
// its end.
func (g *Group) Members(ctx context.Context) (_ []Member, err error) {
	defer g.wrap("members", &err)
	ms, err := g.a.list(ctx, g)
	return publicAll(ms), err
}

// Size returns the number of members.
func (g *Group) Size(ctx context.Context) (_ int, err error) {
	defer g.wrap("size", &err)
	ms, err := g.a.list(ctx, g)
	return len(ms), err
}

// TID returns the identifier of the member with an instance number. It fails with ErrNoInstance if
// there is none.
func (g *Group) TID(ctx context.Context, instance int) (_ TID, err error) {
	defer g.wrap("identifier", &err)
	ms, err := g.a.list(ctx, g)
	if err != nil {
		return TID{}, err
	}
	i := slices.IndexFunc(ms, func(m member) bool { return m.Inst == instance })
	if i < 0 {
		return TID{}, fmt.Errorf("instance %d: %w", instance, ErrNoInstance)
	}
	return ms[i].TID, nil
}

// InstanceOf returns the instance number of a task or thread. It fails with ErrNotInGroup if the
// task or thread is not a member.
func (g *Group) InstanceOf(ctx context.Context, id TID) (_ int, err error) {
	defer g.wrap("instance", &err)
	ms, err := g.a.list(ctx, g)
	if err != nil {
		return -1, err
	}
	i := slices.IndexFunc(ms, func(m member) bool { return m.TID == id })
	if i < 0 {
		return -1, fmt.Errorf("%v: %w", id, ErrNotInGroup)
	}
	return ms[i].Inst, nil
}

// Bcast sends the values of b to each member but the caller, as Mcast does: members receive it with
// Recv. Members that join meanwhile may not get it. If a member has ended, the other members get
// the message, and the error is a *MemberError that names the ended one. The next Bcast does not
// name it again.
func (g *Group) Bcast(ctx context.Context, tag int, b *pack.Buffer) error {
	all, err := g.a.list(ctx, g)
	if err != nil {
		g.wrap("members", &err)
		return err
	}
	all = g.notNamed(all, byBcast)
	ms := publicAll(all)
	err = g.t.bcast(ctx, g.Name(), ms, tag, b)
	var gone *MemberError
	if errors.As(err, &gone) {
		g.a.mu.Lock()
		for i, m := range ms {
			if slices.Contains(gone.Members, m) {
				g.nameLocked(all[i], byBcast)
			}
		}
		g.a.mu.Unlock()
	}
	return err
}

func (t *Thread) bcast(ctx context.Context, name string, ms []Member, tag int, b *pack.Buffer) (err error) {
	defer wrap(&err, "tpvm: bcast to group %q", name)
	tg, err := t.tag(tag)
	if err != nil {
		return err
	}
	var to []TID
	for _, m := range ms {
		if m.TID != t.ID() {
			to = append(to, m.TID)
		}
	}
	if len(to) == 0 {
		return nil
	}
	err = t.mcast(ctx, to, tg, b)
	var failed rocl.SendErrors
	if errors.As(err, &failed) {
		gone := &MemberError{Group: name}
		for _, f := range failed {
			i := slices.IndexFunc(ms, func(m Member) bool { return m.TID == f.To })
			if i >= 0 && IsGone(f.Err) {
				gone.Members = append(gone.Members, ms[i])
			}
		}
		if len(gone.Members) > 0 {
			err = errors.Join(gone, err)
		}
	}
	return err
}

// findMembers asks the directory for the members of a group whose resources match more. partial is
// not nil if a node did not answer; see absent.
func (t *Task) findMembers(ctx context.Context, name string, more rocl.Match) (ms []member, partial, err error) {
	m := t.match(typeGroup, more)
	m[attrGroup] = name
	for f, err := range t.findNoting(ctx, &partial, m, rocl.Want(attrInstance, attrTID)) {
		if err != nil {
			return nil, nil, err
		}
		inst, err := strconv.Atoi(attr(f, attrInstance))
		id, err2 := rocl.ParseGID(attr(f, attrTID))
		m := member{Inst: inst, TID: id, ID: f.ID}
		if err != nil || err2 != nil || !m.isValid() {
			continue
		}
		ms = append(ms, m)
	}
	slices.SortFunc(ms, func(a, b member) int { return cmp.Compare(a.Inst, b.Inst) })
	return ms, partial, nil
}

// GroupMembers returns the members of a group, in the order of their instance numbers. It returns
// none if there is no such group. The caller need not be a member. Members on nodes that do not
// answer are left out. If GroupMembers has found none then, it fails with rocl.ErrPartial.
func (t *Thread) GroupMembers(ctx context.Context, name string) ([]Member, error) {
	ms, partial, err := t.groupMembers(ctx, name, nil)
	if err == nil && len(ms) == 0 {
		err = partial
	}
	if err != nil {
		return nil, fmt.Errorf("tpvm: list the members of group %q: %w", name, err)
	}
	return ms, nil
}

func (t *Thread) groupMembers(ctx context.Context, name string, more rocl.Match) (out []Member, partial, err error) {
	if name == "" {
		return nil, nil, errNoName
	}
	ms, partial, err := t.task.findMembers(ctx, name, more)
	if err != nil {
		return nil, nil, err
	}
	return publicAll(ms), partial, nil
}

// GroupSize returns the number of members of a group. It returns 0 if there is no such group. It
// fails with rocl.ErrPartial if a node did not answer and the others have no member.
func (t *Thread) GroupSize(ctx context.Context, name string) (int, error) {
	ms, err := t.GroupMembers(ctx, name)
	return len(ms), err
}

// groupMember finds the member with a value of an attribute. what describes the attribute for the
// error, and none is the error if no member has the value. The error matches rocl.ErrPartial too if
// a node did not answer, which may have the member.
func (t *Thread) groupMember(ctx context.Context, name, what, attr, value string, none error) (Member, error) {
	ms, partial, err := t.groupMembers(ctx, name, rocl.Match{attr: value})
	if err == nil && len(ms) > 0 {
		return ms[0], nil
	}
	if err == nil {
		if n, _ := t.GroupSize(ctx, name); n == 0 {
			none = ErrNoGroup
		}
		err = absent(none, partial)
	}
	return Member{}, fmt.Errorf("tpvm: find the member of group %q: %s%s: %w", name, what, value, err)
}

// GroupTID returns the identifier of the member of a group that has an instance number. It fails
// with ErrNoInstance, or with ErrNoGroup if there is no such group. The error matches
// rocl.ErrPartial too if a node did not answer, which may have the member.
func (t *Thread) GroupTID(ctx context.Context, name string, instance int) (TID, error) {
	m, err := t.groupMember(ctx, name, "instance ", attrInstance, strconv.Itoa(instance), ErrNoInstance)
	return m.TID, err
}

// GroupInstance returns the instance number that a task or thread has in a group. It fails with
// ErrNotInGroup, or with ErrNoGroup if there is no such group. The error matches rocl.ErrPartial
// too if a node did not answer, which may have the member.
func (t *Thread) GroupInstance(ctx context.Context, name string, id TID) (int, error) {
	m, err := t.groupMember(ctx, name, "", attrTID, id.String(), ErrNotInGroup)
	if err != nil {
		return -1, err
	}
	return m.Instance, nil
}

// GroupBcast is Group.Bcast by a thread that need not be a member. It fails with ErrNoGroup if
// the group has no members. The error matches rocl.ErrPartial too if a node did not answer, which
// may have members. GroupBcast does not send to such members, and does not report them.
func (t *Thread) GroupBcast(ctx context.Context, name string, tag int, b *pack.Buffer) error {
	ms, partial, err := t.groupMembers(ctx, name, nil)
	if err == nil && len(ms) == 0 {
		err = absent(ErrNoGroup, partial)
	}
	if err != nil {
		return fmt.Errorf("tpvm: bcast to group %q: %w", name, err)
	}
	return t.bcast(ctx, name, ms, tag, b)
}

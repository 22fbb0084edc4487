// SPDX-License-Identifier: Apache-2.0

package tpvm

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/rocl-go/rocl"
)

// Gather, Scatter and Reduce send between the resources of members. These receive nothing else, so
// data of the operations never mixes with messages that the user receives. The tag of such a
// message has the user's tag in its lower 32 bits, and the operation above.
const (
	collectGather = (iota + 1) << 32
	collectScatter
	collectReduce
	collectGone = 1 << 40 // with the others: the message of a monitor, while an operation waits
)

// root returns the members, and the member with the instance number root.
func (g *Group) root(ctx context.Context, tag, root int) (ms []member, r member, err error) {
	switch {
	case tag < 0 || tag > MaxTag:
		return nil, r, badParam("tag %d: a tag is 0 to MaxTag", tag)
	case root < 0:
		return nil, r, badParam("root %d is negative", root)
	}
	if ms, err = g.a.list(ctx, g); err != nil {
		return nil, r, err
	}
	i := slices.IndexFunc(ms, func(m member) bool { return m.Inst == root })
	if i >= 0 {
		return ms, ms[i], nil
	}
	g.a.mu.Lock()
	defer g.a.mu.Unlock()
	if m, ok := g.a.departed[root]; ok {
		return nil, r, &MemberError{Group: g.Name(), Members: []Member{m}}
	}
	return nil, r, fmt.Errorf("root %d: %w", root, ErrNoInstance)
}

// gone returns the error of a send to a member, or of a receive from it. It is a *MemberError if
// the member has ended.
func (g *Group) gone(m member, err error) error {
	if !IsGone(err) {
		return err
	}
	g.a.mu.Lock()
	defer g.a.mu.Unlock()
	was := m.public()
	was.Left = g.a.departed[m.Inst].Left && g.a.departed[m.Inst].TID == m.TID
	e := &MemberError{Group: g.Name(), Members: []Member{was}}
	if errors.Is(err, rocl.ErrUnreachable) {
		e.Err = err
	}
	return e
}

// sendPart sends data of an operation to a member. If the member has ended, the error is a
// *MemberError.
func sendPart[T any](ctx context.Context, g *Group, to member, tag uint64, data []T) error {
	return g.gone(to, rocl.SendValue(ctx, g.r, to.ID, tag, data))
}

// recvPart receives data of an operation from a member, which monitor monitors. If the member has
// ended or is out of reach, the error is a *MemberError.
func recvPart[T any](ctx context.Context, g *Group, from member, tag uint64) ([]T, error) {
	m, err := g.r.Recv(ctx, rocl.From(from.ID), rocl.Tag(tag, collectGone|tag))
	if err == nil && m.IsGone() {
		err = m.GoneErr()
		m.Release()
	}
	if err != nil {
		if errors.Is(err, rocl.ErrClosed) {
			return nil, ErrNotInGroup
		}
		return nil, g.gone(from, err)
	}
	defer m.Release()
	v, err := rocl.Value[[]T](m)
	if err != nil {
		return nil, fmt.Errorf("data of member %d (%v): %w", from.Inst, from.TID, err)
	}
	return v, nil
}

// monitor makes a receive of data of an operation end when its member has ended, or is out of reach
// for as long as rocl.WithGiveUp says. It monitors those of the members' resources ids that are in
// other tasks, and whose data is not in the mailbox. All of them are dialled at once, so the
// operation waits once for members that are out of reach.
func (g *Group) monitor(ctx context.Context, tag uint64, ids ...TID) (stop func()) {
	var stops []func()
	for _, id := range ids {
		if id.Context() == g.r.ID().Context() || g.hasTag(id, tag) {
			continue
		}
		if stop, err := g.r.Monitor(ctx, id, collectGone|tag); err == nil { // otherwise the receive fails too
			stops = append(stops, stop)
		}
	}
	return func() {
		for _, stop := range stops {
			stop()
		}
	}
}

// by says which operations of a member have named another member in an error. The member learns of
// an end from its connection, or from the agent, which the coordinator tells. The operation that
// learns from the connection is told once, although the agent still lists the member.
type by uint8

const (
	byCollect by = 1 << iota // Gather or Reduce
	byScatter
	byBcast
)

// notNamed returns the members ms but those that an operation has named already.
func (g *Group) notNamed(ms []member, op by) []member {
	g.a.mu.Lock()
	defer g.a.mu.Unlock()
	if len(g.named) == 0 {
		return ms
	}
	return slices.DeleteFunc(slices.Clone(ms), func(m member) bool { return g.named[m.ID]&op != 0 })
}

// nameLocked records that an operation has named a member. The mu of the agent must be held.
func (g *Group) nameLocked(m member, op by) {
	if g.a.members[m.Inst].ID != m.ID {
		return
	}
	if g.named == nil {
		g.named = map[TID]by{}
	}
	g.named[m.ID] |= op
}

// An absentee is a member that has ended or has left. What it sent before may be in the mailbox of
// a member that has not received it yet.
type absentee struct {
	member
	left bool  // it called Leave, or an error has named it: all that it sent is in the mailbox
	why  error // nil, or why it is out of reach
}

// departures are the latest members that have ended or have left, with consecutive numbers. All
// members of a task share them, so an end costs the same however many members there are.
type departures struct {
	first uint64 // the number of all[0]
	all   []absentee
}

// mostDepartures is how many departures are kept at least. Twice as many are kept at most.
const mostDepartures = 1 << 15

func (d *departures) add(x absentee) {
	if len(d.all) == 2*mostDepartures {
		d.all = slices.Delete(d.all, 0, mostDepartures)
		d.first += mostDepartures
	}
	d.all = append(d.all, x)
}

func (d *departures) has(id TID) bool {
	return slices.ContainsFunc(d.all, func(x absentee) bool { return x.ID == id })
}

// end returns the number of the next departure.
func (d *departures) end() uint64 { return d.first + uint64(len(d.all)) }

// since returns the departures from number n on that are still kept. Callers must not change them.
func (d *departures) since(n uint64) []absentee { return d.all[max(n, d.first)-d.first:] }

// missLocked adds to g.absent the members that have departed since the last call, if an operation
// of g may need them. Only roots call it. The mu of the agent must be held.
func (g *Group) missLocked() {
	for _, x := range g.a.log.since(g.missed) {
		x.left = x.left || g.named[x.ID]&byCollect != 0
		delete(g.named, x.ID)
		if !x.left || g.hasFrom(x.member) {
			g.absent = append(g.absent, x)
		}
	}
	g.missed = g.a.log.end()
	g.absent = slices.Delete(g.absent, 0, max(0, len(g.absent)-mostAbsent))
}

// mostAbsent is how many departed members a root remembers.
const mostAbsent = 4096

// hasFrom reports whether the mailbox of g has data of a member.
func (g *Group) hasFrom(m member) bool {
	_, err := g.r.Peek(rocl.From(m.ID), rocl.Tags(0, collectGone-1))
	return err == nil
}

// sources returns the members whose data the root collects: the members ms and the absentees, in
// the order of their numbers, absentees first.
func (g *Group) sources(ms []member) []source {
	var all []source
	g.a.mu.Lock()
	g.missLocked()
	for _, x := range g.absent {
		all = append(all, source{x.member, true, x.left})
	}
	absent := len(all)
	for _, m := range ms {
		if !slices.ContainsFunc(all[:absent], func(s source) bool { return s.ID == m.ID }) {
			isNamed := g.named[m.ID]&byCollect != 0
			all = append(all, source{m, isNamed, isNamed})
		}
	}
	g.a.mu.Unlock()
	slices.SortStableFunc(all, func(a, b source) int { return cmp.Compare(a.Inst, b.Inst) })
	return all
}

// A source is a member whose data a root collects. left is that of its absentee.
type source struct {
	member
	isAbsent, left bool
}

// recordNamed records that an error names members, and forgets absentees that have sent nothing
// more.
func (g *Group) recordNamed(named []source) {
	g.a.mu.Lock()
	defer g.a.mu.Unlock()
	g.missLocked()
	for _, s := range named {
		i := slices.IndexFunc(g.absent, func(x absentee) bool { return x.ID == s.ID })
		switch {
		case i >= 0:
			g.absent[i].left = true
		default:
			g.nameLocked(s.member, byCollect) // unless the agent knows of the end
		}
	}
	g.absent = slices.DeleteFunc(g.absent, func(x absentee) bool { return x.left && !g.hasFrom(x.member) })
}

// collect calls f at the root with the data of each member, in the order of the instance numbers.
// It receives from all living members even if some have ended, so that none of their data is left
// for a later operation. A departed member takes part if its data is in the mailbox. Then the data
// of a member that has got the same number since is for the next operation.
func collect[T any](ctx context.Context, g *Group, ms []member, tag uint64, own []T, f func(member, []T) error) error {
	gone := &MemberError{Group: g.Name()}
	var named []source
	var failed error
	taken := -1 // the number of an absentee whose data was taken
	all := g.sources(ms)
	awaited := make([]TID, len(all))
	for i, s := range all {
		awaited[i] = s.ID
	}
	defer g.monitor(ctx, tag, awaited...)()
	for _, s := range all {
		data, err := own, error(nil)
		switch {
		case s.isAbsent && s.left && !g.hasTag(s.ID, tag), !s.isAbsent && s.Inst == taken:
			continue
		case s.ID != g.r.ID():
			data, err = recvPart[T](ctx, g, s.member, tag)
		}
		var e *MemberError
		switch {
		case errors.As(err, &e):
			gone.Members, gone.Err = append(gone.Members, e.Members...), cmp.Or(gone.Err, e.Err)
			named = append(named, s)
			continue
		case ctx.Err() != nil:
			return g.r.Context().Explain(context.Cause(ctx), awaited...)
		case s.isAbsent:
			taken = s.Inst
		}
		if err == nil && failed == nil && len(gone.Members) == 0 {
			err = f(s.member, data)
		}
		if failed == nil {
			failed = err
		}
	}
	g.recordNamed(named)
	if len(gone.Members) > 0 {
		return gone
	}
	return failed
}

// hasTag reports whether the mailbox of g has a message of a member's resource with a tag.
func (g *Group) hasTag(id TID, tag uint64) bool {
	_, err := g.r.Peek(rocl.From(id), rocl.Tag(tag))
	return err == nil
}

// Gather sends data to the member with the instance number root. All members must call it. At the
// root, Gather waits for all members and returns the data of each, indexed by instance number. An
// index whose number no member has is nil. At the other members, Gather returns nil as soon as data
// is sent.
//
// tag, 0 to MaxTag, must be the same at all members. Operations with different tags may be under
// way at the same time. Operations with the same tag are matched in the order in which each member
// calls them.
//
// The members are those of the moment at which the root calls, and members that have sent data for
// the operation and have ended or left since. A member may Leave as soon as its Gather has
// returned. The root does not wait for a member that has left without a call.
//
// If a member has ended, without Leave, and the root does not have its data, Gather fails at the
// root with a *MemberError. The error names each such member, once. Gather still receives the data
// of the other members. If the root has ended, Gather fails at the other members with a
// *MemberError, and data already sent to the root is lost. If ctx ends before Gather returns, use
// another tag for the next Gather.
func Gather[T any](ctx context.Context, g *Group, tag, root int, data []T) (_ [][]T, err error) {
	defer g.wrap("gather", &err)
	ms, r, err := g.root(ctx, tag, root)
	switch {
	case err != nil:
		return nil, err
	case r.ID != g.r.ID():
		return nil, sendPart(ctx, g, r, collectGather|uint64(tag), data)
	}
	parts := make([][]T, ms[len(ms)-1].Inst+1)
	err = collect(ctx, g, ms, collectGather|uint64(tag), slices.Clone(data), func(m member, data []T) error {
		for len(parts) <= m.Inst { // a member with a higher number has left
			parts = append(parts, nil)
		}
		parts[m.Inst] = data
		return nil
	})
	if err != nil {
		return nil, err
	}
	return parts, nil
}

// Scatter sends each member its part from the member with the instance number root, and returns the
// caller's part. All members must call it. Only the root needs to give parts, which it indexes by
// instance number. Parts of numbers that no member has are not sent. The part of the root is not
// copied. tag is as with Gather.
//
// If the root has ended, Scatter fails with a *MemberError that names it. At the root, Scatter
// fails with a *MemberError that lists the members that have ended. The remaining members have
// received their parts. The next Scatter does not list the same members again.
func Scatter[T any](ctx context.Context, g *Group, tag, root int, parts [][]T) (_ []T, err error) {
	defer g.wrap("scatter", &err)
	ms, r, err := g.root(ctx, tag, root)
	switch {
	case err != nil:
		return nil, err
	case r.ID != g.r.ID():
		defer g.monitor(ctx, collectScatter|uint64(tag), r.ID)()
		return recvPart[T](ctx, g, r, collectScatter|uint64(tag))
	case len(parts) <= ms[len(ms)-1].Inst:
		return nil, fmt.Errorf("%w: %d parts, and there is a member %d", ErrBadParam, len(parts), ms[len(ms)-1].Inst)
	}
	gone := &MemberError{Group: g.Name()}
	for _, m := range g.notNamed(ms, byScatter) {
		if m.ID == r.ID {
			continue
		}
		err := sendPart(ctx, g, m, collectScatter|uint64(tag), parts[m.Inst])
		var e *MemberError
		switch {
		case errors.As(err, &e):
			gone.Members, gone.Err = append(gone.Members, e.Members...), cmp.Or(gone.Err, e.Err)
			g.a.mu.Lock()
			g.nameLocked(m, byScatter)
			g.a.mu.Unlock()
		case err != nil:
			return nil, err
		}
	}
	if len(gone.Members) > 0 {
		return nil, gone
	}
	return parts[root], nil
}

// Reduce combines the data of all members at the member with the instance number root. It returns
// the result there, and nil at the other members. All members must call it, with data of the same
// length, which Reduce does not change. tag, the members and the errors are as with Gather.
//
// op combines two operands of that length: acc = acc op x. The root calls it for the members in the
// order of their instance numbers: ((0 op 1) op 2) op 3. The result does not depend on the order in
// which messages arrive. Max, Min, Sum and Product are such functions.
func Reduce[T any](ctx context.Context, g *Group, tag, root int, data []T, op func(acc, x []T)) (_ []T, err error) {
	defer g.wrap("reduce", &err)
	ms, r, err := g.root(ctx, tag, root)
	switch {
	case err != nil:
		return nil, err
	case op == nil:
		return nil, errNoFunc
	case r.ID != g.r.ID():
		return nil, sendPart(ctx, g, r, collectReduce|uint64(tag), data)
	}
	acc, isFirst := []T{}, true
	err = collect(ctx, g, ms, collectReduce|uint64(tag), data, func(m member, x []T) error {
		switch {
		case len(x) != len(data):
			return fmt.Errorf("%w: member %d (%v) has %d values, the root has %d", ErrBadParam, m.Inst, m.TID, len(x), len(data))
		case !isFirst:
			op(acc, x)
		case m.ID == r.ID:
			acc = append(acc, x...)
		case len(x) > 0:
			acc = x
		}
		isFirst = false
		return nil
	})
	if err != nil {
		return nil, err
	}
	return acc, nil
}

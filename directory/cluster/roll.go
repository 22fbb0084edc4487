// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"context"
	"encoding/binary"
	"slices"

	"github.com/rocl-go/rocl/directory/internal/search"
	"github.com/rocl-go/rocl/resource"
)

// When a member has come, or has come back, one other member knows it before gossip tells the rest.
// A no of all members that the asking member knows would deny what the newcomer has. So each no has
// a checksum of the members that its sender knows. If that differs from the asking member's, the
// asking member asks for the roll. The roll may have a member of which the asking member has not
// heard in this life. Then both exchange all they know, and the newcomer is asked too. A no is
// definite when no member that said it knows a member that was not asked.

// A roll has the members, and what other members are told about them. Nothing in it changes: so
// what is asked of whom agrees with what is told of the members.
type roll struct {
	members []resource.NodeID // sorted; this member, those alive and those away for a moment
	sum     uint64
	brief   []byte
}

// newRollLocked makes the roll of members.
func (t *memberTable) newRollLocked(members []resource.NodeID) *roll {
	r := &roll{members: members, sum: search.Checksum(members), brief: make([]byte, 0, 8*len(members))}
	for _, id := range members {
		var epoch uint64
		if m := t.nodes[id]; m != nil {
			epoch = m.epoch
		}
		r.brief = binary.LittleEndian.AppendUint64(r.brief, uint64(id)|epoch<<48)
	}
	return r
}

// differs names a member that knows other members than this one, and their checksum.
type differs struct {
	node resource.NodeID
	sum  uint64
}

// An agreement has two checksums, another member's and this member's at that time. Every member on
// the other one's roll was known here then.
type agreement struct{ theirs, ours uint64 }

// learnRolls learns of the members that the members in others know. It returns the members whose
// rolls could not be had. A member may be in others more than once, because it has answered twice.
func (a *asker) learnRolls(ctx context.Context, others []differs) (apart []resource.NodeID, err error) {
	for _, o := range others {
		if slices.Contains(apart, o.node) {
			continue
		}
		ours := a.members.roll.Load().sum
		a.mu.Lock()
		seen := a.agreed[o.node]
		a.mu.Unlock()
		if o.sum == ours || seen == (agreement{o.sum, ours}) {
			continue
		}
		q := question(kindRoll, resource.GID{}, new(resource.List))
		r, err := a.searches.run(ctx, among([]resource.NodeID{o.node}, 0, q, nil))
		if err != nil {
			return nil, err
		}
		for r.Found && a.members.unheard(r.Answer) {
			begun, err := a.exchanges.with(ctx, o.node)
			if err != nil && (ctx.Err() != nil || a.life.Err() != nil) {
				return nil, err
			}
			if r.Found = err == nil; begun { // else the other member was heard before it gave the roll
				break
			}
		}
		if !r.Found {
			apart = append(apart, o.node)
			continue
		}
		a.mu.Lock()
		if len(a.agreed) > 2*len(a.members.list()) {
			clear(a.agreed) // most are about members that are gone
		}
		a.agreed[o.node] = agreement{o.sum, a.members.roll.Load().sum}
		a.mu.Unlock()
	}
	return apart, nil
}

// unheard reports whether another member's roll has a member of which this one has not heard in
// this life.
func (t *memberTable) unheard(brief []byte) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	for ; len(brief) >= 8; brief = brief[8:] {
		v := binary.LittleEndian.Uint64(brief)
		id := resource.NodeID(v & (1<<48 - 1))
		if id == 0 || id == t.cfg.Node {
			continue
		}
		m := t.nodes[id]
		if m == nil || !m.isAlive && m.away == nil && uint16(m.epoch) != uint16(v>>48) {
			return true
		}
	}
	return false
}

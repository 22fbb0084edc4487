// SPDX-License-Identifier: Apache-2.0

package live

import (
	"cmp"
	"context"
	"fmt"
	"math/rand/v2"
	"slices"

	"github.com/cespare/xxhash/v2"
	"github.com/rocl-go/rocl"
)

// A By is a way to pick a member: [Hash], [Turn], [Random], [Least] or [Nearest]. The zero By is
// Turn.
type By struct {
	how  how
	hash uint64
	name string
}

type how uint8

const (
	byTurn how = iota
	byHash
	byRandom
	byLeast
	byNearest
)

// Hash picks the member that the key belongs to. Contexts with the same members pick the same one.
// Keys spread evenly. When a member comes, it takes its share of the keys from all others; when it
// goes, its keys spread over them. All other keys stay where they are. The first pick by Hash of a
// set allocates a table of 256 KiB.
func Hash(key string) By { return By{how: byHash, hash: xxhash.Sum64String(key)} }

// Turn picks one member after another.
func Turn() By { return By{how: byTurn} }

// Random picks any member, each as likely as any other.
func Random() By { return By{how: byRandom} }

// Least picks the member with the least sum of the number in an attribute and the requests of this
// Set to it that are in flight: those that were picked, by whatever way, and have not been told to
// be over by [Member.Done]. Among equal members it picks the one that it picked longest ago.
// Members whose attribute is missing, or is no number, are picked only if there are no others. With
// the name "" the requests in flight count alone.
func Least(name string) By { return By{how: byLeast, name: name} }

// Nearest picks members of this context in turn; if there are none, those of this node, which
// shared memory reaches; if there are none, the others.
func Nearest() By { return By{how: byNearest} }

// Pick picks a member, other than those whose identifiers are given. It fails with ErrNone if there
// is none, and with the error of [Set.Err] if the set has ended. It does not wait and does not
// allocate.
//
// If the program uses [Least], each Pick must be followed by one call of [Member.Done].
func (s *Set) Pick(by By, not ...rocl.GID) (*Member, error) {
	v := s.view.Load()
	if len(v.slots) == 0 {
		return nil, v.err
	}
	var o *slot
	switch by.how {
	case byHash:
		o = s.owner(by.hash, not)
	case byLeast:
		return s.least(by.name, not)
	case byRandom:
		o = from(v.slots, rand.Uint64(), not)
	case byNearest:
		start := 0
		for _, end := range v.ends {
			if o == nil && end > start {
				o = from(v.slots[start:end], s.turns.Add(1), not)
			}
			start = end
		}
	default:
		o = from(v.slots, s.turns.Add(1), not)
	}
	if o == nil { // all are excluded, or the set has ended meanwhile
		return nil, cmp.Or(s.Err(), ErrNone)
	}
	o.inFlight.Add(1)
	s.counted(o)
	return o.now.Load(), nil
}

// from returns the slot at position n of a circle, or the next one that is not excluded.
func from(slots []*slot, n uint64, not []rocl.GID) *slot {
	at := int(n % uint64(len(slots)))
	for range slots {
		if o := slots[at]; !o.isIn(not) {
			return o
		}
		if at++; at == len(slots) {
			at = 0
		}
	}
	return nil
}

func (o *slot) isIn(ids []rocl.GID) bool {
	return len(ids) > 0 && slices.Contains(ids, o.id)
}

// Await is Pick that waits until there is a member. It fails with the cause of ctx's end, or with
// the error of [Set.Err].
func (s *Set) Await(ctx context.Context, by By, not ...rocl.GID) (*Member, error) {
	for {
		changed := s.Changed()
		m, err := s.Pick(by, not...)
		if err != ErrNone {
			return m, err
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return nil, fmt.Errorf("live: await a member: %w", context.Cause(ctx))
		}
	}
}

// Picker returns a function that picks for the policies of package rpc, by rpc.Among. The function
// picks a member other than those of not, and fails with ErrNone if there is none. While the set
// has no member at all, it waits until ctx ends.
func (s *Set) Picker(by By) func(ctx context.Context, not []rocl.GID) (rocl.GID, func(error), error) {
	return func(ctx context.Context, not []rocl.GID) (rocl.GID, func(error), error) {
		m, err := s.Pick(by, not...)
		if err == ErrNone && s.Len() == 0 {
			m, err = s.Await(ctx, by)
		}
		if err != nil {
			return rocl.GID{}, nil, err
		}
		return m.ID, m.Done, nil
	}
}

// Done tells the set that a request is over for which the member was picked, and how: err is the
// error of the request, or nil. If err is an end, as [rocl.IsEnd] reports, the member leaves the
// set as with [Set.Ended]. Done must be called once after each Pick.
func (m *Member) Done(err error) {
	o := m.slot
	o.inFlight.Add(-1)
	o.set.counted(o)
	if rocl.IsEnd(err) {
		o.set.mu.Lock()
		o.set.lose(o, err)
		o.set.mu.Unlock()
	}
}

// counted tells the boards that the requests in flight to a member have changed.
func (s *Set) counted(o *slot) {
	if s.boards.Load() == nil {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	o.rescore()
}

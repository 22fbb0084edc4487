// SPDX-License-Identifier: Apache-2.0

package live

import (
	"encoding/binary"
	"sync/atomic"

	"github.com/cespare/xxhash/v2"
	"github.com/rocl-go/rocl"
)

// A table gives each of its places, to which keys hash, the member with the highest weight for the
// place: rendezvous hashing. The owners are found at the first pick for a place, which takes a look
// at all members, and are kept. A member that comes takes the places for which its weight is the
// highest. A member that goes leaves its places without owners. So the owners depend on the members
// alone, not on their history.
//
// Picks read the places without a lock. Places are changed with the set's mu held.
type table [places]atomic.Pointer[slot]

// places is how many places there are: so many that each of 1,000 members has about 33.
const places = 1 << 15

func hashOf(id rocl.GID) uint64 {
	var b [16]byte
	binary.LittleEndian.PutUint64(b[:], uint64(id.Node()))
	binary.LittleEndian.PutUint64(b[8:], id.Ctx()<<32|uint64(id.Serial()))
	return xxhash.Sum64(b[:])
}

// weight returns the weight of a member for a place.
func (o *slot) weight(place uint64) uint64 {
	x := o.hash ^ place*0x9e3779b97f4a7c15
	x = (x ^ x>>32) * 0xd6e8feb86659fd93
	x = (x ^ x>>32) * 0xd6e8feb86659fd93
	return x ^ x>>32
}

// beats reports whether o, and not p, owns a place if there are no others.
func (o *slot) beats(p *slot, place uint64) bool {
	x, y := o.weight(place), p.weight(place)
	return x > y || x == y && o.id.Compare(p.id) > 0
}

// owner returns the owner of the place of a hash, among the members that are not excluded.
func (s *Set) owner(hash uint64, not []rocl.GID) *slot {
	place := hash % places
	if t := s.table.Load(); t != nil {
		if o := t[place].Load(); o != nil && !o.isIn(not) {
			return o
		}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	var best, allowed *slot
	for _, o := range s.view.Load().slots {
		if best == nil || o.beats(best, place) {
			best = o
		}
		if len(not) > 0 && !o.isIn(not) && (allowed == nil || o.beats(allowed, place)) {
			allowed = o
		}
	}
	t := s.table.Load()
	if t == nil {
		t = new(table)
		s.table.Store(t)
	}
	t[place].Store(best)
	if len(not) > 0 {
		return allowed
	}
	return best
}

// add gives a new member its places.
func (t *table) add(n *slot) {
	for place := range uint64(places) {
		if o := t[place].Load(); o != nil && n.beats(o, place) {
			t[place].Store(n)
		}
	}
}

// remove leaves the places of a member without owners.
func (t *table) remove(o *slot) {
	for i := range t {
		t[i].CompareAndSwap(o, nil)
	}
}

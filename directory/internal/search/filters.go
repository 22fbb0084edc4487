// SPDX-License-Identifier: Apache-2.0

package search

import (
	"cmp"
	"encoding/binary"
	"fmt"
	"slices"
	"time"

	"github.com/rocl-go/rocl/resource"
)

// Messages about summaries. Their first byte differs from those of packets of questions.
const (
	msgDelta   = 16 + iota // epoch u32, version u32, keys u32 …: the keys that were added to that version
	msgSummary             // the whole summary
	msgWant                // epoch u32, version u32: asks for what came after this version
)

const (
	msgHead  = 9   // of a delta or a want
	maxDelta = 256 // keys in one packet
	again    = 16  // calls of Spread without news after which the version is sent again
	crowd    = 250 // members up to which the interval is as configured
)

// IsFilter reports whether a message is for Filters, and not a [Packet].
func IsFilter(message []byte) bool { return len(message) > 0 && message[0] >= msgDelta }

// Interval returns how often to call Spread in a cluster of so many members. At the rate of a small
// cluster, the heads of packets would be most of the traffic of a large one.
func Interval(base time.Duration, members int) time.Duration {
	return base * time.Duration(max(members, crowd)) / crowd
}

// Filters has the summaries of the members of a cluster, this one's among them. Summaries are
// spread in batches, and no answer depends on them. A lost message shows in the numbers of the next
// one, and is asked for. Filters has neither sockets nor clock, and must not be used concurrently.
type Filters struct {
	of   []theirs // sorted by node
	turn int      // where May begins, so that among many members not always the same are asked

	own    *Summary
	recent []uint32 // the last keys added
	sent   uint32   // the version that was sent to the members last
	anew   bool     // no member knows the present summary
	quiet  int      // calls of Spread without news
	wants  map[resource.NodeID]version
}

// theirs is the summary of another member.
type theirs struct {
	node resource.NodeID
	*Summary
}

// A version says how much of which summary a member has.
type version struct{ epoch, n uint32 }

// NewFilters returns Filters without summaries of other members.
func NewFilters() *Filters {
	return &Filters{own: NewSummary(nil, 1), anew: true, wants: map[resource.NodeID]version{}}
}

// Add adds a resource of this member that has appeared or changed.
func (f *Filters) Add(l *resource.List) {
	keys(l, func(k uint32) {
		if f.own.add(k) {
			f.recent = append(f.recent, k)
		}
	})
	if n, most := len(f.recent), f.own.worth(); n > 2*most {
		f.recent = append(f.recent[:0], f.recent[n-most:]...)
	}
}

// Stale reports whether Renew is due.
func (f *Filters) Stale(members int) bool { return f.own.Stale(members) }

// Renew replaces this member's summary. s must have all resources of this member. A resource that
// appears while s is made is to be added again afterwards.
func (f *Filters) Renew(s *Summary) {
	f.own, f.recent, f.sent, f.anew = s, nil, s.Version, true
}

// Met notes that a member has come (alive), or has gone.
func (f *Filters) Met(id resource.NodeID, alive bool) {
	if alive {
		f.wants[id] = version{}
		return
	}
	delete(f.wants, id)
	if i, ok := f.find(id); ok {
		f.of = slices.Delete(f.of, i, i+1)
	}
}

// find returns the index of a member in f.of, and reports whether it is there.
func (f *Filters) find(id resource.NodeID) (int, bool) {
	return slices.BinarySearchFunc(f.of, id, func(t theirs, id resource.NodeID) int { return cmp.Compare(t.node, id) })
}

// Of returns the summary of a member, or nil if it has sent none.
func (f *Filters) Of(id resource.NodeID) *Summary {
	if i, ok := f.find(id); ok {
		return f.of[i].Summary
	}
	return nil
}

// May returns members whose summary has all that a pattern names, at most as many as a Node asks
// first. It returns none for a pattern with attributes that only the system sees, which no summary
// has.
func (f *Filters) May(pattern *resource.List) (members []resource.NodeID) {
	if pattern.Len() == 0 || resource.SeesSystem(pattern) {
		return nil
	}
	p := newProbe(pattern)
	f.turn++
	for i := range f.of {
		t := &f.of[(i+f.turn)%len(f.of)]
		if t.may(p) {
			if members = append(members, t.node); len(members) == maxFirst {
				break
			}
		}
	}
	return members
}

// Spread sends the other members what is new, and sends members that lack something what they lack.
func (f *Filters) Spread(members []resource.NodeID, self resource.NodeID, send func(to resource.NodeID, message []byte)) {
	// After the last news, and then now and again, an empty delta lets members notice that they
	// have missed something.
	news := f.own.Version != f.sent
	var whole, delta [][]byte
	if news || f.quiet%again == 0 {
		delta = f.delta(f.sent)
	}
	wants := f.wants
	f.wants = map[resource.NodeID]version{} // a want that is heard while sending is for the next call
	if f.quiet++; news || f.anew || len(wants) > 0 {
		f.quiet = 0
	}
	for _, m := range members {
		say := delta
		v, lacks := wants[m]
		switch {
		case m == self:
			continue
		case f.anew, lacks && v.epoch != f.own.Epoch, news && delta == nil:
			say = nil
		case lacks:
			say = f.delta(v.n)
		case delta == nil:
			continue
		}
		if say == nil {
			if whole == nil {
				whole = [][]byte{f.own.Append([]byte{msgSummary})}
			}
			say = whole
		}
		for _, message := range say {
			send(m, message)
		}
	}
	f.sent, f.anew = f.own.Version, false
}

// delta returns packets with the keys that came after a version, or nil if the whole summary is
// better.
func (f *Filters) delta(after uint32) (packets [][]byte) {
	n := int64(f.own.Version) - int64(after)
	if n < 0 || n > int64(len(f.recent)) || n > int64(f.own.worth()) {
		return nil
	}
	left := f.recent[len(f.recent)-int(n):]
	for {
		now := left[:min(maxDelta, len(left))]
		b := head9(msgDelta, f.own.Epoch, after)
		for _, k := range now {
			b = binary.LittleEndian.AppendUint32(b, k)
		}
		packets = append(packets, b)
		after += uint32(len(now))
		if left = left[len(now):]; len(left) == 0 {
			return packets
		}
	}
}

// head9 returns the head of a delta or a want.
func head9(kind byte, epoch, version uint32) []byte {
	b := binary.LittleEndian.AppendUint32([]byte{kind}, epoch)
	return binary.LittleEndian.AppendUint32(b, version)
}

// Hear handles a message from a member, and returns the reply to it, or nil. It does not keep
// message.
func (f *Filters) Hear(from resource.NodeID, message []byte) (reply []byte, err error) {
	if len(message) == 0 {
		return nil, fmt.Errorf("%w: empty", ErrMalformed)
	}
	i, known := f.find(from)
	if message[0] == msgSummary {
		s, err := ParseSummary(message[1:])
		if err != nil {
			return nil, err
		}
		if known {
			f.of[i].Summary = s
		} else {
			f.of = slices.Insert(f.of, i, theirs{from, s})
		}
		return nil, nil
	}
	if len(message) < msgHead || len(message)%4 != msgHead%4 || len(message) > msgHead+4*maxDelta {
		return nil, fmt.Errorf("%w: %d bytes about a summary", ErrMalformed, len(message))
	}
	v := version{binary.LittleEndian.Uint32(message[1:]), binary.LittleEndian.Uint32(message[5:])}
	switch message[0] {
	case msgWant:
		f.wants[from] = v
	case msgDelta:
		fresh := make([]uint32, 0, maxDelta)
		for k := message[msgHead:]; len(k) > 0; k = k[4:] {
			fresh = append(fresh, binary.LittleEndian.Uint32(k))
		}
		if !known {
			return head9(msgWant, 0, 0), nil
		}
		if s := f.of[i]; !s.apply(v.epoch, v.n, fresh) {
			return head9(msgWant, s.Epoch, s.Version), nil
		}
	default:
		return nil, fmt.Errorf("%w: kind %d", ErrMalformed, message[0])
	}
	return nil, nil
}

// Bytes returns the approximate size of all summaries in memory.
func (f *Filters) Bytes() (n int) {
	for i := range f.of {
		n += f.of[i].Bytes() + 16
	}
	return n + f.own.Bytes()
}

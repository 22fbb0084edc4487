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

// Messages about summaries, told from packets of questions by their first byte.
const (
	msgDelta   = 16 + iota // epoch u32, version u32, keys u32 …: what was added to that version
	msgSummary             // the whole summary
	msgWant                // epoch u32, version u32: send me what came after this version
)

const (
	msgHead  = 9   // of a delta or a want
	maxDelta = 256 // keys that one packet tells of
	again    = 16  // calls of Spread after which the version is told again where there is no news
	crowd    = 250 // members up to which the interval is as configured
)

// IsFilter says whether a message is for Filters, rather than a [Packet].
func IsFilter(message []byte) bool { return len(message) > 0 && message[0] >= msgDelta }

// Interval is how often to call Spread in a cluster of so many: the heads of
// packets would be most of what many members say, if they said it as often as
// a few do.
func Interval(base time.Duration, members int) time.Duration {
	return base * time.Duration(max(members, crowd)) / crowd
}

// Filters are what the members of a cluster say they hold, and what this one
// says: summaries, spread in batches. No answer depends on them. What got lost
// is seen by the numbers of what comes next, and asked for. Like a Node it has
// neither sockets nor clock, and is called by one goroutine at a time.
type Filters struct {
	of   []theirs // in order of node
	turn int      // where May begins, so that among many it is not always the same who are asked

	own    *Summary
	recent []uint32 // the last keys added
	said   uint32   // the version that members were told of last
	anew   bool     // no member knows the present summary
	quiet  int      // calls of Spread without news
	wants  map[resource.NodeID]version
}

type theirs struct {
	node resource.NodeID
	*Summary
}

type version struct{ epoch, n uint32 }

// NewFilters begins with nothing.
func NewFilters() *Filters {
	return &Filters{own: NewSummary(nil, 1), anew: true, wants: map[resource.NodeID]version{}}
}

// Add says that a resource has appeared here, or has changed.
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

// Stale says that it is time for Renew.
func (f *Filters) Stale(members int) bool { return f.own.Stale(members) }

// Renew replaces this member's summary. All that is here has to be in it: what
// appears while it is made is added again afterwards.
func (f *Filters) Renew(s *Summary) {
	f.own, f.recent, f.said, f.anew = s, nil, s.Version, true
}

// Met says that a member has come, or gone.
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

func (f *Filters) find(id resource.NodeID) (int, bool) {
	return slices.BinarySearchFunc(f.of, id, func(t theirs, id resource.NodeID) int { return cmp.Compare(t.node, id) })
}

// Of is what a member says it holds; nil if it has not said.
func (f *Filters) Of(id resource.NodeID) *Summary {
	if i, ok := f.find(id); ok {
		return f.of[i].Summary
	}
	return nil
}

// May lists members whose summary has all that a pattern names, as many as a
// Node asks first. Nobody's has what only the system sees.
func (f *Filters) May(pattern *resource.List) (who []resource.NodeID) {
	if pattern.Len() == 0 || resource.SeesSystem(pattern) {
		return nil
	}
	p := newProbe(pattern)
	f.turn++
	for i := range f.of {
		t := &f.of[(i+f.turn)%len(f.of)]
		if t.may(p) {
			if who = append(who, t.node); len(who) == maxFirst {
				break
			}
		}
	}
	return who
}

// Spread tells the other members what is new, and those that lack something
// what they lack.
func (f *Filters) Spread(members []resource.NodeID, self resource.NodeID, send func(to resource.NodeID, message []byte)) {
	// After the last news, and then now and again, an empty delta lets those see
	// it who have missed something.
	news := f.own.Version != f.said
	var whole, delta [][]byte
	if news || f.quiet%again == 0 {
		delta = f.delta(f.said)
	}
	wants := f.wants
	f.wants = map[resource.NodeID]version{} // what is heard while sending is for the next time
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
	f.said, f.anew = f.own.Version, false
}

// delta tells what came after a version, in packets; nil if the whole summary
// is the better way.
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

func head9(kind byte, epoch, version uint32) []byte {
	b := binary.LittleEndian.AppendUint32([]byte{kind}, epoch)
	return binary.LittleEndian.AppendUint32(b, version)
}

// Hear works on a message from a member, and gives what is to be said back.
// The message is not kept.
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

// Bytes is what the summaries take in memory, about.
func (f *Filters) Bytes() (n int) {
	for i := range f.of {
		n += f.of[i].Bytes() + 16
	}
	return n + f.own.Bytes()
}

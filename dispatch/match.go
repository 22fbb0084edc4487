// SPDX-License-Identifier: Apache-2.0

package dispatch

import (
	"github.com/rocl-go/rocl/dispatch/internal/list"
	"github.com/rocl-go/rocl/resource"
)

// A receive checks the first message, and usually takes it. A receive with selectors that passes
// over more than a few messages puts them into chains. There is a chain for each origin, each tag,
// or each pair of both, according to what the receive selects by. From then on receives find
// messages by the chains, and check one by one only the messages behind those. So a message is
// passed over once, and a mailbox that is received from in order has no chains.
//
// Some selectors have no chain, such as a range of tags. For these the matcher remembers the
// message up to which nothing matches.

const (
	passedFew   = 8   // messages that a receive passes over each time without chains
	mostKeys    = 64  // chains that a receive looks at
	sparedSlots = 256 // slots that an empty mailbox keeps
	slotsAtOnce = 64
)

// A key is what the messages of a chain, or receivers, have in common.
type key struct {
	from resource.GID
	tag  uint64
	kind uint64 // byFrom, byTag or byBoth: which of the other fields count
}

const (
	byFrom = 1
	byTag  = 2
	byBoth = byFrom | byTag
)

// keyOf returns the key of messages with this origin and tag.
func keyOf(kind uint64, from resource.GID, tag uint64) key {
	k := key{kind: kind}
	if kind&byFrom != 0 {
		k.from = from
	}
	if kind&byTag != 0 {
		k.tag = tag
	}
	return k
}

// key returns the key of the messages that s selects. Its kind is 0 if these messages have no
// single key.
func (s *Select) key() (k key) {
	if s.more != nil || s.hasTag && s.span != 0 {
		return k
	}
	if s.hasFrom {
		k.kind, k.from = k.kind|byFrom, s.from
	}
	if s.hasTag {
		k.kind, k.tag = k.kind|byTag, s.first
	}
	return k
}

// keys calls f for each key of the messages that s selects. It returns most less the number of
// keys. The result is negative if there are more keys than most, or if s also selects messages with
// no such key. Then f may have been called for some keys.
func (s *Select) keys(most int, f func(key)) (left int) {
	if k := s.key(); k.kind != 0 {
		f(k)
		return most - 1
	}
	if s.more != nil && s.more.any != nil {
		for i := range s.more.any {
			if most = s.more.any[i].keys(most, f); most < 0 {
				break
			}
		}
		return most
	}
	var froms []resource.GID
	var tags []uint64
	if s.more != nil {
		froms, tags = s.more.froms, s.more.tags
	}
	nFroms, nTags := max(len(froms), 1), max(len(tags), 1)
	var kind uint64
	if s.hasFrom || froms != nil {
		kind |= byFrom
	}
	switch {
	case tags != nil:
		kind |= byTag
	case s.hasTag && s.span >= uint64(most), s.hasTag && s.mask != 0:
		return -1
	case s.hasTag:
		kind, nTags = kind|byTag, int(s.span)+1
	}
	if kind == 0 || nFroms*nTags > most {
		return -1
	}
	for i := range nFroms {
		from := s.from
		if froms != nil {
			from = froms[i]
		}
		for j := range nTags {
			tag := s.first + uint64(j)
			if tags != nil {
				tag = tags[j]
			}
			f(keyOf(kind, from, tag))
		}
	}
	return most - nFroms*nTags
}

// A matcher finds messages of a mailbox. The mailbox's mu guards its fields.
type matcher struct {
	kinds  [byBoth + 1]bool // the kinds of keys that have chains
	chains map[key]*chain
	until  *Message // this message and all before it are in chains of all these kinds; nil: none
	lowest int64    // no message in chains has a lower order

	spareSlots  *slot
	spareChains *chain
	made, used  int // counts of slots

	looked  []look // at most mostLooks
	replace int    // the look to replace next
}

// A chain has the stored messages of one key, in the order of the mailbox.
type chain struct {
	key   key
	slots list.List[slot]
	next  *chain // of an unused chain: the next unused one
}

// A slot is the place of a message in a chain.
type slot struct {
	msg   *Message
	chain *chain
	place list.Place[slot]
	also  *slot // the slot of the same message in the chain of another kind; in an unused slot, the next unused one
	order int64 // of two messages, the first one has the lower order
}

// A look says how far receives with selectors that have no keys have looked.
type look struct {
	sel Select
	at  *Message // this message and all before it do not match; nil: unknown
}

// mostLooks is how many looks a matcher remembers.
const mostLooks = 4

// findLocked returns the first message that f selects, or nil. mu must be held.
func (m *Mailbox) findLocked(f *Select) *Message {
	m.takeBackLocked()
	msg := m.messages.First()
	if msg == nil {
		m.storeQueuesLocked()
		msg = m.messages.First()
	}
	if msg == nil || f.matches(msg) {
		return msg
	}
	return m.findBehind(f)
}

// findBehind is find for the case that the first message does not match.
func (m *Mailbox) findBehind(f *Select) *Message {
	m.storeQueuesLocked()
	m.expandLocked()
	x := m.matcher
	if x == nil {
		msg := m.messages.First()
		for range passedFew {
			if msg = msg.place.Next(); msg == nil || f.matches(msg) {
				return msg
			}
		}
		x = &matcher{chains: map[key]*chain{}}
		m.matcher = x
	}
	var kinds [byBoth + 1]bool
	if f.keys(mostKeys, func(k key) { kinds[k.kind] = true }) < 0 {
		return m.findByLook(f)
	}
	if x.until != nil {
		var found *slot
		x.chainBy(m.messages.First(), kinds)
		f.keys(mostKeys, func(k key) {
			if c := x.chains[k]; c != nil && (found == nil || c.slots.First().order < found.order) {
				found = c.slots.First()
			}
		})
		if found != nil {
			return found.msg
		}
	}
	from, passed := m.behind(x.until), 0
	msg := from
	for ; msg != nil && !f.matches(msg); msg = msg.place.Next() {
		passed++
	}
	if passed > passedFew {
		x.chainBy(m.messages.First(), kinds)
		for ; from != msg; from = from.place.Next() {
			x.append(from)
		}
	}
	return msg
}

// findByLook is findBehind for selectors that have no keys.
func (m *Mailbox) findByLook(f *Select) *Message {
	x := m.matcher
	var l *look
	for i := range x.looked {
		if x.looked[i].sel.equals(f) {
			l = &x.looked[i]
			break
		}
	}
	var at *Message
	if l != nil {
		at = l.at
	}
	msg, passed := m.behind(at), 0
	for ; msg != nil && !f.matches(msg); msg = msg.place.Next() {
		at = msg
		passed++
	}
	if passed > passedFew {
		if l == nil {
			l = x.newLook(f)
		}
		l.at = at
	}
	return msg
}

// newLook returns a look for f, in place of another one if there are mostLooks.
func (x *matcher) newLook(f *Select) *look {
	if len(x.looked) < mostLooks {
		x.looked = append(x.looked, look{sel: *f})
		return &x.looked[len(x.looked)-1]
	}
	l := &x.looked[x.replace]
	x.replace = (x.replace + 1) % mostLooks
	l.sel = *f
	return l
}

// behind returns the message behind msg, or the first one if msg is nil.
func (m *Mailbox) behind(msg *Message) *Message {
	if msg == nil {
		return m.messages.First()
	}
	return msg.place.Next()
}

// chainBy adds the messages up to until to chains of these kinds, unless they are in such chains.
// first is the first message of the mailbox.
func (x *matcher) chainBy(first *Message, kinds [byBoth + 1]bool) {
	for kind, wanted := range kinds {
		if !wanted || x.kinds[kind] {
			continue
		}
		x.kinds[kind] = true
		if x.until == nil {
			continue
		}
		for msg := first; ; msg = msg.place.Next() {
			x.chain(msg, uint64(kind), msg.slot.order, false)
			if msg == x.until {
				break
			}
		}
	}
}

// append adds msg, the message behind until, to the chains.
func (x *matcher) append(msg *Message) {
	order := x.lowest
	if x.until != nil {
		order = x.until.slot.order + 1
	}
	x.add(msg, order, false)
	x.until = msg
}

// prepend adds a message to the chains, before all others, if the matcher has chains. The message
// has become the first one of the mailbox.
func (x *matcher) prepend(msg *Message) {
	for i := range x.looked {
		if l := &x.looked[i]; l.at != nil && l.sel.matches(msg) {
			l.at = nil
		}
	}
	if x.until != nil {
		x.lowest--
		x.add(msg, x.lowest, true)
	}
}

// add adds msg to a chain of each kind.
func (x *matcher) add(msg *Message, order int64, isFirst bool) {
	for kind, wanted := range x.kinds {
		if wanted {
			x.chain(msg, uint64(kind), order, isFirst)
		}
	}
}

// chain adds msg to the chain of its key of a kind, as the first or the last one.
func (x *matcher) chain(msg *Message, kind uint64, order int64, isFirst bool) {
	k := keyOf(kind, msg.from, msg.tag)
	c := x.chains[k]
	if c == nil {
		if c = x.spareChains; c != nil {
			x.spareChains, c.next = c.next, nil
		} else {
			c = new(chain)
		}
		c.key = k
		x.chains[k] = c
	}
	s := x.slot()
	s.msg, s.chain, s.order, s.also = msg, c, order, msg.slot
	msg.slot = s
	if isFirst {
		c.slots.PushFront(s, &s.place)
	} else {
		c.slots.PushBack(s, &s.place)
	}
}

// slot returns an unused slot.
func (x *matcher) slot() *slot {
	if x.spareSlots == nil {
		slots := new([slotsAtOnce]slot)
		for i := range slots {
			slots[i].also, x.spareSlots = x.spareSlots, &slots[i]
		}
		x.made += slotsAtOnce
	}
	s := x.spareSlots
	x.spareSlots = s.also
	x.used++
	return s
}

// remove notes that msg is about to leave the list of the mailbox m.
func (x *matcher) remove(m *Mailbox, msg *Message) {
	x.replaceBy(msg, msg.place.Prev())
	for s := msg.slot; s != nil; {
		c := s.chain
		if c.slots.Remove(&s.place); c.slots.First() == nil {
			delete(x.chains, c.key)
			c.next, x.spareChains = x.spareChains, c
		}
		also := s.also
		*s = slot{also: x.spareSlots}
		x.spareSlots = s
		x.used--
		s = also
	}
	msg.slot = nil
	if x.made > sparedSlots && x.used < x.made/8 {
		x.drop(m)
	}
}

// drop frees the chains, which have become much smaller than they were. A receive that passes over
// messages makes new ones.
func (x *matcher) drop(m *Mailbox) {
	if x.until != nil {
		for o := m.messages.First(); ; o = o.place.Next() {
			o.slot = nil
			if o == x.until {
				break
			}
		}
	}
	*x = matcher{chains: map[key]*chain{}, looked: x.looked, replace: x.replace}
}

// replaceBy notes that o takes the place of msg, or that nothing does if o is nil.
func (x *matcher) replaceBy(msg, o *Message) {
	if x.until == msg {
		x.until = o
	}
	for i := range x.looked {
		if l := &x.looked[i]; l.at == msg {
			l.at = o
		}
	}
}

// SPDX-License-Identifier: Apache-2.0

package dispatch

import (
	"cmp"
	"errors"
	"fmt"
	"math"
	"slices"

	"github.com/rocl-go/rocl/resource"
)

// ErrSelect is returned by a receive with selectors that no message can ever match: they contradict
// each other, or one of them names nothing.
//
// Cause: no message can match all selectors. Remedy: `Any` combines alternatives.
var ErrSelect = errors.New("rocl: invalid selectors")

// mostAlternatives is how many alternatives the selectors of one receive may have together.
const mostAlternatives = 4096

// A Select is a condition on the origin and the tag of a message. A receive returns the first
// message that matches all its selectors. The zero Select matches every message. [From], [Tag],
// [Tags], [TagMask], [Any] and [All] return selectors. A Select does not change, and several
// goroutines may use it, any number of times.
type Select struct {
	from        resource.GID
	first, span uint64          // the tag is from first to first+span
	mask, value uint64          // the tag has, in the bits of mask, the bits of value
	hasFrom     bool            // there is a condition on the origin
	hasTag      bool            // there is a condition on the tag
	more        *moreConditions // further conditions; nil: none
}

// moreConditions is the part of a Select beyond one origin and one range of tags. It does not
// change.
type moreConditions struct {
	froms []resource.GID // the origin is one of these; sorted; nil: any
	tags  []uint64       // the tag is one of these; sorted; nil: any
	any   []Select       // one of these matches; nil: no such condition
	err   error          // no message can match
}

// From selects messages from any of ids.
func From(ids ...resource.GID) Select {
	switch len(ids) {
	case 0:
		return invalid("From without an origin")
	case 1:
		return Select{from: ids[0], hasFrom: true}
	}
	froms := slices.Clone(ids)
	slices.SortFunc(froms, resource.GID.Compare)
	return Select{}.restrict(slices.Compact(froms), nil)
}

// Tag selects messages with any of tags.
func Tag(tags ...uint64) Select {
	switch len(tags) {
	case 0:
		return invalid("Tag without a tag")
	case 1:
		return Select{first: tags[0], hasTag: true}
	}
	all := slices.Clone(tags)
	slices.Sort(all)
	return Select{}.restrict(nil, slices.Compact(all))
}

// Tags selects messages with tags from first to last, both included.
func Tags(first, last uint64) Select {
	if first > last {
		return invalid("Tags(%d, %d) is an empty range", first, last)
	}
	s, _ := maskedRange(first, last, 0, 0)
	return s
}

// TagMask selects messages with a tag that has, in the bits that are set in mask, the bits of
// value.
func TagMask(mask, value uint64) Select {
	s, ok := maskedRange(0, math.MaxUint64, mask, value)
	if !ok {
		return invalid("TagMask(%#x, %#x): the value has bits that are not in the mask", mask, value)
	}
	return s
}

// Any selects messages that match at least one of sel. If no message can match one of sel, Any
// matches no message: a receive fails with [ErrSelect].
func Any(sel ...Select) Select {
	if len(sel) == 0 {
		return invalid("Any without an alternative")
	}
	var any []Select
	for i := range sel {
		switch s := &sel[i]; {
		case s.err() != nil:
			return *s
		case s.more != nil && s.more.any != nil: // such a Select has no other conditions
			any = append(any, s.more.any...)
		default:
			any = append(any, *s)
		}
	}
	return alternatives(any)
}

// All selects messages that match each of sel, as several selectors of one receive do. It is for
// conditions within [Any]. Without arguments it selects every message.
func All(sel ...Select) Select {
	var s Select
	for i := range sel {
		s = s.and(&sel[i])
	}
	return s
}

// merge returns the conjunction of a receive's selectors. A single selector is returned where it
// lies. Several are merged into f, which must be zero.
func merge(sel []Select, f *Select) (*Select, error) {
	switch len(sel) {
	case 0:
		return f, nil
	case 1:
		return &sel[0], sel[0].err()
	}
	for i := range sel { // usually one From and one Tag
		s := &sel[i]
		if s.more != nil || s.hasFrom && f.hasFrom || s.hasTag && f.hasTag {
			*f = All(sel...)
			return f, f.err()
		}
		if s.hasFrom {
			f.from, f.hasFrom = s.from, true
		}
		if s.hasTag {
			f.first, f.span, f.mask, f.value, f.hasTag = s.first, s.span, s.mask, s.value, true
		}
	}
	return f, nil
}

// invalid returns a selector that no message can match, with the reason.
func invalid(format string, args ...any) Select {
	return Select{more: &moreConditions{err: fmt.Errorf("%w: "+format, append([]any{ErrSelect}, args...)...)}}
}

// err returns why no message can match s, or nil.
func (s *Select) err() error {
	if s.more == nil {
		return nil
	}
	return s.more.err
}

// matches reports whether s selects msg.
func (s *Select) matches(msg *Message) bool {
	return (!s.hasFrom || s.from == msg.from) &&
		(!s.hasTag || s.hasTagOf(msg.tag)) &&
		(s.more == nil || s.more.matches(msg))
}

// hasTagOf reports whether a tag meets the conditions on one range of tags.
func (s *Select) hasTagOf(tag uint64) bool { return tag-s.first <= s.span && tag&s.mask == s.value }

// isAll reports whether s selects all messages.
func (s *Select) isAll() bool { return !s.hasFrom && !s.hasTag && s.more == nil }

// matches reports whether msg meets the further conditions.
func (a *moreConditions) matches(msg *Message) bool {
	if a.froms != nil {
		if _, ok := slices.BinarySearchFunc(a.froms, msg.from, resource.GID.Compare); !ok {
			return false
		}
	}
	if a.tags != nil {
		if _, ok := slices.BinarySearch(a.tags, msg.tag); !ok {
			return false
		}
	}
	return a.any == nil || slices.ContainsFunc(a.any, func(s Select) bool { return s.matches(msg) })
}

// expects reports whether a message from a resource of context c can match. With onlyIt, it reports
// whether s selects messages of no other context.
func (s *Select) expects(c resource.GID, onlyIt bool) bool {
	is := func(id resource.GID) bool { return id.Context() == c }
	switch a := s.more; {
	case s.hasFrom:
		return is(s.from)
	case a != nil && a.froms != nil && onlyIt:
		return !slices.ContainsFunc(a.froms, func(id resource.GID) bool { return !is(id) })
	case a != nil && a.froms != nil:
		return slices.ContainsFunc(a.froms, is)
	case a != nil && a.any != nil && onlyIt:
		return !slices.ContainsFunc(a.any, func(s Select) bool { return !s.expects(c, true) })
	case a != nil && a.any != nil:
		return slices.ContainsFunc(a.any, func(s Select) bool { return s.expects(c, false) })
	}
	return !onlyIt
}

// equals reports whether s and o have the same conditions, in the same form.
func (s *Select) equals(o *Select) bool {
	a, b := s.more, o.more
	if a == b || a == nil || b == nil {
		return *s == *o
	}
	x, y := *s, *o
	x.more, y.more = nil, nil
	return x == y && slices.Equal(a.froms, b.froms) && slices.Equal(a.tags, b.tags) &&
		slices.EqualFunc(a.any, b.any, func(s, o Select) bool { return s.equals(&o) })
}

// and returns the conjunction of s and o.
func (s Select) and(o *Select) Select {
	switch {
	case s.err() != nil:
		return s
	case o.err() != nil:
		return *o
	}
	a, b := s.parts(), o.parts()
	if len(a)*len(b) > mostAlternatives {
		return invalid("%d and %d alternatives are more than %d together", len(a), len(b), mostAlternatives)
	}
	if len(a) == 1 && len(b) == 1 {
		return a[0].andPlain(&b[0])
	}
	var both []Select
	var err Select
	for i := range a {
		for j := range b {
			if c := a[i].andPlain(&b[j]); c.err() == nil {
				both = append(both, c)
			} else {
				err = c
			}
		}
	}
	if len(both) == 0 {
		return err
	}
	return alternatives(both)
}

// alternatives returns a selector of messages that match one of sel. None of sel has alternatives
// itself.
func alternatives(sel []Select) Select {
	switch {
	case len(sel) == 1:
		return sel[0]
	case len(sel) > mostAlternatives:
		return invalid("%d alternatives are more than %d", len(sel), mostAlternatives)
	}
	return Select{more: &moreConditions{any: sel}}
}

// parts returns the alternatives of s, or s itself.
func (s *Select) parts() []Select {
	if s.more != nil && s.more.any != nil {
		return s.more.any
	}
	return []Select{*s}
}

// andPlain is and for selectors without alternatives.
func (s *Select) andPlain(o *Select) Select {
	froms, isNone := intersect(s.namedFrom(), o.namedFrom(), resource.GID.Compare)
	if isNone {
		return invalid("no message is from both %v and %v", beginning(s.namedFrom()), beginning(o.namedFrom()))
	}
	m, ok := Select{}, true
	if s.hasTag || o.hasTag {
		if (s.value^o.value)&s.mask&o.mask == 0 {
			m, ok = maskedRange(max(s.first, o.first), min(s.last(), o.last()), s.mask|o.mask, s.value|o.value)
		} else {
			ok = false
		}
	}
	var tags []uint64
	if s.more != nil {
		tags = s.more.tags
	}
	if o.more != nil {
		tags, isNone = intersect(tags, o.more.tags, cmp.Compare[uint64])
		ok = ok && !isNone
	}
	if tags != nil && ok && m.hasTag {
		kept := make([]uint64, 0, len(tags))
		for _, t := range tags {
			if m.hasTagOf(t) {
				kept = append(kept, t)
			}
		}
		tags, ok = kept, len(kept) > 0
	}
	if !ok {
		return invalid("no message has a tag that is both %v and %v", s.tagText(), o.tagText())
	}
	return m.restrict(froms, tags)
}

// namedFrom returns the origins that s names, or nil if it names none.
func (s *Select) namedFrom() []resource.GID {
	switch {
	case s.hasFrom:
		return []resource.GID{s.from}
	case s.more != nil:
		return s.more.froms
	}
	return nil
}

// last returns the greatest tag of the range of s.
func (s *Select) last() uint64 {
	if !s.hasTag {
		return math.MaxUint64
	}
	return s.first + s.span
}

// restrict returns the conjunction of s with an origin in froms and a tag in tags. s has at most a
// condition on tags. Both lists are sorted; nil means any.
func (s Select) restrict(froms []resource.GID, tags []uint64) Select {
	if len(tags) > 0 { // s matches all of them
		s = Select{}
	}
	if len(froms) == 1 {
		s.from, s.hasFrom, froms = froms[0], true, nil
	}
	if len(tags) == 1 {
		s.first, s.hasTag, tags = tags[0], true, nil
	}
	if froms != nil || tags != nil {
		s.more = &moreConditions{froms: froms, tags: tags}
	}
	return s
}

// maskedRange returns a selector of the tags from first to last that have, in the bits of mask, the
// bits of value. It reports false if there is no such tag.
func maskedRange(first, last, mask, value uint64) (Select, bool) {
	if first > last || value&^mask != 0 {
		return Select{}, false
	}
	least, ok := atLeast(first, mask, value)
	if !ok || least > last {
		return Select{}, false
	}
	not, _ := atLeast(^last, mask, mask&^value)
	s := Select{first: least, span: ^not - least, mask: mask, value: value, hasTag: true}
	switch s.span {
	case 0:
		s.mask, s.value = 0, 0
	case math.MaxUint64: // the mask has no bits
		s = Select{}
	}
	return s, true
}

// atLeast returns the least number that is not less than n and has, in the bits of mask, the bits
// of value.
func atLeast(n, mask, value uint64) (uint64, bool) {
	if mask == 0 {
		return n, true
	}
	for bit := uint64(1) << 63; bit != 0; bit >>= 1 {
		if (n^value)&mask&bit == 0 {
			continue
		}
		below := bit - 1
		if value&bit != 0 {
			return n&^(below|bit) | bit | value&below, true
		}
		for bit <<= 1; bit != 0; bit <<= 1 { // a free bit above has to become 1
			if mask&bit == 0 && n&bit == 0 {
				return n&^(bit-1) | bit | value&(bit-1), true
			}
		}
		return 0, false
	}
	return n, true
}

// intersect returns the elements of two sorted lists that are in both. A nil list stands for all
// elements. isNone reports whether no element is in both.
func intersect[T any](a, b []T, compare func(T, T) int) (both []T, isNone bool) {
	switch {
	case a == nil:
		return b, false
	case b == nil:
		return a, false
	}
	for _, x := range a {
		if _, ok := slices.BinarySearchFunc(b, x, compare); ok {
			both = append(both, x)
		}
	}
	return both, len(both) == 0
}

// beginning returns the beginning of a list, for an error.
func beginning[T any](all []T) string {
	const most = 3
	if len(all) > most {
		return fmt.Sprintf("%v and %d more", all[:most], len(all)-most)
	}
	return fmt.Sprint(all)
}

// tagText describes the tags that s selects, for an error.
func (s *Select) tagText() string {
	switch {
	case s.more != nil && s.more.tags != nil:
		return beginning(s.more.tags)
	case s.mask != 0:
		return fmt.Sprintf("from %d to %d with %#x in the bits of %#x", s.first, s.last(), s.value, s.mask)
	case s.span == 0 && s.hasTag:
		return fmt.Sprint(s.first)
	}
	return fmt.Sprintf("from %d to %d", s.first, s.last())
}

// SPDX-License-Identifier: Apache-2.0

package database

// postings has the postings of hashes. Its zero value is not usable: see newPostings.
type postings struct {
	slots map[uint64]slot
	lists [][]uint32
	free  []uint32 // indexes of lists that are not in use
}

// slot is the posting of one hash. That of a single record is stored as the record's number.
type slot struct {
	val uint32 // the record's number if n is 1, else an index in postings.lists
	n   uint32 // length of the posting
}

func newPostings() postings { return postings{slots: map[uint64]slot{}} }

// get returns the posting of h. The caller provides one as memory for a posting of a single record.
func (p *postings) get(h uint64, one *[1]uint32) []uint32 {
	switch s := p.slots[h]; s.n {
	case 0:
		return nil
	case 1:
		one[0] = s.val
		return one[:]
	default:
		return p.lists[s.val]
	}
}

// noPos is the position of an attribute that its record has a second time: the posting has the
// record only once, for the first one.
const noPos = 1<<32 - 1

// add appends rec to the posting of h and returns its position there. It returns noPos if rec is
// the last record of the posting already.
func (p *postings) add(h uint64, rec uint32) (pos uint32) {
	s := p.slots[h]
	if s.n == 1 && s.val == rec || s.n > 1 && p.lists[s.val][s.n-1] == rec {
		return noPos
	}
	switch s.n {
	case 0:
		s.val = rec
	case 1:
		var i uint32
		if n := len(p.free); n > 0 {
			i, p.free = p.free[n-1], p.free[:n-1]
		} else {
			i = uint32(len(p.lists))
			p.lists = append(p.lists, nil)
		}
		p.lists[i] = append(p.lists[i][:0], s.val, rec)
		s.val = i
	default:
		p.lists[s.val] = append(p.lists[s.val], rec)
	}
	s.n++
	p.slots[h] = s
	return s.n - 1
}

// drop removes the record at pos from the posting of h. The last record moves to that position. If
// it is another record, drop returns it with ok, and the caller stores its new position.
func (p *postings) drop(h uint64, pos uint32) (moved uint32, ok bool) {
	s := p.slots[h]
	if s.n <= 1 {
		delete(p.slots, h)
		return 0, false
	}
	s.n--
	l := p.lists[s.val]
	last := l[s.n]
	l[pos] = last
	l = l[:s.n]
	if s.n == 1 {
		p.lists[s.val] = nil
		p.free = append(p.free, s.val)
		s.val = l[0]
	} else {
		if cap(l) > 64 && len(l) < cap(l)/4 {
			l = append(make([]uint32, 0, len(l)*2), l...)
		}
		p.lists[s.val] = l
	}
	p.slots[h] = s
	return last, pos != s.n
}

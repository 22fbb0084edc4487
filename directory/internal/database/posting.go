// SPDX-License-Identifier: Apache-2.0

package database

// slots is a hash table from the hash of an attribute to its posting, with open addressing, linear
// probing, and deletion by moving entries back. A posting of one record is stored as the record's
// number; longer ones are in postings.lists.
type slots struct {
	tab  []slot
	used int
}

// slot is an entry of slots: the posting of one hash.
type slot struct {
	hash uint64 // 0: empty
	val  uint32 // the record's number if n is 1, else an index in postings.lists
	n    uint32 // length of the posting
}

// find returns the slot of h, nil if there is none.
func (s *slots) find(h uint64) *slot {
	if len(s.tab) == 0 {
		return nil
	}
	mask := uint64(len(s.tab) - 1)
	for i := h >> 8 & mask; ; i = (i + 1) & mask {
		if s.tab[i].hash == h {
			return &s.tab[i]
		}
		if s.tab[i].hash == 0 {
			return nil
		}
	}
}

// add returns the slot of h, which is empty (n is 0) if it is new. The slot is valid until the next
// add or remove.
func (s *slots) add(h uint64) *slot {
	if s.used*4 >= len(s.tab)*3 {
		s.grow()
	}
	mask := uint64(len(s.tab) - 1)
	for i := h >> 8 & mask; ; i = (i + 1) & mask {
		if s.tab[i].hash == h {
			return &s.tab[i]
		}
		if s.tab[i].hash == 0 {
			s.tab[i].hash = h
			s.used++
			return &s.tab[i]
		}
	}
}

// grow doubles the table.
func (s *slots) grow() {
	old := s.tab
	s.tab = make([]slot, max(16, len(old)*2))
	mask := uint64(len(s.tab) - 1)
	for _, e := range old {
		if e.hash == 0 {
			continue
		}
		i := e.hash >> 8 & mask
		for s.tab[i].hash != 0 {
			i = (i + 1) & mask
		}
		s.tab[i] = e
	}
}

// remove removes the slot of h, if there is one.
func (s *slots) remove(h uint64) {
	mask := uint64(len(s.tab) - 1)
	i := h >> 8 & mask
	for s.tab[i].hash != h {
		if s.tab[i].hash == 0 {
			return
		}
		i = (i + 1) & mask
	}
	s.used--
	for j := i; ; {
		j = (j + 1) & mask
		if s.tab[j].hash == 0 {
			break
		}
		// An entry that was placed behind i because i was taken may move to i.
		if home := s.tab[j].hash >> 8 & mask; (j-home)&mask >= (j-i)&mask {
			s.tab[i] = s.tab[j]
			i = j
		}
	}
	s.tab[i] = slot{}
}

// postings has all postings. The slots are cut into parts, so that growing one is short. lists has
// the postings with more than one record.
type postings struct {
	parts [256]slots
	lists [][]uint32
	free  []uint32 // indexes of lists that are not in use
}

// part returns the part that has the slot of h.
func (p *postings) part(h uint64) *slots { return &p.parts[h&0xff] }

// get returns the posting of h. The caller provides one as memory for a posting of a single record.
func (p *postings) get(h uint64, one *[1]uint32) []uint32 {
	s := p.part(h).find(h)
	switch {
	case s == nil:
		return nil
	case s.n == 1:
		one[0] = s.val
		return one[:]
	}
	return p.lists[s.val]
}

// noPos is the position of an attribute that its record has a second time: the posting has the
// record only once, for the first one.
const noPos = 1<<32 - 1

// add appends rec to the posting of h and returns its position there. It returns noPos if rec is
// the last record of the posting already.
func (p *postings) add(h uint64, rec uint32) (pos uint32) {
	s := p.part(h).add(h)
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
	return s.n - 1
}

// drop removes the record at pos from the posting of h. The last record moves to that position. If
// it is another record, drop returns it with ok, and the caller stores its new position.
func (p *postings) drop(h uint64, pos uint32) (moved uint32, ok bool) {
	s := p.part(h).find(h)
	if s == nil {
		return 0, false
	}
	s.n--
	if s.n == 0 {
		p.part(h).remove(h)
		return 0, false
	}
	l := p.lists[s.val]
	last := l[s.n]
	l[pos] = last
	l = l[:s.n]
	moved, ok = last, pos != s.n
	if s.n == 1 {
		p.lists[s.val] = nil
		p.free = append(p.free, s.val)
		s.val = l[0]
		return moved, ok
	}
	if cap(l) > 64 && len(l) < cap(l)/4 {
		l = append(make([]uint32, 0, len(l)*2), l...)
	}
	p.lists[s.val] = l
	return moved, ok
}

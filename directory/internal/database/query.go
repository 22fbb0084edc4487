// SPDX-License-Identifier: Apache-2.0

package database

import (
	"iter"
	"slices"

	"github.com/rocl-go/rocl/resource"
)

// A query is a pattern, with what is computed from it once for many resources.
type query struct {
	pattern *resource.List
	system  bool // the library's own resources may match
	owner   resource.GID
	owned   bool // only resources of owner match

	order   string // the attribute by which resources are ordered
	most    bool   // the greatest value comes first
	ordered bool   // the pattern has an order
}

// newQuery returns the query of a pattern, which must not change while the query is used.
func newQuery(pattern *resource.List) (q query) {
	q.pattern, q.system = pattern, resource.SeesSystem(pattern)
	if pattern.Conditional() {
		q.owner, q.owned = pattern.Owner()
		q.order, q.most, q.ordered = pattern.Order()
	}
	return q
}

// candidatesLocked returns the records that may match: the shortest posting among the known
// attributes of a pattern, or the owner's records if these are fewer. all reports that the pattern
// has neither, so all records may match. one is memory for the result. d.mu must be held.
func (d *DB) candidatesLocked(q *query, one *[1]uint32) (best []uint32, all bool) {
	all = true
	wire := q.pattern.Wire()
	for a, next := resource.KnownAt(wire, 0); a != nil; a, next = resource.KnownAt(wire, next) {
		p := d.post.get(d.hash(a), one)
		if all || len(p) < len(best) {
			best = p
		}
		all = false
		if len(best) < 2 { // so that one is not written while best refers to it
			break
		}
	}
	if !q.owned {
		return best, all
	}
	o, ok := d.ownerOf[q.owner]
	if !ok {
		return nil, false
	}
	if ow := &d.owners[o]; all || ow.n < len(best) {
		best = make([]uint32, 0, ow.n)
		for i := ow.first; i != 0; i = d.recLocked(i - 1).next {
			best = append(best, i-1)
		}
	}
	return best, false
}

// matchesLocked reports whether record i is in use and matches. d.mu must be held.
func (d *DB) matchesLocked(i uint32, q *query) bool {
	r := d.recLocked(i)
	if r.owner == 0 || r.system && !q.system || q.owned && d.owners[r.owner-1].id != q.owner {
		return false
	}
	w := d.wire(r)
	touch(w[len(w)-1])
	l, _ := resource.View(w)
	return resource.Matches(&l, q.pattern)
}

// touch loads the end of a list, so that the processor fetches it together with the beginning.
// Reading attribute by attribute would wait for one after the other.
//
//go:noinline
func touch(byte) {}

// matchingLocked yields the records that match. It begins at a place that differs from call to
// call. d.mu must be held.
func (d *DB) matchingLocked(q *query) iter.Seq[uint32] {
	return func(yield func(uint32) bool) {
		var one [1]uint32
		cand, all := d.candidatesLocked(q, &one)
		n := len(cand)
		if all {
			n = int(d.made)
		}
		if n == 0 {
			return
		}
		start := 0
		if n > 1 {
			start = int(d.turn.Add(1)) % n
		}
		for k := range n {
			j := start + k
			if j >= n {
				j -= n
			}
			i := uint32(j)
			if !all {
				i = cand[j]
			}
			if d.matchesLocked(i, q) && !yield(i) {
				return
			}
		}
	}
}

// Find returns one resource that matches a pattern. If the pattern has an order, that is the first
// resource in the order. Among several equal ones, Find returns a different one from call to call.
// It reports false if none matches.
func (d *DB) Find(pattern *resource.List) (Record, bool) {
	q := newQuery(pattern)
	d.mu.RLock()
	defer d.mu.RUnlock()
	return d.findLocked(&q)
}

// findLocked is Find for a query. d.mu must be held.
func (d *DB) findLocked(q *query) (best Record, ok bool) {
	var rank resource.Rank
	for i := range d.matchingLocked(q) {
		r := d.recordLocked(i)
		if !q.ordered {
			return r, true
		}
		if its := resource.RankOf(&r.Attrs, q.order, q.most); !ok || its.Compare(&rank) < 0 {
			best, rank, ok = r, its, true
		}
	}
	return best, ok
}

// A Cursor is the position of a question with several answers. Only one goroutine may use it at a
// time.
type Cursor struct {
	d    *DB
	q    query
	left []uint32
}

// Cursor begins a question. A resource that matches now, and still does when its turn comes, is
// returned once. A resource that appears later may be missed; Watch misses none. If the pattern has
// an order, only the first resource in the order is returned.
func (d *DB) Cursor(pattern *resource.List) *Cursor {
	p := pattern.Clone()
	c := &Cursor{d: d, q: newQuery(&p)}
	d.mu.RLock()
	defer d.mu.RUnlock()
	if c.q.ordered {
		if r, ok := d.findLocked(&c.q); ok {
			i, _ := d.idGet(r.ID)
			c.left = []uint32{i}
		}
		return c
	}
	var one [1]uint32
	cand, all := d.candidatesLocked(&c.q, &one)
	if !all {
		c.left = slices.Clone(cand)
		return c
	}
	c.left = make([]uint32, 0, d.lenLocked())
	for i := range d.made {
		if d.recLocked(i).owner != 0 {
			c.left = append(c.left, i)
		}
	}
	return c
}

// Left returns an upper limit for the number of answers that are still to come.
func (c *Cursor) Left() int { return len(c.left) }

// Next returns the next answer. It reports false if there are no more.
func (c *Cursor) Next() (r Record, ok bool) {
	c.Take(func(next Record) bool {
		r, ok = next, true
		return false
	})
	return r, ok
}

// takeMost is the number of records that Take reads while it holds the database's lock.
const takeMost = 64

// Take passes the next answers to yield until yield returns false or there are no more. yield must
// not use the database, whose lock is held.
func (c *Cursor) Take(yield func(Record) bool) {
	for len(c.left) > 0 {
		if !c.take(yield) {
			return
		}
	}
}

// take passes up to takeMost answers to yield. It reports false if yield did.
func (c *Cursor) take(yield func(Record) bool) (more bool) {
	c.d.mu.RLock()
	defer c.d.mu.RUnlock()
	for range min(takeMost, len(c.left)) {
		i := c.left[0]
		c.left = c.left[1:]
		if c.d.matchesLocked(i, &c.q) && !yield(c.d.recordLocked(i)) {
			return false
		}
	}
	return true
}

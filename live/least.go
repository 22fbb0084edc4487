// SPDX-License-Identifier: Apache-2.0

package live

import (
	"math"
	"slices"
	"strconv"
	"strings"

	"github.com/rocl-go/rocl"
)

// A board is a heap of the members by the number in an attribute plus the requests in flight. The
// set's mu guards it.
type board struct {
	name string
	heap []*entry
}

// An entry is a member on a board.
type entry struct {
	board  *board
	slot   *slot
	number float64 // of the attribute
	score  float64 // number, plus the requests in flight
	picked uint64  // the set's clock when the entry was picked last
	place  int     // in the heap
}

// each returns the boards.
func (s *Set) each() []*board {
	if all := s.boards.Load(); all != nil {
		return *all
	}
	return nil
}

// least is Pick by Least.
func (s *Set) least(name string, not []rocl.GID) (*Member, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.err != nil {
		return nil, s.err
	}
	e := s.board(name).best(0, not)
	if e == nil {
		return nil, ErrNone
	}
	s.clock++
	e.picked = s.clock
	e.slot.inFlight.Add(1)
	e.slot.rescore()
	return e.slot.now.Load(), nil
}

// board returns the board of an attribute. mu must be held.
func (s *Set) board(name string) *board {
	for _, b := range s.each() {
		if b.name == name {
			return b
		}
	}
	b := &board{name: name}
	all := append(slices.Clip(s.each()), b)
	s.boards.Store(&all) // before the scores are made: from now on, counted waits for mu
	for _, o := range s.view.Load().slots {
		b.add(o)
	}
	return b
}

// rescore gives a member its scores and its places on all boards. The set's mu must be held.
func (o *slot) rescore() {
	inFlight := float64(o.inFlight.Load())
	for _, e := range o.entries {
		e.score = e.number + inFlight
		e.board.move(e)
	}
}

// numberOf returns the number in the attribute of the board, and infinity if there is none.
func (b *board) numberOf(o *slot) float64 {
	if b.name == "" {
		return 0
	}
	text := o.now.Load().Attrs.GetString(b.name)
	v, err := strconv.ParseFloat(text, 64)
	if err != nil || strings.Trim(text, "+-.0123456789eE") != "" { // NaN, Inf, 0x1p-2
		return math.Inf(1)
	}
	return v
}

// best returns the first entry below a place of the heap that is not excluded, and nil if there is
// none.
func (b *board) best(place int, not []rocl.GID) *entry {
	if place >= len(b.heap) {
		return nil
	}
	if e := b.heap[place]; !e.slot.isIn(not) {
		return e
	}
	l, r := b.best(2*place+1, not), b.best(2*place+2, not)
	if l == nil || r != nil && r.before(l) {
		return r
	}
	return l
}

func (e *entry) before(o *entry) bool {
	return e.score < o.score || e.score == o.score && e.picked < o.picked
}

// add puts a member on the board.
func (b *board) add(o *slot) {
	e := &entry{board: b, slot: o, number: b.numberOf(o), place: len(b.heap)}
	e.score = e.number + float64(o.inFlight.Load())
	o.entries = append(o.entries, e)
	b.heap = append(b.heap, e)
	b.move(e)
}

func (b *board) remove(e *entry) {
	last := b.heap[len(b.heap)-1]
	b.heap = slices.Delete(b.heap, len(b.heap)-1, len(b.heap))
	if last != e {
		b.heap[e.place], last.place = last, e.place
		b.move(last)
	}
}

// move moves an entry to its place in the heap.
func (b *board) move(e *entry) {
	for e.place > 0 && e.before(b.heap[(e.place-1)/2]) {
		b.swap(e, b.heap[(e.place-1)/2])
	}
	for {
		least := e
		for _, child := range b.heap[min(2*e.place+1, len(b.heap)):min(2*e.place+3, len(b.heap))] {
			if child.before(least) {
				least = child
			}
		}
		if least == e {
			return
		}
		b.swap(e, least)
	}
}

func (b *board) swap(x, y *entry) {
	b.heap[x.place], b.heap[y.place] = y, x
	x.place, y.place = y.place, x.place
}

// SPDX-License-Identifier: Apache-2.0

package pool

import (
	"cmp"
	"slices"
)

// keyed has a line for each key with a unit that waits or runs. A key whose next unit may run has a
// turn. When that unit has ended, the key gets its next turn after those of all other keys. So a
// key with many units delays the others by one unit only.
type keyed struct {
	lines map[uint64]*line
	most  int // most lines that the map has had
	turns ring[turn, *turn]
	n     int
	seq   uint64
	spare []*line // lines of keys without units, for reuse
}

type line struct {
	units   ring[item, *item]
	hasTurn bool
	turn    uint64 // position of its entry in turns
}

// turn is the entry of a line among the turns.
type turn struct{ *line }

func (t *turn) isGap() bool           { return t.line == nil }
func (t *turn) setPosition(at uint64) { t.turn = at }

// spareLines is how many lines a keyed queue keeps for keys to come.
const spareLines = 64

func (q *keyed) push(it item) {
	q.n++
	q.seq++
	it.seq = q.seq
	l := q.lines[it.Key]
	if l == nil {
		l = q.newLine()
		q.lines[it.Key] = l
		q.most = max(q.most, len(q.lines))
		q.giveTurn(l)
	}
	l.units.push(it)
}

func (q *keyed) giveTurn(l *line) {
	l.hasTurn = true
	q.turns.push(turn{l})
}

func (q *keyed) pop() item {
	q.n--
	l := q.turns.pop().line
	l.hasTurn = false
	return l.units.pop()
}

func (q *keyed) ended(key uint64) {
	if l := q.lines[key]; l.units.n > 0 {
		q.giveTurn(l)
	} else {
		q.drop(key, l)
	}
}

func (q *keyed) remove(key, position uint64) item {
	q.n--
	l := q.lines[key]
	it := l.units.remove(position)
	if l.units.n == 0 {
		q.skip(key, l)
	}
	return it
}

// skip removes the turn of a line without units, and drops the line. If the line has no turn, a
// unit of its key runs.
func (q *keyed) skip(key uint64, l *line) {
	if l.hasTurn {
		q.turns.remove(l.turn)
		l.hasTurn = false
		q.drop(key, l)
	}
}

// drop removes a key of which no unit waits or runs.
func (q *keyed) drop(key uint64, l *line) {
	delete(q.lines, key)
	if len(q.lines) == 0 && q.most > maxKeptItems { // a map keeps the memory of deleted entries
		q.lines, q.most = make(map[uint64]*line), 0
	}
	if len(q.spare) < spareLines {
		q.spare = append(q.spare, l)
	}
}

// drain returns the units in the order of submission, which is that of each key.
func (q *keyed) drain() []item {
	all := make([]item, 0, q.n)
	for key, l := range q.lines {
		for l.units.n > 0 {
			all = append(all, l.units.pop())
		}
		q.skip(key, l)
	}
	q.n = 0
	slices.SortFunc(all, func(a, b item) int { return cmp.Compare(a.seq, b.seq) })
	return all
}

func (q *keyed) newLine() *line {
	last := len(q.spare) - 1
	if last < 0 {
		return new(line)
	}
	l := q.spare[last]
	q.spare = q.spare[:last]
	return l
}

func (q *keyed) ready() int           { return q.turns.n }
func (q *keyed) len() int             { return q.n }
func (q *keyed) busy(key uint64) bool { return q.lines[key] != nil }

// SPDX-License-Identifier: Apache-2.0

package pool

// keyed has a line for each key with a unit that waits or runs. A key whose next unit may run has a
// turn. Behind that unit it gets another turn, after those of all other keys: a key with many units
// delays the others by one unit only.
type keyed struct {
	lines map[uint64]*line
	turns ring[*line]
	n     int
	spare []*line // of keys that are gone
}

type line struct {
	units ring[item]
}

// spareLines is how many lines a keyed queue keeps for keys to come.
const spareLines = 64

func (q *keyed) push(it item) {
	q.n++
	l := q.lines[it.Key]
	if l == nil {
		l = q.newLine()
		q.lines[it.Key] = l
		q.turns.push(l)
	}
	l.units.push(it)
}

func (q *keyed) pop() item {
	q.n--
	return q.turns.pop().units.pop()
}

func (q *keyed) ended(key uint64) {
	l := q.lines[key]
	if l.units.n > 0 {
		q.turns.push(l)
		return
	}
	delete(q.lines, key)
	if len(q.spare) < spareLines {
		q.spare = append(q.spare, l)
	}
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

func (q *keyed) ready() int { return q.turns.n }
func (q *keyed) len() int   { return q.n }

// SPDX-License-Identifier: Apache-2.0

package work

import (
	"fmt"
	"slices"
	"time"

	"github.com/rocl-go/rocl"
)

// A deque is a queue with two ends.
type deque[T any] struct {
	ring []T // its length is a power of two
	head int
	n    int
}

func (d *deque[T]) at(i int) *T { return &d.ring[(d.head+i)&(len(d.ring)-1)] }

func (d *deque[T]) grow() {
	if d.n < len(d.ring) {
		return
	}
	ring := make([]T, max(2*len(d.ring), 16))
	for i := range d.n {
		ring[i] = *d.at(i)
	}
	d.ring, d.head = ring, 0
}

func (d *deque[T]) pushBack(v T) {
	d.grow()
	d.n++
	*d.at(d.n - 1) = v
}

func (d *deque[T]) pushFront(v T) {
	d.grow()
	d.head = (d.head - 1) & (len(d.ring) - 1)
	d.n++
	*d.at(0) = v
}

func (d *deque[T]) popFront() (v T) {
	var zero T
	p := d.at(0)
	v, *p = *p, zero
	d.head = (d.head + 1) & (len(d.ring) - 1)
	d.n--
	return v
}

func (d *deque[T]) popBack() (v T) {
	var zero T
	p := d.at(d.n - 1)
	v, *p = *p, zero
	d.n--
	return v
}

// A task is in the queue from Put until its result is taken.
type task[In, Out any] struct {
	in      In
	number  uint64
	runs    int // how often a worker had it and may have begun it
	reasons []error
	isDone  bool // it has an outcome:
	out     Out
	err     error
	by      rocl.GID
}

// A board has the tasks of a queue and knows where each is. It does no I/O and has no lock: the
// queue's mu guards it.
//
//	put ──► fresh ◄───────── again, lost, returned ──┐
//	          │                                      │
//	          └──── take ──► slot of a member ───────┴─ result, error ──► ready ──► taken
//	suspects ──────┘                                 └─ too many attempts ──┘
//
// A task that lost its worker once more would be a dead letter is a suspect. It is given to a
// member that has no other task, so that the tasks beside one that kills its worker do not become
// dead letters too.
type board[In, Out any] struct {
	attempts, perWorker int
	isOrdered           bool

	fresh    deque[*task[In, Out]]
	suspects deque[*task[In, Out]]
	ready    deque[*task[In, Out]]
	order    deque[*task[In, Out]] // of an ordered queue: the tasks that are not ready, by number

	members   []*member[In, Out]
	hungry    []*member[In, Out] // asleep, with room, because there was no task
	isolating *member[In, Out]   // takes nothing but suspects until there is none; or nil
	next      uint64             // the number of the next task
	spare     []*task[In, Out]   // for further tasks
	stats     Stats
}

// A member is a worker in one session.
type member[In, Out any] struct {
	id       rocl.GID
	session  uint32
	handlers int
	slots    []slot[In, Out]
	free     []uint32      // indexes of slots
	busy     int           // slots with a task
	pace     time.Duration // between two results, smoothed; 0 before the first
	hasPace  bool

	isAlone     bool // has a suspect
	isLeaving   bool // takes no further task
	isHungry    bool // is in board.hungry
	recalls     int  // tasks to be given back, to be told to the worker
	isRecalling bool // the answer to a recall has not come
	isVain      bool // the last recall gave nothing, and no result has come since
}

// A slot holds a task that is at a member.
type slot[In, Out any] struct {
	t   *task[In, Out]
	gen uint32 // counts the tasks of the slot
}

// An assignment is a task for a member, by the identifier that it has there.
type assignment[In, Out any] struct {
	id uint64
	in In
}

func (b *board[In, Out]) newMember(id rocl.GID, session uint32, handlers int) *member[In, Out] {
	m := &member[In, Out]{id: id, session: session, handlers: handlers}
	b.members = append(b.members, m)
	return m
}

// put adds a task.
func (b *board[In, Out]) put(in In) {
	var t *task[In, Out]
	if n := len(b.spare); n > 0 {
		t, b.spare = b.spare[n-1], b.spare[:n-1]
	} else {
		t = &task[In, Out]{}
	}
	t.in, t.number = in, b.next
	b.next++
	b.stats.Put++
	b.fresh.pushBack(t)
	if b.isOrdered {
		b.order.pushBack(t)
	}
}

// ahead is for how long a member has tasks at hand. What takes long waits at the queue.
const ahead = 100 * time.Millisecond

// window returns how many tasks may be at m.
func (b *board[In, Out]) window(m *member[In, Out]) int {
	n := m.handlers + 1 // before the pace is known
	if m.hasPace {
		n = m.handlers + max(1, int(ahead/max(m.pace, 1)))
	}
	return min(n, b.perWorker)
}

// room returns how many tasks m may take.
func (b *board[In, Out]) room(m *member[In, Out]) int { return b.window(m) - m.busy }

// measure notes that n results have come in a time in which m had tasks.
func (m *member[In, Out]) measure(d time.Duration, n int) {
	if d /= time.Duration(n); !m.hasPace {
		m.pace, m.hasPace = d, true
	} else {
		m.pace += (d - m.pace) / 4
	}
}

// take moves tasks to m, and appends them to as.
func (b *board[In, Out]) take(m *member[In, Out], as []assignment[In, Out]) []assignment[In, Out] {
	if m.isLeaving || m.isAlone {
		return as
	}
	if b.suspects.n > 0 {
		if b.isolating == nil {
			b.isolating = m
		}
		if m.busy == 0 && (b.isolating == m || b.fresh.n == 0) {
			m.isAlone = true
			return append(as, b.assign(m, b.suspects.popFront()))
		}
		if b.isolating == m {
			return as
		}
	} else if b.isolating == m {
		b.isolating = nil
	}
	// Of few tasks each member gets a part. It gets more of the rest when it has done some.
	share := (b.fresh.n + len(b.members) - 1) / len(b.members)
	for range min(max(b.room(m), 0), share) {
		as = append(as, b.assign(m, b.fresh.popFront()))
	}
	return as
}

// assign puts a task into a slot of m.
func (b *board[In, Out]) assign(m *member[In, Out], t *task[In, Out]) assignment[In, Out] {
	if len(m.free) == 0 {
		m.slots = append(m.slots, slot[In, Out]{})
		m.free = append(m.free, uint32(len(m.slots)-1))
	}
	i := m.free[len(m.free)-1]
	m.free = m.free[:len(m.free)-1]
	s := &m.slots[i]
	s.gen++
	s.t = t
	m.busy++
	b.stats.Working++
	t.runs++
	return assignment[In, Out]{uint64(s.gen)<<32 | uint64(i), t.in}
}

// release takes the task with an identifier out of its slot. It returns nil if m has none.
func (b *board[In, Out]) release(m *member[In, Out], id uint64) *task[In, Out] {
	i, gen := uint32(id), uint32(id>>32)
	if int(i) >= len(m.slots) || m.slots[i].gen != gen || m.slots[i].t == nil {
		return nil
	}
	t := m.slots[i].t
	m.slots[i].t = nil
	m.free = append(m.free, i)
	m.busy--
	m.isAlone = false
	b.stats.Working--
	return t
}

// giveBack puts a task that m has not begun to the others.
func (b *board[In, Out]) giveBack(m *member[In, Out], id uint64) (ok bool) {
	t := b.release(m, id)
	if t == nil {
		return false
	}
	t.runs--
	b.stats.Returned++
	b.again(t)
	return true
}

// again puts a task to the others from which it was taken, in front.
func (b *board[In, Out]) again(t *task[In, Out]) {
	if b.isSuspect(t) {
		b.suspects.pushFront(t)
	} else {
		b.fresh.pushFront(t)
	}
}

// isSuspect reports whether the loss of one more worker would make t a dead letter.
func (b *board[In, Out]) isSuspect(t *task[In, Out]) bool {
	return t.runs > 0 && t.runs == b.attempts-1
}

// retry adds a reason why a task has no outcome. The task goes to a worker again, or is a dead
// letter.
func (b *board[In, Out]) retry(t *task[In, Out], reason error, isLost bool) {
	t.reasons = append(t.reasons, reason)
	switch {
	case t.runs >= b.attempts:
		b.stats.Dead++
		b.end(t, &DeadLetter{t.reasons})
	case isLost && b.isSuspect(t):
		b.suspects.pushBack(t)
	case isLost:
		b.fresh.pushFront(t)
	default:
		b.fresh.pushBack(t)
	}
}

// end gives a task that is in no slot its outcome.
func (b *board[In, Out]) end(t *task[In, Out], err error) {
	t.err, t.isDone = err, true
	if !b.isOrdered {
		b.ready.pushBack(t)
		return
	}
	for b.order.n > 0 && (*b.order.at(0)).isDone {
		b.ready.pushBack(b.order.popFront())
	}
}

// lose removes m. Its tasks go to others.
func (b *board[In, Out]) lose(m *member[In, Out], reason error) {
	b.members = slices.DeleteFunc(b.members, func(o *member[In, Out]) bool { return o == m })
	b.leave(m)
	if m.busy == 0 {
		return
	}
	reason = fmt.Errorf("%w: worker %v: %w", ErrLost, m.id, reason)
	var held []*task[In, Out]
	for i := range m.slots {
		if t := m.slots[i].t; t != nil {
			held = append(held, b.release(m, uint64(m.slots[i].gen)<<32|uint64(i)))
		}
	}
	slices.SortFunc(held, func(x, y *task[In, Out]) int { return int(int64(y.number - x.number)) }) // the first is put in front last
	b.stats.Lost += uint64(len(held))
	for _, t := range held {
		b.retry(t, reason, true)
	}
}

// leave lets m take no further task.
func (b *board[In, Out]) leave(m *member[In, Out]) {
	m.isLeaving = true
	b.sated(m)
	if b.isolating == m {
		b.isolating = nil
	}
}

// starve notes that m sleeps, has room, and waits for a task.
func (b *board[In, Out]) starve(m *member[In, Out]) {
	if !m.isHungry {
		m.isHungry = true
		b.hungry = append(b.hungry, m)
	}
}

// sated notes that m does not wait for a task.
func (b *board[In, Out]) sated(m *member[In, Out]) {
	if m.isHungry {
		m.isHungry = false
		b.hungry = slices.DeleteFunc(b.hungry, func(o *member[In, Out]) bool { return o == m })
	}
}

// hungriest returns the hungry member with the fewest tasks, which is hungry no more, or nil.
func (b *board[In, Out]) hungriest() (least *member[In, Out]) {
	for _, m := range b.hungry {
		if least == nil || m.busy < least.busy {
			least = m
		}
	}
	if least != nil {
		b.sated(least)
	}
	return least
}

// recall chooses members that shall give back tasks, for the members that have nothing to do. It
// calls ask for each, with the number of tasks in recalls.
func (b *board[In, Out]) recall(ask func(*member[In, Out])) {
	idle := 0
	for _, m := range b.hungry {
		if m.busy == 0 {
			idle++
		}
	}
	for ; idle > 0 && b.fresh.n == 0; idle-- {
		var most *member[In, Out]
		excess := 0
		for _, m := range b.members {
			if n := m.busy - m.handlers; n > excess && !m.isRecalling && !m.isVain && !m.isLeaving {
				most, excess = m, n
			}
		}
		if most == nil {
			return
		}
		most.recalls, most.isRecalling = (excess+1)/2, true
		ask(most)
	}
}

// discard keeps the memory of a task whose result was taken.
func (b *board[In, Out]) discard(t *task[In, Out]) {
	if len(b.spare) < mostSpare {
		*t = task[In, Out]{}
		b.spare = append(b.spare, t)
	}
}

const mostSpare = 4096

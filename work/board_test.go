// SPDX-License-Identifier: Apache-2.0

package work

import (
	"errors"
	"slices"
	"testing"

	"github.com/rocl-go/rocl"
	"pgregory.net/rapid"
)

// A model of a board: where each task is, by its number.
type model struct {
	*rapid.T
	b      *board[int, int]
	at     map[*member[int, int]][]assignment[int, int]
	stale  []assignment[int, int] // of tasks that were at a member
	places []string               // by number: "", or the outcome
	given  []int                  // runs, by number
	yields []int                  // numbers, in order
}

// member draws one of the members, or skips the action.
func (m *model) member() *member[int, int] {
	if len(m.b.members) == 0 {
		m.Skip("no member")
	}
	return rapid.SampledFrom(m.b.members).Draw(m.T, "member")
}

// held draws a task at a member, or skips the action. It is at the member no more.
func (m *model) held(w *member[int, int]) assignment[int, int] {
	if len(m.at[w]) == 0 {
		m.Skip("no task")
	}
	i := rapid.IntRange(0, len(m.at[w])-1).Draw(m.T, "task")
	a := m.at[w][i]
	m.at[w] = slices.Delete(m.at[w], i, i+1)
	m.stale = append(m.stale, a)
	return a
}

func (m *model) take(w *member[int, int]) {
	isAlone, hadSuspect := w.isAlone, m.b.suspects.n > 0
	as := m.b.take(w, nil)
	for _, a := range as {
		m.given[a.in]++
	}
	m.at[w] = append(m.at[w], as...)
	switch {
	case isAlone && len(as) > 0:
		m.Fatalf("a member with a suspect got %d tasks more", len(as))
	case w.isAlone && len(as) > 0 && (!hadSuspect || w.busy != 1):
		m.Fatalf("a member is alone with %d tasks", w.busy)
	}
}

func (m *model) yield() {
	for m.b.ready.n > 0 {
		t := m.b.ready.popFront()
		if m.places[t.number] != "" {
			m.Fatalf("task %d is yielded twice", t.number)
		}
		var dead *DeadLetter
		switch {
		case errors.As(t.err, &dead):
			m.places[t.number] = "dead"
			if len(dead.Reasons) != m.b.attempts || t.runs != m.b.attempts {
				m.Fatalf("a dead letter after %d runs with %d reasons", t.runs, len(dead.Reasons))
			}
		default:
			m.places[t.number] = "done"
			if t.out != t.in {
				m.Fatalf("task %d has the result of %d", t.in, t.out)
			}
		}
		m.yields = append(m.yields, t.in)
		m.b.discard(t)
	}
}

// check checks that each task is in one place.
func (m *model) check() {
	b := m.b
	n, busy := b.fresh.n+b.suspects.n, 0
	for w, as := range m.at {
		if w.busy != len(as) || w.busy > b.perWorker || w.busy+len(w.free) != len(w.slots) {
			m.Fatalf("a member has %d tasks, %d free of %d slots; the model %d", w.busy, len(w.free), len(w.slots), len(as))
		}
		busy += w.busy
	}
	if busy != b.stats.Working {
		m.Fatalf("%d tasks are at members, Working is %d", busy, b.stats.Working)
	}
	n += busy + b.ready.n + len(m.yields)
	for i := range b.order.n {
		if (*b.order.at(i)).isDone {
			n++
		}
	}
	if n != len(m.given) {
		m.Fatalf("%d tasks of %d are somewhere", n, len(m.given))
	}
	for _, g := range m.given {
		if g > b.attempts+int(b.stats.Returned) {
			m.Fatalf("a task has %d runs", g)
		}
	}
	if b.isOrdered && !slices.IsSorted(m.yields) {
		m.Fatalf("the order is %v", m.yields)
	}
}

// settle is what a queue does with a result.
func (m *model) settle(w *member[int, int], a assignment[int, int]) {
	t := m.b.release(w, a.id)
	if t == nil || t.in != a.in {
		m.Fatalf("the slot of task %d is empty, or has another", a.in)
	}
	t.out = t.in
	m.b.end(t, nil)
}

// Promise (Package work): Each task ends once: as a result, as an error, or as a dead letter with a
// reason for each attempt. The order is kept if asked for.
func TestModel(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		m := &model{T: rt, at: map[*member[int, int]][]assignment[int, int]{}, b: &board[int, int]{
			attempts: rapid.IntRange(1, 4).Draw(rt, "attempts"), perWorker: rapid.IntRange(1, 5).Draw(rt, "perWorker"),
			isOrdered: rapid.Bool().Draw(rt, "ordered"),
		}}
		join := func() *member[int, int] {
			w := m.b.newMember(rocl.GID{}, 0, rapid.IntRange(1, 3).Draw(rt, "handlers"))
			m.at[w] = nil
			return w
		}
		put := func() {
			m.b.put(len(m.given))
			m.given, m.places = append(m.given, 0), append(m.places, "")
		}
		for range 20 {
			put()
		}
		for range 3 {
			m.take(join())
		}
		rt.Repeat(map[string]func(*rapid.T){
			"put":    func(*rapid.T) { put() },
			"join":   func(*rapid.T) { join() },
			"take":   func(*rapid.T) { m.take(m.member()) },
			"result": func(*rapid.T) { w := m.member(); m.settle(w, m.held(w)) },
			"again": func(*rapid.T) {
				w := m.member()
				m.b.retry(m.b.release(w, m.held(w).id), Again, false)
			},
			"return": func(*rapid.T) {
				w := m.member()
				if !m.b.giveBack(w, m.held(w).id) {
					m.Fatal("a task was not given back")
				}
			},
			"stale": func(*rapid.T) { // a result that comes twice, or from another worker
				if len(m.stale) == 0 {
					rt.Skip("none")
				}
				a, w := rapid.SampledFrom(m.stale).Draw(rt, "stale"), m.member()
				if slices.ContainsFunc(m.at[w], func(o assignment[int, int]) bool { return o.id == a.id }) {
					rt.Skip("another member has used the same identifier")
				}
				if m.b.release(w, a.id) != nil {
					m.Fatal("a stale result has ended a task")
				}
			},
			"lose": func(*rapid.T) {
				w := m.member()
				m.b.lose(w, errors.New("lost"))
				delete(m.at, w)
			},
			"leave": func(*rapid.T) { m.b.leave(m.member()) },
			"starve": func(*rapid.T) {
				m.b.starve(m.member())
				m.b.recall(func(w *member[int, int]) {
					if w.recalls < 1 || w.recalls > w.busy {
						m.Fatalf("%d of %d tasks are recalled", w.recalls, w.busy)
					}
				})
			},
			"yield": func(*rapid.T) { m.yield() },
			"":      func(*rapid.T) { m.check() },
		})
		for w := range m.at { // in the end one worker does the rest
			m.b.lose(w, errors.New("lost"))
			delete(m.at, w)
		}
		for w := join(); m.b.fresh.n+m.b.suspects.n > 0; m.check() {
			m.take(w)
			if len(m.at[w]) == 0 {
				m.Fatal("a member without a task gets none")
			}
			for len(m.at[w]) > 0 {
				m.settle(w, m.at[w][0])
				m.at[w] = m.at[w][1:]
			}
		}
		m.yield()
		if slices.Contains(m.places, "") {
			m.Fatal("a task has not ended")
		}
	})
}

// SPDX-License-Identifier: Apache-2.0

package pool

import (
	"context"
	"errors"
	"maps"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"pgregory.net/rapid"

	"github.com/rocl-go/rocl/internal/testkit/try"
)

// reference is the simplest form of each kind of queue.
type reference struct {
	policy Policy
	units  []item // seq is the number of the unit
	turns  []uint64
	busy   map[uint64]bool // keys with a unit that runs
}

func (r *reference) push(it item) {
	if !r.busy[it.Key] && !r.has(it.Key) {
		r.turns = append(r.turns, it.Key)
	}
	r.units = append(r.units, it)
}

func (r *reference) ready() int {
	if r.policy == Keyed {
		return len(r.turns)
	}
	return len(r.units)
}

func (r *reference) pop() item {
	best := 0
	for i, it := range r.units {
		b := r.units[best]
		switch r.policy {
		case Priority:
			if it.Priority > b.Priority {
				best = i
			}
		case EarliestFirst:
			if !it.Deadline.IsZero() && (b.Deadline.IsZero() || it.Deadline.Before(b.Deadline)) {
				best = i
			}
		}
	}
	if r.policy == Keyed {
		best = slices.IndexFunc(r.units, func(it item) bool { return it.Key == r.turns[0] })
		r.turns = r.turns[1:]
		r.busy[r.units[best].Key] = true
	}
	it := r.units[best]
	r.units = slices.Delete(r.units, best, best+1)
	return it
}

func (r *reference) ended(key uint64) {
	delete(r.busy, key)
	if r.has(key) {
		r.turns = append(r.turns, key)
	}
}

// has reports whether units of a key wait.
func (r *reference) has(key uint64) bool {
	return slices.ContainsFunc(r.units, func(it item) bool { return it.Key == key })
}

// remove takes out the unit at a position of units.
func (r *reference) remove(i int) item {
	it := r.units[i]
	r.units = slices.Delete(r.units, i, i+1)
	if !r.has(it.Key) {
		r.turns = slices.DeleteFunc(r.turns, func(key uint64) bool { return key == it.Key })
	}
	return it
}

// drain takes out all units, in the order in which they would run, or were submitted.
func (r *reference) drain() (all []item) {
	if r.policy == Keyed {
		all, r.units, r.turns = r.units, nil, nil
	}
	for len(r.units) > 0 {
		all = append(all, r.pop())
	}
	return all
}

var queuePolicies = []Policy{FIFO, Priority, EarliestFirst, Keyed}

func drawUnit(t *rapid.T) Unit {
	u := Unit{
		Key:      rapid.Uint64Range(0, 4).Draw(t, "key"),
		Priority: rapid.IntRange(-2, 2).Draw(t, "priority"),
	}
	if at := rapid.IntRange(0, 4).Draw(t, "deadline"); at > 0 {
		u.Deadline = time.Unix(int64(at), 0)
	}
	return u
}

// TestQueues compares each kind of queue with the reference.
//
// Promise (Package pool): Units run in the order of the pool's policy. Units of one key run one
// after another. See also TestPools.
func TestQueues(t *testing.T) {
	for _, policy := range queuePolicies {
		t.Run(string(policy), func(t *testing.T) {
			rapid.Check(t, func(t *rapid.T) {
				q, ref := newQueue(policy), &reference{policy: policy, busy: map[uint64]bool{}}
				var n, number uint64
				var running []uint64
				t.Repeat(map[string]func(*rapid.T){
					"push": func(t *rapid.T) {
						for range rapid.IntRange(1, 20).Draw(t, "times") {
							number++
							it := item{Unit: drawUnit(t), at: time.Duration(number), ticket: new(Ticket)}
							it.Run = func(context.Context) {}
							q.push(it)
							ref.push(it)
							n++
						}
					},
					"pop": func(t *rapid.T) {
						if ref.ready() == 0 {
							t.Skip()
						}
						got, want := q.pop(), ref.pop()
						if got.at != want.at || got.Key != want.Key {
							t.Fatalf("unit %d, want %d", got.at, want.at)
						}
						running = append(running, got.Key)
						n--
					},
					"remove": func(t *rapid.T) {
						for range rapid.IntRange(1, 20).Draw(t, "times") {
							if n == 0 {
								t.Skip()
							}
							want := ref.remove(rapid.IntRange(0, int(n)-1).Draw(t, "unit"))
							if got := q.remove(want.Key, want.ticket.position); got.at != want.at {
								t.Fatalf("removed unit %d, want %d", got.at, want.at)
							}
							n--
						}
					},
					"drain": func(t *rapid.T) {
						if rapid.IntRange(0, 9).Draw(t, "rarely") > 0 {
							t.Skip()
						}
						same := func(a, b item) bool { return a.at == b.at }
						if got, want := q.drain(), ref.drain(); !slices.EqualFunc(got, want, same) {
							t.Fatalf("drained %v, want %v", got, want)
						}
						n = 0
					},
					"end": func(t *rapid.T) {
						if len(running) == 0 {
							t.Skip()
						}
						i := rapid.IntRange(0, len(running)-1).Draw(t, "unit")
						q.ended(running[i])
						ref.ended(running[i])
						running = slices.Delete(running, i, i+1)
					},
					"": func(t *rapid.T) {
						if q.len() != int(n) || q.ready() != ref.ready() {
							t.Fatalf("length %d, ready %d, want %d, %d", q.len(), q.ready(), n, ref.ready())
						}
					},
				})
			})
		})
	}
}

// modelPool is a pool beside the reference: which units run, which wait in the queue, and which
// calls of Submit wait or have failed.
type modelPool struct {
	ref      *reference
	bound    int
	wait     bool
	limit    int
	waiting  []item
	running  map[uint64]item
	rejected int
	done     int
	cancels  int
}

func (m *modelPool) submit(it item) {
	switch {
	case m.room() || len(m.waiting) == 0 && len(m.running) < m.limit && m.isFree(it.Key):
		m.ref.push(it)
	case m.wait:
		m.waiting = append(m.waiting, it)
	default:
		m.rejected++
	}
	m.startReady()
}

func (m *modelPool) room() bool { return m.bound == 0 || len(m.ref.units) < m.bound }

// isFree reports whether a unit of a key need not wait for those in the queue.
func (m *modelPool) isFree(key uint64) bool {
	return m.ref.policy == Keyed && !m.ref.busy[key] && !m.ref.has(key) && m.ref.ready() == 0
}

// startReady starts the units that may run.
func (m *modelPool) startReady() {
	m.admit()
	for len(m.running) < m.limit {
		if m.ref.ready() == 0 {
			if len(m.waiting) == 0 || !m.isFree(m.waiting[0].Key) {
				return
			}
			m.ref.push(m.waiting[0])
			m.waiting = m.waiting[1:]
		}
		it := m.ref.pop()
		m.running[it.seq] = it
		m.admit()
	}
}

func (m *modelPool) admit() {
	for len(m.waiting) > 0 && m.room() {
		m.ref.push(m.waiting[0])
		m.waiting = m.waiting[1:]
	}
}

// TestPools compares pools of each kind, served by workers or by streams, with the reference, after
// each submission, each end or cancellation of a unit and each change of size.
//
// Promise (Package pool): A unit that was accepted runs once, whatever changes meanwhile, also
// after `Close`. A refused or cancelled unit never runs. See also TestStreams.
func TestPools(t *testing.T) {
	for _, policy := range queuePolicies {
		for _, streams := range []bool{false, true} {
			name := string(policy) + "/workers"
			if streams {
				name = string(policy) + "/streams"
			}
			t.Run(name, func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					tb := struct{ rapid.TB }{t} // Check would ask t for its deadline, which a bubble has not
					rapid.Check(tb, func(t *rapid.T) { checkPool(t, policy, streams) })
				})
			})
		}
	}
}

func checkPool(t *rapid.T, policy Policy, streams bool) {
	m := &modelPool{
		ref:     &reference{policy: policy, busy: map[uint64]bool{}},
		bound:   rapid.IntRange(0, 3).Draw(t, "queue"),
		wait:    rapid.Bool().Draw(t, "wait"),
		limit:   rapid.IntRange(1, 3).Draw(t, "workers"),
		running: map[uint64]item{},
	}
	pc := PoolConfig{Name: "p", Policy: policy, Queue: m.bound, Workers: Workers(m.limit)}
	m.wait = m.wait && m.bound > 0
	if m.wait {
		pc.WhenFull = WaitWhenFull
	}
	c := Config{Pools: []PoolConfig{pc}}
	if streams {
		c.Pools[0].Workers = NoWorkers
		for range m.limit {
			c.Streams = append(c.Streams, StreamConfig{Pools: []string{"p"}})
		}
	}
	s := try.Get(NewSet(c))(t)
	p := s.Default()
	ends := map[uint64]chan struct{}{} // of the units that were not told to end
	defer func() {
		for _, end := range ends {
			close(end)
		}
		try.Check(t, s.Close(context.Background()))
	}()
	started := make(chan uint64, 10000)
	running := map[uint64]bool{}
	failed := make(chan error, 10000)
	var tickets sync.Map // of the units that were accepted, by number
	var number uint64
	t.Repeat(map[string]func(*rapid.T){
		"submit": func(t *rapid.T) {
			number++
			id, end := number, make(chan struct{})
			ends[id] = end
			u := drawUnit(t)
			m.submit(item{Unit: u, seq: id})
			u.Run = func(context.Context) { started <- id; <-end }
			go func() {
				if ticket, err := p.SubmitTicket(context.Background(), u); err == nil {
					tickets.Store(id, ticket)
				} else {
					failed <- err
				}
			}()
		},
		"end": func(t *rapid.T) {
			if len(m.running) == 0 {
				t.Skip()
			}
			id := rapid.SampledFrom(slices.Sorted(maps.Keys(m.running))).Draw(t, "unit")
			m.ref.ended(m.running[id].Key)
			delete(m.running, id)
			m.done++
			m.startReady()
			delete(running, id)
			close(ends[id])
			delete(ends, id)
		},
		"cancel": func(t *rapid.T) {
			if number == 0 {
				t.Skip()
			}
			id := rapid.Uint64Range(1, number).Draw(t, "unit")
			ticket, ok := tickets.Load(id)
			if !ok {
				t.Skip()
			}
			i := slices.IndexFunc(m.ref.units, func(it item) bool { return it.seq == id })
			if i >= 0 {
				m.ref.remove(i)
				m.cancels++
				m.startReady()
			}
			if waited := ticket.(*Ticket).Cancel(); waited != (i >= 0) {
				t.Fatalf("cancelled: %t, want %t", waited, i >= 0)
			}
		},
		"resize queue": func(t *rapid.T) {
			m.bound = rapid.IntRange(0, 3).Draw(t, "to")
			try.OK(t, s.ResizeQueue("p", m.bound))
			m.startReady()
		},
		"resize": func(t *rapid.T) {
			if streams {
				t.Skip()
			}
			m.limit = rapid.IntRange(1, 4).Draw(t, "to")
			try.OK(t, s.Resize("p", Workers(m.limit)))
			m.startReady()
		},
		"": func(t *rapid.T) {
			synctest.Wait()
			for len(started) > 0 {
				running[<-started] = true
			}
			want := map[uint64]bool{}
			for id := range m.running {
				want[id] = true
			}
			if !maps.Equal(running, want) {
				t.Fatalf("running: %v, want %v", running, want)
			}
			if len(failed) != m.rejected {
				t.Fatalf("%d calls failed, want %d", len(failed), m.rejected)
			}
			f := p.Stats()
			if f.Queued != len(m.ref.units) || f.Waiting != len(m.waiting) || f.Running != len(m.running) ||
				f.Done != uint64(m.done) || f.Rejected != uint64(m.rejected) || f.Cancelled != uint64(m.cancels) {
				t.Fatalf("figures %+v, want %d queued, %d waiting, %d running, %d done, %d rejected, %d cancelled",
					f, len(m.ref.units), len(m.waiting), len(m.running), m.done, m.rejected, m.cancels)
			}
		},
	})
	for ; len(failed) > 0; m.rejected-- {
		if err := <-failed; !errors.Is(err, ErrFull) {
			t.Fatal(err)
		}
	}
}

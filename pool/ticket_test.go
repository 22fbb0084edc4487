// SPDX-License-Identifier: Apache-2.0

package pool

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/rocl-go/rocl/internal/testkit/eventually"
	"github.com/rocl-go/rocl/internal/testkit/try"
)

// twoWithOne returns a set with pools "a" and "b", of one worker each, which is held.
func twoWithOne(t *testing.T, b PoolConfig) (s *Set, pools [2]*Pool, release [2]func()) {
	b.Name, b.Workers = "b", 1
	s = newSet(t, Config{Pools: []PoolConfig{{Name: "a", Workers: 1}, b}})
	for i, p := range s.Pools() {
		pools[i], release[i] = p, hold(t, p)
	}
	return s, pools, release
}

// ticket submits a unit.
func ticket(t testing.TB, p *Pool, u Unit, run func()) *Ticket {
	t.Helper()
	u.Run = func(context.Context) { run() }
	tk, err := p.SubmitTicket(context.Background(), u)
	if err != nil {
		t.Error(err)
	}
	return tk
}

// Promise (Package pool): A waiting unit is cancelled or moved at once. See also TestMove.
func TestCancel(t *testing.T) {
	s := newSet(t, onePool(PoolConfig{Name: "a", Workers: 1}))
	p := s.Default()
	started, end := make(chan struct{}), make(chan struct{})
	runs := ticket(t, p, Unit{}, func() { close(started); <-end })
	<-started
	var order []int
	var tickets []*Ticket
	for i := range 5 {
		tickets = append(tickets, ticket(t, p, Unit{}, func() { order = append(order, i) }))
	}
	if runs.Waits() || !tickets[1].Waits() {
		t.Error("Waits is wrong about a unit")
	}
	if !tickets[1].Cancel() || !tickets[4].Cancel() {
		t.Error("a unit that waits was not cancelled")
	}
	if tickets[1].Cancel() || runs.Cancel() || tickets[1].Waits() {
		t.Error("a unit was cancelled twice, or while it ran")
	}
	close(end)
	closeSet(t, s)
	try.Equal(t, fmt.Sprint(order), "[0 2 3]", "units run")
	if tickets[0].Cancel() {
		t.Error("a unit that has run was cancelled")
	}
	if f := p.Stats(); f.Done != 4 || f.Cancelled != 2 || f.Queued != 0 {
		t.Errorf("figures %+v", f)
	}
}

// TestCancelLast checks that Close ends where the last unit of a pool is cancelled, and none runs.
func TestCancelLast(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newSet(t, Config{
			Pools:   []PoolConfig{{Name: "a"}, {Name: "b"}},
			Streams: []StreamConfig{{Pools: []string{"a", "b"}}},
		})
		release := hold(t, s.Default()) // the stream
		waits := ticket(t, s.Pools()[1], Unit{}, func() { t.Error("ran") })
		closed := make(chan struct{})
		go func() { closeSet(t, s); close(closed) }()
		synctest.Wait()
		if !waits.Cancel() {
			t.Error("not cancelled")
		}
		try.Fails(waits.Move(s.Default()))(t, ErrNotWaiting)
		release()
		<-closed
	})
}

func TestMove(t *testing.T) {
	s, pools, release := twoWithOne(t, PoolConfig{Policy: Priority, Queue: 3})
	a, b := pools[0], pools[1]
	var order []string
	var tickets []*Ticket
	for i := range 5 {
		tickets = append(tickets, ticket(t, a, Unit{Priority: i}, func() { order = append(order, fmt.Sprint("a", i)) }))
	}
	ticket(t, b, Unit{Priority: 2}, func() { order = append(order, "b") })
	move := func(tk *Ticket, to *Pool) {
		t.Helper()
		try.Check(t, tk.Move(to))
		try.Equal(t, tk.Pool(), to, "the pool in which the unit waits")
	}
	move(tickets[0], a) // is there
	move(tickets[1], b) // after b's own
	move(tickets[3], b) // before it
	wantError(t, tickets[2].Move(b), `pool: move a unit to "b": its queue has room for 0 of 1 units`, ErrFull)
	try.Equal(t, tickets[2].Pool(), a, "a unit for which there is no room was moved")
	move(tickets[1], a) // back, after all others
	release[0]()
	eventually.True(t, "the units of a have run", func() bool { return a.Stats().Done == 5 })
	wantError(t, tickets[0].Move(b), `pool: move a unit to "b": it runs, has run or was cancelled`, ErrNotWaiting)
	release[1]()
	closeSet(t, s)
	try.Equal(t, fmt.Sprint(order), "[a0 a2 a4 a1 a3 b]", "order")
	if f := a.Stats(); f.MovedOut != 2 || f.MovedIn != 1 || f.Done != 5 {
		t.Errorf("figures %+v", f)
	}
	if f := b.Stats(); f.MovedOut != 1 || f.MovedIn != 2 || f.Done != 3 {
		t.Errorf("figures %+v", f)
	}
}

// TestMoveRefused checks that a unit stays where it is if the other pool is closed or has no queue.
func TestMoveRefused(t *testing.T) {
	s := newSet(t, Config{Pools: []PoolConfig{{Name: "a", Workers: 1}, {Name: "now", Policy: Inline}, {Name: "gone"}}})
	release := hold(t, s.Default())
	ran := false
	tk := ticket(t, s.Default(), Unit{}, func() { ran = true })
	now, gone := s.Pools()[1], s.Pools()[2]
	try.OK(t, s.RemovePool("gone"))
	wantError(t, tk.Move(now), `pool: move a unit to "now": policy "inline" has no queue`, errors.ErrUnsupported)
	wantError(t, tk.Move(gone), `pool: move a unit to "gone": closed`, ErrClosed)
	inline := ticket(t, now, Unit{}, func() {})
	if inline.Cancel() || !errors.Is(inline.Move(s.Default()), ErrNotWaiting) {
		t.Error("a unit waits in an inline pool")
	}
	release()
	closeSet(t, s)
	if !ran {
		t.Error("the unit was lost")
	}
}

// TestMoveWaitTime checks that the time in the pool before, of another set, counts.
func TestMoveWaitTime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		one := newSet(t, onePool(PoolConfig{Workers: 1}))
		release := hold(t, one.Default())
		tk := ticket(t, one.Default(), Unit{}, func() {})
		time.Sleep(time.Second)
		two := newSet(t, Config{})
		time.Sleep(time.Second)
		try.OK(t, tk.Move(two.Default()))
		closeSet(t, two)
		if f := two.Default().Stats(); f.Done != 1 || f.WaitTime != 2*time.Second {
			t.Errorf("figures %+v", f)
		}
		release()
	})
}

func TestMoveAll(t *testing.T) {
	for _, policy := range queuePolicies {
		t.Run(string(policy), func(t *testing.T) {
			s := newSet(t, Config{Pools: []PoolConfig{{Name: "a", Policy: policy, Workers: 1}, {Name: "b", Workers: 1, Queue: 9}}})
			a, b := s.Pools()[0], s.Pools()[1]
			hold(t, a) // key 0
			end := hold(t, b)
			var order []int
			for i := range 9 {
				ticket(t, a, Unit{Key: uint64(i % 3), Priority: -i, Deadline: time.Unix(int64(i), 0)}, func() { order = append(order, i) })
			}
			blocked := ticket(t, b, Unit{}, func() { t.Error("ran") })
			n, err := a.MoveAll(b)
			wantError(t, err, `pool: move units to "b": its queue has room for 8 of 9 units`, ErrFull)
			if n != 0 || a.Stats().Queued != 9 {
				t.Errorf("%d units were moved, figures %+v", n, a.Stats())
			}
			blocked.Cancel()
			try.Gives(a.MoveAll(a))(t, 0)
			try.Gives(a.MoveAll(b))(t, 9)
			if f := a.Stats(); f.Queued != 0 || f.Running != 1 || f.MovedOut != 9 {
				t.Errorf("figures %+v", f)
			}
			end()
			eventually.True(t, "the units have run", func() bool { return b.Stats().Done == 10 })
			try.Equal(t, fmt.Sprint(order), "[0 1 2 3 4 5 6 7 8]", "order")
		})
	}
}

// A pool with units is removed. Those that wait run elsewhere, and Close waits for those that run.
func TestReplacePool(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newSet(t, Config{
			Pools: []PoolConfig{
				{Name: "main", Workers: 1, Queue: 3}, {Name: "old", Policy: Keyed, Workers: 1, Queue: 2, WhenFull: WaitWhenFull},
				{Name: "streamed"}, {Name: "now", Policy: Inline},
			},
			Streams: []StreamConfig{{Name: "s", Pools: []string{"streamed"}}},
		})
		pools := s.Pools()
		endMain, endOld := hold(t, pools[0]), hold(t, pools[1])
		var ran atomic.Int32
		for range 2 {
			submit(t, pools[1], func(context.Context) { ran.Add(1) })
		}
		refused := make(chan error)
		go func() {
			refused <- pools[1].Submit(context.Background(), Unit{Run: func(context.Context) { t.Error("ran") }})
		}()
		synctest.Wait()

		for _, c := range []struct {
			name, by, want string
			kind           error
		}{
			{"x", "main", `pool: replace pool "x": no such pool`, ErrNotFound},
			{"old", "x", `pool: replace pool by "x": no such pool`, ErrNotFound},
			{"old", "old", `pool: replace pool "old": the other pool is the same`, ErrInUse},
			{"main", "old", `pool: replace pool "main": it is the default pool`, ErrInUse},
			{"streamed", "main", `pool: replace pool "streamed": stream "s" serves it`, ErrInUse},
			{"old", "now", `pool: move units to "now": policy "inline" has no queue`, errors.ErrUnsupported},
		} {
			wantError(t, s.ReplacePool(c.name, c.by), c.want, c.kind)
		}
		waits := ticket(t, pools[0], Unit{}, func() {})
		submit(t, pools[0], func(context.Context) {})
		wantError(t, s.ReplacePool("old", "main"), `pool: move units to "main": its queue has room for 1 of 2 units`, ErrFull)
		waits.Cancel()
		try.OK(t, s.ReplacePool("old", "main"))
		wantError(t, <-refused, `pool: submit "old": closed`, ErrClosed)
		try.Fails(s.Pool("old"))(t, ErrNotFound)
		if f := pools[0].Stats(); f.Queued != 3 || f.MovedIn != 2 {
			t.Errorf("figures %+v", f)
		}
		endMain()
		synctest.Wait()
		try.Equal(t, ran.Load(), 2, "units have run")
		ctx, cancel := context.WithTimeout(context.Background(), time.Second)
		defer cancel()
		wantError(t, s.Close(ctx), `pool: close: pool "old" has 0 queued, 1 running: context deadline exceeded`, context.DeadlineExceeded)
		endOld()
		closeSet(t, s)
	})
}

// TestTicketsUnderLoad moves and cancels units between pools of all policies, in all directions,
// while they run and pools are replaced. Each unit runs once, or was cancelled.
func TestTicketsUnderLoad(t *testing.T) {
	const submitters, each = 4, 3000
	c := Config{Streams: []StreamConfig{{Pools: []string{string(FIFO), string(Keyed)}}}}
	for _, policy := range queuePolicies {
		c.Pools = append(c.Pools, PoolConfig{Name: string(policy), Policy: policy, Workers: 1, Queue: 64, WhenFull: WaitWhenFull})
	}
	s := newSet(t, c)
	pools := s.Pools()
	var cancelled, moved atomic.Int64
	var ran [submitters][each]atomic.Int32
	var all sync.WaitGroup
	for g := range submitters {
		all.Go(func() {
			var last [8]*Ticket
			for i := range each {
				p := pools[rand.IntN(len(pools))]
				u := Unit{Key: uint64(i % 3), Priority: i % 5}
				last[i%len(last)] = ticket(t, p, u, func() {
					if i%64 == 0 {
						runtime.Gosched()
					}
					ran[g][i].Add(1)
				})
				switch other := last[rand.IntN(len(last))]; {
				case other == nil:
				case i%4 == 0:
					if other.Cancel() {
						cancelled.Add(1)
					}
				case i%4 < 3:
					switch err := other.Move(pools[rand.IntN(len(pools))]); {
					case err == nil:
						moved.Add(1)
					case !errors.Is(err, ErrNotWaiting) && !errors.Is(err, ErrFull):
						t.Error(err)
					}
				}
			}
		})
	}
	all.Go(func() {
		for i := range 200 {
			name := fmt.Sprint("passing-", i)
			p, err := s.AddPool(PoolConfig{Name: name, Workers: 1})
			if err != nil {
				t.Error(err)
				return
			}
			try.Works(pools[0].MoveAll(p))(t)
			for {
				err := s.ReplacePool(name, string(Keyed))
				if err == nil {
					break
				}
				if !errors.Is(err, ErrFull) {
					t.Error(err)
					return
				}
				runtime.Gosched()
			}
		}
	})
	all.Wait()
	closeSet(t, s)
	n := int64(0)
	for g := range ran {
		for i := range ran[g] {
			if times := ran[g][i].Load(); times == 1 {
				n++
			} else if times > 1 {
				t.Errorf("unit %d of submitter %d ran %d times", i, g, times)
			}
		}
	}
	try.Equal(t, n+cancelled.Load(), submitters*each, "units run or cancelled")
	if moved.Load() == 0 || cancelled.Load() == 0 {
		t.Errorf("%d units were moved, %d cancelled: nothing was tested", moved.Load(), cancelled.Load())
	}
	if q := pools[3].q.(*keyed); len(q.lines) != 0 {
		t.Errorf("%d keys are left behind", len(q.lines))
	}
}

// TestCancelMany checks that memory stays bounded while units are submitted and cancelled behind
// one that runs for ever, in each order.
func TestCancelMany(t *testing.T) {
	for _, policy := range queuePolicies {
		p := newSet(t, onePool(PoolConfig{Policy: policy, Workers: 1})).Default()
		hold(t, p)
		kept := ticket(t, p, Unit{Priority: 1}, func() {}) // in front of the others
		for range 20_000 {
			ticket(t, p, Unit{}, func() {}).Cancel()
		}
		room := 0
		switch q := p.q.(type) {
		case *fifo:
			room = len(q.entries)
		case *heap:
			room = cap(q.items)
		case *keyed:
			room = len(q.lines[0].units.entries)
		}
		if room > 64 {
			t.Errorf("%s: the queue of one unit has room for %d", policy, room)
		}
		if !kept.Cancel() {
			t.Errorf("%s: the unit in front is gone", policy)
		}
	}
}

// TestReplaceIdle checks that Close ends where all units of a removed pool were moved, and none
// ran.
func TestReplaceIdle(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newSet(t, Config{Pools: []PoolConfig{{Name: "a"}, {Name: "b", Workers: NoWorkers}}})
		ran := make(chan struct{}, 2)
		for range 2 {
			submit(t, s.Pools()[1], func(context.Context) { ran <- struct{}{} })
		}
		try.OK(t, s.ReplacePool("b", "a"))
		closeSet(t, s)
		try.Equal(t, len(ran), 2, "units have run")
	})
}

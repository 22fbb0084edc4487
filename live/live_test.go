// SPDX-License-Identifier: Apache-2.0

package live_test

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"pgregory.net/rapid"

	"github.com/rocl-go/rocl"
	"github.com/rocl-go/rocl/internal/testkit/eventually"
	"github.com/rocl-go/rocl/internal/testkit/try"
	"github.com/rocl-go/rocl/live"
	"github.com/rocl-go/rocl/rocltest"
)

var workers = rocl.Match{"type": "worker"}

// worker registers a worker with the given load.
func worker(t testing.TB, c *rocl.Context, load int) *rocl.Resource {
	return try.Get(c.Register(t.Context(), rocl.Attrs{"type": "worker", "load": strconv.Itoa(load)}))(t)
}

// follow follows the workers until the test ends.
func follow(t testing.TB, c *rocl.Context, opts ...rocl.FindOption) *live.Set {
	s := try.Get(live.Follow(t.Context(), c, workers, opts...))(t)
	t.Cleanup(func() { s.Close() })
	return s
}

// ids returns the members, in the order of All.
func ids(s *live.Set) (all []rocl.GID) {
	for f := range s.All() {
		all = append(all, f.ID)
	}
	return all
}

// await waits until the set has these members.
func await(t testing.TB, s *live.Set, want ...rocl.GID) {
	slices.SortFunc(want, rocl.GID.Compare)
	eventually.True(t, "the set has the members", func() bool {
		return slices.Equal(slices.SortedFunc(slices.Values(ids(s)), rocl.GID.Compare), want)
	})
}

// Promise (Package live): A set has the resources that match, as they come, change and go. A member
// whose numbers leave the pattern leaves the set.
func TestFollow(t *testing.T) {
	cl := rocltest.Cluster(t, 2)
	c, near, far := cl.Open(0), cl.Open(0), cl.Open(1)
	pattern := try.Get(rocl.Parse("type=worker load<3"))(t)
	s := try.Get(live.Follow(t.Context(), c, pattern))(t)
	defer s.Close()
	try.Equal(t, s.Len(), 0)
	try.Fails(s.Pick(live.Turn()))(t, live.ErrNone)
	changed := s.Changed()
	busy := worker(t, far, 5)
	a, b, own := worker(t, far, 1), worker(t, near, 1), worker(t, c, 1)
	<-changed
	await(t, s, a.ID(), b.ID(), own.ID())
	try.Equal(t, fmt.Sprint(ids(s)), fmt.Sprint([]rocl.GID{own.ID(), b.ID(), a.ID()}), "the nearest first")
	for _, want := range []*rocl.Resource{own, b, a} {
		m := try.Get(s.Pick(live.Nearest()))(t)
		try.Equal(t, m.ID, want.ID())
		want.Close()
		m.Done(rocl.ErrGone)
	}
	try.OK(t, busy.Set(t.Context(), "load", "2.5"))
	await(t, s, busy.ID())
	changed = s.Changed()
	try.OK(t, busy.Set(t.Context(), "load", "2"))
	<-changed
	eventually.True(t, "the new load", func() bool { return try.Get(s.Pick(live.Random()))(t).Attrs.GetString("load") == "2" })
	try.OK(t, busy.Set(t.Context(), "load", "3"))
	await(t, s)
}

// A Follow that cannot be, and a set that ends.
//
// Promise (Package live): A set that has ended is empty, and its picks fail with the reason.
func TestEnd(t *testing.T) {
	c := rocltest.Cluster(t, 1).Open(0)
	worker(t, c, 1)
	try.Fails(live.Follow(t.Context(), c, workers, rocl.Least("load")))(t, rocl.ErrCondition)
	try.Rejects(live.Follow(t.Context(), nil, workers))(t)
	cause := errors.New("cause")
	ctx, cancel := context.WithCancelCause(t.Context())
	s := try.Get(live.Follow(ctx, c, workers))(t)
	m := try.Get(s.Pick(live.Least("load")))(t)
	cancel(cause)
	eventually.True(t, "the set has ended", func() bool { return s.Err() != nil })
	<-s.Changed()
	for range 2 {
		for _, by := range []live.By{live.Turn(), live.Hash("x"), live.Least("load"), live.Nearest(), live.Random()} {
			try.Fails(s.Pick(by))(t, cause)
		}
		try.Fails(s.Await(t.Context(), live.Turn()))(t, cause)
		try.Equal(t, len(ids(s))+s.Len(), 0)
		m.Done(rocl.ErrGone)
		try.OK(t, s.Close())
	}
	try.Fails(live.Follow(ctx, c, workers))(t, cause)

	s = follow(t, c) // is closed while picks run
	var picks sync.WaitGroup
	for i := range 4 {
		picks.Go(func() {
			for {
				m, err := s.Pick([]live.By{live.Turn(), live.Hash("x"), live.Least("load"), live.Least("")}[i])
				if err != nil {
					try.Fails(nil, err)(t, rocl.ErrClosed)
					return
				}
				m.Done(nil)
			}
		})
	}
	s.Close()
	picks.Wait()
	ended, cancel := context.WithCancelCause(t.Context())
	cancel(cause)
	empty := try.Get(live.Follow(t.Context(), c, rocl.Match{"no": "such"}))(t)
	defer empty.Close()
	try.Fails(empty.Await(ended, live.Turn()))(t, cause)
}

// With `Least`, requests in flight count: eight requests at once over four equal members go 2, 2,
// 2, 2.
func TestLeastSpreads(t *testing.T) {
	c := rocltest.Cluster(t, 1).Open(0)
	for range 4 {
		worker(t, c, 3)
	}
	s := follow(t, c)
	for _, by := range []live.By{live.Least("load"), live.Least("")} {
		n := map[rocl.GID]int{}
		var mu sync.Mutex
		var all []*live.Member
		var requests sync.WaitGroup
		for range 8 {
			requests.Go(func() {
				m, err := s.Pick(by)
				try.Check(t, err)
				mu.Lock()
				defer mu.Unlock()
				n[m.ID]++
				all = append(all, m)
			})
		}
		requests.Wait()
		try.Equal(t, fmt.Sprint(slices.Collect(maps.Values(n))), "[2 2 2 2]")
		for _, m := range all {
			m.Done(nil)
		}
	}
	var last rocl.GID
	for range 8 { // one after another, each goes to another member
		m := try.Get(s.Pick(live.Least("load")))(t)
		if m.ID == last {
			t.Error("the same member twice")
		}
		last = m.ID
		m.Done(nil)
	}
}

// Promise (Package live): With `Hash`, contexts with the same members pick the same member for a
// key. When a member comes, only the keys move that it gets, and when it goes, only those that it
// had.
func TestHash(t *testing.T) {
	const keys, members = 20_000, 20
	c := rocltest.Cluster(t, 1).Open(0)
	all := map[rocl.GID]*rocl.Resource{}
	for range members {
		r := worker(t, c, 0)
		all[r.ID()] = r
	}
	s := follow(t, c)
	owners := func(s *live.Set) (of []rocl.GID) {
		for i := range keys {
			of = append(of, try.Get(s.Pick(live.Hash(fmt.Sprint("key", i))))(t).ID)
		}
		return of
	}
	was := owners(s)
	for id := range all {
		n := 0
		for _, o := range was {
			if o == id {
				n++
			}
		}
		if n < keys/members*8/10 || n > keys/members*12/10 {
			t.Errorf("a member has %d of %d keys", n, keys)
		}
	}
	gone := was[0]
	all[gone].Close()
	delete(all, gone)
	await(t, s, slices.Collect(maps.Keys(all))...)
	now := owners(s)
	for i := range now {
		if now[i] == gone || was[i] != gone && now[i] != was[i] {
			t.Fatalf("key %d has moved from %v to %v, not to %v", i, was[i], now[i], gone)
		}
		key := live.Hash(fmt.Sprint("key", i))
		if next := try.Get(s.Pick(key, now[i]))(t).ID; i < 100 && next == now[i] {
			t.Error("an excluded member is picked")
		}
	}
	r := worker(t, c, 0)
	all[r.ID()] = r
	await(t, s, slices.Collect(maps.Keys(all))...)
	was, now = now, owners(s)
	moved := 0
	for i := range now {
		if now[i] != was[i] {
			if moved++; now[i] != r.ID() {
				t.Fatalf("key %d has moved to %v, not to the new member %v", i, now[i], r.ID())
			}
		}
	}
	if moved == 0 || moved > 2*keys/members {
		t.Errorf("%d of %d keys have moved", moved, keys)
	}
	if !slices.Equal(now, owners(follow(t, c))) {
		t.Error("another set has other owners")
	}
}

// A back end's error of a handler: it matches ErrGone, and says that the server lives.
type handlersError struct{ error }

func (handlersError) IsEnd() bool   { return false }
func (handlersError) Unwrap() error { return rocl.ErrGone }

// Promise (Package live): A member whose end the program has learned, from a request or a monitor,
// is not picked again, even before the directory reports its end. If it may live, it is back after
// ten seconds.
func TestEnded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		cl := rocltest.Cluster(t, 1)
		c := cl.Open(0)
		a, b := worker(t, c, 0), worker(t, c, 1)
		s := follow(t, c)
		least := func() *live.Member { return try.Get(s.Pick(live.Least("load")))(t) }
		m := least()
		try.Equal(t, m.ID, a.ID())
		m.Done(errors.New("of the request"))
		m = least()
		m.Done(handlersError{errors.New("the back end has ended")})
		try.Equal(t, s.Len(), 2)

		key := live.Hash("key")
		for _, may := range []error{rocl.ErrUnreachable, rocl.ErrNodeDead} {
			had := try.Get(s.Pick(key))(t)
			had.Done(fmt.Errorf("the request: %w", may))
			s.Ended(had.ID, may) // a monitor says so too
			for range 3 {
				for _, by := range []live.By{key, live.Turn(), live.Random(), live.Least("load"), live.Nearest()} {
					m := try.Get(s.Pick(by))(t)
					if m.Done(nil); m.ID == had.ID {
						t.Fatal("a member that was lost is picked")
					}
				}
				time.Sleep(3 * time.Second)
			}
			time.Sleep(time.Second + time.Millisecond)
			try.Equal(t, try.Get(s.Pick(key))(t).ID, had.ID, "the member is not back")
			had.Done(nil)
		}

		s.Ended(a.ID(), nil)
		s.Ended(a.ID(), rocl.ErrFull)
		s.Ended(rocl.GID{}, rocl.ErrGone)
		try.Equal(t, s.Len(), 2)
		s.Ended(a.ID(), rocl.ErrGone)
		try.OK(t, a.Set(t.Context(), "load", "-5"))
		time.Sleep(time.Minute)
		try.Equal(t, fmt.Sprint(ids(s)), fmt.Sprint([]rocl.GID{b.ID()}))
		m = least()
		b.Close()
		synctest.Wait()
		m.Done(rocl.ErrGone) // after the watch has told it
		try.Equal(t, s.Len(), 0)
		n := worker(t, c, 7)
		synctest.Wait()
		try.Equal(t, least().ID, n.ID())
		try.Fails(s.Pick(live.Least("load"), n.ID()))(t, live.ErrNone)
		try.Fails(s.Pick(live.Hash("x"), n.ID()))(t, live.ErrNone)
		try.Fails(s.Pick(live.Nearest(), n.ID()))(t, live.ErrNone)
		s.Ended(n.ID(), rocl.ErrUnreachable)
		n.Close()
		time.Sleep(time.Minute)
		try.Equal(t, s.Len(), 0, "a member that has ended meanwhile is back")
	})
}

// A modelMember is what the model knows of a member.
type modelMember struct {
	r                *rocl.Resource
	load             float64
	inFlight, picked int
}

// The picks are those of a model that looks at all members, whatever has come before.
func TestModel(t *testing.T) {
	c := rocltest.Cluster(t, 1).Open(0)
	rapid.Check(t, func(rt *rapid.T) {
		s, err := live.Follow(t.Context(), c, rocl.Match{"type": "modelled"})
		if err != nil {
			rt.Fatal(err)
		}
		defer s.Close()
		all := map[rocl.GID]*modelMember{}
		var requests []*live.Member
		clock := 0
		defer func() {
			for _, m := range all {
				m.r.Close()
			}
		}()
		settle := func() { await(t, s, slices.Collect(maps.Keys(all))...) }
		any := func() *modelMember {
			if len(all) == 0 {
				rt.Skip()
			}
			return all[rapid.SampledFrom(slices.SortedFunc(maps.Keys(all), rocl.GID.Compare)).Draw(rt, "member")]
		}
		score := func(m *modelMember, not []rocl.GID) float64 { return m.load + float64(m.inFlight) }
		rt.Repeat(map[string]func(*rapid.T){
			"come": func(rt *rapid.T) {
				load := rapid.IntRange(-3, 3).Draw(rt, "load")
				r := try.Get(c.Register(t.Context(), rocl.Attrs{"type": "modelled", "load": strconv.Itoa(load)}))(t)
				all[r.ID()] = &modelMember{r: r, load: float64(load)}
				settle()
			},
			"go": func(rt *rapid.T) {
				m := any()
				delete(all, m.r.ID())
				if rapid.Bool().Draw(rt, "known") {
					s.Ended(m.r.ID(), rocl.ErrGone)
				}
				m.r.Close()
				settle()
			},
			"load": func(rt *rapid.T) {
				m := any()
				text := rapid.SampledFrom([]string{"-1", "0.5", "2", "much", "NaN", "0x1p-2"}).Draw(rt, "load")
				if m.load, err = strconv.ParseFloat(text, 64); text != "-1" && text != "0.5" && text != "2" {
					m.load = 1e300
				}
				try.OK(t, m.r.Set(t.Context(), "load", text))
				eventually.True(t, "the load", func() bool {
					for f := range s.All() {
						if f.ID == m.r.ID() {
							return f.Attrs.GetString("load") == text
						}
					}
					return false
				})
			},
			"done": func(rt *rapid.T) {
				if len(requests) == 0 {
					rt.Skip()
				}
				i := rapid.IntRange(0, len(requests)-1).Draw(rt, "request")
				if m := all[requests[i].ID]; m != nil {
					m.inFlight--
				}
				requests[i].Done(nil)
				requests = slices.Delete(requests, i, i+1)
			},
			"turn": func(rt *rapid.T) {
				m, err := s.Pick(live.Turn())
				if (err != nil) != (len(all) == 0) {
					rt.Fatal(err)
				}
				if err == nil {
					all[m.ID].inFlight++
					requests = append(requests, m)
				}
			},
			"least": func(rt *rapid.T) {
				var not []rocl.GID
				if len(all) > 0 && rapid.Bool().Draw(rt, "excluding") {
					not = append(not, any().r.ID(), any().r.ID())
				}
				m, err := s.Pick(live.Least("load"), not...)
				left := maps.Clone(all)
				for _, id := range not {
					delete(left, id)
				}
				if (err != nil) != (len(left) == 0) {
					rt.Fatal(err)
				}
				if err != nil {
					return
				}
				got := left[m.ID]
				for _, o := range left {
					if c := cmp.Or(cmp.Compare(score(got, not), score(o, not)), cmp.Compare(got.picked, o.picked)); c > 0 {
						rt.Fatalf("picked %+v, not %+v", got, o)
					}
				}
				clock++
				got.inFlight++
				got.picked = clock
				requests = append(requests, m)
			},
		})
	})
}

// Promise (Package live): A pick does not allocate, and neither does its Done.
func TestPickAllocations(t *testing.T) {
	c := rocltest.Cluster(t, 1).Open(0)
	for i := range 10 {
		worker(t, c, i)
	}
	s := follow(t, c)
	not := try.Get(s.Pick(live.Turn()))(t).ID
	for _, by := range []live.By{live.Turn(), live.Random(), live.Nearest(), live.Hash("key"), live.Least("load")} {
		pick := func(not ...rocl.GID) {
			m, err := s.Pick(by, not...)
			if err != nil {
				t.Fatal(err)
			}
			m.Done(nil)
		}
		pick() // the first one makes the table or the board
		if n := testing.AllocsPerRun(100, func() { pick(); pick(not) }); n > 0 {
			t.Errorf("%+v: %v allocations", by, n)
		}
	}
}

// BenchmarkPick measures a pick among 1,000 members, with its Done.
func BenchmarkPick(b *testing.B) {
	c := rocltest.Cluster(b, 1).Open(0)
	for i := range 1000 {
		worker(b, c, i%10)
	}
	s := follow(b, c)
	keys := make([]string, 1<<16)
	for i := range keys {
		keys[i] = fmt.Sprint("user:", i)
		try.Get(s.Pick(live.Hash(keys[i])))(b).Done(nil)
	}
	for _, how := range []struct {
		name string
		by   func(i int) live.By
	}{
		{"hash", func(i int) live.By { return live.Hash(keys[i%len(keys)]) }},
		{"turn", func(int) live.By { return live.Turn() }},
		{"random", func(int) live.By { return live.Random() }},
		{"nearest", func(int) live.By { return live.Nearest() }},
		{"least", func(int) live.By { return live.Least("load") }},
	} {
		b.Run(how.name, func(b *testing.B) {
			b.ReportAllocs()
			i := 0
			for b.Loop() {
				try.Get(s.Pick(how.by(i)))(b).Done(nil)
				i++
			}
		})
	}
}

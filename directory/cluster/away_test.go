// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/rocl-go/rocl/directory"
	"github.com/rocl-go/rocl/internal/testkit/eventually"
	"github.com/rocl-go/rocl/internal/testkit/try"
	"github.com/rocl-go/rocl/resource"
)

// away reports whether at has heard that the member who ended and will be back.
func away(t *testing.T, at, who *Cluster) (away bool) {
	t.Helper()
	eventually.True(t, "it is seen to be away, or dead", func() bool {
		at.members.mu.Lock()
		defer at.members.mu.Unlock()
		n := at.members.nodes[who.cfg.Node]
		away = n != nil && n.away != nil
		return n == nil || !n.isAlive
	})
	return away
}

// A question waits for a member that is away for a moment, and finds what it has when it is back.
// The question ends with ErrPartial when the patience is over, and with a definite no when the
// member is dead.
//
// Promise (Cluster searches): A question waits for a member that will be back, and asks one that
// comes meanwhile. See also TestComesWhileAsked.
//
// Promise (Cuts and restarts): Members that are restarted in order, also several at a time, are not
// taken for dead, and nothing of theirs is denied for certain. See also TestOverlappingRestarts.
func TestAway(t *testing.T) { inMemory(t, testAway) }

func testAway(t *testing.T) {
	brief := func(c *Config) { c.Patience = 300 * time.Millisecond }
	a, b, c := three(t, nil, brief)
	for i := 0; ; i++ {
		put(t, c, 1, resource.Attrs{"at": "c"})
		try.OK(t, c.HandOver())
		if away(t, a, c) && away(t, b, c) {
			break
		}
		if i == 5 {
			t.Fatal("it does not say that it will be back")
		}
		c = anew(t, c, nil, a) // they were not told in time, and take it for dead
		together(t, a, b, c)
	}
	for _, m := range []*Cluster{a, b} {
		m.members.mu.Lock()
		if !m.members.nodes[3].isGoing {
			t.Errorf("node %d has not heard that node 3 is away", m.cfg.Node)
		}
		m.members.mu.Unlock()
	}
	try.Fails(b.Find(t.Context(), pattern(resource.Match{"at": "c"})))(t, directory.ErrPartial, "impatient")
	try.Fails(b.Lookup(t.Context(), resource.MakeGID(3, 1, 1), pattern(nil)))(t, directory.ErrPartial, "impatient, by identifier")
	found := make(chan error)
	go func() {
		_, err := a.Find(t.Context(), pattern(resource.Match{"at": "c"}))
		found <- err
	}()
	c = anew(t, c, nil, a)
	put(t, c, 1, resource.Attrs{"at": "c"})
	// The resource may come a moment after its member is back: then the no was right.
	if err := <-found; err != nil && !errors.Is(err, directory.ErrNotFound) {
		t.Errorf("waited for: %v", err)
	}
	together(t, a, b, c)
	finds(t, a, resource.Match{"at": "c"}, resource.MakeGID(3, 1, 1))
	try.OK(t, c.HandOver())
	eventually.True(t, "it is given up", func() bool { return len(b.Members()) == 2 })
	denies(t, b, resource.Match{"at": "c"})
}

// Several members at a time are restarted and come back in any order, while every member asks for
// what the other ones have. Nothing that there is is denied for certain.
func TestOverlappingRestarts(t *testing.T) { inMemory(t, testOverlappingRestarts) }

func testOverlappingRestarts(t *testing.T) {
	const members, rounds = 6, 20
	var all [members]atomic.Pointer[Cluster]
	var cs []*Cluster
	for i := range members {
		c := member(t, resource.NodeID(i+1), nil, cs[:min(i, 2)]...)
		put(t, c, 1, resource.Attrs{"at": fmt.Sprint(i)})
		all[i].Store(c)
		cs = append(cs, c)
	}
	together(t, cs...)
	var asked atomic.Int32
	ctx, end := context.WithCancel(t.Context())
	var busy sync.WaitGroup
	for i := range all {
		busy.Go(func() {
			for n := 1; ctx.Err() == nil; n++ {
				at := fmt.Sprint((i + n) % members)
				if err := second(all[i].Load().Find(ctx, pattern(resource.Match{"at": at}))); errors.Is(err, directory.ErrNotFound) && at != fmt.Sprint(i) {
					t.Errorf("member %d: what member %s has: %v", i, at, err)
				}
				asked.Add(1)
				time.Sleep(20 * time.Millisecond) // virtual
			}
		})
	}
	for range rounds {
		down := rand.Perm(members)[:2+rand.IntN(members-1)]
		for _, i := range down {
			try.OK(t, all[i].Load().HandOver())
		}
		rand.Shuffle(len(down), func(i, j int) { down[i], down[j] = down[j], down[i] })
		for _, i := range down {
			time.Sleep(rand.N(700 * time.Millisecond)) // virtual: some are seen dead, and none for as long as it is waited for
			old := all[i].Load()
			all[i].Store(anew(t, old, func(c *Config) { c.DB, c.Follows, c.Met = old.cfg.DB, true, old.members.addresses() }, cs[:2]...))
		}
		time.Sleep(rand.N(time.Second)) // virtual: the next restarts come before, or after, all are one cluster
	}
	end()
	busy.Wait()
	for i := range all {
		cs[i] = all[i].Load()
	}
	together(t, cs...)
	for _, c := range cs {
		denies(t, c, resource.Match{"at": "nowhere"})
	}
	if n := asked.Load(); n < 20*rounds {
		t.Errorf("%d questions", n)
	}
}

// However patient a member is, the caller's context limits the wait, and so does the end of the
// membership. A member that has lost its address ends with the reason, and not as if the directory
// were closed.
func TestPatience(t *testing.T) { inMemory(t, testPatience) }

func testPatience(t *testing.T) {
	lost := fmt.Errorf("%w: the address is gone", directory.ErrPartial)
	for _, end := range []struct {
		poll time.Duration
		end  func(*Cluster) error
		want error
	}{{0, (*Cluster).Close, directory.ErrClosed}, {50 * time.Microsecond, (*Cluster).Close, directory.ErrClosed}, {0, func(c *Cluster) error { return c.abandon(lost) }, lost}} {
		a, b := two(t, func(c *Config) { c.Patience, c.Poll = time.Hour, end.poll })
		try.OK(t, b.HandOver())
		ctx, cancel := context.WithTimeout(t.Context(), 200*time.Millisecond)
		what := pattern(resource.Match{"at": "b"})
		try.Fails(a.Find(ctx, what))(t, context.DeadlineExceeded)
		cancel()
		sent := a.count.sent.Load()
		done := make(chan error)
		go func() { done <- second(a.Find(t.Context(), what)) }()
		eventually.True(t, "the question is asked", func() bool { return a.count.sent.Load() > sent })
		try.OK(t, end.end(a))
		try.Fails(<-done)(t, end.want, "ended meanwhile")
		try.Fails(a.Find(t.Context(), what))(t, end.want, "ended before")
	}
}

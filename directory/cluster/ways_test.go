// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"testing"
	"time"

	"github.com/rocl-go/rocl/directory"
	"github.com/rocl-go/rocl/directory/mux"
	"github.com/rocl-go/rocl/directory/search"
	"github.com/rocl-go/rocl/directory/strategy"
	"github.com/rocl-go/rocl/internal/eventually"
	"github.com/rocl-go/rocl/internal/freeaddr"
	"github.com/rocl-go/rocl/resource"
)

func finds(t *testing.T, c *Cluster, what resource.Match, want resource.GID) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	if r, err := c.Find(ctx, pattern(what)); err != nil || r.ID != want {
		t.Errorf("node %d: %v is %v: %v", c.cfg.Node, what, r.ID, err)
	}
}

func denies(t *testing.T, c *Cluster, what resource.Match) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	var err error
	for again := true; again; again = errors.Is(err, directory.ErrPartial) && ctx.Err() == nil {
		_, err = c.Find(ctx, pattern(what)) // on a busy machine a member may answer too late
	}
	if !errors.Is(err, directory.ErrNotFound) {
		t.Errorf("node %d: %v: %v", c.cfg.Node, what, err)
	}
}

// Each strategy finds what one member has and denies what none has, with a group and without. Some
// members sleep while they wait, and some poll.
func TestWays(t *testing.T) {
	port, err := freeaddr.Port()
	if err != nil {
		t.Fatal(err)
	}
	group := fmt.Sprint("127.255.255.255:", port)
	for name, way := range map[string]strategy.Strategy{"auto": strategy.Auto, "broadcast": strategy.Broadcast, "unicast": strategy.Unicast, "tree": strategy.Tree} {
		for _, group := range []string{"", group} {
			t.Run(fmt.Sprintf("%s, group %q", name, group), func(t *testing.T) {
				var cs []*Cluster
				for i := range resource.NodeID(5) {
					var join []*Cluster
					if i > 0 && group == "" { // with a group, they find each other
						join = cs[:1]
					}
					cs = append(cs, member(t, i+1, func(c *Config) {
						c.Name, c.Strategy, c.Fan, c.Group, c.Keys = t.Name(), way, 2, group, [][]byte{[]byte("key")}
						c.Spread = time.Hour // no summaries
						if i%2 == 0 {
							c.Poll = 100 * time.Microsecond
						}
					}, join...))
				}
				together(t, cs...)
				for i, c := range cs {
					id := put(t, c, 1, resource.Attrs{"at": fmt.Sprint(i)})
					for j, from := range cs {
						if i != j {
							finds(t, from, resource.Match{"at": fmt.Sprint(i)}, id)
						}
					}
				}
				for _, c := range cs {
					denies(t, c, resource.Match{"at": "nowhere"})
				}
				// When all members know each other's floor, a cast is one packet.
				before := cs[0].count.sent.Load()
				denies(t, cs[0], resource.Match{"at": "nowhere"})
				cast := way == strategy.Broadcast || way == strategy.Auto
				if n := cs[0].count.sent.Load() - before; cast && group != "" && n > 2 {
					t.Logf("%d packets for a cast: something was lost", n)
				} else if way == strategy.Unicast && n < 4 {
					t.Errorf("%d packets for four members", n)
				}
			})
		}
	}
}

// The key of a cluster is replaced while questions are asked, and none of them fails. A node with
// only the old key stays outside.
func TestSetKeys(t *testing.T) {
	key := func(ks ...string) (of [][]byte) {
		for _, k := range ks {
			of = append(of, []byte(k))
		}
		return of
	}
	with := func(c *Config) { c.Keys = key("old") }
	a := member(t, 1, with)
	b, c := member(t, 2, with, a), member(t, 3, with, a)
	cs := []*Cluster{a, b, c}
	together(t, cs...)
	for i, m := range cs {
		put(t, m, 1, resource.Attrs{"at": fmt.Sprint(i)})
	}
	ctx, stop := context.WithCancel(t.Context())
	var busy sync.WaitGroup
	for i, m := range cs {
		busy.Go(func() {
			for n := 0; ctx.Err() == nil; n++ {
				at := fmt.Sprint((i + 1 + n%2) % 3)
				if _, err := m.Find(t.Context(), pattern(resource.Match{"at": at})); err != nil {
					t.Errorf("node %d: %s: %v", i+1, at, err)
				}
				time.Sleep(time.Millisecond)
			}
		})
	}
	for _, step := range [][][]byte{key("old", "new"), key("new", "old"), key("new")} {
		for _, m := range cs {
			if err := m.SetKeys(step...); err != nil {
				t.Fatal(err)
			}
			time.Sleep(20 * time.Millisecond) // for questions in between
		}
	}
	stop()
	busy.Wait()
	stranger := member(t, 9, with, a, b, c)
	fresh := member(t, 4, func(c *Config) { c.Keys = key("new") }, a)
	together(t, a, b, c, fresh)
	if n := len(stranger.Members()); n != 1 {
		t.Errorf("the stranger sees %d members", n)
	}
	if err := second(stranger.Find(t.Context(), pattern(resource.Match{"at": "0"}))); !errors.Is(err, directory.ErrPartial) {
		t.Errorf("the stranger: %v", err)
	}
	if _, err := fresh.Find(t.Context(), pattern(resource.Match{"at": "0"})); err != nil {
		t.Error(err)
	}
	if err := a.SetKeys(); err == nil {
		t.Error("took the key away")
	}
	if err := member(t, 5, nil).SetKeys([]byte("key")); err == nil {
		t.Error("gave a key to a cluster without")
	}
}

// away reports whether at has heard that the member who ended and will be back.
func away(t *testing.T, at, who *Cluster) (away bool) {
	t.Helper()
	eventually.True(t, "it is seen to be away, or dead", func() bool {
		at.members.mu.Lock()
		defer at.members.mu.Unlock()
		n := at.members.nodes[who.cfg.Node]
		away = n != nil && n.away != nil
		return n == nil || !n.alive
	})
	return away
}

// A question waits for a member that is away for a moment, and finds what it has when it is back.
// The question ends with ErrPartial when the patience is over, and with a definite no when the
// member is dead.
func TestAway(t *testing.T) {
	brief := func(c *Config) { c.Patience = 300 * time.Millisecond }
	a := member(t, 1, nil)
	b, c := member(t, 2, brief, a), member(t, 3, nil, a)
	together(t, a, b, c)
	for try := 0; ; try++ {
		put(t, c, 1, resource.Attrs{"at": "c"})
		if err := c.HandOver(); err != nil {
			t.Fatal(err)
		}
		if away(t, a, c) && away(t, b, c) {
			break
		}
		if try == 5 {
			t.Fatal("it does not say that it will be back")
		}
		c = anew(t, c, nil, a) // they were not told in time, and take it for dead
		together(t, a, b, c)
	}
	for _, m := range []*Cluster{a, b} {
		m.members.mu.Lock()
		if !m.members.nodes[3].going {
			t.Errorf("node %d has not heard that node 3 is away", m.cfg.Node)
		}
		m.members.mu.Unlock()
	}
	if _, err := b.Find(t.Context(), pattern(resource.Match{"at": "c"})); !errors.Is(err, directory.ErrPartial) {
		t.Errorf("impatient: %v", err)
	}
	if _, err := b.Lookup(t.Context(), resource.MakeGID(3, 1, 1), pattern(nil)); !errors.Is(err, directory.ErrPartial) {
		t.Errorf("impatient, by identifier: %v", err)
	}
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
	if err := c.HandOver(); err != nil {
		t.Fatal(err)
	}
	eventually.True(t, "it is given up", func() bool { return len(b.Members()) == 2 })
	denies(t, b, resource.Match{"at": "c"})
}

// However patient a member is, the caller's context limits the wait.
func TestPatience(t *testing.T) {
	for _, poll := range []time.Duration{0, 50 * time.Microsecond} {
		a := member(t, 1, func(c *Config) { c.Patience, c.Poll = time.Hour, poll })
		b := member(t, 2, nil, a)
		together(t, a, b)
		if err := b.HandOver(); err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithTimeout(t.Context(), 200*time.Millisecond)
		began := time.Now()
		_, err := a.Find(ctx, pattern(resource.Match{"at": "b"}))
		cancel()
		if !errors.Is(err, context.DeadlineExceeded) || time.Since(began) > 4*time.Second {
			t.Errorf("after %v: %v", time.Since(began), err)
		}
		done := make(chan error)
		go func() {
			_, err := a.Find(t.Context(), pattern(resource.Match{"at": "b"}))
			done <- err
		}()
		time.Sleep(10 * time.Millisecond) // the question may not have begun; the result is the same
		a.Close()
		if err := <-done; !errors.Is(err, directory.ErrClosed) {
			t.Errorf("closed meanwhile: %v", err)
		}
	}
}

// A member that has the key sends answers to questions that were not asked, invalid packets, and
// packets about a wrong range or node. No answer changes by that.
func TestLiar(t *testing.T) {
	a := member(t, 1, nil)
	b, liar := member(t, 2, nil, a), member(t, 3, nil, a)
	together(t, a, b, liar)
	id := put(t, b, 1, resource.Attrs{"at": "b"})
	const found, none = 2, 3 // those of package search
	rnd := rand.New(rand.NewPCG(3, 4))
	stop := make(chan struct{})
	var busy sync.WaitGroup
	busy.Go(func() {
		for n := uint64(0); ; n++ {
			select {
			case <-stop:
				return
			default:
			}
			var out []mux.Out
			say := func(b []byte) { out = append(out, mux.Out{To: 1, Payload: b}) }
			for _, at := range []search.ID{{Asker: 1, N: n}, {Asker: 1, N: rnd.Uint64()}, {Asker: 2, N: n}, {Asker: 3, N: n}} {
				for _, from := range []resource.NodeID{1, 2, 3} {
					for _, kind := range []byte{found, none} {
						p := search.Packet{Type: kind, Fan: 16, ID: at, Lo: from, Hi: from, Body: []byte("lie"), Covered: uint32(n), Sum: n}
						say(p.Append(nil))
						p.Lo, p.Hi, p.Covered, p.Failed = 0, 1<<64-1, 1<<32-1, make([]resource.NodeID, 50)
						say(p.Append(nil))
					}
				}
			}
			junk := make([]byte, rnd.IntN(200))
			for i := range junk {
				junk[i] = byte(rnd.Uint32())
			}
			say(junk)
			say(append([]byte{byte(16 + n%8)}, junk...)) // messages about summaries
			ask := search.Packet{Type: 1, Fan: 2, ID: search.ID{Asker: 3, N: n}, Hi: 1<<64 - 1, Body: junk}
			say(ask.Append(nil))
			liar.mux.Send(out...)
			time.Sleep(time.Millisecond)
		}
	})
	for range 50 {
		finds(t, a, resource.Match{"at": "b"}, id)
		denies(t, a, resource.Match{"at": "nowhere"})
		denies(t, b, resource.Match{"at": "nowhere"})
	}
	close(stop)
	busy.Wait()
	if n := len(a.Members()); n != 3 {
		t.Errorf("%d members", n)
	}
}

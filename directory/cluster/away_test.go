// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/rocl-go/rocl/directory"
	"github.com/rocl-go/rocl/internal/testkit/eventually"
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
		if !m.members.nodes[3].isGoing {
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
func TestPatience(t *testing.T) { inMemory(t, testPatience) }

func testPatience(t *testing.T) {
	for _, poll := range []time.Duration{0, 50 * time.Microsecond} {
		a := member(t, 1, func(c *Config) { c.Patience, c.Poll = time.Hour, poll })
		b := member(t, 2, nil, a)
		together(t, a, b)
		if err := b.HandOver(); err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithTimeout(t.Context(), 200*time.Millisecond)
		_, err := a.Find(ctx, pattern(resource.Match{"at": "b"}))
		cancel()
		if !errors.Is(err, context.DeadlineExceeded) {
			t.Error(err)
		}
		sent := a.count.sent.Load()
		done := make(chan error)
		go func() {
			_, err := a.Find(t.Context(), pattern(resource.Match{"at": "b"}))
			done <- err
		}()
		eventually.True(t, "the question is asked", func() bool { return a.count.sent.Load() > sent })
		a.Close()
		if err := <-done; !errors.Is(err, directory.ErrClosed) {
			t.Errorf("closed meanwhile: %v", err)
		}
	}
}

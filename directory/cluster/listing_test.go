// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/rocl-go/rocl/directory"
	"github.com/rocl-go/rocl/directory/internal/database"
	"github.com/rocl-go/rocl/internal/testkit/eventually"
	"github.com/rocl-go/rocl/internal/testkit/try"
	"github.com/rocl-go/rocl/resource"
)

// A listing leaves no cursor at other members: not at its end, and not when it stops early.
func TestAllLeavesNothing(t *testing.T) { inMemory(t, testAllLeavesNothing) }

func testAllLeavesNothing(t *testing.T) {
	a, b, c := threeStations(t)
	for i := range uint32(50) {
		b.put(i+1, lamp)
		c.put(i+1, lamp)
	}
	for _, most := range []int{1, 2, 49, 50, 51, 99, 100, 1000} {
		n := 0
		var cov directory.Coverage
		for _, err := range a.c.All(t.Context(), lamps(), &cov) {
			try.OK(t, err)
			if n++; n == most {
				break
			}
		}
		if n != min(most, 100) || most > 100 && (cov.Covered != 2 || len(cov.Failed) > 0) {
			t.Errorf("%d of %d, %+v", n, most, cov)
		}
		eventually.True(t, "no cursor is kept", func() bool { return b.c.answers.cursors.count()+c.c.answers.cursors.count() == 0 })
	}
	// Nor does a client's listing, which stops early, or whose client closes in the middle.
	dc := try.Get(directory.Join(t.Context(), a.srv.Dialer()))(t)
	defer dc.Close()
	for range dc.FindAll(t.Context(), lamps()) {
		break
	}
	for range dc.FindAll(t.Context(), lamps()) {
		dc.Close()
		break
	}
	eventually.True(t, "no cursor is kept", func() bool { return b.c.answers.cursors.count()+c.c.answers.cursors.count() == 0 })
}

// A listing goes on when the listed member's directory is replaced in the middle. No resource is
// missing, and none comes twice.
//
// Promise (Cluster searches): Several answers come each once, even if a member's directory is
// replaced between them. See also TestAllForgotten.
func TestAllThroughRestart(t *testing.T) { inMemory(t, testAllThroughRestart) }

func testAllThroughRestart(t *testing.T) {
	a, b := twoStations(t, func(c *Config) { c.Patience = time.Minute })
	var want, got []resource.GID
	for i := range uint32(100) {
		want = append(want, b.put(i+1, lamp))
	}
	db := b.srv.Database()
	var mu sync.Mutex // guards asked
	asked := 2        // questions since the directory is new
	b.cfg.Sure = func() bool {
		mu.Lock()
		defer mu.Unlock()
		if asked++; asked == 2 { // they are offered after the first question has been refused
			for _, id := range want[50:] {
				try.Check(t, db.Offer(id, id.Context(), 1, pattern(lamp)))
			}
		}
		return asked >= 2
	}
	var cov directory.Coverage
	for r, err := range a.c.All(t.Context(), lamps(), &cov) {
		try.OK(t, err)
		if got = append(got, r.ID); len(got) == 30 || len(got) == 60 {
			for _, id := range want[50:] { // the new directory does not have them at once
				try.OK(t, db.Delete(id))
			}
			b.c.HandOver()
			mu.Lock()
			asked = 0
			mu.Unlock()
			b.open()
		}
	}
	if slices.SortFunc(got, resource.GID.Compare); !slices.Equal(got, want) || cov.Covered != 1 || len(cov.Failed) > 0 {
		t.Errorf("%d of %d, %d of them different; %+v", len(got), len(want), len(slices.Compact(slices.Clone(got))), cov)
	}
}

// A member forgets the cursor whenever the caller takes longer than the lease for a resource. The
// listing goes on: each resource comes once, and the member counts as asked.
func TestAllForgotten(t *testing.T) { inMemory(t, testAllForgotten) }

func testAllForgotten(t *testing.T) {
	a, b := twoStations(t)
	for i := range uint32(20) {
		b.put(i+1, lamp)
	}
	seen := map[resource.GID]bool{}
	var cov directory.Coverage
	for r, err := range a.c.All(t.Context(), lamps(), &cov) {
		try.OK(t, err)
		if seen[r.ID] {
			t.Errorf("%v twice", r.ID)
		}
		seen[r.ID] = true
		b.c.answers.cursors.close() // as at the end of the lease
	}
	if len(seen) != 20 || cov.Covered != 1 || cov.Err() != nil {
		t.Errorf("%d listed, %+v", len(seen), cov)
	}
}

// A member that dies in the middle of a listing has no more resources. The other members are
// listed. The dead one is not counted among the members that told all they have.
//
// Promise (Cluster searches): A member that dies while it is listed is not counted among those that
// told all.
func TestAllMemberDies(t *testing.T) { inMemory(t, testAllMemberDies) }

func testAllMemberDies(t *testing.T) {
	a, b, c := threeStations(t)
	for i := range uint32(10) {
		b.put(i+1, lamp)
		c.put(i+1, lamp)
	}
	of := map[resource.NodeID]int{}
	var cov directory.Coverage
	for r, err := range a.c.All(t.Context(), lamps(), &cov) {
		try.OK(t, err)
		if of[r.ID.Node()]++; of[2] == 3 && of[3] == 0 {
			b.c.Close()
		}
	}
	if of[2] != 3 || of[3] != 10 || len(cov.Failed) > 0 || cov.Covered != 1 {
		t.Errorf("listed %v, %+v", of, cov)
	}
}

// The number of cursors is limited: the cursor that was not used for longest is forgotten. An
// unused cursor is forgotten when its lease ends.
func TestPlaces(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		db := database.New()
		for i := range uint32(3) {
			id := resource.MakeGID(1, 1, i+1)
			try.Get(db.Put(id, id.Context(), pattern(lamp)))(t)
		}
		var p cursors
		next := func(id, step uint64, wantOK, wantLost bool) (r database.Record) {
			t.Helper()
			r, ok, lost := p.next(db, id, step, lamps(), time.Now())
			if ok != wantOK || lost != wantLost {
				t.Fatalf("cursor %d, step %d: %v, lost %v", id, step, ok, lost)
			}
			return r
		}
		first := next(0, 1, true, false)
		try.Equal(t, next(0, 1, true, false).ID, first.ID, "the answer that was lost is another")
		next(7, 2, false, true)
		for i := range uint64(mostCursors + 100) {
			time.Sleep(time.Millisecond)
			next(i+1, 1, true, false)
			if i == mostCursors/2 {
				next(0, 2, true, false) // cursor 0 stays in use
			}
		}
		try.Equal(t, p.count(), mostCursors, "cursors")
		next(1, 2, false, true)
		next(0, 3, true, false)
		const last = mostCursors + 100
		next(last, 2, true, false)
		for i := range uint64(last) {
			p.stop(i)
		}
		if n := p.count(); n != 1 {
			t.Fatalf("%d cursors", n)
		}
		time.Sleep(lease / 2)
		next(last, 3, true, false)
		time.Sleep(lease - 1)
		try.Equal(t, p.count(), 1, "a lease is too short")
		time.Sleep(2 * time.Nanosecond)
		try.Equal(t, p.count(), 0, "a lease does not end")
		next(5, 1, true, false)
		p.close()
		try.Equal(t, p.count(), 0, "cursors after the end")
	})
}

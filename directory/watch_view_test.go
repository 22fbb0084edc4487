// SPDX-License-Identifier: Apache-2.0

package directory

import (
	"testing"

	"github.com/rocl-go/rocl/internal/testkit/try"
	"github.com/rocl-go/rocl/resource"
)

// An update that a server reported to its watches and did not live to acknowledge is unknown to the
// next server. There, another update may have the same revision. A watch that joins only then is
// told of that update. State that is the same is reported once.
//
// Promise (Watches): A watch outlives directories. Afterwards it tells everything that is
// different, and nothing else. See also TestClusterWatch.
func TestViewSameRevision(t *testing.T) {
	id := resource.MakeGID(1, 1, 1)
	reports := func(v *View, value string) bool {
		l := list(t, resource.Attrs{"a": value})
		ev, tell := v.Take(Event{Kind: Appeared, Record: resource.Record{ID: id, Revision: 2, Attrs: *l}})
		return tell && ev.Attrs.GetString("a") == value
	}
	var v View
	v.Begin()
	if !reports(&v, "not acknowledged") {
		t.Error("what is new was not reported")
	}
	v.Begin() // the next server begins
	if !reports(&v, "acknowledged") {
		t.Error("other attributes of the same revision were not reported")
	}
	v.Begin()
	if reports(&v, "acknowledged") {
		t.Error("what is the same was reported again")
	}
	try.Equal(t, v.Missing(), 0, "what was reported again is missing")
}

// A View passes on what is new, and reports what a new server does not have as gone.
func TestView(t *testing.T) {
	var v View
	ev := func(kind EventKind, serial uint32, rev uint64) Event {
		return Event{Kind: kind, Record: resource.Record{ID: resource.MakeGID(1, 1, serial), Revision: rev}}
	}
	take := func(in Event, want EventKind) { // want 0: no event
		t.Helper()
		out, ok := v.Take(in)
		if ok != (want != 0) || ok && (out.Kind != want || out.ID != in.ID || out.Revision != in.Revision) {
			t.Fatalf("%v of %v, revision %d: %v %v, want %v", in.Kind, in.ID, in.Revision, out.Kind, ok, want)
		}
	}
	take(ev(Gone, 9, 1), 0)
	for i := range uint32(4) {
		take(ev(Appeared, i, 1), Appeared)
	}
	take(ev(Changed, 0, 2), Changed)
	take(ev(Changed, 9, 1), Appeared)
	v.Begin()
	take(ev(Appeared, 0, 2), 0)
	take(ev(Appeared, 1, 3), Changed)
	v.Begin() // the server is lost again
	take(ev(Appeared, 0, 2), 0)
	take(ev(Gone, 9, 1), Gone)
	if n := v.Missing(); n != 3 {
		t.Fatalf("%d missing", n)
	}
	take(ev(Appeared, 1, 3), 0) // late
	gone := v.Expire()
	if len(gone) != 2 || len(v.Expire()) != 0 {
		t.Fatalf("gone: %v", gone)
	}
	for _, g := range gone {
		take(ev(Appeared, g.ID.Serial(), 1), Appeared)
	}
	far := ev(Appeared, 1, 1)
	far.ID = resource.MakeGID(2, 1, 1)
	take(far, Appeared)
	v.Begin()
	if gone := v.ExpireOf(2); len(gone) != 1 || gone[0].ID != far.ID || gone[0].Kind != Gone {
		t.Fatalf("gone of node 2: %v", gone)
	}
	if gone := v.End(); len(gone) != 4 || len(v.End()) != 0 {
		t.Fatalf("in the end %v", gone)
	}
}

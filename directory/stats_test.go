// SPDX-License-Identifier: Apache-2.0

package directory

import (
	"context"
	"testing"

	"github.com/rocl-go/rocl/internal/testkit/eventually"
	"github.com/rocl-go/rocl/internal/testkit/try"
	"github.com/rocl-go/rocl/resource"
)

// A server counts questions by their results, and what its contexts do with their resources.
func TestStats(t *testing.T) {
	ctx := t.Context()
	path, s, c := begun(t)
	d := joined(t, path)
	here, nowhere := list(t, resource.Match{"type": "x"}), list(t, resource.Match{"type": "y"})
	for i := range uint32(3) {
		try.Get(c.Register(ctx, c.Self().WithSerial(1+i), list(t, resource.Attrs{"type": "x"})))(t)
	}
	try.Fails(d.Register(ctx, c.Self().WithSerial(1), here))(t, ErrNotOwner)
	rev, err := c.Update(ctx, c.Self().WithSerial(1), 0, list(t, resource.Attrs{"type": "x", "n": "2"}))
	if err != nil || rev == 0 {
		t.Fatal(rev, err)
	}
	try.OK(t, c.Delete(ctx, c.Self().WithSerial(3)))
	want := func(what string, err, want error) {
		t.Helper()
		try.Fails(err)(t, want, "%s", what)
	}
	ask := func(l *resource.List) error { _, err := d.Find(ctx, l); return err }
	want("what there is", ask(here), nil)
	want("what there is not", ask(nowhere), ErrNotFound)
	_, err = d.Lookup(ctx, c.Self().WithSerial(1))
	want("by identifier", err, nil)
	for _, err := range d.FindAll(ctx, here) { // asks twice: for a batch with all answers, and for the next, which is empty
		want("all", err, nil)
	}
	members := holding(resource.Record{}, ErrPartial)
	members.lookup = func() (resource.Record, error) { return resource.Record{}, ErrClosed }
	s.Attach(members)
	want("with members away", ask(nowhere), ErrPartial)
	if _, err = d.Lookup(ctx, resource.MakeGID(c.Node()+1, 1, 1)); err == nil {
		t.Fatal("another node's is found")
	}
	w, stop := context.WithCancel(ctx)
	for range d.Watch(w, here) {
		break
	}
	stop()
	got := s.Stats()
	if got.Joined != 2 || got.Contexts != 2 || got.Registered != 3 || got.Changed != 1 || got.Deleted != 1 || got.Refused != 1 || got.Watched != 1 || got.Resources < 2 {
		t.Errorf("%+v", got)
	}
	for i, want := range []QuestionStats{
		{Kind: "find", Found: 1, None: 1, Partial: 1},
		{Kind: "lookup", Found: 1, Failed: 1},
		{Kind: "all", Found: 1},
		{Kind: "next", None: 1}, // the first batch had both answers
	} {
		q := got.Questions[i]
		n := q.Took.Count
		q.Took = want.Took
		if q.Kind != want.Kind || q.Found != want.Found || q.None != want.None || q.Partial != want.Partial || q.Failed != want.Failed || n != want.Found+want.None+want.Partial+want.Failed {
			t.Errorf("%+v, %d timed; want %+v", q, n, want)
		}
	}
	c.Close()
	eventually.True(t, "a context has ended", func() bool { return s.Stats().Ended == 1 })
	if got := s.Stats(); got.Lapsed != 2 || got.Deleted != 1 || got.Contexts != 1 {
		t.Errorf("after a context has ended: %+v", got)
	}
}

package cluster

import (
	"context"
	"errors"
	"slices"
	"testing"
	"time"

	"github.com/rocl-go/rocl/directory"
	"github.com/rocl-go/rocl/directory/search"
	"github.com/rocl-go/rocl/resource"
)

// A trace says who was asked, how, and what came of it; flat, it shows every
// member.
func TestTrace(t *testing.T) {
	small := func(c *Config) { c.Fan, c.Spread = 2, time.Hour } // no summaries
	cs := []*Cluster{member(t, 1, small)}
	for i := range resource.NodeID(5) {
		cs = append(cs, member(t, i+2, small, cs[0]))
	}
	together(t, cs...)
	a := cs[0]
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	want := []resource.GID{put(t, cs[2], 1, resource.Attrs{"type": "gpu"}), put(t, cs[4], 1, resource.Attrs{"type": "gpu"})}
	hit, miss := pattern(resource.Match{"type": "gpu"}), pattern(resource.Match{"type": "none"})
	for _, way := range []directory.Way{directory.WayAuto, directory.WayTree} {
		tr, err := a.Trace(ctx, way, miss)
		if err != nil || !tr.Found.IsZero() || tr.Covered != 5 || len(tr.Failed) != 0 || tr.Messages < 10 || tr.Sent != len(tr.Steps) || tr.Received == 0 {
			t.Errorf("%v of what nobody has: %+v, %v", way, tr, err)
		}
		if len(tr.Steps) < 2 || tr.Steps[0].How != search.HowTree || tr.Steps[0].Members < 2 {
			t.Errorf("%v: %+v", way, tr.Steps)
		}
		if tr, err = a.Trace(ctx, way, hit); err != nil || !slices.Contains(want, tr.Found) || tr.Covered < 1 || tr.Covered > 5 {
			t.Errorf("%v: %+v, %v", way, tr, err)
		}
	}
	tr, err := a.Trace(ctx, directory.WayFlat, hit)
	if err != nil || !slices.Contains(want, tr.Found) || tr.Covered != 5 || len(tr.Failed) != 0 {
		t.Errorf("%+v, %v", tr, err)
	}
	got := map[resource.NodeID]directory.TraceStep{} // the last of each
	for _, s := range tr.Steps {
		if s.How != search.HowFlat || s.Members != 1 || s.Asked < 0 || s.Took < 0 {
			t.Errorf("%+v", s)
		}
		got[s.Node] = s
	}
	for _, c := range cs[1:] {
		s := got[c.cfg.Node]
		holds := c == cs[2] || c == cs[4]
		if holds != (s.Outcome == search.Found) || holds != slices.Contains(want, s.Found) || !holds && s.Outcome != search.None {
			t.Errorf("node %d: %+v", c.cfg.Node, s)
		}
	}

	gone, stop := context.WithCancel(ctx)
	stop()
	for _, way := range []directory.Way{directory.WayAuto, directory.WayFlat} {
		if _, err := a.Trace(gone, way, miss); !errors.Is(err, context.Canceled) {
			t.Errorf("%v, cancelled: %v", way, err)
		}
	}
	a.Close()
	for _, way := range []directory.Way{directory.WayAuto, directory.WayFlat} {
		if _, err := a.Trace(ctx, way, miss); !errors.Is(err, directory.ErrClosed) {
			t.Errorf("%v, closed: %v", way, err)
		}
	}
}

// Many traces at once, of members that come and go, all end.
func TestTracesAtOnce(t *testing.T) {
	a := member(t, 1, nil)
	b := member(t, 2, nil, a)
	together(t, a, b)
	ended := make(chan error, 30)
	for i := range cap(ended) {
		go func() {
			_, err := a.Trace(t.Context(), directory.Way(i%3), pattern(resource.Match{"type": "none"}))
			ended <- err
		}()
	}
	b.Close()
	for range cap(ended) {
		if err := <-ended; err != nil {
			t.Error(err)
		}
	}
}

// The end of several answers says who was asked.
func TestCoverage(t *testing.T) {
	a := member(t, 1, nil)
	b := member(t, 2, nil, a)
	together(t, a, b)
	put(t, b, 1, resource.Attrs{"type": "gpu"})
	var cov directory.Coverage
	n := 0
	for _, err := range a.All(t.Context(), pattern(resource.Match{"type": "gpu"}), &cov) {
		if n++; err != nil {
			t.Fatal(err)
		}
	}
	if n != 1 || cov.Covered != 1 || cov.Err() != nil {
		t.Errorf("%d answers, %+v", n, cov)
	}
}

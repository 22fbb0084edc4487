// SPDX-License-Identifier: Apache-2.0

package dataflow_test

import (
	"context"
	"encoding/json"
	"errors"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/rocl-go/rocl"
	. "github.com/rocl-go/rocl/dataflow"
	"github.com/rocl-go/rocl/internal/testkit/eventually"
	"github.com/rocl-go/rocl/internal/testkit/logged"
	"github.com/rocl-go/rocl/internal/testkit/try"
	"github.com/rocl-go/rocl/rocltest"
)

// held returns a sink that takes 3 items and then waits until release is closed.
func held(release chan struct{}) Part[int, None] {
	n := 0
	return To(func(ctx context.Context, in Item[int]) error {
		if n++; n == 4 {
			select {
			case <-release:
			case <-ctx.Done():
			}
		}
		return nil
	}, Name("K"))
}

// Promise (Dataflow): Stats tells for each edge what was sent, what waits, and for how long.
func TestStats(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		release := make(chan struct{})
		g := try.Get(New("stats", Pipeline(count(100, Batch(2, 0, 0), Window(8), Size(100)), held(release))))(t)
		done := make(chan error)
		var log logged.Log
		go func() { done <- g.Run(t.Context(), LogStats(log.Logger(), time.Minute)) }()
		synctest.Wait()
		first := g.Stats()
		try.Equal(t, len(first), 1, "edges")
		time.Sleep(3 * time.Second) // in the bubble
		synctest.Wait()
		s := g.Stats()[0]
		if s.From != "S" || s.To != "K" || s.Transport != "local" || s.Size != 100 || s.Ended || s.Waits == 0 {
			t.Errorf("%+v", s)
		}
		if s.Sent != s.Received || s.Sent < 8 || s.Sent > 12 || s.Batches < 4 || s.Batches > 6+s.Waits || s.Waiting < 7 || s.Waiting > 9 {
			t.Errorf("%+v", s)
		}
		try.Equal(t, first[0].Oldest, 0)
		try.Equal(t, s.Oldest, 3*time.Second)
		close(release)
		try.OK(t, <-done)
		try.Equal(t, len(g.Stats()), 0, "edges of runs that have ended")
		try.Equal(t, log.Count("dataflow: edge", "stats.from=S", "stats.sent=100", "stats.waiting=0"), 1)
	})
}

// An item waits until the consumer has taken it, and no longer: also if the sender has not been
// told, and, from the second call of Stats on, while the consumer is busy.
func TestStatsOfConsumer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		pace, goOn := make(chan struct{}), make(chan struct{})
		src := From(func(ctx context.Context, out Out[int]) error {
			for i := range 20 {
				if i == 5 || i == 15 {
					<-goOn
				}
				if err := out.Send(ctx, i); err != nil {
					return err
				}
			}
			<-goOn
			return nil
		})
		g := try.Get(New("stats", Pipeline(src, To(func(_ context.Context, in Item[int]) error {
			if in.Value >= 5 {
				<-pace
			}
			return nil
		}))))(t)
		done := make(chan error)
		go func() { done <- g.Run(t.Context()) }()
		check := func(received, waiting uint64) {
			t.Helper()
			synctest.Wait()
			s := g.Stats()[0]
			try.Equal(t, [2]uint64{s.Received, s.Waiting}, [2]uint64{received, waiting})
		}
		check(5, 0)
		goOn <- struct{}{}
		check(15, 9) // one is being processed
		for i := range 9 {
			pace <- struct{}{}
			check(15, uint64(8-i))
		}
		goOn <- struct{}{}
		close(pace)
		check(20, 0)
		goOn <- struct{}{}
		try.OK(t, <-done)
	})
}

// Each group of a run tells the figures of its ends of the edges.
func TestStatus(t *testing.T) {
	release := make(chan struct{})
	src, sink := count(100, Window(8), Batch(2, 0, 0)), held(release)
	g := try.Get(New("status", Pipeline(src, sink)))(t)
	try.OK(t, errors.Join(g.Group("a", src), g.Group("b", sink)))
	cluster := rocltest.Cluster(t, 1)
	var wg sync.WaitGroup
	for _, name := range []string{"a", "b"} {
		c := cluster.Open(0)
		wg.Go(func() { try.Check(t, g.Run(t.Context(), InGroup(c, name, Config{Run: "r7"}))) })
	}
	c := cluster.Open(0)
	me := try.Get(c.Register(t.Context(), nil))(t)
	match := func(group string) rocl.Match {
		m := StatusMatch()
		m["graph"], m["run"], m["group"] = "status", "r7", group
		return m
	}
	ask := func(group string) (s Status) {
		found := try.Get(c.Await(t.Context(), match(group), 1))(t)
		m := try.Get(me.CallBytes(t.Context(), found[0].ID, 0, nil))(t)
		defer m.Release()
		try.OK(t, json.Unmarshal(m.Bytes(), &s))
		try.Equal(t, s.Group, group)
		try.Equal(t, len(s.Edges), 1)
		return s
	}
	eventually.True(t, "the source waits for credit", func() bool { return ask("a").Edges[0].Waits > 0 })
	eventually.True(t, "the window is full of items that wait", func() bool { e := ask("b").Edges[0]; return e.Received >= 8 && e.Waiting > 0 })
	a, b := ask("a").Edges[0], ask("b").Edges[0]
	if a.Sent < 8 || a.Sent > 13 || a.Batches < 4 || a.Transport == "local" || a.Transport == "none" || a.Received != 0 || a.Bytes == 0 {
		t.Errorf("%+v", a)
	}
	if b.Received < 8 || b.Received > 13 || b.Sent != 0 || b.Ended {
		t.Errorf("%+v", b)
	}
	close(release)
	wg.Wait()
}

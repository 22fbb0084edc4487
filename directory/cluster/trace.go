// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"context"
	"slices"
	"sync"
	"time"

	"github.com/rocl-go/rocl/directory"
	"github.com/rocl-go/rocl/directory/internal/search"
	"github.com/rocl-go/rocl/directory/strategy"
	"github.com/rocl-go/rocl/resource"
)

// unicastAtOnce is how many members a trace by unicast asks at a time: all answers come to one
// socket.
const unicastAtOnce = 64

// trace implements Cluster.Trace.
func (a *asker) trace(ctx context.Context, by strategy.Strategy, pattern *resource.List) (directory.Trace, error) {
	q := question(kindFind, resource.GID{}, pattern)
	begun := time.Now()
	if by == strategy.Unicast {
		return a.traceUnicast(ctx, q, begun)
	}
	var t directory.Trace
	rec := &search.Recorder{Begun: begun}
	if by != strategy.Auto {
		rec.Everybody, rec.Strategy = true, by
	}
	r, err := a.searches.run(ctx, among(nil, 0, q, rec))
	if err != nil {
		return t, err
	}
	add(&t, rec)
	if r.Found {
		found, err := parseAnswer(r.Answer)
		if err != nil {
			return t, err
		}
		t.Found = found.ID
		for i, s := range t.Steps {
			if s.How != search.HowSummary && i > 0 && t.Steps[i-1].How == search.HowSummary {
				t.Covered = 0 // those asked by summary are asked again, among all members
			}
			if s.Outcome == search.Found {
				t.Covered++
			}
			t.Covered += s.Covered
		}
		return t, nil
	}
	t.Covered, t.Failed = r.Covered-1, r.Failed // without this node
	return t, nil
}

// traceUnicast asks every member by itself, whatever the other members say.
func (a *asker) traceUnicast(ctx context.Context, q []byte, begun time.Time) (directory.Trace, error) {
	var mu sync.Mutex // guards t and first
	var t directory.Trace
	var first error
	atOnce(a.members.otherMembers(), unicastAtOnce, func(_ int, m resource.NodeID) {
		rec := &search.Recorder{Begun: begun}
		r, err := a.searches.run(ctx, among([]resource.NodeID{m}, 0, q, rec))
		mu.Lock()
		defer mu.Unlock()
		if err != nil {
			first = err
			return
		}
		add(&t, rec)
		if len(r.Failed) > 0 {
			t.Failed = append(t.Failed, m)
			return
		}
		t.Covered++
		if r.Found && t.Found.IsZero() {
			t.Found = t.Steps[len(t.Steps)-1].Found
		}
	})
	slices.Sort(t.Failed)
	slices.SortStableFunc(t.Steps, func(a, b directory.TraceStep) int { return int(a.Asked - b.Asked) })
	return t, first
}

// add appends the steps that rec has recorded to t, and counts packets.
func add(t *directory.Trace, rec *search.Recorder) {
	t.More += rec.More
	sent, received, below, cast := 0, 0, 0, false
	for _, s := range rec.Steps {
		if s.How != search.HowBroadcast || !cast { // all members of a cast are asked with one packet
			sent++
		}
		cast = cast || s.How == search.HowBroadcast
		if s.Answered() {
			received++
			below += 2 * max(s.Covered-1, 0) // asked, and answered
		}
		if s.Outcome == search.Found {
			if a, err := parseAnswer(s.Answer); err == nil {
				s.Found = a.ID
			}
		}
		t.Steps = append(t.Steps, s.Step)
	}
	t.Messages += sent + received + below
	t.Sent += sent
	t.Received += received
}

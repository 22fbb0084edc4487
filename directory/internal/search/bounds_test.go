// SPDX-License-Identifier: Apache-2.0

package search

import (
	"testing"
	"time"

	"github.com/rocl-go/rocl/directory/strategy"
	"github.com/rocl-go/rocl/internal/testkit/try"
	"github.com/rocl-go/rocl/resource"
)

// A trace is bounded, and a search without one allocates nothing for it.
func TestTraceBounds(t *testing.T) {
	tr := &Recorder{Steps: make([]Step, maxSteps)}
	tr.asked(time.Time{}, HowUnicast, 1)
	if len(tr.Steps) != maxSteps || tr.More != 1 {
		t.Errorf("%d steps and %d", len(tr.Steps), tr.More)
	}
	tr = nil
	packet := Packet{Type: typeNone}
	if n := testing.AllocsPerRun(100, func() {
		tr.asked(time.Time{}, HowUnicast, 1)
		tr.heard(time.Time{}, 1, &packet)
		tr.silent(1)
	}); n != 0 || tr.everybody() || tr.strategyOr(strategy.Unicast) != strategy.Unicast {
		t.Errorf("%v allocations", n)
	}
}

// A busy head has not answered.
func TestTraceHeard(t *testing.T) {
	now := time.Unix(1, 0)
	tr := &Recorder{Begun: now.Add(-time.Second)}
	tr.asked(now, HowTree, 1, 2)
	for _, p := range []Packet{
		{Type: typeBusy, Lo: 1, Hi: 2},
		{Type: typeNone, Lo: 1, Hi: 1, Covered: 1}, // of another question
	} {
		if tr.heard(now, 1, &p); tr.Steps[0].Answered() || tr.Steps[0].Took != 0 {
			t.Errorf("%+v is an answer: %+v", p, tr.Steps[0])
		}
	}
	tr.heard(now.Add(time.Minute), 1, &Packet{Type: typeNone, Lo: 1, Hi: 2, Covered: 2, Failed: []resource.NodeID{2}})
	if s := tr.Steps[0]; s.Outcome != None || s.Covered != 1 || s.Failed != 1 || s.Asked != time.Second || s.Took != time.Minute {
		t.Errorf("%+v", s)
	}
}

// A question that does not fit into one datagram is not cast: no node would hear it, and each would
// be taken for silent.
func TestCastTooLarge(t *testing.T) {
	for size, casts := range map[int]int{100: 1, 101: 0} {
		cast, sent := 0, 0
		n := NewNode(Config{
			Self: 1, Strategy: strategy.Broadcast, MaxCast: 100 + head,
			Members: func() []resource.NodeID { return []resource.NodeID{1, 2, 3} },
			Send:    func(resource.NodeID, *Packet) { sent++ },
			Cast:    func(*Packet) { cast++ },
		})
		n.Search(time.Unix(1, 0), make([]byte, size), Func(func(Result) {}))
		if cast != casts || sent != 2*(1-casts) {
			t.Errorf("%d bytes: %d casts, %d packets", size, cast, sent)
		}
	}
}

// SearchAmong asks a node that is named more than once as if it were named once.
func TestAmongNamedTwice(t *testing.T) {
	now, sent := time.Unix(1, 0), map[resource.NodeID]int{}
	n := NewNode(Config{
		Self:    1,
		Members: func() []resource.NodeID { return []resource.NodeID{1, 2, 3} },
		Send:    func(to resource.NodeID, _ *Packet) { sent[to]++ },
	})
	var r *Result
	n.SearchAmong(now, []resource.NodeID{2, 3, 2, 4, 2, 4}, 0, []byte("gold"), nil, Func(func(o Result) { r = &o }))
	for at := n.Next(); !at.IsZero(); at = n.Next() {
		n.Tick(at)
	}
	if r == nil || len(r.Failed) != 3 || r.Covered != 0 || sent[2] != DefaultTries || sent[3] != DefaultTries {
		t.Errorf("%+v, sent %v", r, sent)
	}
}

// Nodes that were asked in vain get longer for their answers in each later round, up to a bound.
func TestAmongLaterRounds(t *testing.T) {
	for round, hops := range map[int]time.Duration{0: 1, 1: 2, 3: 8, 100: 8} {
		now := time.Unix(1, 0)
		n := NewNode(Config{
			Self: 1, Hop: time.Second,
			Members: func() []resource.NodeID { return []resource.NodeID{1, 2, 3} },
			Send:    func(resource.NodeID, *Packet) {},
		})
		ended := false
		n.SearchAmong(now, []resource.NodeID{2}, round, []byte("gold"), nil, Func(func(Result) { ended = true }))
		for at := n.Next(); !at.IsZero() && !ended; at = n.Next() {
			now = at
			n.Tick(at)
		}
		try.Equal(t, now.Sub(time.Unix(1, 0)).Round(time.Second), DefaultTries*hops*time.Second, "round %d takes", round)
	}
}

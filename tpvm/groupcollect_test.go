// SPDX-License-Identifier: Apache-2.0

package tpvm

import (
	"errors"
	"fmt"
	"testing"

	"github.com/rocl-go/rocl"
	"github.com/rocl-go/rocl/internal/testkit/try"
)

// When a member ends, no mailbox of the other members in its task is looked at, and memory is taken
// once for all of them. Here they have no mailbox.
func TestGroupDeparturesShared(t *testing.T) {
	a := &groupAgent{name: "g", members: map[int]member{}, departed: map[int]Member{}, local: map[TID]*Group{}}
	var gs []*Group
	for i := range 10 {
		id := try.Get(rocl.ParseGID(fmt.Sprintf("000000000001-2-%x", i+1)))(t)
		gs = append(gs, &Group{a: a, inst: i})
		a.local[id] = gs[i]
	}
	const ends = 3*mostDepartures + 1
	for i := range ends {
		m := member{Inst: 100}
		a.members[m.Inst] = m
		a.goneLocked(m, i%2 == 0, nil)
		if n := len(a.log.all); n > 2*mostDepartures {
			t.Fatalf("%d departures are kept", n)
		}
	}
	if n := len(a.log.since(0)); n < mostDepartures || a.log.end() != ends {
		t.Fatalf("%d departures of %d are kept", n, a.log.end())
	}
	for _, g := range gs {
		if len(g.absent) != 0 {
			t.Fatalf("a member that was no root keeps %d departures", len(g.absent))
		}
		var e *MemberError
		if err := a.lackLocked(g, 10); !errors.As(err, &e) || len(e.Members) != mostUnreported {
			t.Fatal(err)
		}
		try.OK(t, a.lackLocked(g, 10), "named twice")
	}
}

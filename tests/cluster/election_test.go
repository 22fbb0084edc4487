// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/rocl-go/rocl"
	"github.com/rocl-go/rocl/election"
	"github.com/rocl-go/rocl/internal/testkit/eventually"
)

// Held says whether an agent holds the name, or has lost it, and its last number.
type Held struct {
	Holds, IsLost bool
	Number        uint64
}

// HoldName makes the agent hold a name, or wait for it, until the process ends.
func (a *Agent) HoldName(name string, _ *struct{}) error {
	go func() {
		if term, err := election.Hold(context.Background(), a.c, rocl.Attrs{"name": name}); err == nil {
			a.mu.Lock()
			a.term = term
			a.mu.Unlock()
		}
	}()
	return nil
}

// Held returns what has become of HoldName.
func (a *Agent) Held(_ struct{}, out *Held) error {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.term != nil {
		*out = Held{a.term.Err() == nil, errors.Is(a.term.Err(), election.ErrLost), a.term.Number()}
	}
	return nil
}

// The node of the holder is cut off. A standby of another node takes the name. When the cut ends,
// the older one still has it, with a greater number, and the newer one has lost it.
func TestHeldNameCut(t *testing.T) {
	parallel(t)
	l := up(t, 3)
	older, newer, observer := l.nodes[0].agent(), l.nodes[1].agent(), l.nodes[2].agent()
	held := func(a *agent) Held { return do[struct{}, Held](a, "Held", struct{}{}) }
	claims := func(n int) {
		t.Helper()
		eventually.True(t, "the claims are there", func() bool {
			return len(observer.all(rocl.Match{election.AttrName: `"name"="x"`}).IDs) == n
		})
	}
	do[string, struct{}](older, "HoldName", "x")
	eventually.True(t, "the first one holds the name", func() bool { return held(older).Holds })
	do[string, struct{}](newer, "HoldName", "x")
	claims(2)
	l.cut(l.nodes[:1], l.nodes)
	began := time.Now()
	eventually.True(t, "a standby of another node has taken the name", func() bool { return held(newer).Holds })
	t.Logf("taken over after %v", time.Since(began))
	if !held(older).Holds {
		t.Error("the older one was told that it has lost the name, while it was cut off")
	}
	l.heal()
	began = time.Now()
	eventually.True(t, "the newer one has lost the name", func() bool { return held(newer).IsLost })
	t.Logf("told after %v", time.Since(began))
	eventually.True(t, "the older one has a greater number", func() bool { return held(older).Number > held(newer).Number })
	claims(1)
	if !held(older).Holds {
		t.Error("the older one has lost the name")
	}
}

// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"context"
	"errors"
	"fmt"
	"net"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/rocl-go/rocl/directory"
	"github.com/rocl-go/rocl/directory/internal/search"
	"github.com/rocl-go/rocl/directory/strategy"
	"github.com/rocl-go/rocl/internal/testkit/eventually"
	"github.com/rocl-go/rocl/internal/testkit/try"
	"github.com/rocl-go/rocl/resource"
)

// freeGroup returns a multicast group on this machine that no other test uses.
func freeGroup(t *testing.T) string {
	c := try.Get(net.ListenPacket("udp", "127.0.0.1:0"))(t)
	defer c.Close()
	return fmt.Sprint("239.255.7.7:", c.LocalAddr().(*net.UDPAddr).Port)
}

// noMember returns a trace for what no member has, and checks that all other members deny it.
func noMember(t *testing.T, a *Cluster, by strategy.Strategy, others int) directory.Trace {
	t.Helper()
	tr, err := a.Trace(t.Context(), by, pattern(resource.Match{"type": "none"}))
	if err != nil || !tr.Found.IsZero() || tr.Covered != others || len(tr.Failed) != 0 || tr.Received == 0 || tr.Messages < tr.Sent+tr.Received {
		t.Errorf("%v of what nobody has: %+v, %v", by, tr, err)
	}
	return tr
}

// A trace tells which members were asked, how, and with what result. With unicast it shows every
// member.
func TestTrace(t *testing.T) { inMemory(t, testTrace) }

func testTrace(t *testing.T) {
	small := func(c *Config) { c.Fan, c.Spread, c.Hop = 2, time.Hour, time.Second } // no summaries
	cs := []*Cluster{member(t, 1, small)}
	for i := range resource.NodeID(5) {
		cs = append(cs, member(t, i+2, small, cs[0]))
	}
	together(t, cs...)
	a := cs[0]
	ctx := eventually.Context(t)
	want := []resource.GID{put(t, cs[2], 1, resource.Attrs{"type": "gpu"}), put(t, cs[4], 1, resource.Attrs{"type": "gpu"})}
	hit, miss := pattern(resource.Match{"type": "gpu"}), pattern(resource.Match{"type": "none"})
	for by, how := range map[strategy.Strategy]string{
		strategy.Tree:      search.HowTree,
		strategy.Auto:      search.HowUnicast, // there are few members
		strategy.Broadcast: search.HowUnicast, // there is no group
	} {
		tr := noMember(t, a, by, 5)
		if tr.Messages < 10 || tr.Sent != len(tr.Steps) || len(tr.Steps) < 2 || tr.Steps[0].How != how || (tr.Steps[0].Members > 1) != (how == search.HowTree) {
			t.Errorf("%v: %+v", by, tr)
		}
		if tr, err := a.Trace(ctx, by, hit); err != nil || !slices.Contains(want, tr.Found) || tr.Covered < 1 || tr.Covered > 5 {
			t.Errorf("%v: %+v, %v", by, tr, err)
		}
	}
	tr, err := a.Trace(ctx, strategy.Unicast, hit)
	if err != nil || !slices.Contains(want, tr.Found) || tr.Covered != 5 || len(tr.Failed) != 0 {
		t.Errorf("%+v, %v", tr, err)
	}
	got := map[resource.NodeID]directory.TraceStep{} // the last step of each
	for _, s := range tr.Steps {
		if s.How != search.HowUnicast || s.Members != 1 || s.Asked < 0 || s.Took < 0 {
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
	for _, by := range []strategy.Strategy{strategy.Auto, strategy.Unicast} {
		try.Fails(a.Trace(gone, by, miss))(t, context.Canceled, "%v, cancelled", by)
	}
	a.Close()
	for _, by := range []strategy.Strategy{strategy.Auto, strategy.Unicast} {
		try.Fails(a.Trace(ctx, by, miss))(t, directory.ErrClosed, "%v, closed", by)
	}
}

// Members with a group are asked with one packet.
func TestTraceCast(t *testing.T) {
	group := func(c *Config) { c.Spread, c.Hop, c.Group = time.Hour, time.Second, freeGroup(t) }
	a := member(t, 1, group)
	group = func(c *Config) { c.Spread, c.Group = time.Hour, a.cfg.Group }
	together(t, a, member(t, 2, group, a), member(t, 3, group, a), member(t, 4, group, a))
	for _, by := range []strategy.Strategy{strategy.Auto, strategy.Broadcast} {
		// After the first cast that a member hears from another one, it only asks for the floor.
		eventually.True(t, "all hear it", func() bool {
			tr := noMember(t, a, by, 3)
			if len(tr.Steps) < 3 {
				t.Fatalf("%v: %+v", by, tr)
			}
			for _, s := range tr.Steps[:3] {
				if s.How != search.HowBroadcast || s.Members != 1 {
					t.Fatalf("%v: %+v", by, tr)
				}
			}
			return len(tr.Steps) == 3 && tr.Sent == 1 && tr.Received == 3 && tr.Messages == 4
		})
	}
	if tr := noMember(t, a, strategy.Tree, 3); tr.Steps[0].How == search.HowBroadcast {
		t.Errorf("a tree: %+v", tr)
	}
}

// A member that lives and does not answer is silent, and named. Questions wait for it until the
// patience is over.
//
// Promise (Cluster searches): A member that lives and does not answer is waited for and named.
// Commands then end with exit code 3. See also TestSilentNode.
func TestSilent(t *testing.T) { inMemory(t, testSilent) }

func testSilent(t *testing.T) {
	var sure atomic.Bool // the third member does not know yet what its node has
	a, _, c := three(t, func(c *Config) { c.Hop, c.Patience = 400*time.Millisecond, 100*time.Millisecond }, nil, func(c *Config) { c.Sure = sure.Load })
	id := put(t, c, 1, resource.Attrs{"type": "there"})
	what, miss := resource.Match{"type": "there"}, resource.Match{"type": "none"}
	for _, by := range []strategy.Strategy{strategy.Auto, strategy.Unicast} {
		tr, err := a.Trace(t.Context(), by, pattern(miss))
		if err != nil || tr.Covered != 1 || !slices.Equal(tr.Failed, []resource.NodeID{3}) {
			t.Errorf("%v: %+v, %v", by, tr, err)
		}
		for _, s := range tr.Steps {
			if s.Node == 3 && (s.Outcome != search.Silent || s.Took != 0) {
				t.Errorf("%v: %+v", by, s)
			}
		}
	}
	finds(t, a, what, id)
	if _, err := a.Find(t.Context(), pattern(miss)); !errors.Is(err, directory.ErrPartial) || !strings.Contains(err.Error(), "[000000000003]") {
		t.Errorf("found where one is silent: %v", err)
	}
	try.Fails(a.Lookup(t.Context(), id.WithSerial(9), pattern(nil)))(t, directory.ErrPartial, "by identifier")
	for _, of := range []resource.Match{what, miss} { // a cursor would lack what is about to be offered again
		var cov directory.Coverage
		for _, err := range a.All(t.Context(), pattern(of), &cov) {
			t.Errorf("something, %v", err)
		}
		if cov.Covered != 1 || !slices.Equal(cov.Failed, []resource.NodeID{3}) || !errors.Is(cov.Err(), directory.ErrPartial) {
			t.Errorf("%+v", cov)
		}
	}
	if n := c.answers.cursors.count(); n > 0 || !c.answers.mayAnswer(question(kindRoll, resource.GID{}, pattern(nil))) {
		t.Errorf("%d cursors, or its members are not told", n)
	}
	sure.Store(true)
	denies(t, a, miss)
}

// Many traces at once end, while members come and go.
func TestTracesAtOnce(t *testing.T) { inMemory(t, testTracesAtOnce) }

func testTracesAtOnce(t *testing.T) {
	a, b := two(t)
	ended := make(chan error, 30)
	for i := range cap(ended) {
		go func() {
			_, err := a.Trace(t.Context(), strategy.Strategy(i%4), pattern(resource.Match{"type": "none"}))
			ended <- err
		}()
	}
	b.Close()
	for range cap(ended) {
		try.Check(t, <-ended)
	}
}

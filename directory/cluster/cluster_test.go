// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"errors"
	"fmt"
	"net"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hashicorp/memberlist"
	"github.com/rocl-go/rocl/directory"
	"github.com/rocl-go/rocl/directory/internal/database"
	"github.com/rocl-go/rocl/internal/testkit/eventually"
	"github.com/rocl-go/rocl/internal/testkit/nice"
	"github.com/rocl-go/rocl/internal/testkit/try"
	"github.com/rocl-go/rocl/resource"
	"github.com/rocl-go/rocl/subsys/simnet"
	"go.uber.org/goleak"
)

// memberlist's probes end with their timeouts, a little after its Shutdown. The same holds for
// queries of the Go runtime to a name server that hangs.
func TestMain(m *testing.M) {
	goleak.VerifyTestMain(m, goleak.IgnoreAnyFunction("github.com/hashicorp/memberlist.(*Memberlist).probeNode"),
		goleak.IgnoreAnyFunction("net.(*Resolver).lookupIPAddr.func2"), goleak.IgnoreAnyFunction("net.(*Resolver).goLookupIPCNAMEOrder"),
		goleak.IgnoreAnyFunction("net.(*Resolver).tryOneName"), goleak.IgnoreAnyFunction("net.(*Resolver).exchange"))
}

// member opens a member at a port that it finds free again when it is started anew.
func member(t *testing.T, id resource.NodeID, change func(*Config), join ...*Cluster) *Cluster {
	t.Helper()
	cfg := Config{Node: id, DB: database.New(), Name: "test", Hop: 100 * time.Millisecond, Spread: 20 * time.Millisecond, Patience: 2 * time.Second}
	for _, j := range join {
		cfg.Join = append(cfg.Join, j.Addr())
	}
	n, isInMemory := networks.Load(t)
	if isInMemory {
		cfg.Bind = ":7946"
		new(nameServer).use(&cfg) // package net looks names up outside of the bubble
	} else {
		nice.Raise(t) // a member that is late for a second is dead
		cfg.Bind = freePort(t)
	}
	if change != nil {
		change(&cfg)
	}
	if isInMemory && cfg.Network == nil {
		cfg.Network = processFor(n.(*simnet.Network), cfg.Bind)
	}
	c := try.Get(Open(cfg))(t)
	t.Cleanup(func() { c.Close() })
	return c
}

// networks has the networks in memory, by test.
var networks sync.Map

// inMemory runs test with members in a network in memory, in a bubble of testing/synctest, where
// waiting takes no real time.
func inMemory(t *testing.T, test func(t *testing.T)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		n := simnet.New(1)
		n.SetDelay(100*time.Microsecond, time.Millisecond)
		networks.Store(t, n)
		t.Cleanup(func() {
			networks.Delete(t)
			time.Sleep(time.Minute) // of virtual time: memberlist's probes end with their timeouts
		})
		test(t)
	})
}

// processFor returns a process on the host of bind, or on a new host if bind names none.
func processFor(n *simnet.Network, bind string) *simnet.Process {
	at, _, _ := net.SplitHostPort(bind)
	if h := n.Host(at); at != "" && h != nil {
		return h.Start()
	}
	return n.AddHost("").Start()
}

// unhurried makes a member that takes no other one for dead, however busy the machine is.
func unhurried(c *Config) { c.gossip = neverDead }

func neverDead(m *memberlist.Config) { m.SuspicionMult = 10_000 }

// two opens two members, of which the second joins the first, and waits until they see each other.
// changes are for the members in turn.
func two(t *testing.T, changes ...func(*Config)) (a, b *Cluster) {
	t.Helper()
	changes = append(changes, nil, nil)
	a = member(t, 1, changes[0])
	b = member(t, 2, changes[1], a)
	together(t, a, b)
	return a, b
}

// three is two for three members.
func three(t *testing.T, changes ...func(*Config)) (a, b, c *Cluster) {
	t.Helper()
	changes = append(changes, nil, nil, nil)
	a = member(t, 1, changes[0])
	b, c = member(t, 2, changes[1], a), member(t, 3, changes[2], a)
	together(t, a, b, c)
	return a, b, c
}

// summarized waits until the summary of holder, as a has it, has each of the resources what.
func summarized(t *testing.T, a, holder *Cluster, what ...*resource.List) {
	t.Helper()
	eventually.True(t, "the summary has come", func() bool {
		a.summaries.mu.Lock()
		defer a.summaries.mu.Unlock()
		s := a.summaries.filters.Of(holder.cfg.Node)
		return s != nil && !slices.ContainsFunc(what, func(l *resource.List) bool { return !s.May(l) })
	})
}

func together(t *testing.T, cs ...*Cluster) {
	t.Helper()
	for _, c := range cs {
		eventually.True(t, "one view", func() bool { return len(c.Members()) == len(cs) })
	}
}

// asks returns what c finds by what. It asks again while members are silent: on a busy machine a
// member may answer too late.
func asks(t *testing.T, c *Cluster, what resource.Match, want ...string) (r resource.Record, err error) {
	t.Helper()
	ctx := eventually.Context(t)
	for again := true; again; again = errors.Is(err, directory.ErrPartial) && ctx.Err() == nil {
		r, err = c.Find(ctx, pattern(what, want...))
	}
	return r, err
}

// finds checks that c finds the resource want by what.
func finds(t *testing.T, c *Cluster, what resource.Match, want resource.GID) {
	t.Helper()
	try.Equal(t, try.Get(asks(t, c, what))(t).ID, want, "node %d: %v", c.cfg.Node, what)
}

// denies checks that c says for certain that no other member has what.
func denies(t *testing.T, c *Cluster, what resource.Match) {
	t.Helper()
	try.Fails(asks(t, c, what))(t, directory.ErrNotFound, "node %d: %v", c.cfg.Node, what)
}

// kill ends a member as the death of its process does: the other members are not told.
func kill(c *Cluster) {
	_ = c.abandon(directory.ErrClosed)
}

func put(t *testing.T, c *Cluster, serial uint32, a resource.Attrs) resource.GID {
	t.Helper()
	l := try.Get(resource.NewPattern(a))(t)
	id := resource.MakeGID(c.cfg.Node, 1, serial)
	try.Get(c.cfg.DB.Put(id, id.Context(), l))(t)
	return id
}

func pattern(a resource.Attributes, want ...string) *resource.List {
	l, err := resource.NewPattern(a, want...)
	if err != nil {
		panic(err)
	}
	return l
}

// The other members find what one member has, by attributes and by identifier. What no member has
// is denied for certain.
//
// Promise (Cluster searches): A resource that a member holds is found from every member by each
// strategy. What none holds is denied for certain. Members that could not be asked are named.
// See also TestStrategies.
func TestFind(t *testing.T) {
	a, b, c := three(t)
	ctx := eventually.Context(t)
	big := strings.Repeat("x", 100_000)
	small, large := put(t, c, 1, resource.Attrs{"type": "gpu", "name": "titan"}), put(t, b, 1, resource.Attrs{"type": "store", "content": big})
	for _, from := range []*Cluster{a, b} {
		r, err := asks(t, from, resource.Match{"type": "gpu"}, "name")
		if err != nil || r.ID != small || r.Owner != small.Context() || r.Attrs.GetString("name") != "titan" {
			t.Fatalf("found %+v: %v", r, err)
		}
	}
	if r, err := asks(t, a, resource.Match{"type": "store"}); err != nil || r.Attrs.GetString("content") != big {
		t.Fatalf("a large answer: %v", err)
	}
	if r, err := a.Lookup(ctx, large, pattern(nil, "type")); err != nil || r.ID != large || r.Attrs.GetString("type") != "store" {
		t.Fatalf("by identifier: %+v: %v", r, err)
	}
	var want []resource.GID
	for i := range uint32(7) {
		for _, m := range []*Cluster{b, c} {
			want = append(want, put(t, m, 10+i, resource.Attrs{"type": "many"}))
		}
	}
	var got []resource.GID
	for r, err := range a.All(ctx, pattern(resource.Match{"type": "many"}), new(directory.Coverage)) {
		try.OK(t, err)
		got = append(got, r.ID)
	}
	slices.SortFunc(want, resource.GID.Compare)
	if slices.SortFunc(got, resource.GID.Compare); !slices.Equal(got, want) {
		t.Errorf("all are %v, want %v", got, want)
	}
	for range a.All(ctx, pattern(resource.Match{"type": "many"}), new(directory.Coverage)) {
		break
	}
	for what, err := range map[string]error{
		"find":   second(asks(t, a, resource.Match{"type": "none"})),
		"lookup": second(a.Lookup(ctx, large.WithSerial(9), pattern(nil, "type"))),
	} {
		try.Fails(err)(t, directory.ErrNotFound, "%s of what nobody has", what)
	}
	try.Fails(a.Lookup(ctx, resource.MakeGID(99, 1, 1), pattern(nil)))(t, directory.ErrPartial, "an identifier of an unknown node")
	c.Close()
	eventually.True(t, "it left", func() bool { return len(a.Members()) == 2 })
	denies(t, a, resource.Match{"type": "gpu"})
}

// Summaries save questions, and never cost an answer. A resource that is too new for them is found,
// and one that is gone is denied.
//
// Promise (Cluster searches): A summary of what a member holds saves questions and costs no answer.
func TestFilters(t *testing.T) { inMemory(t, testFilters) }

func testFilters(t *testing.T) {
	slow := func(c *Config) { c.Spread = time.Hour }
	patient := func(c *Config) { c.Hop = 5 * time.Second } // a late answer is not asked for again: packets are counted
	cs := []*Cluster{member(t, 1, patient)}
	for i := range resource.NodeID(7) {
		cs = append(cs, member(t, i+2, nil, cs[0]))
	}
	cs = append(cs, member(t, 20, slow, cs[0]))
	together(t, cs...)
	a, holder, silent := cs[0], cs[5], cs[8]
	ctx := eventually.Context(t)
	id := put(t, holder, 1, resource.Attrs{"type": "gpu", "name": "titan"})
	what := pattern(resource.Match{"type": "gpu", "name": "titan"})
	summarized(t, a, holder, what)
	before := a.count.sent.Load()
	if r, err := a.Find(ctx, what); err != nil || r.ID != id {
		t.Fatalf("%+v, %v", r, err)
	}
	if n := a.count.sent.Load() - before; n > 3 { // the holder, and members that the filter suspects wrongly
		t.Errorf("%d packets for what one member holds", n)
	}
	fresh := put(t, silent, 1, resource.Attrs{"type": "new"})
	try.Equal(t, try.Get(a.Find(ctx, pattern(resource.Match{"type": "new"})))(t).ID, fresh, "what is in nobody's summary")
	try.OK(t, holder.cfg.DB.Delete(id))
	try.Fails(a.Find(ctx, what))(t, directory.ErrNotFound, "what is gone, and in a summary")
	var all []*resource.List
	for i := range uint32(2000) { // the summary is made anew meanwhile
		put(t, holder, 100+i, resource.Attrs{"serial": fmt.Sprint(i)})
		all = append(all, pattern(resource.Match{"serial": fmt.Sprint(i)}))
	}
	summarized(t, a, holder, all...)
}

func second[T any](_ T, err error) error { return err }

// Clusters with different names or keys do not hear each other.
//
// Promise (Clusters): Clusters of another name or key do not hear each other.
func TestApart(t *testing.T) { inMemory(t, testApart) }

func testApart(t *testing.T) {
	a := member(t, 1, nil)
	key := func(k string) func(*Config) { return func(c *Config) { c.Keys = [][]byte{[]byte(k)} } }
	x := member(t, 4, key("one"))
	others := []*Cluster{
		member(t, 2, func(c *Config) { c.Name = "other" }, a), member(t, 3, key("two"), a),
		member(t, 5, key("two"), x), member(t, 6, nil, x),
	}
	y := member(t, 7, key("one"), x)
	together(t, x, y)
	put(t, x, 1, resource.Attrs{"type": "secret"})
	for _, c := range append(others, a) {
		try.Equal(t, len(c.Members()), 1, "members that node %d sees", c.cfg.Node)
		want := directory.ErrPartial // c has not reached the members that it is to join
		if c == a {
			want = directory.ErrNotFound
		}
		try.Fails(c.Find(t.Context(), pattern(resource.Match{"type": "secret"})))(t, want, "node %d", c.cfg.Node)
	}
	try.Works(y.Find(t.Context(), pattern(resource.Match{"type": "secret"})))(t)
}

func TestClosed(t *testing.T) {
	a := member(t, 1, nil)
	a.Close()
	a.Close()
	try.Fails(a.Find(t.Context(), pattern(nil)))(t, directory.ErrClosed)
	for _, bind := range []string{"", "x", "127.0.0.1:x", "127.0.0.1:99999"} {
		if c, err := Open(Config{Node: 1, DB: database.New(), Bind: bind}); err == nil {
			c.Close()
			t.Errorf("bound to %q", bind)
		}
	}
}

// anew starts a member anew without its leaving, as a daemon is restarted.
func anew(t *testing.T, c *Cluster, change func(*Config), join ...*Cluster) *Cluster {
	t.Helper()
	at := c.Addr()
	try.OK(t, c.HandOver())
	return member(t, c.cfg.Node, func(cfg *Config) {
		cfg.Bind = at
		if change != nil {
			change(cfg)
		}
	}, join...)
}

// A member that is started anew is not taken for dead: questions wait until it answers, and until
// it knows what it has. For the other members it stays a member all the time. Its own questions do
// not get answers to questions of its former life.
func TestRestarted(t *testing.T) { inMemory(t, testRestarted) }

func testRestarted(t *testing.T) {
	a, b := two(t, func(c *Config) { c.Patience = time.Minute })
	ctx := eventually.Context(t)
	restarted, watched := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(watched)
		for {
			news := a.members.news()
			try.Equal(t, len(a.Members()), 2, "members")
			select {
			case <-news:
			case <-restarted:
				return
			}
		}
	}()
	for i := range uint32(20) {
		x := put(t, a, 100+i, resource.Attrs{"x": fmt.Sprint(i)})
		y := put(t, b, 100+i, resource.Attrs{"y": fmt.Sprint(i)})
		if r, err := b.Find(ctx, pattern(resource.Match{"x": fmt.Sprint(i)})); err != nil || r.ID != x {
			t.Fatalf("%d: the restarted finds %+v: %v", i, r, err)
		}
		denies(t, b, resource.Match{"x": "none"}) // with a number that a may remember
		if i%5 > 0 {
			continue
		}
		var asked, offered atomic.Bool
		done := make(chan error)
		try.OK(t, b.HandOver())
		go func() {
			r, err := a.Find(ctx, pattern(resource.Match{"y": fmt.Sprint(i)}))
			if err == nil && r.ID != y {
				err = fmt.Errorf("found %v in place of %v", r.ID, y)
			}
			done <- err
		}()
		b = anew(t, b, func(c *Config) {
			c.Sure = func() bool {
				asked.Store(true)
				return offered.Load()
			}
		}, a)
		eventually.True(t, "the question has come", asked.Load)
		put(t, b, 100+i, resource.Attrs{"y": fmt.Sprint(i)})
		offered.Store(true)
		try.OK(t, <-done, "%d: what the restarted has", i)
	}
	close(restarted)
	<-watched
}

// A node that comes back at another address is the same node.
func TestMoved(t *testing.T) { inMemory(t, testMoved) }

func testMoved(t *testing.T) {
	a, b := two(t)
	b = anew(t, b, func(c *Config) { c.Bind = ":7946" }, a) // of another host
	eventually.True(t, "the member is seen where it is now", func() bool {
		a.members.mu.Lock()
		defer a.members.mu.Unlock()
		n := a.members.nodes[2]
		return n != nil && n.isAlive && n.addr == b.Addr()
	})
	together(t, a, b)
}

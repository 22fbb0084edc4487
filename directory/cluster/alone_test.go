// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/hashicorp/memberlist"
	"github.com/rocl-go/rocl/directory"
	"github.com/rocl-go/rocl/internal/testkit/eventually"
	"github.com/rocl-go/rocl/internal/testkit/logged"
	"github.com/rocl-go/rocl/internal/testkit/try"
	"github.com/rocl-go/rocl/resource"
)

// A member is started anew without an address to join, because the other members join it. It does
// not deny what they have: it joins the members that still address it.
//
// Promise (Cuts and restarts): The first member, which has no addresses to join, may be restarted
// or killed without denying what others hold. See also TestMetIsWritten.
func TestSeedRestarted(t *testing.T) {
	for how, end := range map[string]func(*Cluster) error{
		"replaced": (*Cluster).HandOver,
		"killed":   func(c *Cluster) error { kill(c); return nil },
	} {
		t.Run(how, func(t *testing.T) {
			inMemory(t, func(t *testing.T) {
				keyed := func(c *Config) { c.Keys = [][]byte{[]byte("the key of the cluster")} }
				a, b, c := three(t, keyed, keyed, keyed)
				y := put(t, b, 1, resource.Attrs{"y": ""})
				try.OK(t, end(a))
				a = anew(t, a, func(c *Config) { c.Follows = true; keyed(c) })
				finds(t, a, resource.Match{"y": ""}, y)
				x := put(t, a, 1, resource.Attrs{"x": ""})
				finds(t, b, resource.Match{"x": ""}, x)
				finds(t, c, resource.Match{"x": ""}, x)
				together(t, a, b, c)
			})
		})
	}
}

// A member does not deny a question that it does not understand, because that is of a later
// version.
//
// Promise (Clusters): A question or member of a later version is passed over, and what it has is
// not denied for certain. See also TestLaterVersion.
func TestUnknownQuestion(t *testing.T) { inMemory(t, testUnknownQuestion) }

func testUnknownQuestion(t *testing.T) {
	a, _ := two(t, func(c *Config) { c.Hop = 5 * time.Millisecond })
	for _, q := range [][]byte{question(kindRoll+1, resource.GID{}, pattern(nil)), {kindFind}, append(make([]byte, 17), "no list"...)} {
		r, err := a.searches.run(t.Context(), among(nil, 0, q, nil))
		if err != nil || r.Definite() {
			t.Errorf("question %x: %+v: %v", q[:1], r, err)
		}
	}
	try.Fails(a.Find(t.Context(), pattern(resource.Match{"a": "b"})))(t, directory.ErrNotFound)
}

// Two nodes have the same number, from a copied file. A member that meets both logs it, and so does
// one of the two, because each member believes in only one of them.
//
// Promise (Clusters): A node number that two nodes have is logged. Until one ends, nothing is
// denied for certain.
func TestSameNumber(t *testing.T) { inMemory(t, testSameNumber) }

func testSameNumber(t *testing.T) {
	var seen, own logged.Log
	logTo := func(l *logged.Log) func(*Config) {
		return func(c *Config) { c.Logger = l.Logger() }
	}
	a, _ := two(t, logTo(&seen))
	put(t, member(t, 2, logTo(&own), a), 1, resource.Attrs{"at": "twin"})
	const said = "two nodes have one number"
	eventually.True(t, "it is logged", func() bool { return seen.Count(said) > 0 && own.Count(said) > 0 })
	for range 5 {
		if err := second(a.Find(t.Context(), pattern(resource.Match{"at": "twin"}))); err != nil && !errors.Is(err, directory.ErrPartial) {
			t.Errorf("what one of the two may have: %v", err)
		}
	}
	var again logged.Log
	e := events{member(t, 4, logTo(&again)).gossip}
	one, two := &memberlist.Node{Name: name(5), Port: 1}, &memberlist.Node{Name: name(5), Port: 2}
	other, another := &memberlist.Node{Name: name(6), Port: 2}, &memberlist.Node{Name: name(6), Port: 1}
	for range 10 { // two nodes have swapped their addresses
		e.NotifyConflict(one, two)
		e.NotifyConflict(other, another)
		e.NotifyConflict(two, one)
	}
	try.Equal(t, again.Count(said), 2, "lines about two conflicts")
}

// A member that changes to a version that is not understood is not asked any more, and delays no
// question. It lives, so that what it has is not denied for certain.
func TestLaterVersion(t *testing.T) { inMemory(t, testLaterVersion) }

func testLaterVersion(t *testing.T) {
	a, b := two(t)
	n := &memberlist.Node{Name: name(2), Addr: b.mux.Addr().IP, Port: uint16(b.mux.Addr().Port), Meta: []byte{metaVersion + 1, 0}}
	a.members.seen(n, true)
	if m := a.Members(); len(m) != 1 {
		t.Errorf("members: %v", m)
	}
	if err := second(a.Find(t.Context(), pattern(resource.Match{"a": "b"}))); !errors.Is(err, directory.ErrPartial) || !strings.Contains(err.Error(), b.Addr()) {
		t.Error(err)
	}
	a.members.seen(n, false)
	denies(t, a, resource.Match{"a": "b"})
	a.members.seen(n, true)
	n.Meta = b.gossip.meta()
	a.members.seen(n, true)
	try.Check(t, a.joiner.incomplete())
	if m := a.Members(); len(m) != 2 {
		t.Errorf("members, when it is understood again: %v", m)
	}
	n.Name, n.Meta = "no number", nil
	a.members.seen(n, true)
	n.Name = name(3)
	a.members.seen(n, true)
	if m := a.Members(); len(m) != 2 {
		t.Errorf("members: %v", m)
	}
}

// The name of a cluster may have any bytes. A name that is too long is refused.
func TestNames(t *testing.T) { inMemory(t, testNames) }

func testNames(t *testing.T) {
	for _, odd := range []string{"", "\x00\xff\n", strings.Repeat("x", maxName)} {
		two(t, func(c *Config) { c.Name = odd }, func(c *Config) { c.Name = odd })
	}
	try.Fails(Open(Config{Node: 1, Name: strings.Repeat("x", maxName+1), Bind: "127.0.0.1:0"}))(t, ErrConfig)
}

// A member that follows another server of its node may not know all members until a member that
// does gives it an account. Until then its own account says so.
//
// Promise (Cuts and restarts): A member that comes while others are away or suspected denies
// nothing of what they have. See also TestJoinWhileAway.
func TestMetFresh(t *testing.T) { inMemory(t, testMetFresh) }

func testMetFresh(t *testing.T) {
	a := member(t, 1, func(c *Config) { c.Follows, c.Join = true, []string{"127.0.0.1:1"} })
	b := member(t, 2, nil)
	account := delegate{a.gossip}.LocalState(true)
	if account[1]&accountFresh == 0 {
		t.Error("a member that follows another and has met nobody does not say so")
	}
	n := &memberlist.Node{Name: name(2), Addr: net.IPv4(127, 0, 0, 1), Port: 1, Meta: b.gossip.meta()}
	learned := func() bool {
		a.joiner.mu.Lock()
		defer a.joiner.mu.Unlock()
		return a.joiner.learnedLocked()
	}
	a.members.seen(n, true)
	if learned() {
		t.Error("a member that gives no account is enough")
	}
	delegate{a.gossip}.MergeRemoteState(account, true)
	complete := a.joiner.complete.Load
	if complete() || learned() {
		t.Error("a member that does not know the others is enough")
	}
	delegate{a.gossip}.MergeRemoteState([]byte{accountVersion, 0}, false)
	if complete() {
		t.Error("a member that was not joined is enough")
	}
	delegate{a.gossip}.MergeRemoteState([]byte{accountVersion, 0}, true)
	if !complete() || a.joiner.joined.Err() == nil {
		t.Error("a member that knows the others is not enough")
	}
	try.Equal(t, (delegate{a.gossip}).LocalState(true)[1]&accountFresh, 0, "a member that was told of all is fresh")
}

// A member that has reached none of the addresses to join denies nothing for certain, however long
// it tries. Nor does a member that has met only such a one. A member whose only address to join is
// its own is alone.
//
// Promise (Cluster searches): A member that has reached none of the members to join denies nothing
// of other nodes for certain. `ErrPartial` names the addresses.
func TestNobodyReached(t *testing.T) { inMemory(t, testNobodyReached) }

func testNobodyReached(t *testing.T) {
	const nobody = "127.0.0.1:1"
	what := pattern(resource.Match{"a": "b"})
	a := member(t, 1, func(c *Config) { c.Join = []string{nobody} })
	alone := member(t, 3, func(c *Config) { c.Join = []string{"10.0.0.2:7946"} }) // its own address
	<-a.joiner.joined.Done()
	for range 2 {
		if err := second(a.Find(t.Context(), what)); !errors.Is(err, directory.ErrPartial) || !strings.Contains(err.Error(), nobody) {
			t.Errorf("what a member has that was not reached: %v", err)
		}
	}
	var last error
	for _, err := range a.All(t.Context(), what, new(directory.Coverage)) {
		last = err
	}
	try.Fails(last)(t, directory.ErrPartial, "a listing ends with")
	if (delegate{a.gossip}).LocalState(true)[1]&accountFresh == 0 {
		t.Error("a member that has met nobody says that it knows all members")
	}
	try.Fails(alone.Find(t.Context(), what))(t, directory.ErrNotFound, "a member that is alone")
	if s := searchesOf(alone, "nobody"); s.None != 1 || s.Messages.Sum != 0 {
		t.Errorf("a search where there is no member to ask: %+v", s)
	}
	alone.Close()
	if (delegate{alone.gossip}).LocalState(true)[1]&accountFresh == 0 {
		t.Error("a member that has ended says that it knows all members")
	}
	b := member(t, 2, nil, a)
	together(t, a, b)
	eventually.True(t, "a member that was met and knows nobody else is enough, since all there are were tried", func() bool {
		return errors.Is(second(a.Find(t.Context(), what)), directory.ErrNotFound) && errors.Is(second(b.Find(t.Context(), what)), directory.ErrNotFound)
	})
}

// A member that joins while a question waits for another member's answer is asked too.
func TestComesWhileAsked(t *testing.T) { inMemory(t, testComesWhileAsked) }

func testComesWhileAsked(t *testing.T) {
	var sure atomic.Bool
	a, b := two(t, func(c *Config) { c.Patience = time.Minute }, func(c *Config) { c.Sure = sure.Load })
	asked := make(chan error)
	go func() { asked <- second(a.Find(t.Context(), pattern(resource.Match{"at": "c"}))) }()
	eventually.True(t, "the question is put", func() bool { return a.count.sent.Load() > 0 })
	c := member(t, 3, func(c *Config) {
		l := pattern(resource.Attrs{"at": "c"})
		id := resource.MakeGID(3, 1, 1)
		try.Get(c.DB.Put(id, id.Context(), l))(t)
	}, a)
	eventually.True(t, "the newcomer is a member", func() bool { return knows(a, 3) })
	sure.Store(true)
	try.Check(t, <-asked, "what the newcomer has")
	together(t, a, b, c)
}

// A node that is served again, after it has left its cluster or after its server was replaced,
// looks for the members that the previous server has met, though it is told of none to join and no
// member looks for it. It denies nothing for certain meanwhile. A node of another cluster does not
// look for them.
func TestMetBefore(t *testing.T) {
	ctx := eventually.Context(t)
	a := member(t, 1, nil)
	x := put(t, a, 1, resource.Attrs{"type": "x"})
	path := sock(t)
	serve := func(cluster string, join ...string) (*directory.Client, *Membership) {
		ms := NewMembership(cluster, Member{Bind: freePort(t), Join: join}, slog.New(slog.DiscardHandler))
		return served(t, path, ms), ms
	}
	d, ms := serve("test", a.Addr())
	eventually.True(t, "a member", func() bool { return ms.Cluster().Stats().Alive == 2 })
	d.Close()
	eventually.True(t, "it has left", func() bool { return a.Stats().Alive == 1 })
	for range 2 {
		d, _ = serve("test")
		try.Equal(t, try.Get(d.Find(ctx, pattern(resource.Match{"type": "x"})))(t).ID, x, "found")
		d.Close()
	}
	_, ms = serve("other")
	if known := ms.Cluster().members.addresses(); len(known) > 0 {
		t.Errorf("a member of another cluster looks for %v", known)
	}
}

// The next server of the node learns of members when they are met, and not some time later: the
// process may be killed a moment after that. It learns of those alive first, if there are too many.
func TestMetIsKeptAtOnce(t *testing.T) { inMemory(t, testMetIsKeptAtOnce) }

func testMetIsKeptAtOnce(t *testing.T) {
	a, b := member(t, 1000, func(c *Config) {
		c.Met = map[resource.NodeID]string{}
		for i := range mostKept {
			c.Met[resource.NodeID(i+1)] = fmt.Sprintf("127.0.1.%d:9", i+1)
		}
	}), member(t, 2000, nil)
	ms := NewMembership("test", Member{}, slog.New(slog.DiscardHandler))
	ms.cluster = a
	life, end := context.WithCancel(eventually.Context(t))
	told := make(chan map[resource.NodeID]string)
	ended := make(chan error)
	go func() {
		ended <- ms.awaitLoss(life, func() {
			select {
			case told <- ms.known():
			case <-life.Done():
			}
		})
	}()
	if met := <-told; len(met) != mostKept {
		t.Errorf("at first: %d addresses", len(met))
	}
	try.Get(b.gossip.list.Join([]string{a.Addr()}))(t)
	for met := range told {
		try.Equal(t, len(met), mostKept, "addresses")
		if met[2000] == b.Addr() {
			break
		}
	}
	end()
	try.Check(t, <-ended)
}

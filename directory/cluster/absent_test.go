// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"errors"
	"net/netip"
	"slices"
	"testing"
	"time"

	"github.com/rocl-go/rocl/directory"
	"github.com/rocl-go/rocl/internal/testkit/eventually"
	"github.com/rocl-go/rocl/internal/testkit/try"
	"github.com/rocl-go/rocl/resource"
)

// handedOver hands m over, until all others have heard that it will be back: on a busy machine the
// datagrams may be lost, and then m begins anew. It returns the member that has handed over last.
func handedOver(t *testing.T, m *Cluster, others ...*Cluster) *Cluster {
	t.Helper()
	for i := 0; ; i++ {
		together(t, append([]*Cluster{m}, others...)...)
		try.OK(t, m.HandOver())
		heard := true
		for _, o := range others {
			heard = away(t, o, m) && heard
		}
		if heard {
			return m
		}
		if i == 5 {
			t.Fatal("the other members do not hear that the member will be back")
		}
		m = anew(t, m, nil, others...)
	}
}

func knows(c *Cluster, n resource.NodeID) bool { return slices.Contains(c.Members(), n) }

// A member that starts while another one is away for its hand-over denies nothing that the absent
// member has.
func TestJoinWhileAway(t *testing.T) { inMemory(t, testJoinWhileAway) }

func testJoinWhileAway(t *testing.T) {
	a := member(t, 1, nil)
	b := member(t, 2, nil, a)
	handedOver(t, b, a)
	c := member(t, 3, func(c *Config) { c.Follows, c.Patience = true, 50*time.Millisecond }, a)
	err := second(c.Find(t.Context(), pattern(resource.Match{"at": "b"})))
	if knows(a, 2) && !errors.Is(err, directory.ErrPartial) {
		t.Errorf("what the absent member may have: %v", err)
	}
	d := member(t, 4, func(c *Config) { c.Follows, c.Patience = true, 50*time.Millisecond }, c)
	err = second(d.Find(t.Context(), pattern(resource.Match{"at": "b"})))
	if knows(a, 2) && !errors.Is(err, directory.ErrPartial) {
		t.Errorf("joined over another newcomer: %v", err)
	}
	for _, m := range []*Cluster{a, c, d} {
		eventually.True(t, "a member that does not come back is given up", func() bool { return !knows(m, 2) })
	}
	denies(t, d, resource.Match{"at": "b"})
}

// A member that starts while another one is suspected to be dead waits, as the other members do,
// until the suspicion is settled.
func TestJoinWhileSuspected(t *testing.T) { inMemory(t, testJoinWhileSuspected) }

func testJoinWhileSuspected(t *testing.T) {
	a, b := two(t)
	kill(b)
	tried := 0
	for n := resource.NodeID(3); ; n++ {
		c := member(t, n, func(c *Config) { c.Follows = true }, a)
		<-c.joiner.joined.Done()
		isKnown := knows(c, 2)
		if !knows(a, 2) {
			break
		}
		tried++
		if !isKnown {
			t.Errorf("the %dth that starts does not know the suspected member", tried)
		}
		if n%4 == 3 {
			defer eventually.True(t, "the dead is dead for who joined meanwhile", func() bool { return !knows(c, 2) })
			continue
		}
		c.Close()
	}
	t.Logf("%d started meanwhile", tried)
}

// A member that hands over does not know a newcomer. A member that does know the newcomer tells it
// that the first one will be back.
func TestAwayIsPassedOn(t *testing.T) { inMemory(t, testAwayIsPassedOn) }

func testAwayIsPassedOn(t *testing.T) {
	a, b, c := three(t)
	b.members.mu.Lock()
	b.members.nodes[3].isAlive = false // b tells only a that it goes
	b.members.mu.Unlock()
	try.OK(t, b.HandOver())
	if away(t, a, b) && !away(t, c, b) {
		t.Error("the newcomer takes an absent member for dead")
	}
}

// A member that leaves is not taken for dead if its first datagram that says so is lost.
func TestLeavingIsRepeated(t *testing.T) { inMemory(t, testLeavingIsRepeated) }

func testLeavingIsRepeated(t *testing.T) {
	a := member(t, 1, nil)
	const attempts = 20
	for n := range resource.NodeID(attempts) {
		b := member(t, 2+n, nil, a)
		together(t, a, b)
		before := a.mux.Stats().Foreign
		a.mux.Part(2 + n) // its datagrams do not open
		left := make(chan struct{})
		go func() {
			defer close(left)
			b.Close()
		}()
		eventually.True(t, "a datagram is lost", func() bool { return a.mux.Stats().Foreign > before })
		a.mux.Meet(2+n, b.mux.Epoch(), b.mux.Addr())
		<-left
		eventually.True(t, "it is gone", func() bool { return len(a.Members()) == 1 })
		if st := a.Stats(); st.Leaves > 0 && st.Dead == int(n) {
			return
		}
	}
	t.Errorf("%d of %d that left are taken for dead", attempts, attempts)
}

// An account of an unknown version or of a wrong length changes nothing. Nor does an entry about a
// living member or about the receiver itself. The time of an entry is cut to awayTime.
func TestAccounts(t *testing.T) { inMemory(t, testAccounts) }

func testAccounts(t *testing.T) {
	a, _ := two(t)
	at := netip.MustParseAddrPort("127.0.0.1:1")
	of := func(list ...absent) []byte {
		account := []byte{accountVersion, accountFresh}
		for _, x := range list {
			account = x.append(account)
		}
		return account
	}
	one := absent{7, 7, time.Hour, absentAway, at}
	six := absent{7, 7, time.Second, absentAway, netip.MustParseAddrPort("[2001:db8::1]:65535")}
	for _, x := range []absent{{7, 1 << 63, time.Second, absentGoing, at}, six} {
		try.Equal(t, parseAbsent(x.append(nil)), x, "read")
	}
	later := of(one)
	later[0]++
	for _, account := range [][]byte{nil, {accountVersion}, later, of(one)[:accountLen+absentLen-1], of(absent{1, 9, time.Second, absentAway, at}),
		of(absent{0, 9, time.Second, absentAway, at}), of(absent{7, 7, 0, absentAway, at}), of(absent{7, 7, time.Second, absentGoing + 1, at}), of(absent{2, 9, time.Second, absentAway, at})} {
		delegate{a.gossip}.MergeRemoteState(account, true)
		if m := a.Members(); !slices.Equal(m, []resource.NodeID{1, 2}) {
			t.Fatalf("members %v after %x", m, account)
		}
	}
	delegate{a.gossip}.MergeRemoteState(of(one, one), true)
	a.members.mu.Lock()
	left := time.Until(a.members.nodes[7].until)
	a.members.mu.Unlock()
	if !knows(a, 7) || left > awayTime {
		t.Errorf("members %v, one of them waited for %v", a.Members(), left)
	}
	eventually.True(t, "it is given up and forgotten", func() bool {
		a.members.mu.Lock()
		defer a.members.mu.Unlock()
		return a.members.nodes[7] == nil && len(a.members.list()) == 2
	})
}

// No gossip state is kept for members that have left, or that have been dead for long. The number
// of dead members that are remembered is limited.
//
// A member keeps little about dead members, and of at most 4,096. See also
// TestGossip.
func TestMembersAreForgotten(t *testing.T) { inMemory(t, testMembersAreForgotten) }

func testMembersAreForgotten(t *testing.T) {
	a := member(t, 1, nil)
	for n := range resource.NodeID(3) {
		b := member(t, 2+n, nil, a)
		together(t, a, b)
		b.Close()
		eventually.True(t, "it has left", func() bool { return len(a.Members()) == 1 })
	}
	if n := a.mux.Stats().Gossipers; n != 0 {
		t.Errorf("%d that have left are kept for gossip", n)
	}
	b := member(t, 9, nil, a)
	together(t, a, b)
	kill(b)
	eventually.True(t, "it is dead", func() bool { return len(a.Members()) == 1 })
	if n := a.mux.Stats().Gossipers; n != 1 {
		t.Errorf("%d are known to gossip, want the dead one: it may be alive", n)
	}
	a.joiner.mu.Lock() // no member is looked for meanwhile
	defer a.joiner.mu.Unlock()
	nodes := func(f func(map[resource.NodeID]*node)) {
		a.members.mu.Lock()
		defer a.members.mu.Unlock()
		f(a.members.nodes)
	}
	at := time.Now()
	a.members.missed(at.Add(lastGossip + time.Second))
	if n := a.mux.Stats().Gossipers; n != 0 {
		t.Errorf("%d are known to gossip", n)
	}
	nodes(func(all map[resource.NodeID]*node) {
		if all[9] == nil {
			t.Error("a member that is dead for a minute is forgotten")
		}
		for n := range resource.NodeID(mostDead) {
			all[100+n] = &node{addr: "127.0.0.1:1", lost: at.Add(time.Duration(n))}
		}
	})
	a.members.missed(at)
	nodes(func(all map[resource.NodeID]*node) {
		if all[9] != nil || all[100] == nil {
			t.Error("of the dead not the first is forgotten")
		}
		for n := range resource.NodeID(mostDead) {
			delete(all, 100+n)
		}
	})
}

// A member takes up at most mostAbsent entries of an account, as many as it would send.
func TestAccountIsBounded(t *testing.T) { inMemory(t, testAccountIsBounded) }

func testAccountIsBounded(t *testing.T) {
	a := member(t, 1, nil)
	var entries []byte
	for n := range resource.NodeID(mostAbsent + 100) {
		e := absent{id: 2 + n, epoch: 1, left: awayTime, kind: absentAway, addr: netip.MustParseAddrPort("127.0.0.1:1")}
		entries = e.append(entries)
	}
	a.members.merge(entries)
	if n := a.Stats().Away; n != mostAbsent {
		t.Errorf("%d members are awaited, want %d", n, mostAbsent)
	}
}

// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/hashicorp/memberlist"
	"github.com/rocl-go/rocl/directory"
	"github.com/rocl-go/rocl/directory/internal/mux"
	"github.com/rocl-go/rocl/internal/testkit/eventually"
	"github.com/rocl-go/rocl/internal/testkit/logged"
	"github.com/rocl-go/rocl/internal/testkit/try"
	"github.com/rocl-go/rocl/resource"
)

// A node whose address is not there is served, and denies nothing for certain. A choice between
// addresses is an error that lists them, for a process that serves first.
//
// Promise (Clusters): Where the machine lacks the cluster's address, the node is served alone,
// `/readyz` says why, and it joins by itself later. See also TestClusterAddressMoves.
func TestAddressNotThere(t *testing.T) {
	ctx := eventually.Context(t)
	var log logged.Log
	ms := NewMembership("test", Member{Bind: "198.51.100.1:7946"}, log.Logger())
	var attempts atomic.Int32
	ms.open = func(cfg Config) (*Cluster, error) {
		attempts.Add(1)
		return Open(cfg)
	}
	d := served(t, sock(t), ms)
	try.Get(d.Register(ctx, d.Self().WithSerial(1), pattern(resource.Attrs{"type": "mine"})))(t)
	try.Works(d.Find(ctx, pattern(resource.Match{"type": "mine"})))(t)
	if _, err := d.Find(ctx, pattern(resource.Match{"type": "other"})); !errors.Is(err, directory.ErrPartial) || !strings.Contains(err.Error(), "198.51.100.1") {
		t.Errorf("asked for something else: %v", err)
	}
	eventually.True(t, "it is tried again", func() bool { return attempts.Load() > 2 })
	if err := ms.Missing(); !errors.Is(err, mux.ErrNoAddress) || log.Count("level=WARN") != 1 {
		t.Errorf("missing: %v; logged %q", err, log.String())
	}
}

// A member that has lost its address ends its membership, and questions under way with the reason.
// It becomes a member again by itself, and then looks for the members that it knew.
func TestAddressLost(t *testing.T) {
	ctx := eventually.Context(t)
	a := member(t, 1, func(c *Config) { c.Patience = time.Minute })
	var log logged.Log
	ms := NewMembership("test", Member{Bind: freePort(t), Join: []string{a.Addr()}}, log.Logger())
	ms.lookAgain = time.Millisecond
	var isLost, isAway, hasBeen atomic.Bool
	ms.isLost = func(c *Cluster) error {
		if isLost.Load() {
			return fmt.Errorf("%w: %s is gone", mux.ErrNoAddress, c.Addr())
		}
		return nil
	}
	ms.open = func(cfg Config) (*Cluster, error) {
		if isAway.Load() {
			return nil, mux.ErrNoAddress
		}
		if hasBeen.Swap(true) {
			cfg.Join = nil // only what the member knew leads back
		}
		return Open(cfg)
	}
	d := served(t, sock(t), ms)
	x := put(t, a, 1, resource.Attrs{"type": "x"})
	found := func() bool {
		r, err := d.Find(ctx, pattern(resource.Match{"type": "x"}))
		return err == nil && r.ID == x
	}
	eventually.True(t, "a member", found)
	isAway.Store(true)
	isLost.Store(true)
	eventually.True(t, "the address is gone", func() bool { return ms.Missing() != nil })
	if ms.Cluster() != nil || log.Count("the member's address is gone") != 1 {
		t.Errorf("still a member; logged %q", log.String())
	}
	try.Fails(d.Find(ctx, pattern(resource.Match{"type": "x"})))(t, directory.ErrPartial, "asked without an address")
	isLost.Store(false)
	isAway.Store(false)
	eventually.True(t, "a member again", found)
	try.Check(t, ms.Missing())
}

// A member that tells the address of this one by gossip, or one at which it is not, lives
// elsewhere: it has answered a hello there. What it has is not denied for certain, and it is
// warned of.
//
// Promise (Clusters): A member that advertises an address of another, or that binds to loopback by
// a name, is warned of. See also TestNameOfLoopback.
func TestOwnAddressTold(t *testing.T) {
	var log logged.Log
	a := member(t, 1, func(c *Config) { c.Logger = log.Logger() })
	tell := func(id resource.NodeID, at string, alive bool) {
		ap := netip.MustParseAddrPort(at)
		a.members.seen(&memberlist.Node{Name: name(id), Addr: ap.Addr().AsSlice(), Port: ap.Port(), Meta: a.gossip.meta()}, alive)
	}
	ask := func() error { return a.members.contradiction(time.Now()) }
	// Members look at addresses that gossip has told. No member tells beyond.
	const elsewhere, beyond = "127.0.0.9:9", "127.0.0.10:9"
	answer := func(id resource.NodeID, at string) {
		a.members.answered(id, net.UDPAddrFromAddrPort(netip.MustParseAddrPort(at)))
	}
	const said = "is not at the address that it tells"

	// A machine that was started anew is another node: the former one does not answer.
	tell(2, a.Addr(), true)
	tell(2, a.Addr(), false)
	if err := ask(); err != nil || log.Count(said) > 0 {
		t.Errorf("the former node of this machine: %v", err)
	}
	for range 3 {
		answer(3, elsewhere) // before gossip tells of it, and later
		tell(3, a.Addr(), true)
		tell(3, a.Addr(), false)
	}
	if err := ask(); !errors.Is(err, directory.ErrPartial) || !strings.Contains(err.Error(), name(3)) || !strings.Contains(err.Error(), elsewhere) {
		t.Errorf("a member with this one's address: %v", err)
	}
	try.Fails(a.Find(t.Context(), pattern(resource.Match{"x": "y"})))(t, directory.ErrPartial, "found")
	try.Equal(t, log.Count(said), 1, "warnings")
	tell(3, elsewhere, true)
	tell(3, elsewhere, false)
	try.Check(t, ask(), "it tells its own address now")
	// Another address that leads nowhere.
	tell(4, "127.0.0.8:8", true)
	answer(4, beyond)
	try.Check(t, ask(), "a member with two addresses")
	tell(4, "127.0.0.8:8", false)
	try.Check(t, ask(), "such a member that has died")
	answer(4, beyond)
	try.Fails(ask())(t, directory.ErrPartial, "it answers")
	try.Check(t, a.members.contradiction(time.Now().Add(apartTime)), "it has not answered for long")
	answer(1, beyond)
	try.Equal(t, len(a.members.apart.of), 1, "members are remembered")
	a.members.silentAt(beyond)
	try.Check(t, ask(), "no member answers there any more")
	// A member has a new address, and another one has its former address.
	tell(5, "127.0.0.7:7", true)
	tell(5, "127.0.0.7:7", false)
	answer(5, beyond)
	tell(6, "127.0.0.7:7", true)
	if err := ask(); !errors.Is(err, directory.ErrPartial) || !strings.Contains(err.Error(), name(5)) {
		t.Errorf("it answers at its new address: %v", err)
	}
	tell(5, elsewhere, true)
	a.members.leaving(5)
	answer(5, beyond)
	tell(5, elsewhere, false)
	answer(5, beyond) // it has not ended yet
	try.Check(t, ask(), "it has left")
}

// Two members that take each other for dead, because both tell one address, do not deny what the
// other one has.
func TestTwinAddress(t *testing.T) { inMemory(t, testTwinAddress) }

func testTwinAddress(t *testing.T) {
	var log logged.Log
	a := member(t, 1, nil)
	b := member(t, 2, func(c *Config) {
		c.Logger = log.Logger()
		c.gossip = func(m *memberlist.Config) {
			m.Transport = telling{m.Transport.(memberlist.NodeAwareTransport), a.mux.Addr()}
		}
	})
	try.OK(t, a.joiner.join(b.Addr(), false))
	put(t, b, 1, resource.Attrs{"type": "there"})
	eventually.True(t, "it is dead", func() bool { return a.Stats().Dead > 0 })
	try.Fails(a.Find(t.Context(), pattern(resource.Match{"type": "there"})))(t, directory.ErrPartial, "found")
}

// telling is a transport that tells another address.
type telling struct {
	memberlist.NodeAwareTransport
	at *net.UDPAddr
}

func (t telling) FinalAdvertiseAddr(string, int) (net.IP, int, error) { return t.at.IP, t.at.Port, nil }

// A name that leads to the loopback interface is warned of: other machines do not reach the member.
func TestNameOfLoopback(t *testing.T) {
	for bind, want := range map[string]int{"localhost:0": 0, "lo:0": 1, "127.0.0.1:0": 0} {
		var log logged.Log
		ms := NewMembership("test", Member{Bind: bind}, log.Logger())
		served(t, sock(t), ms)
		try.Equal(t, log.Count("leads to the loopback interface"), want, "%s: warnings", bind)
	}
}

// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"errors"
	"net"
	"net/netip"
	"strings"
	"sync"
	"testing"

	"github.com/rocl-go/rocl/directory"
	"github.com/rocl-go/rocl/directory/internal/mux"
	"github.com/rocl-go/rocl/internal/testkit/eventually"
	"github.com/rocl-go/rocl/internal/testkit/logged"
	"github.com/rocl-go/rocl/internal/testkit/try"
	"github.com/rocl-go/rocl/resource"
	"github.com/rocl-go/rocl/subsys/tls"
)

// The key of a cluster is changed, and one member does not get the new one. Gossip takes the
// members on each side for dead on the other. They live, so nothing that they may have is denied
// for certain at any time. No watch tells that it is gone. That is logged once. When the member has
// the key, all is well again.
//
// Promise (Cluster searches): A member that refuses another is not taken for dead, whatever the
// reason. The reason is logged, and is in `/readyz` and the error. See also
// TestKeyChangedWhileAway.
func TestRefusedIsNotDead(t *testing.T) { inMemory(t, testRefusedIsNotDead) }

func testRefusedIsNotDead(t *testing.T) {
	var log logged.Log
	keyed := func(c *Config) { c.Keys, c.Patience = [][]byte{[]byte("the old key")}, 1 }
	first := newStation(t, 1, func(c *Config) { keyed(c); c.Logger = log.Logger() })
	second, third := newStation(t, 2, keyed, first), newStation(t, 3, keyed, first)
	meet(t, first, second, third)
	a, b, c := first.c, second.c, third.c
	x := put(t, b, 1, lamp)
	watch := first.watch(lamps())
	watch.want(directory.Appeared, x)
	watch.want(directory.Synced, resource.GID{})
	for _, m := range []*Cluster{b, c} {
		try.OK(t, m.SetKeys([]byte("the new key")))
	}
	eventually.True(t, "both sides see that they are refused", func() bool {
		if _, err := a.Find(t.Context(), lamps()); err != nil && !errors.Is(err, directory.ErrPartial) {
			t.Fatalf("what a member has that refuses this one: %v", err)
		}
		s := a.Stats()
		return s.Alive == 1 && s.Refused == 2 && b.Stats().Refused == 1 && c.Stats().Refused == 1
	})
	for _, m := range []*Cluster{a, b, c} {
		try.Fails(m.Find(t.Context(), pattern(resource.Match{"none": ""})))(t, directory.ErrPartial, "node %d", m.cfg.Node)
		var last error
		for _, err := range m.All(t.Context(), pattern(resource.Match{"none": ""}), new(directory.Coverage)) {
			last = err
		}
		try.Fails(last)(t, directory.ErrPartial, "node %d: a listing ends with", m.cfg.Node)
	}
	const warned = "members refuse this node"
	eventually.True(t, "it is logged", func() bool { return log.Count(warned) > 0 })
	try.OK(t, a.SetKeys([]byte("the new key")))
	together(t, a, b, c)
	finds(t, a, resource.Match{"type": "lamp"}, x)
	for _, m := range []*Cluster{a, b, c} {
		eventually.True(t, "no member is refused", func() bool { return m.Stats().Refused == 0 })
		denies(t, m, resource.Match{"none": ""})
	}
	try.Equal(t, log.Count(warned), 1, "warnings: %s", &log)
	watch.none("the member lives")
	kill(b)
	watch.want(directory.Gone, x)
}

// An attempt to join a member may fail for a passing reason, such as packets that are lost, and the
// member is seen alive meanwhile. What it has is known, so it makes no answer partial.
func TestRefusalOfLivingMember(t *testing.T) { inMemory(t, testRefusalOfLivingMember) }

func testRefusalOfLivingMember(t *testing.T) {
	first := newStation(t, 1, nil)
	meet(t, first, newStation(t, 2, nil, first))
	m := first.c
	eventually.True(t, "all members are known", func() bool { return m.joiner.incomplete() == nil })
	at, _ := m.members.aliveOtherMembers(1)
	m.joiner.recordRefusal(netip.MustParseAddrPort(at[0]), &mux.RefusedError{Addr: at[0], Err: errors.New("handshake: packets are lost")})
	try.OK(t, m.joiner.incomplete(), "a question without an answer")
	m.joiner.recordRefusal(netip.MustParseAddrPort(at[0]), &mux.RefusedError{Addr: at[0], Err: errors.New("handshake: packets are lost")})
	try.Equal(t, m.Stats().Refused, 0, "members that refuse this one")
}

// listening returns the address of a program that serves each connection with serve. No datagram
// reaches it.
func listening(t *testing.T, serve func(net.Conn)) string {
	ln := try.Get(net.Listen("tcp", "127.0.0.1:0"))(t)
	var busy sync.WaitGroup
	busy.Go(func() {
		for {
			nc, err := ln.Accept()
			if err != nil {
				return
			}
			t.Cleanup(func() { nc.Close() })
			serve(nc)
		}
	})
	t.Cleanup(func() { ln.Close(); busy.Wait() })
	return ln.Addr().String()
}

// Errors and statistics have the reason that is known. A firewall that blocks UDP is not taken for
// another key.
func TestRefusalHasReason(t *testing.T) {
	keyed := func(key string) func(*Config) {
		return func(c *Config) { c.Keys = [][]byte{[]byte(key)} }
	}
	one, other := member(t, 1, keyed("one")), member(t, 2, keyed("other"))
	seal := try.Get(one.keyset.tls())(t)
	blocked := listening(t, func(nc net.Conn) {
		if _, err := seal.Server(t.Context(), nc); err == nil {
			nc.Close()
		}
	})
	const key, firewall = "it has another key", "a firewall blocks UDP"
	for i, v := range []struct{ at, want, not string }{{blocked, firewall, key}, {other.Addr(), key, firewall}} {
		c := member(t, resource.NodeID(i+3), func(c *Config) { keyed("one")(c); c.Join = []string{v.at} })
		eventually.True(t, "it is refused", func() bool { return c.Stats().Refused == 1 })
		err := c.joiner.incomplete() // what a question ends with that has no answer
		if !errors.Is(err, directory.ErrPartial) {
			t.Fatal(err)
		}
		for what, text := range map[string]string{"the error": err.Error(), "the statistics": strings.Join(c.Stats().Refusing, "\n")} {
			if !strings.Contains(text, v.at+": ") || !strings.Contains(text, v.want) || strings.Contains(text, v.not) {
				t.Errorf("%s: %s, want %q and not %q", what, text, v.want, v.not)
			}
		}
	}
}

// A program that refuses a member, for whatever reason, is told from one that has died or hangs.
func TestRefusals(t *testing.T) {
	listen := func(serve func(net.Conn)) string { return listening(t, serve) }
	keyed := func(key, name string) func(*Config) {
		return func(c *Config) { c.Keys, c.Name = [][]byte{[]byte(key)}, name }
	}
	certified := func(of string) func(*Config) {
		return func(c *Config) {
			keyed("key", "test")(c)
			cred := try.Get(tls.FromSecrets("test", []byte(of+" is what makes the certificates")))(t)
			c.Credentials = cred
		}
	}
	sealed, open, proved := member(t, 1, keyed("key", "test")), member(t, 2, nil), member(t, 3, certified("one"))
	otherKey, otherName, noKey := member(t, 4, keyed("other", "test")), member(t, 5, keyed("key", "other")), member(t, 6, nil)
	otherOpen, otherCerts := member(t, 7, func(c *Config) { c.Name = "other" }), member(t, 8, certified("two"))
	garbage := listen(func(nc net.Conn) { _, _ = nc.Write([]byte("HTTP/1.1 400 Bad Request\r\n\r\n")); nc.Close() })
	closes := listen(func(nc net.Conn) { nc.Close() })
	hangs := listen(func(net.Conn) {})
	var busy sync.WaitGroup
	for _, v := range []struct {
		what    string
		by      *Cluster
		at      string
		refused bool
	}{
		{"another key", sealed, otherKey.Addr(), true}, {"another name", sealed, otherName.Addr(), true}, {"no key", sealed, noKey.Addr(), true},
		{"a key, and this one has none", open, sealed.Addr(), true}, {"another name, without keys", open, otherOpen.Addr(), true},
		{"other certificates", proved, otherCerts.Addr(), true}, {"certificates, and this one has none", sealed, proved.Addr(), true},
		{"garbage", sealed, garbage, true}, {"garbage, without a key", open, garbage, true},
		{"a closed connection", sealed, closes, true}, {"a closed connection, without a key", open, closes, true},
		{"nothing", sealed, "127.0.0.1:1", false}, {"a program that hangs", sealed, hangs, false}, {"a program that hangs, without a key", open, hangs, false},
	} {
		busy.Go(func() {
			err := v.by.joiner.joinAt(netip.MustParseAddrPort(v.at), false, make(chan struct{}, 1))
			if err == nil || errors.Is(err, mux.ErrRefused) != v.refused {
				t.Errorf("%s: refused is %v, want %v: %v", v.what, !v.refused, v.refused, err)
			}
		})
	}
	busy.Wait()
}

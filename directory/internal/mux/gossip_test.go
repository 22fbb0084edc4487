// SPDX-License-Identifier: Apache-2.0

package mux

import (
	"context"
	"net"
	"testing"
	"time"

	"github.com/hashicorp/memberlist"
	"github.com/rocl-go/rocl/internal/ratelog"
	"github.com/rocl-go/rocl/internal/testkit/eventually"
	"github.com/rocl-go/rocl/internal/testkit/logged"
	"github.com/rocl-go/rocl/internal/testkit/try"
	"github.com/rocl-go/rocl/resource"
)

// gossips makes two ports known to each other's gossip. at is the address of b.
func gossips(a, b *node, at *net.UDPAddr) {
	a.Gossips(b.cfg.Self, b.Epoch(), at)
	b.Gossips(a.cfg.Self, a.Epoch(), a.Addr())
}

// Gossip reaches a member in its present incarnation, also when its port was told to part from it.
// Recorded gossip is not heard again at once. Nor is it heard when its sender was replaced and is
// met again, by a member that was started anew, or from a sender that was.
func TestGossip(t *testing.T) {
	for name, change := range map[string]func(*Config){"with a key": keyed("key"), "without": nil} {
		t.Run(name, func(t *testing.T) {
			a, b := start(t, 1, change), start(t, 2, change)
			r := record(t, b)
			at := r.addr()
			to := memberlist.Address{Addr: at.String(), Name: "000000000002"}
			say := func(what string) {
				t.Helper()
				try.Get(a.Gossip().WriteToAddress([]byte(what), to))(t)
			}
			hear := func(n *node, what string) {
				t.Helper()
				select {
				case m := <-n.packets:
					if string(m.Buf) != what {
						t.Fatalf("heard %q, want %q", m.Buf, what)
					}
				case <-time.After(eventually.Timeout):
					t.Fatalf("%q is not heard", what)
				}
			}
			say("nobody is known there")
			gossips(a, b, at)
			say("one")
			hear(b, "one")
			a.Meet(2, b.Epoch(), at)
			a.Part(2)
			b.Meet(1, a.Epoch(), a.Addr())
			b.Part(1)
			say("two")
			hear(b, "two")
			ds, _ := r.kept()
			if len(ds) != 2 {
				t.Fatalf("%d datagrams were sent, want 2", len(ds))
			}
			e := hostile(t)
			again := func(n *node) {
				t.Helper()
				e.send(n, ds...)
				if len(n.packets) > 0 {
					t.Errorf("heard again: %q", (<-n.packets).Buf)
				}
			}
			again(b)
			b.Gossips(1, a.Epoch()+2, a.Addr()) // it was started anew
			again(b)
			b.Gossips(1, a.Epoch(), a.Addr()) // an older incarnation, as if it were met again
			again(b)
			b.ForgetGossip(1)
			b.ForgetGossip(1)
			again(b)
			if n := b.Stats().Gossipers; n != 0 {
				t.Errorf("%d members are known, want none", n)
			}
			b.Gossips(1, a.Epoch(), a.Addr())
			again(b)
			say("three")
			hear(b, "three")
			anew := start(t, 2, change)
			gossips(a, anew, anew.Addr())
			again(anew)
			if n := e.heard(); n > 0 {
				t.Errorf("%d bytes came back", n)
			}
			if n := len(b.gossipers.past) + len(anew.gossipers.past); n != 0 {
				t.Errorf("%d incarnations of the past are remembered, want none: they are met again", n)
			}
		})
	}
}

// Hello is answered by members of the cluster only. A port that a stranger asks logs that, but not
// each time.
func TestHello(t *testing.T) {
	ctx := context.Background()
	a, b := start(t, 1, keyed("key")), start(t, 2, keyed("key"))
	greets := func(what string, addr *net.UDPAddr, want resource.NodeID) {
		t.Helper()
		eventually.True(t, what, func() bool { id, err := a.Hello(ctx, addr); return err == nil && id == want }) // an answer may be late
	}
	greets("a member answers", b.Addr(), 2)
	twin := start(t, 1, keyed("key")) // with the same number, at another address
	greets("a node of the same number answers", twin.Addr(), 1)
	try.Fails(a.Hello(ctx, a.Addr()))(t, ErrOwn, "a port that greets itself")
	for _, change := range []func(*Config){keyed("other"), nil, func(c *Config) { keyed("key")(c); c.Cluster = "other" }} {
		stranger := start(t, 3, change)
		try.Fails(stranger.Hello(ctx, b.Addr()))(t, ErrSilent, "a stranger")
	}
	b.Close()
	try.Rejects(a.Hello(ctx, b.Addr()))(t, "answered by a port that is closed")
	gone, cancel := context.WithCancel(ctx)
	cancel()
	try.Fails(a.Hello(gone, b.Addr()))(t, context.Canceled, "given up")
	a.Close()
	try.Rejects(a.Hello(ctx, b.Addr()))(t, "a port that is closed asks")
	if n := len(a.hellos.wait); n > 0 {
		t.Errorf("%d hellos wait", n)
	}
}

// Strangers that are refused again and again, by streams and by packets, do not fill the log.
func TestRefusedIsLimited(t *testing.T) {
	var log logged.Log
	b := start(t, 2, func(c *Config) {
		keyed("key")(c)
		c.Logger = log.Logger()
	})
	const flood = 100
	for range flood {
		nc := try.Get(net.Dial("tcp", b.Addr().String()))(t)
		try.Get(nc.Write(append([]byte{largeByte}, make([]byte, 1<<10)...)))(t) // which no member would send
		_, _ = nc.Read(make([]byte, 1))                                         // until it is refused
		nc.Close()
	}
	e := hostile(t)
	junk := append([]byte{magic, kindHello}, make([]byte, 60)...)
	var all [][]byte
	for range flood {
		all = append(all, junk)
	}
	e.send(b, all...)
	eventually.True(t, "all streams are refused", func() bool { return b.count.StreamsRefused.Load() == flood })
	b.Close() // all lines are written then
	for _, line := range []string{"mux: stream refused", "mux: gossip refused"} {
		try.Equal(t, log.Count(line), ratelog.Burst, "%q: lines for %d strangers", line, flood)
	}
}

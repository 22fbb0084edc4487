// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hashicorp/memberlist"
	"github.com/rocl-go/rocl/directory/internal/database"
	"github.com/rocl-go/rocl/internal/testkit/try"
	"github.com/rocl-go/rocl/resource"
	"github.com/rocl-go/rocl/subsys/simnet"
	"pgregory.net/rapid"
)

// An archipelago has machines, in a network in memory, whose daemons join each other by names.
type archipelago struct {
	net      *simnet.Network
	machines []*machine
	names    sync.Map // of names: their addresses
	lookups  atomic.Int32
}

// A machine has a daemon while c is not nil.
type machine struct {
	id   resource.NodeID
	host *simnet.Host
	side int // machines of different sides of a cut do not reach each other
	join []string
	met  map[resource.NodeID]string // what the member file of its last daemon says
	c    *Cluster
}

const islandPort = 7946

func newArchipelago(machines int) *archipelago {
	a := &archipelago{net: simnet.New(1)}
	for i := range machines {
		a.machines = append(a.machines, &machine{id: resource.NodeID(i + 1), host: a.net.AddHost("")})
	}
	return a
}

// islandAddr returns the address of the nth host of the network.
func islandAddr(n byte) netip.Addr { return netip.AddrFrom4([4]byte{10, 0, 0, n}) }

// start starts the daemon of m.
func (a *archipelago) start(t testing.TB, m *machine) {
	c, err := Open(Config{
		Node: m.id, DB: database.New(), Bind: fmt.Sprint(":", islandPort), Join: m.join, Met: m.met, Follows: len(m.met) > 0, Network: m.host.Start(), resolve: a.resolve,
		gossip: func(c *memberlist.Config) { // rarely: a history has many minutes
			c.ProbeInterval, c.ProbeTimeout, c.GossipInterval, c.PushPullInterval = time.Second, 300*time.Millisecond, time.Second, 20*time.Second
		},
	})
	try.OK(t, err)
	m.c = c
}

// stop ends the daemon of m. If leaves is set, the members that it reaches are told.
func (a *archipelago) stop(m *machine, leaves bool) {
	m.met = m.c.members.addresses()
	if leaves {
		_ = m.c.Close() // the members that it does not reach are not told
	} else {
		kill(m.c)
	}
	m.c = nil
}

// cut separates the machines of different sides.
func (a *archipelago) cut() {
	a.net.Heal()
	for _, m := range a.machines {
		for _, o := range a.machines {
			if m.side != o.side {
				a.net.Cut(m.host, o.host)
			}
		}
	}
}

func (a *archipelago) resolve(_ context.Context, host string) ([]netip.Addr, error) {
	if ip, err := netip.ParseAddr(host); err == nil {
		return []netip.Addr{ip}, nil
	}
	a.lookups.Add(1)
	if of, ok := a.names.Load(host); ok && len(of.([]netip.Addr)) > 0 {
		return of.([]netip.Addr), nil
	}
	return nil, errors.New("no such name")
}

// apart returns a message if two daemons do not see each other that reach each other and that the
// join lists connect.
func (a *archipelago) apart() string {
	island := map[*machine]int{}
	for i, m := range a.machines {
		island[m] = i
	}
	for _, m := range a.machines {
		for _, addr := range m.join {
			host, _, _ := net.SplitHostPort(addr)
			ips, _ := a.resolve(context.Background(), host)
			for _, o := range a.machines {
				if m.c == nil || o.c == nil || m.side != o.side || !slices.Contains(ips, o.host.IP()) {
					continue
				}
				from, to := island[m], island[o]
				for x, i := range island {
					if i == from {
						island[x] = to
					}
				}
			}
		}
	}
	for _, m := range a.machines {
		for _, o := range a.machines {
			if m.c != nil && o.c != nil && island[m] == island[o] && !m.c.members.has(o.id) {
				return fmt.Sprintf("node %d (%v, join %v) does not see node %d (%v, join %v)", m.id, m.host.IP(), m.join, o.id, o.host.IP(), o.join)
			}
		}
	}
	return ""
}

// inArchipelago runs test with machines that have no daemons yet, in a bubble of testing/synctest.
func inArchipelago(t *testing.T, machines int, test func(t *testing.T, a *archipelago)) {
	synctest.Test(t, func(t *testing.T) {
		a := newArchipelago(machines)
		test(t, a)
		for _, m := range a.machines {
			if m.c != nil {
				a.stop(m, false)
			}
		}
		time.Sleep(time.Minute) // virtual: memberlist's probes end with their timeouts
	})
}

// A step of a history changes an archipelago.
type step struct {
	what    string
	machine int
	name    string
	of      []netip.Addr // the new addresses of the name
	pause   time.Duration
}

// A history is how an archipelago begins, and what happens to it.
type history struct {
	join  [][]string // of each machine
	steps []step
}

func drawHistory(r *rapid.T) (h history) {
	hosts := []string{"one.rocl.test", "two.rocl.test"}
	machines := rapid.IntRange(2, 6).Draw(r, "machines")
	last := byte(machines) // of the hosts of the network
	addrs := make([]netip.Addr, machines)
	for i := range addrs {
		addrs[i] = islandAddr(byte(i + 1))
	}
	rename := func(host string) step {
		s := step{what: "rename", name: host}
		for _, ip := range addrs {
			if rapid.Bool().Draw(r, "in the name") {
				s.of = append(s.of, ip)
			}
		}
		for range rapid.IntRange(0, 2).Draw(r, "dead addresses") {
			s.of = append(s.of, islandAddr(byte(rapid.IntRange(200, 250).Draw(r, "dead"))))
		}
		return s
	}
	for _, host := range hosts {
		h.steps = append(h.steps, rename(host))
	}
	for range machines {
		var join []string
		for _, what := range rapid.SliceOfNDistinct(rapid.IntRange(0, 2), 0, 2, rapid.ID).Draw(r, "join list") {
			host := islandAddr(byte(rapid.IntRange(1, machines).Draw(r, "member"))).String()
			if what < len(hosts) {
				host = hosts[what]
			}
			join = append(join, net.JoinHostPort(host, fmt.Sprint(islandPort)))
		}
		h.join = append(h.join, join)
	}
	for range rapid.IntRange(0, 25).Draw(r, "steps") {
		s := step{what: rapid.SampledFrom([]string{"start", "start", "leave", "die", "move", "rename", "cut", "heal"}).Draw(r, "step")}
		switch s.machine = rapid.IntRange(0, machines-1).Draw(r, "machine"); s.what {
		case "move":
			last++
			addrs[s.machine] = islandAddr(last)
		case "rename":
			s = rename(rapid.SampledFrom(hosts).Draw(r, "name"))
		}
		s.pause = time.Duration(rapid.IntRange(0, 40_000).Draw(r, "pause, ms")) * time.Millisecond
		h.steps = append(h.steps, s)
	}
	return h
}

// take takes a step.
func (a *archipelago) take(t testing.TB, s step) {
	m := a.machines[s.machine]
	switch running := m.c != nil; s.what {
	case "start":
		if !running {
			a.start(t, m)
		}
	case "leave", "die":
		if running {
			a.stop(m, s.what == "leave")
		}
	case "move": // as a machine with a daemon does: the daemon is started anew
		if running {
			a.stop(m, false)
		}
		m.host = a.net.AddHost("")
		a.cut()
		if running {
			a.start(t, m)
		}
	case "rename":
		a.names.Store(s.name, s.of)
	case "cut":
		m.side = 1
		a.cut()
	case "heal":
		for _, m := range a.machines {
			m.side = 0
		}
		a.cut()
	}
	time.Sleep(s.pause) // virtual
}

// Daemons start, leave, die and come back at other addresses, names change, and the network is cut,
// all at random. When that ends, all daemons that reach each other and that the join lists connect
// are one cluster within a minute and a half.
func TestJoinListsConnect(t *testing.T) {
	rapid.Check(t, func(r *rapid.T) {
		h := drawHistory(r)
		what := ""
		inArchipelago(t, len(h.join), func(t *testing.T, a *archipelago) {
			for i, join := range h.join {
				a.machines[i].join = join
			}
			for _, s := range h.steps {
				a.take(t, s)
			}
			time.Sleep(90 * time.Second) // virtual
			what = a.apart()
		})
		if what != "" {
			r.Fatalf("%s\nafter %+v", what, h)
		}
	})
}

// All addresses of a name are greeted at once: a name with many dead addresses delays no member.
func TestDeadAddresses(t *testing.T) {
	inArchipelago(t, 2, func(t *testing.T, a *archipelago) {
		of := []netip.Addr{a.machines[0].host.IP()}
		for n := range byte(58) {
			of = append(of, islandAddr(100+n))
		}
		a.names.Store("members.rocl.test", of)
		a.machines[1].join = []string{"members.rocl.test:7946"}
		a.start(t, a.machines[0])
		a.start(t, a.machines[1])
		time.Sleep(time.Second) // virtual
		try.Equal(t, a.apart(), "")
	})
}

// A member that is alone looks its names up each second. A member among others does so twice a
// minute in the end.
func TestJoinListIsLookedUp(t *testing.T) {
	inArchipelago(t, 2, func(t *testing.T, a *archipelago) {
		a.machines[0].join = []string{"members.rocl.test:7946"}
		a.start(t, a.machines[0])
		during := func(d time.Duration) int32 {
			a.lookups.Store(0)
			time.Sleep(d) // virtual
			return a.lookups.Load()
		}
		during(time.Minute)
		if n := during(time.Minute); n < 30 || n > 80 {
			t.Errorf("alone, it asks %d times a minute", n)
		}
		a.names.Store("members.rocl.test", []netip.Addr{a.machines[0].host.IP(), a.machines[1].host.IP()})
		a.start(t, a.machines[1])
		during(5 * time.Minute)
		try.Equal(t, a.apart(), "")
		if n := during(10 * time.Minute); n < 15 || n > 30 {
			t.Errorf("among others, it asks %d times in 10 minutes", n)
		}
	})
}

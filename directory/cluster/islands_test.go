// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"slices"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hashicorp/memberlist"
	"github.com/rocl-go/rocl/directory"
	"github.com/rocl-go/rocl/directory/internal/database"
	"github.com/rocl-go/rocl/directory/internal/mux"
	"github.com/rocl-go/rocl/resource"
	"pgregory.net/rapid"
)

// An archipelago simulates machines whose daemons join each other by names. Joiner and memberTable
// are the real ones, with virtual time. The network, the name server and memberlist are simulated:
// two members that exchange what they know tell all members that they see, and a member that is
// not reached any more is seen dead at the next look.
type archipelago struct {
	lock     chan struct{} // holds a token while it is free
	machines []*machine
	names    map[string][]netip.Addr
	lookups  int
}

// A machine has a daemon while c is not nil.
type machine struct {
	id     resource.NodeID
	addr   netip.AddrPort
	side   int // machines of different sides of a cut do not reach each other
	join   []string
	met    map[resource.NodeID]string // what the member file of its last daemon says
	c      *core
	epoch  uint64
	table  *memberTable
	joiner *joiner
}

const islandPort = 7946

func newArchipelago(machines int) *archipelago {
	a := &archipelago{lock: make(chan struct{}, 1), names: map[string][]netip.Addr{}}
	a.lock <- struct{}{}
	for i := range machines {
		a.machines = append(a.machines, &machine{id: resource.NodeID(i + 1), addr: islandAddr(byte(i + 1))})
	}
	return a
}

func islandAddr(n byte) netip.AddrPort {
	return netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, 0, 0, n}), islandPort)
}

// do runs f while nothing else changes the archipelago.
func (a *archipelago) do(f func()) {
	<-a.lock
	defer func() { a.lock <- struct{}{} }()
	f()
}

// start starts the daemon of m.
func (a *archipelago) start(t testing.TB, m *machine) {
	cfg := Config{Node: m.id, DB: database.New(), Join: m.join, Met: m.met, Follows: len(m.met) > 0, Logger: slog.New(slog.DiscardHandler)}
	base := newCore(cfg)
	port, err := mux.Open(mux.Config{Self: m.id, Bind: "127.0.0.1:0", Logger: cfg.Logger}) // it is never started
	if err != nil {
		t.Fatal(err)
	}
	base.mux = port
	c := compose(base)
	c.joiner.net = islandPortOf{a, m}
	c.joiner.resolve = a.resolve
	c.joiner.exchange = func(at string) error { return a.exchange(m, at) }
	a.do(func() {
		m.c, m.epoch, m.table, m.joiner = base, port.Epoch(), c.members, c.joiner
		m.table.seen(m.gossip(), true)
		if m.joiner.alone() {
			m.joiner.setComplete()
		}
	})
	base.life.begin(c.joiner.run)
}

// stop ends the daemon of m. If leaves is set, the members that it reaches are told.
func (a *archipelago) stop(m *machine, leaves bool) {
	var c *core
	a.do(func() {
		c, m.met = m.c, m.table.addresses()
		if leaves {
			for _, o := range a.machines {
				if o.c != nil && o != m && a.reaches(o, m) && o.table.alive(m.id) {
					o.table.leaving(m.id)
					o.table.seen(m.gossip(), false)
				}
			}
		}
		m.c = nil
	})
	c.life.end(directory.ErrClosed)
	m.table.close()
	c.life.wait()
	c.mux.Close()
}

func (m *machine) gossip() *memberlist.Node {
	return &memberlist.Node{Name: name(m.id), Addr: m.addr.Addr().AsSlice(), Port: m.addr.Port(), Meta: binary.LittleEndian.AppendUint64([]byte{metaVersion, 0}, m.epoch)}
}

func (a *archipelago) reaches(m, o *machine) bool { return m.side == o.side }

// at returns the machine at an address that m reaches, or nil.
func (a *archipelago) at(m *machine, addr netip.AddrPort) *machine {
	i := slices.IndexFunc(a.machines, func(o *machine) bool { return o.addr == addr && a.reaches(m, o) })
	if i < 0 {
		return nil
	}
	return a.machines[i]
}

func (a *archipelago) resolve(_ context.Context, host string) (of []netip.Addr, err error) {
	if ip, err := netip.ParseAddr(host); err == nil {
		return []netip.Addr{ip}, nil
	}
	time.Sleep(time.Millisecond) // virtual time
	a.do(func() {
		a.lookups++
		of = slices.Clone(a.names[host])
	})
	if len(of) == 0 {
		return nil, errors.New("no such name")
	}
	return of, nil
}

// exchange tells the members that m sees, and those that the daemon at an address sees, of each
// other.
func (a *archipelago) exchange(m *machine, at string) (err error) {
	time.Sleep(3 * time.Millisecond) // virtual time
	a.do(func() {
		o := a.at(m, netip.MustParseAddrPort(at))
		if m.c == nil || o == nil || o.c == nil {
			err = errors.New("refused")
			return
		}
		all := append(a.seenBy(m), a.seenBy(o)...)
		for _, x := range all {
			for _, y := range all {
				if x != y && a.reaches(x, y) {
					x.table.seen(y.gossip(), true)
				}
			}
		}
		delegate{&gossip{core: m.c, members: m.table, joiner: m.joiner}}.MergeRemoteState([]byte{accountVersion, 0}, true)
	})
	return err
}

// seenBy returns the running daemons that m sees, with m itself.
func (a *archipelago) seenBy(m *machine) (all []*machine) {
	for _, o := range a.machines {
		if o.c != nil && (o == m || m.table.alive(o.id) && a.reaches(m, o)) {
			all = append(all, o)
		}
	}
	return all
}

// detect lets each daemon see which members it does not reach any more.
func (a *archipelago) detect() {
	a.do(func() {
		for _, m := range a.machines {
			for _, o := range a.machines {
				if m.c != nil && m != o && m.table.alive(o.id) && (o.c == nil || !a.reaches(m, o)) {
					m.table.seen(o.gossip(), false)
				}
			}
		}
	})
}

// islandPortOf is the network of a machine.
type islandPortOf struct {
	*archipelago
	*machine
}

func (p islandPortOf) Addr() *net.UDPAddr { return net.UDPAddrFromAddrPort(p.addr) }

func (p islandPortOf) Beacon() {}

func (p islandPortOf) Hello(ctx context.Context, addr *net.UDPAddr) (id resource.NodeID, err error) {
	time.Sleep(time.Millisecond) // virtual time
	err = mux.ErrSilent
	p.do(func() {
		if o := p.at(p.machine, addr.AddrPort()); o != nil && o.c != nil && p.c != nil {
			id, err = o.id, nil
			o.joiner.heardHello(p.id, p.Addr())
		}
	})
	if err != nil {
		t := time.NewTimer(time.Second)
		defer t.Stop()
		select {
		case <-t.C:
		case <-ctx.Done():
		}
	}
	return id, err
}

func (p islandPortOf) Probe(ctx context.Context, addr *net.UDPAddr) error {
	isThere := false
	p.do(func() { isThere = p.at(p.machine, addr.AddrPort()) != nil })
	if isThere {
		return syscall.ECONNREFUSED
	}
	<-ctx.Done()
	return ctx.Err()
}

// apart returns a message if two daemons do not see each other that reach each other and that the
// join lists connect.
func (a *archipelago) apart() (what string) {
	a.do(func() {
		island := map[*machine]int{}
		for i, m := range a.machines {
			island[m] = i
		}
		unite := func(m, o *machine) {
			from, to := island[m], island[o]
			for x, i := range island {
				if i == from {
					island[x] = to
				}
			}
		}
		for _, m := range a.machines {
			for _, addr := range m.join {
				host, _, _ := net.SplitHostPort(addr)
				ips := a.names[host]
				if ip, err := netip.ParseAddr(host); err == nil {
					ips = []netip.Addr{ip}
				}
				for _, ip := range ips {
					if o := a.at(m, netip.AddrPortFrom(ip, islandPort)); o != nil && o.c != nil && m.c != nil {
						unite(m, o)
					}
				}
			}
		}
		for _, m := range a.machines {
			for _, o := range a.machines {
				if m.c != nil && o.c != nil && island[m] == island[o] && !m.table.has(o.id) {
					what = fmt.Sprintf("node %d (%s, join %v) does not see node %d (%s, join %v); names %v", m.id, m.addr, m.join, o.id, o.addr, o.join, a.names)
				}
			}
		}
	})
	return what
}

func (a *archipelago) end() {
	for _, m := range a.machines {
		if m.c != nil {
			a.stop(m, false)
		}
	}
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
	moved := byte(100)
	addrs := make([]netip.Addr, machines)
	for i := range addrs {
		addrs[i] = islandAddr(byte(i + 1)).Addr()
	}
	rename := func(host string) step {
		s := step{what: "rename", name: host}
		for _, ip := range addrs {
			if rapid.Bool().Draw(r, "in the name") {
				s.of = append(s.of, ip)
			}
		}
		for range rapid.IntRange(0, 2).Draw(r, "dead addresses") {
			s.of = append(s.of, islandAddr(byte(rapid.IntRange(200, 250).Draw(r, "dead"))).Addr())
		}
		return s
	}
	for _, host := range hosts {
		h.steps = append(h.steps, rename(host))
	}
	for range machines {
		var join []string
		for _, what := range rapid.SliceOfNDistinct(rapid.IntRange(0, 2), 0, 2, rapid.ID).Draw(r, "join list") {
			host := islandAddr(byte(rapid.IntRange(1, machines).Draw(r, "member"))).Addr().String()
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
			moved++
			addrs[s.machine] = islandAddr(moved).Addr()
			s.of = []netip.Addr{addrs[s.machine]}
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
		a.do(func() { m.addr = netip.AddrPortFrom(s.of[0], islandPort) })
		if running {
			a.start(t, m)
		}
	case "rename":
		a.do(func() { a.names[s.name] = s.of })
	case "cut":
		a.do(func() { m.side = 1 })
	case "heal":
		a.do(func() {
			for _, m := range a.machines {
				m.side = 0
			}
		})
	}
	time.Sleep(s.pause) // virtual
	a.detect()
}

// Daemons start, leave, die and come back at other addresses, names change, and the network is cut,
// all at random. When that ends, all daemons that reach each other and that the join lists connect
// are one cluster within a minute and a half.
func TestJoinListsConnect(t *testing.T) {
	rapid.Check(t, func(r *rapid.T) {
		h := drawHistory(r)
		what := ""
		synctest.Test(t, func(t *testing.T) {
			a := newArchipelago(len(h.join))
			defer a.end()
			for i, join := range h.join {
				a.machines[i].join = join
			}
			for _, s := range h.steps {
				a.take(t, s)
			}
			for range 90 {
				time.Sleep(time.Second) // virtual
				a.detect()
			}
			what = a.apart()
		})
		if what != "" {
			r.Fatalf("%s\nafter %+v", what, h)
		}
	})
}

// All addresses of a name are greeted at once: a name with many dead addresses delays no member.
func TestDeadAddresses(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := newArchipelago(2)
		defer a.end()
		for n := range byte(58) {
			a.names["members.rocl.test"] = append(a.names["members.rocl.test"], islandAddr(100+n).Addr())
		}
		a.names["members.rocl.test"] = append(a.names["members.rocl.test"], a.machines[0].addr.Addr())
		a.machines[1].join = []string{"members.rocl.test:7946"}
		a.start(t, a.machines[0])
		a.start(t, a.machines[1])
		time.Sleep(time.Second) // virtual
		if what := a.apart(); what != "" {
			t.Error(what)
		}
	})
}

// A member that is alone looks its names up each second. A member among others does so twice a
// minute in the end.
func TestJoinListIsLookedUp(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := newArchipelago(2)
		defer a.end()
		a.machines[0].join = []string{"members.rocl.test:7946"}
		a.start(t, a.machines[0])
		during := func(d time.Duration) (n int) {
			a.do(func() { a.lookups = 0 })
			time.Sleep(d) // virtual
			a.do(func() { n = a.lookups })
			return n
		}
		during(time.Minute)
		if n := during(time.Minute); n < 30 || n > 80 {
			t.Errorf("alone, it asks %d times a minute", n)
		}
		a.do(func() {
			for _, m := range a.machines {
				a.names["members.rocl.test"] = append(a.names["members.rocl.test"], m.addr.Addr())
			}
		})
		a.start(t, a.machines[1])
		during(5 * time.Minute)
		if what := a.apart(); what != "" {
			t.Error(what)
		}
		if n := during(10 * time.Minute); n < 15 || n > 30 {
			t.Errorf("among others, it asks %d times in 10 minutes", n)
		}
	})
}

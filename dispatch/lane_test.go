// SPDX-License-Identifier: Apache-2.0

package dispatch

import (
	"errors"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/rocl-go/rocl/internal/testkit/eventually"
	"github.com/rocl-go/rocl/internal/testkit/try"
	"github.com/rocl-go/rocl/resource"
	"github.com/rocl-go/rocl/subsys"
	"github.com/rocl-go/rocl/subsys/inproc"
	"github.com/rocl-go/rocl/subsys/shm"
	"github.com/rocl-go/rocl/subsys/tcp"
)

// both makes two contexts that reach each other in memory, by shared memory and over TCP.
func both(t testing.TB, change ...func(*Config)) (a, b *Dispatcher) {
	w := newWorld()
	near := inproc.NewNetwork().Transport()
	a, b = w.node(t, 1, near, change...), w.node(t, 2, near)
	for _, d := range []*Dispatcher{a, b} {
		for _, tr := range []subsys.Transport{shm.New(), tcp.New()} {
			w.listenToo(t, d, tr)
		}
	}
	return a, b
}

func flowOver(t testing.TB, d *Dispatcher, to *Mailbox, lane Lane) *Flow {
	t.Helper()
	f := try.Get(d.FlowOver(to.d.self, to.serial, lane))(t)
	return f
}

func exchange(t testing.TB, from *Dispatcher, to *Mailbox, tag uint64, size int) {
	t.Helper()
	exchangeOver(t, from, to, "", tag, size)
}

func exchangeOver(t testing.TB, from *Dispatcher, to *Mailbox, lane Lane, tag uint64, size int) {
	t.Helper()
	ctx := soon(t)
	try.OK(t, flowOver(t, from, to, lane).SendBytes(ctx, 1, tag, make([]byte, size)))
	m, err := to.Recv(ctx)
	if err != nil || m.Tag() != tag || m.Len() != size {
		t.Fatal(m, err)
	}
	m.Release()
}

// Two contexts use several networks at once, each for some of their resources. Both sides send over
// one link for each lane, and replies take the lane of their requests.
func TestLanes(t *testing.T) {
	a, b := both(t)
	ctx := soon(t)
	lanes := []struct {
		lane Lane
		via  string
	}{{"", "inproc"}, {"tcp", "tcp"}, {"shm,tcp", "shm"}, {"shm,*", "shm"}, {"inproc", "inproc"}}
	for i, c := range lanes {
		for _, from := range []*Dispatcher{a, b} {
			to := b
			if from == b {
				to = a
			}
			mine, its := box(t, from, uint32(100+i), 0), box(t, to, uint32(200+i), 0)
			go served(its)
			for _, size := range []int{10, 20_000, 300_000} {
				sent, replied := from.Stats().Sent[c.via], to.Stats().Sent[c.via]
				m, err := called(ctx, mine, flowOver(t, from, its, c.lane), 1, make([]byte, size))
				if err != nil {
					t.Fatal(c, err)
				}
				m.Release()
				if s, r := from.Stats().Sent[c.via], to.Stats().Sent[c.via]; s != sent+1 || r != replied+1 {
					t.Errorf("%+v: %d requests and %d replies over %s", c, s-sent, r-replied, c.via)
				}
			}
			its.Close()
		}
	}
	for _, d := range []*Dispatcher{a, b} {
		if s := d.Stats(); s.Links != 4 { // three lanes, and the route within the process
			t.Errorf("%d links: %+v", s.Links, d.Routes())
		}
	}
	try.Check(t, errors.Join(a.Close(ctx), b.Close(ctx)))
}

// A lane with AnyTransport uses other transports if none of its own reaches a context. Without
// that the context is unreachable over the lane, and over no other.
func TestLaneUnreachable(t *testing.T) {
	reported := make(chan Undelivered, 1)
	w := newWorld()
	a := w.node(t, 1, tcp.New(), func(c *Config) {
		c.GiveUp = 3 * time.Second // enough for a slow machine to make a link
		c.Undelivered = func(u Undelivered) { reported <- u }
	})
	w.listenToo(t, a, shm.New())
	b := w.node(t, 2, tcp.New())
	near, only := box(t, b, 1, 0), box(t, b, 2, 0)
	exchangeOver(t, a, near, "shm,*", 1, 10)
	if n := a.Stats().Sent["tcp"]; n != 1 {
		t.Errorf("%d over tcp", n)
	}
	err := flowOver(t, a, only, "shm,inproc").SendBytes(soon(t), 1, 2, []byte("hello"))
	if err == nil {
		err = (<-reported).Err
	}
	if !errors.Is(err, ErrUnreachable) {
		t.Error(err)
	}
	exchange(t, a, only, 3, 10)
	exchangeOver(t, a, near, "shm,*", 1, 10)
	w.listenToo(t, b, shm.New()) // now the lane's transport reaches b
	exchangeOver(t, a, only, "shm,inproc", 2, 10)
}

// If one transport reaches two networks, each lane takes its own network. If one network does not
// answer, the other is used if the lane allows it.
func TestLanesOfNetworks(t *testing.T) {
	w := newWorld()
	var lost atomic.Int32
	a := w.node(t, 1, tcp.New(), func(c *Config) { c.Undelivered = func(Undelivered) { lost.Add(1) } })
	b := New(Config{Self: resource.MakeGID(1, 2, 0), Pool: a.cfg.Pool, Resolve: w.resolve, Trust: trusting("", "key")})
	defer func() { b.Close(soon(t)) }()
	const first, second = Lane("tcp://127.0.1.0/24,*"), Lane("tcp://127.0.2.0/24")
	remote := func(lane Lane) string {
		for _, r := range a.Routes() {
			if r.Peer == b.self && r.Lane == lane {
				return r.Remote
			}
		}
		return ""
	}
	for _, at := range []string{"tcp://127.0.2.1:0", "tcp://127.0.1.1:0"} {
		if err := b.Listen(tcp.New(), at); err != nil {
			t.Skip(err) // not every system has all of 127.0.0.0/8
		}
	}
	addrs := b.Addrs()
	w.setAddrs(b.self, addrs[:1]...)
	mb := box(t, b, 1, 0)
	exchangeOver(t, a, mb, first, 1, 10)
	if remote(first) != addrs[0] {
		t.Errorf("without its network the first lane goes to %s", remote(first))
	}
	w.setAddrs(b.self, addrs...)
	exchangeOver(t, a, mb, second, 2, 10)
	exchange(t, a, mb, 3, 10)
	a.Reconsider()
	eventually.True(t, "the first lane moves to its network", func() bool {
		exchangeOver(t, a, mb, first, 1, 10)
		return remote(first) == addrs[1]
	})
	if remote(second) != addrs[0] {
		t.Errorf("the second lane goes to %s", remote(second))
	}
	if n := lost.Load(); n > 0 {
		t.Errorf("%d reported undelivered", n)
	}
}

func TestLaneNames(t *testing.T) {
	for _, over := range [][]string{
		{""}, {"tcp://"}, {"tcp://10.0.0.1"}, {"://10.0.0.0/8"}, {"tcp", "tcp"}, {"*", "tcp"}, {"tcp", "*", "*"}, {"tcp,shm"}, {"t*"},
		{"tcp", ""}, {strings.Repeat("x", 256)},
	} {
		if l, err := NewLane(over...); !errors.Is(err, ErrRule) {
			t.Errorf("%q: %q, %v", over, l, err)
		}
	}
	var routes []route
	for _, name := range []string{"inproc", "shm", "tcp"} {
		routes = append(routes, route{transport: name})
	}
	for _, c := range []struct {
		over              []string
		text, order, name string
	}{
		{nil, "", "inproc shm tcp", ""},
		{[]string{"*"}, "", "inproc shm tcp", ""},
		{[]string{"tcp"}, "tcp", "tcp", "tcp"},
		{[]string{"tcp", "*"}, "tcp,*", "tcp inproc shm", "tcp"},
		{[]string{"tls", "shm"}, "tls,shm", "shm", "tls shm"},
		{[]string{"tcp://10.2.0.0/16", "*"}, "tcp://10.2.0.0/16,*", "tcp://10.2.0.0/16 inproc shm tcp", "tcp"},
	} {
		l, err := NewLane(c.over...)
		if string(l) != c.text || err != nil {
			t.Errorf("%q: %q, %v", c.over, l, err)
		}
		if again, err := ParseLane(string(l)); again != l || err != nil {
			t.Errorf("%q is parsed as %q, %v", l, again, err)
		}
		var order []string
		for _, r := range l.order(routes) {
			order = append(order, r.String())
		}
		if got := strings.Join(order, " "); got != c.order || strings.Join(l.Transports(), " ") != c.name {
			t.Errorf("%q orders the routes as %q, and names %q", l, got, l.Transports())
		}
	}
}

// The lanes of two contexts are limited.
func TestMostLanes(t *testing.T) {
	d := newWorld().node(t, 1, tcp.New())
	peer := resource.MakeGID(1, 2, 0)
	for i := range maxLanes {
		try.OK(t, errOf(d.linkOf(linkKey{peer, Lane(strings.Repeat("x", i))})))
	}
	try.Fails(d.linkOf(linkKey{peer, "one too many"}))(t, ErrRule)
	if l, err := d.linkOf(linkKey{peer: peer}); l == nil || err != nil {
		t.Error("a lane that exists:", err)
	}
}

// SPDX-License-Identifier: Apache-2.0

package dispatch

import (
	"context"
	"encoding/binary"
	"errors"
	"hash/crc32"
	"math/rand/v2"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/rocl-go/rocl/dispatch/internal/session"
	"github.com/rocl-go/rocl/dispatch/internal/wire"
	"github.com/rocl-go/rocl/internal/testkit/eventually"
	"github.com/rocl-go/rocl/resource"
	"github.com/rocl-go/rocl/subsys"
	"github.com/rocl-go/rocl/subsys/inproc"
	"github.com/rocl-go/rocl/subsys/shm"
	"github.com/rocl-go/rocl/subsys/tcp"
	"pgregory.net/rapid"
)

func ruled(t testing.TB, rules ...Rule) func(*Config) {
	t.Helper()
	r, err := NewRules(rules...)
	if err != nil {
		t.Fatal(err)
	}
	return func(c *Config) { c.Rules = r }
}

// both makes two contexts that reach each other in memory, by shared memory and over TCP. The first
// one has rules.
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

func exchange(t testing.TB, from *Dispatcher, to *Mailbox, tag uint64, size int) {
	t.Helper()
	ctx := soon(t)
	if err := flow(t, from, to).SendBytes(ctx, 1, tag, make([]byte, size)); err != nil {
		t.Fatal(err)
	}
	m, err := to.Recv(ctx)
	if err != nil || m.Tag() != tag || m.Len() != size {
		t.Fatal(m, err)
	}
	m.Release()
}

// Control messages go over one transport and data over another at once, chosen by tag and by size.
// The other side, which has no rules, answers as without them.
//
// Promise (Transports): Rules choose the transport of messages by tag and size. Another one is used
// where it does not reach, except with `Only`. See also TestLanesOfNetworks.
func TestLanes(t *testing.T) {
	a, b := both(t, ruled(t,
		Rule{Tags: []TagRange{{100, 199}, {500, 500}}, Over: []string{"tcp"}, Only: true},
		Rule{Tags: []TagRange{{7, 7}}},
		Rule{Min: 10_000, Over: []string{"shm", "tcp"}},
	))
	ma, mb := box(t, a, 1, 0), box(t, b, 1, 0)
	for _, c := range []struct {
		tag       uint64
		size      int
		transport string
	}{
		{1, 10, "inproc"}, {100, 10, "tcp"}, {199, 20_000, "tcp"}, {200, 10, "inproc"}, {500, 0, "tcp"},
		{1, 10_000, "shm"}, {1, 9999, "inproc"}, {7, 20_000, "inproc"},
	} {
		before := a.Stats().Sent
		exchange(t, a, mb, c.tag, c.size)
		after := a.Stats().Sent
		if after[c.transport] != before[c.transport]+1 {
			t.Errorf("tag %d, %d bytes: not over %s: %v, then %v", c.tag, c.size, c.transport, before, after)
		}
		exchange(t, b, ma, c.tag, c.size)
	}
	if s := a.Stats(); s.Links != 3 {
		t.Errorf("%d links", s.Links)
	}
	if s := b.Stats(); s.Sent["inproc"] != 8 || s.Links != 3 {
		t.Errorf("without rules: %+v", s)
	}
	if err := errors.Join(a.Close(soon(t)), b.Close(soon(t))); err != nil {
		t.Error(err)
	}
}

// If none of a rule's transports reaches a context, other transports are used. With Only the
// context is unreachable for messages of that rule, and for no others.
func TestLaneUnreachable(t *testing.T) {
	reported := make(chan Undelivered, 1)
	w := newWorld()
	a := w.node(t, 1, tcp.New(), ruled(t,
		Rule{Tags: []TagRange{{1, 1}}, Over: []string{"shm"}},
		Rule{Tags: []TagRange{{2, 2}}, Over: []string{"shm", "inproc"}, Only: true},
	), func(c *Config) {
		c.GiveUp = 3 * time.Second // enough for a slow machine to make a link
		c.Undelivered = func(u Undelivered) { reported <- u }
	})
	w.listenToo(t, a, shm.New())
	b := w.node(t, 2, tcp.New())
	mb := box(t, b, 1, 0)
	exchange(t, a, mb, 1, 10)
	if n := a.Stats().Sent["tcp"]; n != 1 {
		t.Errorf("%d over tcp", n)
	}
	err := flow(t, a, mb).SendBytes(soon(t), 1, 2, []byte("hello"))
	if err == nil {
		err = (<-reported).Err
	}
	if !errors.Is(err, ErrUnreachable) {
		t.Error(err)
	}
	exchange(t, a, mb, 3, 10)
	exchange(t, a, mb, 1, 10)
	w.listenToo(t, b, shm.New()) // now the rule's transport reaches b
	exchange(t, a, mb, 2, 10)
}

// If one transport reaches two networks, each lane takes its own network. If one network does not
// answer, the other is used unless the rule forbids it.
func TestLanesOfNetworks(t *testing.T) {
	w := newWorld()
	var lost atomic.Int32
	a := w.node(t, 1, tcp.New(), ruled(t,
		Rule{Tags: []TagRange{{1, 1}}, Over: []string{"tcp://127.0.1.0/24"}},
		Rule{Tags: []TagRange{{2, 2}}, Over: []string{"tcp://127.0.2.0/24"}, Only: true},
	), func(c *Config) { c.Undelivered = func(Undelivered) { lost.Add(1) } })
	b := New(Config{Self: resource.MakeGID(1, 2, 0), Pool: a.cfg.Pool, Resolve: w.resolve, Trust: trusting("", "key")})
	defer func() { b.Close(soon(t)) }()
	transport := func(lane uint8) string {
		for _, r := range a.Routes() {
			if r.Peer == b.self && r.Lane == int(lane) {
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
	w.mu.Lock()
	w.at[b.self] = addrs[:1]
	w.mu.Unlock()
	mb := box(t, b, 1, 0)
	exchange(t, a, mb, 1, 10)
	if transport(1) != addrs[0] {
		t.Errorf("without its network lane 1 goes to %s", transport(1))
	}
	w.mu.Lock()
	w.at[b.self] = addrs
	w.mu.Unlock()
	exchange(t, a, mb, 2, 10)
	exchange(t, a, mb, 3, 10)
	a.Reconsider()
	eventually.True(t, "lane 1 moves to its network", func() bool {
		exchange(t, a, mb, 1, 10)
		return transport(1) == addrs[1]
	})
	if transport(2) != addrs[0] {
		t.Errorf("lane 2 goes to %s", transport(2))
	}
	if n := lost.Load(); n > 0 {
		t.Errorf("%d reported undelivered", n)
	}
}

func TestRulesChecked(t *testing.T) {
	many := make([]Rule, maxLanes)
	for i := range many {
		many[i] = Rule{Over: []string{string(rune('a' + i))}}
	}
	for _, c := range [][]Rule{
		{{Tags: []TagRange{{2, 1}}}}, {{Min: -1}}, {{Max: -1}}, {{Min: 2, Max: 1}}, {{Only: true}},
		{{Over: []string{""}}}, {{Over: []string{"tcp://"}}}, {{Over: []string{"tcp://10.0.0.1"}}}, {{Over: []string{"://10.0.0.0/8"}}}, {{Over: []string{"tcp", "tcp"}}}, many,
	} {
		if _, err := NewRules(c...); !errors.Is(err, ErrRule) {
			t.Errorf("%+v: %v", c, err)
		}
	}
	if r, err := NewRules(many[1:]...); err != nil || len(r.lanes) != maxLanes {
		t.Error(err)
	}
	if r, err := NewRules(); r != nil || err != nil {
		t.Error(r, err)
	}
}

// A message takes the lane of the first rule that matches it. varies is true whenever two messages
// of one tag may take different lanes.
func TestPick(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		names := []string{"tcp", "shm", "inproc"}
		rules := rapid.SliceOfN(rapid.Custom(func(t *rapid.T) (r Rule) {
			for range rapid.IntRange(0, 2).Draw(t, "ranges") {
				first := rapid.Uint64Range(0, 5).Draw(t, "first")
				r.Tags = append(r.Tags, TagRange{first, rapid.Uint64Range(first, 5).Draw(t, "last")})
			}
			r.Min = rapid.IntRange(0, 3).Draw(t, "min")
			if rapid.Bool().Draw(t, "bounded") {
				r.Max = rapid.IntRange(max(r.Min, 1), 4).Draw(t, "max")
			}
			if n := rapid.IntRange(0, 2).Draw(t, "over"); n > 0 {
				r.Over = names[n:]
				r.Only = rapid.Bool().Draw(t, "only")
			}
			return r
		}), 1, 5).Draw(t, "rules")
		p, err := NewRules(rules...)
		if err != nil {
			t.Fatal(err)
		}
		for tag := range uint64(7) {
			seen := map[uint8]bool{}
			varied := false
			for size := range 6 {
				lane, varies := p.pick(tag, size)
				seen[lane] = true
				varied = varied || varies
				i := slices.IndexFunc(rules, func(r Rule) bool {
					in := len(r.Tags) == 0
					for _, x := range r.Tags {
						in = in || x.First <= tag && tag <= x.Last
					}
					return in && r.Min <= size && (r.Max == 0 || size <= r.Max)
				})
				switch {
				case i < 0 || len(rules[i].Over) == 0:
					if lane != 0 {
						t.Fatalf("tag %d, size %d: lane %d", tag, size, lane)
					}
				case !slices.Equal(p.lanes[lane].Over, rules[i].Over) || p.lanes[lane].Only != rules[i].Only:
					t.Fatalf("tag %d, size %d: lane %d, which is not that of rule %d", tag, size, lane, i)
				}
				if !varies && len(seen) > 1 {
					t.Fatalf("tag %d takes several lanes, and pick does not say so", tag)
				}
			}
			if len(seen) > 1 && !varied {
				t.Fatalf("tag %d takes several lanes, and pick does not say so", tag)
			}
		}
	})
}

// Lanes of several transports are chosen by size, while connections break and links move. Messages
// of one tag arrive in order, once.
func TestLanesKeepOrder(t *testing.T) {
	w := newWorld()
	near := inproc.NewNetwork().Transport()
	var lost atomic.Int32
	rules := ruled(t,
		Rule{Tags: []TagRange{{0, 0}}, Over: []string{"tcp"}},
		Rule{Min: 2 * session.PieceLen, Over: []string{"tcp"}},
		Rule{Min: 20_000, Over: []string{"shm"}, Only: true},
		Rule{Min: 1000, Max: 5000, Over: []string{"tcp", "shm"}},
	)
	note := func(c *Config) {
		c.GiveUp = 20 * time.Second
		c.Undelivered = func(Undelivered) { lost.Add(1) }
	}
	d := [2]*Dispatcher{w.node(t, 1, near, rules, note), w.node(t, 2, near, rules, note)}
	for _, d := range d {
		w.listenToo(t, d, shm.New())
		w.listenToo(t, d, tcp.New())
	}
	ctx, cancel := context.WithTimeout(context.Background(), eventually.Patience)
	defer cancel()
	const tags, each = 4, 1500
	sizes := []int{12, 64, 900, 1000, 3000, 5000, 6000, 20_000, 100_000, 3 * session.PieceLen}
	var wg, senders sync.WaitGroup
	for from := range d {
		mb := box(t, d[1-from], 1, 4<<20)
		for tag := range uint64(tags) {
			senders.Go(func() {
				f := flow(t, d[from], mb)
				r := rand.New(rand.NewPCG(tag, uint64(from)))
				size := 0
				for n := range uint64(each) {
					if r.IntN(4) == 0 || size == 0 { // some messages follow each other over one lane
						size = sizes[r.IntN(len(sizes))]
					}
					b, err := d[from].Buffer(size)
					if err == nil {
						p := b.Bytes()
						fill(p[12:], n)
						binary.LittleEndian.PutUint64(p, n)
						binary.LittleEndian.PutUint32(p[8:], crc32.ChecksumIEEE(p[12:]))
						err = f.Send(ctx, uint32(tag)+5, tag, b)
					}
					if err != nil {
						t.Errorf("%d: sending %d of tag %d: %v", from, n, tag, err)
						cancel()
						return
					}
				}
			})
		}
		wg.Go(func() {
			var next [tags]uint64
			for range tags * each {
				m, err := mb.Recv(ctx)
				if err != nil {
					t.Errorf("%d: receiving, at %v: %v", 1-from, next, err)
					return
				}
				p := m.Bytes()
				if n := binary.LittleEndian.Uint64(p); n != next[m.Tag()] {
					t.Errorf("%d: message %d of tag %d, want %d", 1-from, n, m.Tag(), next[m.Tag()])
					cancel()
					return
				}
				if binary.LittleEndian.Uint32(p[8:]) != crc32.ChecksumIEEE(p[12:]) {
					t.Errorf("%d: message %d of tag %d is damaged", 1-from, next[m.Tag()], m.Tag())
				}
				next[m.Tag()]++
				m.Release()
			}
		})
	}
	done := make(chan struct{})
	go func() { senders.Wait(); wg.Wait(); close(done) }()
	for finished := false; !finished; {
		select {
		case <-done:
			finished = true
		case <-time.After(10 * time.Millisecond): // a connection of some lane breaks
			k := rand.IntN(2)
			var all []*link
			d[k].eachLink(func(l *link) { all = append(all, l) })
			if len(all) == 0 {
				continue
			}
			l := all[rand.IntN(len(all))]
			l.mu.Lock()
			c := l.conn
			l.mu.Unlock()
			if c != nil {
				c.Close()
				l.mu.Lock()
				l.dropFailedLocked(c, errors.New("cut by the test"))
				l.backoffs = nil
				l.mu.Unlock()
			}
		}
	}
	s := d[0].Stats()
	t.Logf("sent %v over %d links, %d broken", s.Sent, s.Links, s.Resumed)
	if err := flushAndClose(ctx, d[0], d[1]); err != nil {
		t.Error(err)
	}
	if n := lost.Load(); n > 0 {
		t.Errorf("%d reported undelivered", n)
	}
}

// A message that goes within the process does not overtake a message that the other context is
// about to deliver. That message is not acknowledged before, whatever other frames the context
// sends meanwhile.
func TestLaneWithinProcessKeepsOrder(t *testing.T) {
	a, b := both(t, ruled(t, Rule{Min: 10_000, Over: []string{"tcp"}, Only: true}))
	mb := box(t, b, 1, 0)
	exchange(t, a, mb, 1, 10_000)
	l, err := a.linkOf(linkKey{peer: b.self, lane: 1})
	if err != nil {
		t.Fatal(err)
	}
	eventually.True(t, "the acknowledgement", func() bool {
		l.mu.Lock()
		defer l.mu.Unlock()
		return l.s.IsIdle()
	})
	back := b.links[linkKey{peer: a.self, lane: 1, theirs: true}]
	expected := func(l *link) uint32 { l.mu.Lock(); defer l.mu.Unlock(); return l.s.Expected() }
	has, reported := expected(back), expected(l)
	f := flow(t, a, mb)
	mb.mu.Lock() // the goroutine that delivers waits
	sent := make(chan error, 1)
	go func() { sent <- f.SendBytes(soon(t), 1, 1, make([]byte, 10_000)) }()
	if err := <-sent; err != nil { // a later send follows only sends that have returned
		t.Fatal(err)
	}
	eventually.True(t, "the large message", func() bool { return expected(back) != has })
	back.lockAndPut(wire.TypeCredit, 999, 0, 1)
	back.lockAndPost()
	eventually.True(t, "a frame from the other context", func() bool { return expected(l) != reported })
	l.mu.Lock()
	isIdle := l.s.IsIdle()
	l.mu.Unlock()
	mb.mu.Unlock()
	if isIdle {
		t.Error("a message was acknowledged that was not delivered")
	}
	go func() { sent <- f.SendBytes(soon(t), 1, 1, []byte("small")) }()
	for _, n := range []int{10_000, 5} {
		m, err := mb.Recv(soon(t))
		if err != nil || m.Len() != n {
			t.Fatal(m, err)
		}
		m.Release()
	}
	if err := <-sent; err != nil {
		t.Error(err)
	}
}

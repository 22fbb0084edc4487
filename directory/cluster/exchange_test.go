// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"errors"
	"net"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/hashicorp/memberlist"
	"github.com/rocl-go/rocl/internal/testkit/eventually"
	"github.com/rocl-go/rocl/internal/testkit/try"
	"github.com/rocl-go/rocl/resource"
)

// A lossy transport loses the datagrams to one address. While cut is set, it opens no stream to it.
type lossy struct {
	memberlist.NodeAwareTransport
	to  string
	cut *atomic.Bool
}

func (l lossy) WriteToAddress(b []byte, a memberlist.Address) (time.Time, error) {
	if a.Addr == l.to {
		return time.Now(), nil
	}
	return l.NodeAwareTransport.WriteToAddress(b, a)
}

func (l lossy) DialAddressTimeout(a memberlist.Address, timeout time.Duration) (net.Conn, error) {
	if a.Addr == l.to && l.cut.Load() {
		return nil, errors.New("cut")
	}
	return l.NodeAwareTransport.DialAddressTimeout(a, timeout)
}

// streamsApart makes memberlist exchange by streams only when it is told to.
func streamsApart(m *memberlist.Config) { m.PushPullInterval = 0 }

// All gossip of a restarted member's present life is lost to one other member. Questions between
// the two are answered, whichever of them asks first, and a watch of the other member reaches the
// restarted one.
func TestLifeNotHeard(t *testing.T) {
	for name, reaches := range map[string]func(t *testing.T, other, restarted *Cluster, watched <-chan struct{}) bool{
		"the restarted asks": func(t *testing.T, other, restarted *Cluster, _ <-chan struct{}) bool {
			return finding(t, restarted, other)
		},
		"the other asks": func(t *testing.T, other, restarted *Cluster, _ <-chan struct{}) bool {
			return finding(t, other, restarted)
		},
		"the other watches": func(_ *testing.T, other, _ *Cluster, watched <-chan struct{}) bool {
			what := pattern(resource.Match{"type": "held"})
			w := other.cfg.DB.Watch(what)
			defer w.Close()
			defer other.Watch(what, w)()
			select {
			case <-watched:
				return true
			case <-time.After(10 * time.Second): // of virtual time
				return false
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			inMemory(t, func(t *testing.T) { lifeNotHeard(t, reaches) })
		})
	}
}

// finding reports whether a question of from finds what holder has.
func finding(t *testing.T, from, holder *Cluster) bool {
	id := put(t, holder, 1, resource.Attrs{"type": "held"})
	r, err := from.Find(t.Context(), pattern(resource.Match{"type": "held"}))
	return err == nil && r.ID == id
}

// lifeNotHeard checks that reaches is true while the other member knows the former life of the
// restarted one.
func lifeNotHeard(t *testing.T, reaches func(t *testing.T, other, restarted *Cluster, watched <-chan struct{}) bool) {
	quiet := func(c *Config) { c.gossip = func(m *memberlist.Config) { neverDead(m); streamsApart(m) } }
	a := member(t, 1, quiet)
	var cut atomic.Bool
	watched := make(chan struct{})
	var once sync.Once
	silentTo := func(c *Config) {
		c.gossip = func(m *memberlist.Config) {
			neverDead(m)
			streamsApart(m)
			m.Transport = lossy{m.Transport.(memberlist.NodeAwareTransport), a.Addr(), &cut}
		}
	}
	c := member(t, 3, silentTo, a)
	b := member(t, 2, quiet, a)
	together(t, a, b, c)
	former, at := b.mux.Epoch(), b.Addr()
	kill(b)
	cut.Store(true)
	b = member(t, 2, func(cfg *Config) {
		silentTo(cfg)
		cfg.Bind, cfg.Serve = at, func(nc net.Conn) {
			once.Do(func() { close(watched) })
			nc.Close()
		}
	}, c)
	eventually.True(t, "the restarted member knows both, and joins no other one", func() bool {
		joins := b.joiner.former.Load() || b.Stats().LookedAt > 0
		return !joins && knows(b, 1) && knows(b, 3) && c.members.epoch(2) == b.mux.Epoch()
	})
	cut.Store(false)
	if now := a.members.epoch(2); now != former {
		t.Fatalf("the other member knows the life %x, the former one is %x", now, former)
	}
	if !reaches(t, a, b, watched) {
		t.Error("a member whose life is not heard of is not reached")
	}
}

// A member exchanges with one that does not answer once in a while, however many questions that one
// does not answer, and not with one that is dead.
func TestExchangeWithSilent(t *testing.T) { inMemory(t, testExchangeWithSilent) }

func testExchangeWithSilent(t *testing.T) {
	a, _ := two(t)
	begun := func() bool {
		a.exchanges.mu.Lock()
		defer a.exchanges.mu.Unlock()
		return a.exchanges.underWay[2] != nil
	}
	ended := func() { eventually.True(t, "the exchange ends", func() bool { return !begun() }) }
	change := func(f func(m *node)) {
		a.members.mu.Lock()
		defer a.members.mu.Unlock()
		f(a.members.nodes[2])
	}
	silent := []resource.NodeID{2, 2, 77}
	change(func(m *node) { m.exchanged = time.Now().Add(time.Hour) }) // no time passes meanwhile
	a.exchanges.exchangeWith(silent...)
	if begun() {
		t.Error("exchanged with the same member twice in a moment")
	}
	change(func(m *node) { m.exchanged, m.isAlive = time.Time{}, false })
	a.exchanges.exchangeWith(silent...)
	if begun() {
		t.Error("exchanged with a member that is dead")
	}
	change(func(m *node) { m.isAlive = true })
	a.exchanges.exchangeWith(silent...)
	change(func(m *node) {
		if m.exchanged.IsZero() {
			t.Error("did not exchange with a member that does not answer")
		}
	})
	ended()
}

// An exchange with a member that accepts the stream, and is silent, ends with the asking member's
// life.
func TestCloseEndsExchange(t *testing.T) {
	ln := try.Get(net.Listen("tcp", "127.0.0.1:0"))(t)
	defer ln.Close()
	for _, key := range [][][]byte{nil, {[]byte("the key of the cluster")}} {
		a := member(t, 1, func(c *Config) {
			c.Keys = key
			c.gossip = func(m *memberlist.Config) { m.TCPTimeout = time.Hour }
		})
		a.exchanges.mu.Lock()
		x := a.exchanges.beginLocked(2, ln.Addr().String())
		a.exchanges.mu.Unlock()
		nc := try.Get(ln.Accept())(t)
		defer nc.Close()
		a.Close()
		select {
		case <-x.done:
		default:
			t.Error("the member is closed before its exchange ends")
		}
		if x.err == nil {
			t.Error("exchanged with a silent peer")
		}
	}
}

// SPDX-License-Identifier: Apache-2.0

package rocl_test

import (
	"context"
	"errors"
	"flag"
	"maps"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/rocl-go/rocl"
	"github.com/rocl-go/rocl/directory"
	"github.com/rocl-go/rocl/dispatch"
	"github.com/rocl-go/rocl/internal/testkit/try"
	"github.com/rocl-go/rocl/resource"
	"github.com/rocl-go/rocl/rocltest"
	"github.com/rocl-go/rocl/subsys"
	"github.com/rocl-go/rocl/subsys/tcp"
)

// The counters tell the cost of the first send to a resource, and of the following sends.
func TestCountersOfSends(t *testing.T) {
	for name := range transports {
		t.Run(name, func(t *testing.T) {
			cl := rocltest.Cluster(t, 1)
			a, b := cl.Open(0, transports[name]...), cl.Open(0, transports[name]...)
			me, you := newResource(t, a, resource.Attrs{"n": "me"}), newResource(t, b, resource.Attrs{"n": "you"})
			if s := a.Stats(); len(s.Sent) != 0 || s.Questions != 0 || s.Links != 0 || s.Copies != 0 {
				t.Fatalf("before anything: %+v", s)
			}
			once := func() { send(t, me, you.ID(), "12345"); expect(t, you, "12345") }
			asks := uint64(2) // one for the owner, one for its addresses
			if name == "inproc" {
				asks = 1 // the owner is in this process
			}
			if n := questions(a, once); n != asks {
				t.Errorf("the first send asked %d times", n)
			}
			first := a.Stats() // the handshake of a link may copy too
			for i := uint64(2); i < 10; i++ {
				if n := questions(a, once); n != 0 {
					t.Errorf("send %d asked %d times", i, n)
				}
				s, r := a.Stats(), b.Stats()
				if want := map[string]uint64{name: i}; !maps.Equal(s.Sent, want) || !maps.Equal(r.Received, want) {
					t.Fatalf("sent %v, received %v, want %v", s.Sent, r.Received, want)
				}
				if s.SentBytes != 5*i || r.ReceivedBytes != 5*i || s.Copies-first.Copies != i-1 || s.CopiedBytes-first.CopiedBytes != 5*(i-1) {
					t.Fatalf("after %d sends: sent %d, received %d, copied %d bytes in %d copies since the first",
						i, s.SentBytes, r.ReceivedBytes, s.CopiedBytes-first.CopiedBytes, s.Copies-first.Copies)
				}
				if s.Links != 1 || s.Undelivered != 0 {
					t.Fatalf("%d links, %d undelivered", s.Links, s.Undelivered)
				}
			}
			// Another resource of the same context takes no question: its identifier names the
			// context, which is linked.
			other := newResource(t, b, nil)
			if n := questions(a, func() { send(t, me, other.ID(), "x"); expect(t, other, "x") }); n != 0 {
				t.Errorf("another resource of a linked context took %d questions", n)
			}
			// A resource of the sending context takes no question either.
			mine := newResource(t, a, nil)
			if n := questions(a, func() { send(t, me, mine.ID(), "x"); expect(t, mine, "x") }); n != 0 {
				t.Errorf("a resource of the same context took %d questions", n)
			}
			// The owner of a resource that was found is known already.
			c := cl.Open(0, transports[name]...)
			it := newResource(t, c, resource.Attrs{"n": "it"})
			if n := questions(a, func() {
				f := try.Get(a.Find(bg, resource.Match{"n": "it"}))(t)
				send(t, me, f.ID, "x")
				expect(t, it, "x")
			}); n != asks { // the find, and the addresses of the context
				t.Errorf("find and send took %d questions", n)
			}
		})
	}
}

// A resource that is deleted, and registered anew by another context, has a new identifier. Sends
// to the old identifier fail although it is cached; sends to the new one succeed.
func TestRegisteredAnewElsewhere(t *testing.T) {
	eachTransport(t, func(t *testing.T, open func(...rocl.Option) *rocl.Context) {
		reported := make(reports, 10)
		a, b, c := open(reported.option()), open(), open()
		me, old := newResource(t, a, nil), newResource(t, b, resource.Attrs{"type": "printer"})
		send(t, me, old.ID(), "one")
		expect(t, old, "one")
		try.OK(t, old.Delete(bg))
		anew := newResource(t, c, resource.Attrs{"type": "printer"})
		refused(t, me, old.ID(), reported)
		f, err := a.Find(bg, resource.Match{"type": "printer"})
		if err != nil || f.ID != anew.ID() || f.Context != c.ID() {
			t.Fatalf("found %v of %v, %v; want %v", f.ID, f.Context, err, anew.ID())
		}
		send(t, me, f.ID, "two")
		expect(t, anew, "two")
		// Later sends are refused too, and the identifier is not cached.
		refused(t, me, old.ID(), reported)
		if owners, flows, _ := rocl.CacheSizes(a); owners > 2 || flows > 2 {
			t.Errorf("%d owners and %d flows are cached, of one resource that there is", owners, flows)
		}
	})
}

// A context that ends takes its resources along. The resource of another context that replaces them
// is found.
func TestContextEnds(t *testing.T) {
	eachTransport(t, func(t *testing.T, open func(...rocl.Option) *rocl.Context) {
		reported := make(reports, 10)
		a, b := open(reported.option()), open()
		me, old := newResource(t, a, nil), newResource(t, b, resource.Attrs{"type": "printer"})
		send(t, me, old.ID(), "one")
		expect(t, old, "one")
		try.OK(t, b.Close())
		refused(t, me, old.ID(), reported)
		c := open()
		gone(t, c, old.ID())
		anew := newResource(t, c, resource.Attrs{"type": "printer"})
		f, err := a.Find(bg, resource.Match{"type": "printer"})
		if err != nil || f.ID != anew.ID() {
			t.Fatalf("found %v, %v; want %v", f.ID, err, anew.ID())
		}
		send(t, me, f.ID, "two")
		expect(t, anew, "two")
	})
}

// Both caches are wrong about a resource. The first use notices that: its message arrives or is
// reported, and the next message arrives.
//
// A wrong entry in a cache of a context is corrected at its first use and loses no message without
// a report. See also TestStaleAddresses.
func TestStaleOwner(t *testing.T) {
	eachTransport(t, func(t *testing.T, open func(...rocl.Option) *rocl.Context) {
		reported := make(reports, 10)
		a, b, other := open(reported.option()), open(), open()
		me, you := newResource(t, a, nil), newResource(t, b, nil)
		for range 9 { // no resource of a has the serial number of the last one
			you = newResource(t, b, nil)
		}
		wrong := map[string]resource.GID{
			"a living context": other.ID(),
			"one that ended":   resource.MakeGID(a.ID().Node(), 1<<40, 0),
			"the sender's":     a.ID(),
		}
		for what, owner := range wrong {
			rocl.CacheOwner(a, you.ID(), owner)
			from := newResource(t, a, nil) // this resource remembers no flow
			for try := 0; ; try++ {
				if try == 2 {
					t.Fatalf("%s: not corrected", what)
				}
				send(t, from, you.ID(), "hello")
				// The message arrives or is reported: there is no third possibility.
				got := make(chan error, 1)
				ctx, cancel := context.WithCancel(bg)
				go func() {
					m, err := you.Recv(ctx)
					if err == nil {
						m.Release()
					}
					got <- err
				}()
				var err error
				select {
				case err = <-got:
				case u := <-reported:
					if !errors.Is(u.Err, dispatch.ErrGone) {
						t.Errorf("%s: reported %+v", what, u)
					}
					cancel()
					err = <-got
				}
				cancel()
				if err == nil {
					break
				}
			}
		}
		send(t, me, you.ID(), "still")
		expect(t, you, "still")
	})
}

// flaky is TCP whose dials fail on demand, as those of a cut network do, and whose connections a
// test can cut. It counts the dials.
type flaky struct {
	subsys.Transport
	fail  atomic.Bool
	dials atomic.Int64
	tried chan struct{} // gets a token for each dial that failed
	mu    sync.Mutex
	cuts  []func()
}

func newFlaky() *flaky {
	return &flaky{Transport: tcp.New(), tried: make(chan struct{}, 1)}
}

func (f *flaky) Listen(addr string, cfg subsys.Config) (subsys.Port, error) {
	p, err := f.Transport.Listen(addr, cfg)
	if err != nil {
		return nil, err
	}
	return &flakyPort{p, f}, nil
}

type flakyPort struct {
	subsys.Port
	f *flaky
}

func (p *flakyPort) Dial(ctx context.Context, addr string, s subsys.Sink) (subsys.Conn, error) {
	p.f.dials.Add(1)
	if p.f.fail.Load() {
		select {
		case p.f.tried <- struct{}{}:
		default:
		}
		return nil, subsys.ErrNoPeer
	}
	c, err := p.Port.Dial(ctx, addr, s)
	if err == nil {
		p.f.mu.Lock()
		p.f.cuts = append(p.f.cuts, func() { c.Close(); s.Down(c, errors.New("cut by a test")) })
		p.f.mu.Unlock()
	}
	return c, err
}

// cut breaks all dialled connections. The side that notices a break logs it.
func (f *flaky) cut() {
	f.mu.Lock()
	cuts := f.cuts
	f.cuts = nil
	f.mu.Unlock()
	for _, cut := range cuts {
		cut()
	}
}

// Addresses that do not work are asked for again, by the dial after the one that failed.
func TestStaleAddresses(t *testing.T) {
	cl := rocltest.Cluster(t, 1)
	a, b := cl.Open(0, rocl.WithTransports(tcp.New())), cl.Open(0, rocl.WithTransports(tcp.New()))
	me, you := newResource(t, a, nil), newResource(t, b, nil)
	rocl.CacheAddrs(a, b.ID(), "inproc://nowhere/1", "tcp://127.0.0.1:1")
	// One question is for the owner, and one for the addresses after the dial has failed.
	if n := questions(a, func() { send(t, me, you.ID(), "hello"); expect(t, you, "hello") }); n != 2 {
		t.Errorf("%d questions", n)
	}
	// Addresses that work spare the second question.
	c := cl.Open(0, rocl.WithTransports(tcp.New()))
	it := newResource(t, c, nil)
	rocl.CacheAddrs(a, c.ID(), c.Addrs()...)
	if n := questions(a, func() { send(t, me, it.ID(), "hello"); expect(t, it, "hello") }); n != 1 {
		t.Errorf("%d questions with addresses cached", n)
	}
}

// While dials fail, messages wait, and each attempt asks for the addresses. Only an attempt that
// comes a second after the last one may use the addresses that are known.
func TestDialsFail(t *testing.T) {
	cl := rocltest.Cluster(t, 1)
	f := newFlaky()
	f.fail.Store(true)
	a, b := cl.Open(0, rocl.WithTransports(f)), cl.Open(0, rocl.WithTransports(tcp.New()))
	me, you := newResource(t, a, nil), newResource(t, b, nil)
	began := time.Now()
	for range 3 {
		send(t, me, you.ID(), "hello")
	}
	<-f.tried
	f.fail.Store(false)
	for range 3 {
		expect(t, you, "hello")
	}
	if n, d := a.Stats().Questions, uint64(f.dials.Load()); d < 2 || n > 1+d || n < 1+d && time.Since(began) < time.Second {
		t.Errorf("%d dials, %d questions", d, n)
	}
}

func TestAddressCache(t *testing.T) {
	cl := rocltest.Cluster(t, 1)
	a, b := cl.Open(0), cl.Open(0)
	if _, err := a.Lookup(bg, b.ID()); err != nil { // the answer has the addresses
		t.Fatal(err)
	}
	if _, _, addrs := rocl.CacheSizes(a); addrs != 1 {
		t.Errorf("%d contexts' addresses are cached after they were reported", addrs)
	}
}

// A watch that yields the end of a resource corrects the caches before they are used.
func TestWatchForgets(t *testing.T) {
	cl := rocltest.Cluster(t, 1)
	a, b := cl.Open(0), cl.Open(0)
	me, you := newResource(t, a, nil), newResource(t, b, resource.Attrs{"type": "x"})
	send(t, me, you.ID(), "hello")
	expect(t, you, "hello")
	for ev, err := range a.Watch(bg, resource.Match{"type": "x"}) {
		try.OK(t, err)
		if ev.Kind == directory.Synced {
			try.OK(t, you.Delete(bg))
		}
		if ev.Kind == directory.Gone {
			break
		}
	}
	if owners, flows, _ := rocl.CacheSizes(a); owners != 0 || flows != 0 {
		t.Errorf("%d owners, %d flows after the only one was gone", owners, flows)
	}
}

var peersFlag = flag.Int("cache.peers", 300, "short-lived peers in TestShortLivedPeers")

// The entries for a peer are dropped after the peer has ended: memory does not grow with the number
// of past peers.
func TestShortLivedPeers(t *testing.T) {
	eachTransport(t, func(t *testing.T, open func(...rocl.Option) *rocl.Context) {
		a := open()
		me := newResource(t, a, nil)
		for range *peersFlag {
			b := open(rocl.WithPoll(dispatch.PollNever))
			you := newResource(t, b, nil)
			send(t, me, you.ID(), "hello")
			expect(t, you, "hello")
			send(t, you, me.ID(), "good bye")
			expect(t, me, "good bye")
			try.OK(t, b.Close())
		}
		if owners, flows, addrs := rocl.CacheSizes(a); owners+flows+addrs > 300 {
			t.Errorf("after %d peers %d owners, %d flows and %d addresses are kept", *peersFlag, owners, flows, addrs)
		}
	})
}

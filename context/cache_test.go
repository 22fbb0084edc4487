// SPDX-License-Identifier: Apache-2.0

package context_test

import (
	stdctx "context"
	"errors"
	"flag"
	"iter"
	"maps"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/rocl-go/rocl/context"
	"github.com/rocl-go/rocl/directory"
	"github.com/rocl-go/rocl/dispatch"
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
			me, you := register(t, a, resource.Attrs{"n": "me"}), register(t, b, resource.Attrs{"n": "you"})
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
			other := register(t, b, nil)
			if n := questions(a, func() { send(t, me, other.ID(), "x"); expect(t, other, "x") }); n != 0 {
				t.Errorf("another resource of a linked context took %d questions", n)
			}
			// A resource of the sending context takes no question either.
			mine := register(t, a, nil)
			if n := questions(a, func() { send(t, me, mine.ID(), "x"); expect(t, mine, "x") }); n != 0 {
				t.Errorf("a resource of the same context took %d questions", n)
			}
			// The owner of a resource that was found is known already.
			c := cl.Open(0, transports[name]...)
			it := register(t, c, resource.Attrs{"n": "it"})
			if n := questions(a, func() {
				f, err := a.Find(bg, resource.Match{"n": "it"})
				must(t, err)
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
	eachTransport(t, func(t *testing.T, open func(...context.Option) *context.Context) {
		reported := make(reports, 10)
		a, b, c := open(reported.option()), open(), open()
		me, old := register(t, a, nil), register(t, b, resource.Attrs{"type": "printer"})
		send(t, me, old.ID(), "one")
		expect(t, old, "one")
		must(t, old.Delete(bg))
		anew := register(t, c, resource.Attrs{"type": "printer"})
		refused(t, me, old.ID(), reported)
		f, err := a.Find(bg, resource.Match{"type": "printer"})
		if err != nil || f.ID != anew.ID() || f.Context != c.ID() {
			t.Fatalf("found %v of %v, %v; want %v", f.ID, f.Context, err, anew.ID())
		}
		send(t, me, f.ID, "two")
		expect(t, anew, "two")
		// Later sends are refused too, and the identifier is not cached.
		refused(t, me, old.ID(), reported)
		if owners, flows, _ := a.CacheSizes(); owners > 2 || flows > 2 {
			t.Errorf("%d owners and %d flows are cached, of one resource that there is", owners, flows)
		}
	})
}

// A context that ends takes its resources along. The resource of another context that replaces them
// is found.
func TestContextEnds(t *testing.T) {
	eachTransport(t, func(t *testing.T, open func(...context.Option) *context.Context) {
		reported := make(reports, 10)
		a, b := open(reported.option()), open()
		me, old := register(t, a, nil), register(t, b, resource.Attrs{"type": "printer"})
		send(t, me, old.ID(), "one")
		expect(t, old, "one")
		must(t, b.Close())
		refused(t, me, old.ID(), reported)
		c := open()
		gone(t, c, old.ID())
		anew := register(t, c, resource.Attrs{"type": "printer"})
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
// Promise (Delivery): A wrong entry in a cache of a context is corrected at its first use and loses
// no message without a report. See also TestStaleAddresses.
func TestStaleOwner(t *testing.T) {
	eachTransport(t, func(t *testing.T, open func(...context.Option) *context.Context) {
		reported := make(reports, 10)
		a, b, other := open(reported.option()), open(), open()
		me, you := register(t, a, nil), register(t, b, nil)
		for range 9 { // no resource of a has the serial number of the last one
			you = register(t, b, nil)
		}
		wrong := map[string]resource.GID{
			"a living context": other.ID(),
			"one that ended":   resource.MakeGID(a.ID().Node(), 1<<40, 0),
			"the sender's":     a.ID(),
		}
		for what, owner := range wrong {
			a.CacheOwner(you.ID(), owner)
			from := register(t, a, nil) // this resource remembers no flow
			for try := 0; ; try++ {
				if try == 2 {
					t.Fatalf("%s: not corrected", what)
				}
				send(t, from, you.ID(), "hello")
				// The message arrives or is reported: there is no third possibility.
				got := make(chan error, 1)
				ctx, cancel := stdctx.WithCancel(bg)
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

func (p *flakyPort) Dial(ctx stdctx.Context, addr string, s subsys.Sink) (subsys.Conn, error) {
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
	a, b := cl.Open(0, context.WithTransports(tcp.New())), cl.Open(0, context.WithTransports(tcp.New()))
	me, you := register(t, a, nil), register(t, b, nil)
	a.CacheAddrs(b.ID(), "inproc://nowhere/1", "tcp://127.0.0.1:1")
	// One question is for the owner, and one for the addresses after the dial has failed.
	if n := questions(a, func() { send(t, me, you.ID(), "hello"); expect(t, you, "hello") }); n != 2 {
		t.Errorf("%d questions", n)
	}
	// Addresses that work spare the second question.
	c := cl.Open(0, context.WithTransports(tcp.New()))
	it := register(t, c, nil)
	a.CacheAddrs(c.ID(), c.Addrs()...)
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
	a, b := cl.Open(0, context.WithTransports(f)), cl.Open(0, context.WithTransports(tcp.New()))
	me, you := register(t, a, nil), register(t, b, nil)
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

// others is the rest of a cluster, as the directory of a node sees it. What the directory asks for
// by name is on a node that does not answer.
type others struct {
	directory.Remote
	finds atomic.Int64
	mu    sync.Mutex
	nodes []resource.NodeID // the living nodes
	err   error             // of a search that finds nothing
	hold  chan struct{}     // if not nil, a search waits until it is closed
}

func (o *others) set(err error, nodes ...resource.NodeID) {
	o.mu.Lock()
	o.nodes, o.err = nodes, err
	o.mu.Unlock()
}

func (o *others) Find(stdctx.Context, *resource.List) (resource.Record, error) {
	o.finds.Add(1)
	if o.hold != nil {
		<-o.hold
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	return resource.Record{}, o.err
}

func (o *others) All(stdctx.Context, *resource.List, *directory.Coverage) iter.Seq2[resource.Record, error] {
	o.mu.Lock()
	nodes := o.nodes
	o.mu.Unlock()
	return func(yield func(resource.Record, error) bool) {
		for _, n := range nodes {
			l, _ := resource.NewPattern(resource.Match{directory.AttrKind: "node"})
			id := directory.NodeResource(n)
			if !yield(resource.Record{ID: id, Owner: id, Revision: 1, Attrs: *l}, nil) {
				return
			}
		}
	}
}

// A node is dead if the directory does not know it, and is not cut off itself: it knows another
// member. The known addresses are returned with the error. All links together ask a few times a
// second.
func TestNodeDead(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newServers(t)
		c := s.in(t)
		o := &others{Remote: directory.Unreachable(errors.New("nobody is reached"))}
		s.now.Attach(o)
		peer := resource.MakeGID(c.ID().Node()+1, 1, 0)
		third := peer.Node() + 1
		ask := func() (addrs []string, finds int64, err error) {
			time.Sleep(time.Second) // in the synctest bubble: makes the last answer old
			before := o.finds.Load()
			addrs, err = c.Resolve(peer)
			return addrs, o.finds.Load() - before, err
		}
		for what, err := range map[string]error{
			"the directory is cut off": directory.ErrNotFound,
			"a member does not answer": directory.ErrPartial,
			"the node has a resource":  nil,
		} {
			o.set(err)
			if _, _, err := ask(); !errors.Is(err, directory.ErrPartial) || errors.Is(err, dispatch.ErrGone) {
				t.Errorf("%s: %v", what, err)
			}
		}
		o.set(directory.ErrPartial, third)
		if _, _, err := ask(); errors.Is(err, dispatch.ErrGone) {
			t.Error("another node is suspected:", err)
		}
		o.set(directory.ErrNotFound, third)
		if addrs, n, err := ask(); !errors.Is(err, dispatch.ErrNodeDead) || n != 1 || len(addrs) > 0 {
			t.Errorf("the node is dead: %q, %d searches, %v", addrs, n, err)
		}
		before := o.finds.Load()
		var all sync.WaitGroup
		for range 100 {
			all.Go(func() {
				fails(t, errOf(c.Resolve(peer)), dispatch.ErrNodeDead)
			})
		}
		all.Wait()
		if n := o.finds.Load() - before; n != 0 {
			t.Errorf("%d searches for what was just answered", n)
		}
		c.CacheAddrs(peer, "inproc://there/1")
		for range 2 { // the first attempt uses the cached addresses
			if addrs, err := c.Resolve(peer); !slices.Equal(addrs, []string{"inproc://there/1"}) || err != nil && !errors.Is(err, dispatch.ErrNodeDead) {
				t.Errorf("%q, %v", addrs, err)
			}
		}
		o.set(directory.ErrPartial, third)
		if _, _, err := ask(); errors.Is(err, dispatch.ErrGone) {
			t.Error("the node may live again:", err)
		}
	})
}

// A call that has asked whether a node is dead, and gives up, answers for no other call.
func TestNodeDeadAskerGivesUp(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newServers(t)
		c := s.in(t)
		node := c.ID().Node() + 1
		o := &others{Remote: directory.Unreachable(errors.New("no member is reached")), hold: make(chan struct{})}
		o.set(directory.ErrNotFound, node+1)
		s.now.Attach(o)
		ctx, cancel := stdctx.WithCancel(bg)
		first, second := make(chan bool, 1), make(chan bool, 1)
		go func() { first <- c.IsDead(ctx, node) }()
		synctest.Wait() // the first call asks
		go func() { second <- c.IsDead(bg, node) }()
		synctest.Wait() // the second call waits for the first
		if n := o.finds.Load(); n != 1 {
			t.Errorf("%d searches", n)
		}
		cancel()
		if <-first {
			t.Error("the call that gave up says that the node is dead")
		}
		close(o.hold)
		if !<-second {
			t.Error("the other call says that the node lives")
		}
	})
}

// The number of answers about dead nodes that a context keeps is limited.
func TestManyNodesDead(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newServers(t)
		c := s.in(t)
		o := &others{Remote: directory.Unreachable(errors.New("nobody is reached"))}
		s.now.Attach(o)
		o.set(directory.ErrNotFound, c.ID().Node()+1)
		for i := range 1000 {
			time.Sleep(100 * time.Millisecond) // in the synctest bubble: a few questions a second are asked
			if _, err := c.Resolve(resource.MakeGID(resource.NodeID(i+1), 1, 0)); !errors.Is(err, dispatch.ErrNodeDead) {
				t.Fatal(err)
			}
			if n := c.Deaths(); n > 100 {
				t.Fatalf("%d nodes are remembered", n)
			}
		}
	})
}

func TestAddressCache(t *testing.T) {
	cl := rocltest.Cluster(t, 1)
	a, b := cl.Open(0), cl.Open(0)
	if _, err := a.Lookup(bg, b.ID()); err != nil { // the answer has the addresses
		t.Fatal(err)
	}
	if _, _, addrs := a.CacheSizes(); addrs != 1 {
		t.Errorf("%d contexts' addresses are cached after they were reported", addrs)
	}
}

// The caches are limited. An entry that was dropped is asked for again.
func TestEviction(t *testing.T) {
	cl := rocltest.Cluster(t, 1)
	a, b := cl.Open(0, rocltest.TCP()), cl.Open(0, rocltest.TCP()) // in-process links would tell at once that a peer has ended
	me, you := register(t, a, nil), register(t, b, nil)
	send(t, me, you.ID(), "hello")
	expect(t, you, "hello")
	const n = context.CacheMost + 1000
	for i := range uint32(n) {
		id := b.ID().WithSerial(1000 + i)
		a.CacheOwner(id, b.ID())
		must(t, a.CacheFlow(id))
		if owners, flows, _ := a.CacheSizes(); owners > context.CacheMost || flows > context.CacheMost {
			t.Fatalf("%d owners, %d flows, at most %d", owners, flows, context.CacheMost)
		}
	}
	if owners, flows, _ := a.CacheSizes(); owners != context.CacheMost || flows != context.CacheMost {
		t.Errorf("%d owners, %d flows: less than there is room for", owners, flows)
	}
	last := b.ID().WithSerial(1000 + n - 1)
	for range 10 { // an entry that is set again replaces no other one
		a.CacheNewOwner(last, a.ID())
		a.CacheNewOwner(last, b.ID())
	}
	if owners, _, _ := a.CacheSizes(); owners != context.CacheMost {
		t.Errorf("%d owners after one was set again", owners)
	}
	for range 100 { // for entries that were dropped, and for others
		r, from := register(t, b, nil), register(t, a, nil)
		send(t, from, r.ID(), "new")
		expect(t, r, "new")
		send(t, from, you.ID(), "old")
		expect(t, you, "old")
	}
	if owners, flows, _ := a.CacheSizes(); owners > context.CacheMost || flows > context.CacheMost {
		t.Errorf("%d owners, %d flows afterwards", owners, flows)
	}
}

// A watch that yields the end of a resource corrects the caches before they are used.
func TestWatchForgets(t *testing.T) {
	cl := rocltest.Cluster(t, 1)
	a, b := cl.Open(0), cl.Open(0)
	me, you := register(t, a, nil), register(t, b, resource.Attrs{"type": "x"})
	send(t, me, you.ID(), "hello")
	expect(t, you, "hello")
	for ev, err := range a.Watch(bg, resource.Match{"type": "x"}) {
		must(t, err)
		if ev.Kind == directory.Synced {
			must(t, you.Delete(bg))
		}
		if ev.Kind == directory.Gone {
			break
		}
	}
	if owners, flows, _ := a.CacheSizes(); owners != 0 || flows != 0 {
		t.Errorf("%d owners, %d flows after the only one was gone", owners, flows)
	}
}

var peersFlag = flag.Int("cache.peers", 300, "short-lived peers in TestShortLivedPeers")

// The entries for a peer are dropped after the peer has ended: memory does not grow with the number
// of past peers.
func TestShortLivedPeers(t *testing.T) {
	eachTransport(t, func(t *testing.T, open func(...context.Option) *context.Context) {
		a := open()
		me := register(t, a, nil)
		for range *peersFlag {
			b := open(context.WithPoll(dispatch.PollNever))
			you := register(t, b, nil)
			send(t, me, you.ID(), "hello")
			expect(t, you, "hello")
			send(t, you, me.ID(), "good bye")
			expect(t, me, "good bye")
			must(t, b.Close())
		}
		if owners, flows, addrs := a.CacheSizes(); owners+flows+addrs > 300 {
			t.Errorf("after %d peers %d owners, %d flows and %d addresses are kept", *peersFlag, owners, flows, addrs)
		}
	})
}

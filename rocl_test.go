// SPDX-License-Identifier: Apache-2.0

package rocl_test

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/rocl-go/rocl"
	"github.com/rocl-go/rocl/rocltest"
	"go.uber.org/goleak"
)

// TestMain checks for leaked goroutines. memberlist's probes end with their timeouts, shortly after
// its Shutdown.
func TestMain(m *testing.M) {
	goleak.VerifyTestMain(m, goleak.IgnoreAnyFunction("github.com/hashicorp/memberlist.(*Memberlist).probeNode"))
}

func reg(t *testing.T, c *rocl.Context, attrs ...string) *rocl.Resource {
	t.Helper()
	a := rocl.Attrs{}
	for i := 0; i < len(attrs); i += 2 {
		a[attrs[i]] = attrs[i+1]
	}
	r, err := c.Register(context.Background(), a)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

// The first send asks the directory for the owner of the target and for the owner's addresses. The
// next million sends ask nothing.
func TestCaches(t *testing.T) {
	ctx := context.Background()
	cl := rocltest.Cluster(t, 1)
	a, b := cl.Open(0), cl.Open(0)
	me, target := reg(t, a), reg(t, b)
	before := a.Stats().Questions
	for i := range uint64(1000) {
		if err := me.SendBytes(ctx, target.ID(), i, nil); err != nil {
			t.Fatal(err)
		}
		m, err := target.Recv(ctx)
		if err != nil {
			t.Fatal(err)
		}
		m.Release()
	}
	if n := a.Stats().Questions - before; n != 1 { // the owner is in this process, so its address is not asked for
		t.Errorf("%d questions, want 1", n)
	}
	// The answer needs no question: the sender of a received message is known.
	before = b.Stats().Questions
	if err := target.SendBytes(ctx, me.ID(), 0, nil); err != nil {
		t.Fatal(err)
	}
	if n := b.Stats().Questions - before; n != 0 {
		t.Errorf("the answer took %d questions", n)
	}
}

// A cache entry is corrected when using it fails.
func TestDeletedTarget(t *testing.T) {
	ctx := context.Background()
	cl := rocltest.Cluster(t, 1)
	reported := make(chan rocl.Undelivered, 10)
	a, b := cl.Open(0, rocl.WithUndelivered(func(u rocl.Undelivered) { reported <- u })), cl.Open(0)
	me, target := reg(t, a), reg(t, b, "type", "x")
	if err := me.SendBytes(ctx, target.ID(), 1, []byte("unread")); err != nil {
		t.Fatal(err)
	}
	if err := target.Delete(ctx); err != nil {
		t.Fatal(err)
	}
	if u := <-reported; !errors.Is(u.Err, rocl.ErrGone) || u.Tag != 1 {
		t.Errorf("reported %+v", u)
	}
	if err := me.SendBytes(ctx, target.ID(), 2, nil); !errors.Is(err, rocl.ErrGone) {
		t.Errorf("send to a deleted resource: %v", err)
	}
	if _, err := a.Find(ctx, rocl.Match{"type": "x"}); !errors.Is(err, rocl.ErrNotFound) {
		t.Errorf("find: %v", err)
	}
	if err := target.Delete(ctx); !errors.Is(err, rocl.ErrClosed) {
		t.Errorf("second delete: %v", err)
	}
}

// Stats count the copies of a send: none between contexts in memory, one of a small message over
// TCP, and none of a large one.
func TestCopies(t *testing.T) {
	ctx := context.Background()
	cl := rocltest.Cluster(t, 1)
	for name, opts := range map[string][]rocl.Option{"inproc": nil, "tcp": {rocltest.TCP()}} {
		a, b := cl.Open(0, opts...), cl.Open(0, opts...)
		me, target := reg(t, a), reg(t, b)
		send := func(size int) {
			p, err := a.Buffer(size)
			if err != nil {
				t.Fatal(err)
			}
			where := &p.Bytes()[0]
			if err := me.Send(ctx, target.ID(), 0, p); err != nil {
				t.Fatal(err)
			}
			m, err := target.Recv(ctx)
			if err != nil {
				t.Fatal(err)
			}
			if name == "inproc" && &m.Bytes()[0] != where {
				t.Error("the receiver reads other memory than the sender wrote")
			}
			m.Release()
		}
		send(10) // makes the link
		for _, c := range []struct {
			size int
			tcp  uint64
		}{{100, 1}, {100_000, 0}, {3 << 20, 0}} {
			before := a.Stats().Copies
			send(c.size)
			want := uint64(0)
			if name == "tcp" {
				want = c.tcp
			}
			if n := a.Stats().Copies - before; n != want {
				t.Errorf("%s: %d copies of %d bytes, want %d", name, n, c.size, want)
			}
		}
		if s := a.Stats(); s.Sent[name] != 4 {
			t.Errorf("sent %v, want 4 over %s", s.Sent, name)
		}
	}
}

// Steady traffic allocates no memory.
//
// Promise (Sending): Sending and receiving allocate nothing. Every copy is counted. See also
// TestCopies.
func TestNoAllocs(t *testing.T) {
	if watched {
		t.Skip("the race detector makes pools forget, a rocldebug build remembers places")
	}
	ctx := context.Background()
	cl := rocltest.Cluster(t, 1)
	for name, opts := range map[string][]rocl.Option{"inproc": nil, "tcp": {rocltest.TCP()}} {
		a, b := cl.Open(0, opts...), cl.Open(0, opts...)
		me, target := reg(t, a), reg(t, b)
		size := 64
		one := func() {
			p, err := a.Buffer(size)
			if err != nil {
				t.Fatal(err)
			}
			if err := me.Send(ctx, target.ID(), 0, p); err != nil {
				t.Fatal(err)
			}
			m, err := target.Recv(ctx)
			if err != nil {
				t.Fatal(err)
			}
			m.Release()
		}
		for range 200 {
			one()
		}
		if n := testing.AllocsPerRun(2000, one); n >= 1 {
			t.Errorf("%s: %v allocations a message", name, n)
		}
		size = 600_000 // sent in pieces
		for range 20 {
			one()
		}
		if n := testing.AllocsPerRun(100, one); n >= 1 {
			t.Errorf("%s: %v allocations a large message", name, n)
		}
	}
}

// Of several goroutines that update at one revision, exactly one succeeds.
//
// Promise (Resources): Attributes change in place. A compare-and-set changes the revision that the
// caller saw or nothing, and concurrent changes lose none. See also TestSet.
func TestCompareAndSet(t *testing.T) {
	ctx := context.Background()
	c := rocltest.Cluster(t, 1).Open(0)
	r := reg(t, c, "n", "0")
	rev := r.Revision()
	var wg sync.WaitGroup
	wins := make(chan uint64, 10)
	for i := range 10 {
		wg.Go(func() {
			now, err := r.CompareAndSet(ctx, rev, rocl.Attrs{"n": fmt.Sprint(i)})
			if err == nil {
				wins <- now
			} else if !errors.Is(err, rocl.ErrRevision) {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	if len(wins) != 1 || <-wins != rev+1 {
		t.Errorf("not exactly one won")
	}
}

// Invalid attributes give an error, and no resource is registered.
func TestBadAttributes(t *testing.T) {
	ctx := context.Background()
	c := rocltest.Cluster(t, 1).Open(0)
	var incomplete rocl.List
	_ = incomplete.Want("x")
	for _, a := range []rocl.Attributes{rocl.Attrs{"": "x"}, rocl.Attrs{"a\xff": "x"}, rocl.Attrs{"rocl.kind": "x"}, &incomplete} {
		if _, err := c.Register(ctx, a); err == nil {
			t.Errorf("%v was registered", a)
		}
	}
	for f, err := range c.FindAll(ctx, rocl.Match{}) {
		t.Errorf("left behind: %v %v", f.ID, err)
	}
	f, err := c.Find(ctx, rocl.Match{"rocl.kind": "context"}, rocl.Want("rocl.pid"))
	if err != nil || f.ID != c.ID() {
		t.Errorf("the context's own resource: %v, %v", f.ID, err)
	}
}

// The resources of one context share its port, and each receives only its own messages.
func TestManyResources(t *testing.T) {
	n := 100_000
	if testing.Short() {
		n = 5_000
	}
	ctx := context.Background()
	cl := rocltest.Cluster(t, 1)
	a, b := cl.Open(0, rocltest.TCP()), cl.Open(0, rocltest.TCP())
	me := reg(t, a)
	var wg sync.WaitGroup
	rs := make([]*rocl.Resource, n)
	for g := range 8 {
		wg.Go(func() {
			for i := g; i < n; i += 8 {
				r, err := b.Register(ctx, rocl.Attrs{"i": fmt.Sprint(i)})
				if err != nil {
					t.Error(err)
					return
				}
				rs[i] = r
			}
		})
	}
	wg.Wait()
	if t.Failed() {
		t.FailNow()
	}
	for i, r := range rs {
		if err := me.SendBytes(ctx, r.ID(), uint64(i), []byte(fmt.Sprint(i))); err != nil {
			t.Fatal(err)
		}
	}
	for i, r := range rs {
		m, err := r.Recv(ctx)
		if err != nil || m.Tag() != uint64(i) || string(m.Bytes()) != fmt.Sprint(i) {
			t.Fatalf("resource %d got %v, %v", i, m, err)
		}
		m.Release()
	}
}

// A timed receive, an immediate receive and a close return when they should.
func TestWaiting(t *testing.T) {
	cl := rocltest.Cluster(t, 1)
	c := cl.Open(0)
	r := reg(t, c)
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Millisecond)
	defer cancel()
	if _, err := r.Recv(ctx); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("timed: %v", err)
	}
	if _, err := r.TryRecv(); !errors.Is(err, rocl.ErrEmpty) {
		t.Errorf("immediate: %v", err)
	}
	woken := make(chan error)
	go func() {
		_, err := r.Recv(context.Background())
		woken <- err
	}()
	if err := c.Close(); err != nil {
		t.Error(err)
	}
	if err := <-woken; !errors.Is(err, rocl.ErrClosed) {
		t.Errorf("closed: %v", err)
	}
	if _, err := c.Find(context.Background(), rocl.Match{}); !errors.Is(err, rocl.ErrClosed) {
		t.Errorf("find after close: %v", err)
	}
	if err := c.Close(); err != nil {
		t.Errorf("second close: %v", err)
	}
}

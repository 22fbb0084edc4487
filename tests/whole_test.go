// SPDX-License-Identifier: Apache-2.0

package tests

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"iter"
	"net"
	"os"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	lib "github.com/rocl-go/rocl"
	icontext "github.com/rocl-go/rocl/context"
	"github.com/rocl-go/rocl/directory"
	"github.com/rocl-go/rocl/internal/testkit/eventually"
	"github.com/rocl-go/rocl/internal/testkit/posix"
	"github.com/rocl-go/rocl/internal/testkit/short"
	"github.com/rocl-go/rocl/internal/testkit/try"
	"github.com/rocl-go/rocl/rocltest"
	"github.com/rocl-go/rocl/subsys/inproc"
	"github.com/rocl-go/rocl/subsys/shm"
	"github.com/rocl-go/rocl/subsys/tcp"
	"go.uber.org/goleak"
)

// pass sends p from one resource to another, and checks what arrives.
func pass(t testing.TB, from, to *lib.Resource, tag uint64, p []byte) {
	t.Helper()
	ctx := eventually.Context(t)
	try.OK(t, from.SendBytes(ctx, to.ID(), tag, p))
	m := try.Get(to.Recv(ctx))(t)
	defer m.Release()
	if m.From() != from.ID() || m.Tag() != tag || !bytes.Equal(m.Bytes(), p) {
		t.Fatalf("sent %d bytes with tag %d from %v, got %d, %d, %v", len(p), tag, from.ID(), m.Len(), m.Tag(), m.From())
	}
}

// openAt opens a context at a directory of the test's own, so that the test can look into the
// directory.
func openAt(t testing.TB, dial directory.Dialer, opts ...lib.Option) *lib.Context {
	t.Helper()
	c := try.Get(lib.Open(eventually.Context(t), append([]lib.Option{icontext.WithDirectory(dial)}, opts...)...))(t)
	t.Cleanup(func() { c.Close() })
	return c
}

func server(t testing.TB) *directory.Server {
	s := directory.NewServer()
	t.Cleanup(func() { s.Close() })
	return s
}

// Close leaves no goroutine, descriptor and memory behind, and nothing in the directory.
func TestNothingIsLeft(t *testing.T) {
	ctx := eventually.Context(t)
	s := server(t)
	watcher := openAt(t, s.Dialer())
	isGone := func() bool {
		_, err := watcher.Find(ctx, lib.Match{"a": "b"})
		return errors.Is(err, lib.ErrNotFound)
	}
	if !isGone() {
		t.Fatal("found before it is registered")
	}
	descriptors := func() int { return len(try.Get(os.ReadDir("/proc/self/fd"))(t)) }
	goroutines, fds := goleak.IgnoreCurrent(), descriptors()
	var closing []*lib.Context
	var rs []*lib.Resource
	for range 2 {
		c := openAt(t, s.Dialer(), lib.WithTransports(inproc.NewNetwork().Transport(), tcp.New()))
		closing, rs = append(closing, c), append(rs, register(t, c, lib.Attrs{"a": "b"}))
	}
	pass(t, rs[0], rs[1], 0, make([]byte, 100_000))
	if descriptors() <= fds {
		t.Fatal("open contexts have no descriptors: the test looks in the wrong place")
	}
	for _, c := range closing {
		try.OK(t, c.Close())
		if n := c.Stats().Buffers; n.Mapped != 0 || n.InUse != 0 {
			t.Errorf("memory is left: %+v", n)
		}
	}
	eventually.True(t, "the directory knows only the watcher", func() bool { return isGone() && s.Stats().Contexts == 1 })
	for _, c := range closing {
		if f, err := watcher.Lookup(ctx, c.ID()); !errors.Is(err, lib.ErrNotFound) {
			t.Errorf("a closed context is known: %v, %v", f, err)
		}
	}
	try.OK(t, goleak.Find(goroutines))
	eventually.True(t, "all descriptors are closed", func() bool { return descriptors() <= fds })
}

// Two contexts use several networks at once, each with a role.
func TestNetworksWithRoles(t *testing.T) {
	cl := rocltest.Cluster(t, 1)
	both := lib.WithTransports(shm.New(), tcp.New())
	from, b := register(t, cl.Open(0, both), nil), cl.Open(0, both)
	for role, over := range map[string]string{"control": "tcp", "data": "shm"} {
		to := try.Get(b.Register(t.Context(), lib.Attrs{"role": role}, lib.Over(over)))(t)
		for i := range uint64(10) {
			pass(t, from, to, i, []byte(role))
		}
	}
	if s := b.Stats().Received; s["tcp"] != 10 || s["shm"] != 10 || len(s) != 2 {
		t.Errorf("received %v, want 10 over each transport", s)
	}
}

// The many resources of a context share its port and a connection, and each receives only its own
// messages.
func TestResourcesShareConnection(t *testing.T) {
	n := 100_000
	if short.Form(t) {
		n = 3000
	}
	ctx := eventually.Context(t)
	cl := rocltest.Cluster(t, 1)
	me, b := register(t, cl.Open(0, rocltest.TCP()), nil), cl.Open(0, rocltest.TCP())
	before := len(tcpConns(t))
	rs := make([]*lib.Resource, n)
	for i := range rs {
		rs[i] = register(t, b, nil)
		try.OK(t, me.SendBytes(ctx, rs[i].ID(), uint64(i), nil))
	}
	for i, r := range rs {
		m, err := r.Recv(ctx)
		if err != nil || m.Tag() != uint64(i) {
			t.Fatalf("resource %d got %v, %v", i, m, err)
		}
		m.Release()
		if _, err := r.TryRecv(); !errors.Is(err, lib.ErrEmpty) {
			t.Fatalf("resource %d got more: %v", i, err)
		}
	}
	if n := len(tcpConns(t)) - before; n != 2 { // both ends are in this process
		t.Errorf("%d ends of connections, want the 2 of one", n)
	}
}

// countingConn counts the bytes that are read.
type countingConn struct {
	net.Conn
	read *atomic.Int64
}

func (c *countingConn) Read(p []byte) (int, error) {
	n, err := c.Conn.Read(p)
	c.read.Add(int64(n))
	return n, err
}

// The answers to a question come as they are asked for. Iterators know nothing of each other, and
// those of a context that closes leave nothing in the directory.
func TestAnswersComeOneAtATime(t *testing.T) {
	ctx := eventually.Context(t)
	s := server(t)
	var read atomic.Int64
	dial := s.Dialer()
	c := openAt(t, func(ctx context.Context) (net.Conn, error) {
		nc, err := dial(ctx)
		return &countingConn{nc, &read}, err
	})
	const kinds, each = 3, 3000
	for i := range kinds * each {
		register(t, c, lib.Attrs{"k": fmt.Sprint(i % kinds)})
	}
	before := read.Load()
	for range c.FindAll(ctx, lib.Match{"k": "0"}) {
		break
	}
	if n := read.Load() - before; n > 8<<10 || n == 0 { // answers come in batches, and the first one is small
		t.Errorf("the first of %d answers moved %d bytes", each, n)
	}
	connections := s.Stats().Connections
	var next [kinds]func() (lib.Found, error, bool)
	for i := range next {
		var stop func()
		next[i], stop = iter.Pull2(c.FindAll(ctx, lib.Match{"k": fmt.Sprint(i)}))
		defer stop()
	}
	closes := openAt(t, s.Dialer())
	other, stop := iter.Pull2(closes.FindAll(ctx, lib.Match{}))
	defer stop()
	seen := map[lib.GID]bool{}
	for round := range each {
		for i, next := range next {
			f, err, ok := next()
			if err != nil || !ok || f.Attrs.GetString("k") != fmt.Sprint(i) || seen[f.ID] {
				t.Fatalf("iterator %d, round %d: %v, %v, %v", i, round, f, err, ok)
			}
			seen[f.ID] = true
		}
		if _, err, ok := other(); round < 5 && (err != nil || !ok) {
			t.Fatal(err, ok)
		}
		if round == 5 { // in the middle
			try.OK(t, closes.Close())
		}
	}
	for i, next := range next {
		if f, err, ok := next(); ok {
			t.Errorf("iterator %d: one more: %v, %v", i, f, err)
		}
	}
	eventually.True(t, "the state of the closed context is gone", func() bool {
		st := s.Stats()
		return st.Contexts == 1 && st.Connections <= connections+kinds
	})
}

// Messages of every length arrive, up to more than 1 GiB.
func TestEveryLength(t *testing.T) {
	sizes := []int{0, 1, 63, 2048, 2049, 65_536, 1<<20 + 1, 40 << 20}
	if !short.Form(t) {
		sizes = append(sizes, 1<<30+1)
	}
	ctx := eventually.Context(t)
	for name, opts := range map[string][]lib.Option{"inproc": nil, "tcp": {rocltest.TCP()}} {
		cl := rocltest.Cluster(t, 1)
		a, b := cl.Open(0, opts...), cl.Open(0, opts...)
		me, r := register(t, a, nil), register(t, b, nil)
		for tag, n := range sizes {
			p := try.Get(a.Buffer(n))(t)
			const step = 4093 // a mark here and there: a fill of 1 GiB takes long
			mark := func(i int) byte { return byte(i/step + tag) }
			for i := 0; i < n; i += step {
				p.Bytes()[i] = mark(i)
			}
			if n > 0 {
				p.Bytes()[n-1] = 0xa5
			}
			try.OK(t, me.Send(ctx, r.ID(), uint64(tag), p))
			m := try.Get(r.Recv(ctx))(t)
			if m.Len() != n || m.Tag() != uint64(tag) || n > 0 && m.Bytes()[n-1] != 0xa5 {
				t.Fatalf("%s: %d bytes with tag %d came as %d with tag %d", name, n, tag, m.Len(), m.Tag())
			}
			for i := 0; i < n-1; i += step {
				if m.Bytes()[i] != mark(i) {
					t.Fatalf("%s: %d bytes: byte %d is wrong", name, n, i)
				}
			}
			m.Release()
			try.Fails(r.TryRecv())(t, lib.ErrEmpty, "%s: %d bytes came twice", name, n)
		}
	}
}

// An immediate receive returns at once, a timed one when its time is over, and another one when a
// message comes or its context ends.
func TestReceivesWait(t *testing.T) {
	synctest.Test(t, func(t *testing.T) { // time is exact in here
		cl := rocltest.Cluster(t, 1)
		me, r := register(t, cl.Open(0), nil), register(t, cl.Open(0), nil)
		began := time.Now()
		if _, err := r.TryRecv(); !errors.Is(err, lib.ErrEmpty) || time.Since(began) != 0 {
			t.Errorf("immediate: %v after %v", err, time.Since(began))
		}
		timed, cancel := context.WithTimeout(t.Context(), 70*time.Millisecond)
		defer cancel()
		try.Fails(r.Recv(timed))(t, context.DeadlineExceeded, "timed")
		if d := time.Since(began); d < 70*time.Millisecond || d > 75*time.Millisecond {
			t.Errorf("timed: after %v", d)
		}
		received := make(chan error)
		blocked, stop := context.WithCancel(t.Context())
		for _, wake := range []func(){func() { try.OK(t, me.SendBytes(t.Context(), r.ID(), 7, nil)) }, stop} {
			go func() {
				m, err := r.Recv(blocked)
				if err == nil {
					m.Release()
				}
				received <- err
			}()
			time.Sleep(time.Hour) // in the bubble's time: Recv waits without end
			select {
			case err := <-received:
				t.Fatalf("did not wait: %v", err)
			default:
			}
			wake()
			if err := <-received; err != nil && !(blocked.Err() != nil && errors.Is(err, context.Canceled)) {
				t.Error(err)
			}
		}
	})
}

// A goroutine that waits sleeps, and an idle context costs nothing.
func TestIdleCostsNothing(t *testing.T) {
	cl := rocltest.Cluster(t, 1)
	n := inproc.NewNetwork()
	both := func() *lib.Context { return cl.Open(0, lib.WithTransports(n.Transport(), tcp.New())) }
	a, b, far := both(), both(), cl.Open(0, rocltest.TCP())
	r := register(t, b, nil)
	for i := range uint64(100) {
		pass(t, register(t, a, nil), r, i, nil)
		pass(t, register(t, far, nil), r, i, nil)
	}
	ctx, cancel := context.WithCancel(t.Context())
	waiting := make(chan error)
	go func() {
		_, err := r.Recv(ctx)
		waiting <- err
	}()
	// The CPU time and sleeps of half a second of waiting are counted, not timed: a shared machine
	// charges milliseconds for a handful of wake-ups. A loop that polls takes all of the processor,
	// and a timer of a millisecond sleeps hundreds of times.
	usage := func() (cpu time.Duration, sleeps int64) {
		cpu, sleeps, _, err := posix.Usage()
		try.OK(t, err)
		return cpu, sleeps
	}
	const mostCPU, mostSleeps = 100 * time.Millisecond, 200
	var cpu time.Duration
	var sleeps int64
	for range 5 { // the runtime does something of its own now and then
		cpu, sleeps = usage()
		time.Sleep(500 * time.Millisecond) // the time that is measured
		cpu2, sleeps2 := usage()
		if cpu, sleeps = cpu2-cpu, sleeps2-sleeps; cpu < mostCPU && sleeps < mostSleeps {
			break
		}
	}
	t.Logf("waiting for half a second took %v of a processor and %d sleeps", cpu, sleeps)
	if cpu >= mostCPU || sleeps >= mostSleeps || b.Stats().Sleeps == 0 {
		t.Error("a goroutine that waits does not sleep")
	}
	cancel()
	try.Fails(<-waiting)(t, context.Canceled)
}

// The first message to a resource asks the directory for the owner and for its addresses. Later
// messages and answers ask nothing, until the target's context has ended.
func TestFirstMessageAsks(t *testing.T) {
	ctx := eventually.Context(t)
	cl := rocltest.Cluster(t, 1)
	far := rocltest.TCP() // within a process addresses are not asked for
	b := cl.Open(0, far)
	r := register(t, b, nil)
	for range 20 { // each context is new
		a := cl.Open(0, far)
		me := register(t, a, nil)
		asked, answered := a.Stats().Questions, b.Stats().Questions
		for i := range uint64(1000) {
			pass(t, me, r, i, nil)
			if n := a.Stats().Questions - asked; n != 2 {
				t.Fatalf("%d questions after message %d, want 2", n, i)
			}
		}
		pass(t, r, me, 0, nil) // the sender of a received message is known
		if n := b.Stats().Questions - answered; n != 0 {
			t.Fatalf("the answer took %d questions", n)
		}
		try.OK(t, a.Close())
	}
	b = cl.Open(0)
	r = register(t, b, nil)
	me := register(t, cl.Open(0), nil)
	pass(t, me, r, 0, nil)
	try.OK(t, b.Close())
	eventually.True(t, "the directory knows that the context is closed", func() bool {
		_, err := me.Context().Lookup(ctx, r.ID())
		return errors.Is(err, lib.ErrNotFound)
	})
	try.Fails(me.SendBytes(ctx, r.ID(), 0, nil))(t, lib.ErrGone, "a send to a closed context")
}

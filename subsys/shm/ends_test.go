// SPDX-License-Identifier: Apache-2.0

package shm

import (
	"errors"
	"math/rand/v2"
	"os"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/rocl-go/rocl/internal/testkit/eventually"
	"github.com/rocl-go/rocl/subsys"
)

// lendSome lends n payloads over s.
func lendSome(t *testing.T, from *node, s *sink, n int) {
	t.Helper()
	rnd := rand.New(rand.NewPCG(3, 4))
	for i := range n {
		b, err := from.Pool.Get(40_000)
		if err != nil {
			t.Fatal(err)
		}
		f := subsys.Frame{Header: subsys.Header{Type: 16, Seq: uint32(i), Len: 40_000}, Data: b.Bytes(), Buf: b}
		f.Tag = sign(b.Bytes(), rnd)
		if k, err := s.conn.Send([]subsys.Frame{f}); k != 1 || err != nil {
			t.Fatalf("took %d: %v", k, err)
		}
		b.Release()
	}
}

func keepAll(t *testing.T, s *sink, n int) {
	t.Helper()
	eventually.True(t, "they come", func() bool { got, _ := s.frames(); return got == n })
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.kept) != n {
		t.Fatalf("%d of %d are kept", len(s.kept), n)
	}
	for _, k := range s.kept {
		part := k.buf.Slice(1, 2)
		if !k.buf.ReadOnly() || !part.ReadOnly() {
			t.Error("what is lent does not say that it is not to be written")
		}
		part.Release()
	}
}

// scribble takes all free memory of the pool and writes to it.
func scribble(t *testing.T, n *node) {
	t.Helper()
	for range 200 {
		b, err := n.Pool.Get(40_000)
		if err != nil {
			t.Fatal(err)
		}
		clear(b.Bytes())
		defer b.Release()
	}
}

// Held messages do not change after either end has closed the connection, and their memory comes
// back when they are released.
//
// Promise (Shared memory): A message that is held stays as it was when its connection or either
// context is closed. See also TestHeldWhenPortCloses.
func TestHeldWhenConnCloses(t *testing.T) {
	for _, nearCloses := range []bool{true, false} {
		a, b := start(t), start(t)
		near, far := pair(t, a, b)
		far.keep(1)
		lendSome(t, a, near, 20)
		keepAll(t, far, 20)
		if nearCloses {
			near.conn.Close()
			_ = far.wantDown(t)
		} else {
			far.conn.Close()
			_ = near.wantDown(t)
		}
		scribble(t, a)
		if in := a.Pool.Stats().InUse; in != 20 {
			t.Errorf("%d buffers are out, 20 are held", in)
		}
		if _, err := far.release(); err != nil {
			t.Error(err)
		}
		eventually.True(t, "they are back", func() bool { return a.Pool.Stats().InUse == 0 })
		eventually.True(t, "the connections are gone", func() bool { return conns(a)+conns(b) == 0 })
	}
}

// When a context ends, messages of it that other contexts hold do not change. Their memory is not
// used again as long as the context's pool lives.
func TestHeldWhenPortCloses(t *testing.T) {
	b := start(t)
	if _, err := b.Poller().NapPage(); err != nil { // the page stays until the Poller is closed
		t.Fatal(err)
	}
	_, before := resources()
	a, err := open("")
	if err != nil {
		t.Fatal(err)
	}
	near, far := pair(t, a, b)
	far.keep(1)
	lendSome(t, a, near, 20)
	keepAll(t, far, 20)
	if err := a.Port.Close(); err != nil {
		t.Error(err)
	}
	scribble(t, a)
	if err := a.Close(); err != nil {
		t.Error(err)
	}
	_ = far.wantDown(t)
	if k, err := far.release(); k != 20 || err != nil {
		t.Errorf("%d held: %v", k, err)
	}
	eventually.True(t, "nothing of it is mapped", func() bool { _, m := resources(); return m <= before })
}

// The receiver's context ends first, while its program still holds messages.
func TestHeldWhenReceiverCloses(t *testing.T) {
	a := start(t)
	b, err := open("")
	if err != nil {
		t.Fatal(err)
	}
	near, far := pair(t, a, b)
	far.keep(1)
	lendSome(t, a, near, 20)
	keepAll(t, far, 20)
	if err := b.Close(); err != nil {
		t.Error(err)
	}
	_ = near.wantDown(t)
	scribble(t, a)
	if in := a.Pool.Stats().InUse; in != 20 {
		t.Errorf("%d buffers are out, 20 are held", in)
	}
	if _, err := far.release(); err != nil {
		t.Error(err)
	}
	eventually.True(t, "they are back", func() bool { return a.Pool.Stats().InUse == 0 })
}

// Both ends have lent and neither has looked. Neither end waits for the other.
func TestBothCloseUnread(t *testing.T) {
	a, b := start(t), start(t)
	near, far := pair(t, a, b)
	a.Hold.Lock()
	b.Hold.Lock()
	lendSome(t, a, near, 20)
	lendSome(t, b, far, 20)
	near.conn.Close()
	far.conn.Close()
	a.Hold.Unlock()
	b.Hold.Unlock()
	eventually.True(t, "all is back", func() bool { return a.Pool.Stats().InUse == 0 && b.Pool.Stats().InUse == 0 })
	eventually.True(t, "the connections are gone", func() bool { return conns(a)+conns(b) == 0 })
}

// There are more payloads than numbers of loans. The others are copied, and the sender does not
// wait for a receiver that holds all messages.
//
// Promise (Shared memory): A receiver may hold any number of large messages, and a sender lend from
// any number of arenas, while messages go on. See also TestMoreArenasThanMapped.
func TestAllLoansOut(t *testing.T) {
	a, b := start(t), start(t)
	near, far := pair(t, a, b)
	if err := a.load(near, 3000, 1); err != nil {
		t.Fatal(err)
	}
	eventually.True(t, "they come", func() bool { got, _ := far.frames(); return got == 3000 })
	if _, bad := far.frames(); bad != nil {
		t.Fatal(bad)
	}
	c := near.conn.(*conn)
	eventually.True(t, "all is back", func() bool { return c.out.loansOut.Load() == 0 })

	near, far = pair(t, a, b)
	var held []interface{ Release() }
	far.keep(1)
	done := make(chan error, 1)
	go func() { done <- a.load(near, 2*maxLoans, 1) }()
	for end := false; !end; {
		select {
		case err := <-done:
			if err != nil {
				t.Fatal(err)
			}
			end = true
		default:
		}
		far.mu.Lock()
		for _, k := range far.kept { // room for more
			held = append(held, k.buf)
		}
		far.kept = nil
		far.mu.Unlock()
	}
	eventually.True(t, "they come", func() bool { got, _ := far.frames(); return got == 2*maxLoans })
	if _, bad := far.frames(); bad != nil {
		t.Error(bad)
	}
	if _, err := far.release(); err != nil {
		t.Error(err)
	}
	for _, h := range held {
		h.Release()
	}
}

// An arena that its owner unmaps is unmapped by its readers too.
func TestArenaForgotten(t *testing.T) {
	a, b := start(t), start(t)
	near, far := pair(t, a, b)
	big, err := a.Pool.Get(8 << 20)
	if err != nil {
		t.Fatal(err)
	}
	f := subsys.Frame{Header: subsys.Header{Type: 16, Len: 8 << 20}, Data: big.Bytes(), Buf: big}
	f.Tag = sign(big.Bytes(), rand.New(rand.NewPCG(1, 2)))
	if k, err := near.conn.Send([]subsys.Frame{f}); k != 1 || err != nil {
		t.Fatal(k, err)
	}
	big.Release()
	eventually.True(t, "it comes", func() bool { got, _ := far.frames(); return got == 1 })
	mapped := func() (n int) {
		b, _ := os.ReadFile("/proc/self/maps")
		return strings.Count(string(b), "rocl-arena")
	}
	eventually.True(t, "both have it mapped", func() bool { return mapped() >= 2 })
	eventually.True(t, "it is back", func() bool { return a.Pool.Stats().InUse == 0 })
	// More than a pool keeps, besides the last one. The oldest is unmapped first.
	for range 5 {
		x, err := a.Pool.Get(64 << 20)
		if err != nil {
			t.Fatal(err)
		}
		defer x.Release()
	}
	var xs []interface{ Release() }
	for range 6 {
		x, err := a.Pool.Get(60 << 20)
		if err != nil {
			t.Fatal(err)
		}
		xs = append(xs, x)
	}
	for _, x := range xs {
		x.Release()
	}
	c := far.conn.(*conn)
	eventually.True(t, "the reader has let go", func() bool {
		b.Hold.Lock()
		defer b.Hold.Unlock()
		return len(c.in.arenas) == 0
	})
}

// A process that dies with notes unread resets the socket. What it published before is read all the
// same.
func TestResetBehindArena(t *testing.T) {
	a, b := start(t), start(t)
	c := raw(t, a, b.Port.Addr()) // not started: it reads nothing
	far := b.accepted(t)
	b.Hold.Lock()
	lendSome(t, b, far, 1) // a note that stays unread
	buf, err := a.Pool.Get(40_000)
	if err != nil {
		t.Fatal(err)
	}
	f := subsys.Frame{Header: subsys.Header{Type: 16, Len: 40_000}, Data: buf.Bytes(), Buf: buf}
	f.Tag = sign(buf.Bytes(), rand.New(rand.NewPCG(1, 2)))
	if k, err := c.Send([]subsys.Frame{f}); k != 1 || err != nil {
		t.Fatalf("took %d: %v", k, err)
	}
	buf.Release()
	c.Close()
	b.Hold.Unlock()
	if err := far.wantDown(t); !errors.Is(err, subsys.ErrPeerClosed) {
		t.Errorf("the end is reported as %v", err)
	}
	if got, bad := far.frames(); got != 1 || bad != nil {
		t.Errorf("%d frames came, %v", got, bad)
	}
}

// A port may be closed while another goroutine dials from it, or to it. Dial fails or its
// connection ends, and nothing is leaked.
func TestCloseWhileDialling(t *testing.T) {
	for round := range 200 {
		a, err := open("")
		if err != nil {
			t.Fatal(err)
		}
		b, err := open("")
		if err != nil {
			t.Fatal(err)
		}
		var dialling, taking sync.WaitGroup
		done := make(chan struct{})
		taking.Go(func() {
			for {
				select {
				case <-b.taken:
				case <-done:
					return
				}
			}
		})
		for range 4 {
			dialling.Go(func() {
				for {
					if _, err := a.dial(b.Port.Addr()); err != nil {
						return
					}
				}
			})
		}
		time.Sleep(time.Duration(round%20) * 20 * time.Microsecond) // the moment varies
		first, second := a, b
		if round%2 > 0 {
			first, second = b, a
		}
		err = first.Port.Close()
		dialling.Wait()
		close(done)
		taking.Wait()
		if err = errors.Join(err, first.Close(), second.Close()); err != nil {
			t.Fatal(err)
		}
	}
}

// A returned loan is reported when that delays no message: at the next look, after a frame is sent,
// and when the context goes to rest. It is reported at once if the context rests.
func TestReturnsInTime(t *testing.T) {
	a, b := start(t), start(t)
	near, far := pair(t, a, b)
	far.keep(1)
	lendSome(t, a, near, 7)
	keepAll(t, far, 7)
	b.Hold.Lock() // from here on the test makes the progress of b
	defer b.Hold.Unlock()
	p, c := b.Port.(*port), far.conn.(*conn)
	release := func() {
		far.mu.Lock()
		defer far.mu.Unlock()
		far.kept[0].buf.Release()
		far.kept = far.kept[1:]
	}
	for i, step := range []struct {
		what    string
		do      func()
		written uint64
	}{
		{"released while the port looks", func() { p.Look(); release() }, 0},
		{"the next look", func() { p.Look() }, 1},
		{"released while the port looks", release, 1},
		{"becoming idle", func() { p.SetIdle(subsys.Asleep) }, 2},
		{"released while idle", release, 3},
		{"released while the port looks", func() { p.Look(); release() }, 3},
		{"a frame is sent", func() {
			if n, err := c.Send([]subsys.Frame{{Header: subsys.Header{Type: 16}}}); n != 1 || err != nil {
				t.Fatalf("took %d: %v", n, err)
			}
		}, 4},
		{"released while the port looks", release, 4},
		{"going to nap", func() { p.SetIdle(subsys.Napping) }, 5},
		{"released in a nap", release, 6},
		{"released while the port looks", func() { p.Look(); release() }, 6},
		{"closing, and the next look", func() { c.Close(); p.Look() }, 7},
	} {
		step.do()
		if written := c.back.written; written != step.written {
			t.Errorf("step %d, %s: %d loans are given back, want %d", i, step.what, written, step.written)
		}
	}
}

// A loan that the peer holds cannot be lent again.
func TestLentTwice(t *testing.T) {
	a, b := start(t), start(t)
	near, far := pair(t, a, b)
	far.keep(1)
	lendSome(t, a, near, 1)
	keepAll(t, far, 1)
	buf, err := a.Pool.Get(40_000)
	if err != nil {
		t.Fatal(err)
	}
	defer buf.Release()
	o := &near.conn.(*conn).out
	o.mu.Lock()
	first := o.loans[0]
	o.loans = o.loans[:0] // so that the next loan has this number too
	o.mu.Unlock()
	f := subsys.Frame{Header: subsys.Header{Type: 16, Seq: 1, Len: 40_000}, Data: buf.Bytes(), Buf: buf}
	f.Tag = sign(buf.Bytes(), rand.New(rand.NewPCG(3, 4)))
	if k, err := near.conn.Send([]subsys.Frame{f}); k != 1 || err != nil {
		t.Fatalf("took %d: %v", k, err)
	}
	if err := far.wantDown(t); !errors.Is(err, subsys.ErrProtocol) {
		t.Errorf("it is reported as %v", err)
	}
	_ = near.wantDown(t)
	if k, err := far.release(); k != 1 || err != nil {
		t.Errorf("%d held: %v", k, err)
	}
	first.buf.Release()
}

// A peer that closes while its notes are read is noticed all the same.
func TestCloseWhileListening(t *testing.T) {
	a, b := start(t), start(t)
	rounds := 300
	if testing.Short() {
		rounds = 50
	}
	for range rounds {
		near, far := pair(t, a, b)
		c := near.conn.(*conn)
		var stop atomic.Bool
		var telling sync.WaitGroup
		telling.Go(func() {
			for id := uint32(1 << 20); !stop.Load(); id++ { // arenas without loans
				if c.sendNote(noteArena, id, bellLen, a.Port.(*port).bell.page) != nil {
					runtime.Gosched()
				}
			}
		})
		time.Sleep(time.Duration(rand.IntN(300)) * time.Microsecond) // while notes are sent
		far.conn.Close()
		if err := near.wantDown(t); !errors.Is(err, subsys.ErrPeerClosed) {
			t.Errorf("it is reported as %v", err)
		}
		stop.Store(true)
		telling.Wait()
	}
	eventually.True(t, "the connections are gone", func() bool { return conns(a)+conns(b) == 0 })
}

// A context that goes to rest with a full ring is woken when the ring has room, also if frames were
// to be sent meanwhile.
func TestRoomIsNoticed(t *testing.T) {
	a, b := start(t), start(t)
	near, _ := pair(t, a, b)
	a.Hold.Lock() // from here on the test makes the progress of both
	defer a.Hold.Unlock()
	b.Hold.Lock()
	defer b.Hold.Unlock()
	fs := make([]subsys.Frame, 200) // each of two lines, so that no line stays free
	for i := range fs {
		fs[i] = subsys.Frame{Header: subsys.Header{Type: 16, Seq: uint32(i), Len: 64}, Data: make([]byte, 64)}
		fs[i].Tag = sign(fs[i].Data, rand.New(rand.NewPCG(1, 2)))
	}
	a.Port.(*port).Look()
	n, err := near.conn.Send(fs)
	if n == 0 || n == len(fs) || err != nil {
		t.Fatalf("took %d of %d: %v", n, len(fs), err)
	}
	b.Port.(*port).Look()
	if k, err := near.conn.Send(fs[n:]); k != 0 || err != nil {
		t.Fatalf("took %d before it is writable: %v", k, err)
	}
	if !a.Port.(*port).SetIdle(subsys.Asleep) {
		t.Error("there is room, and the idle sender does not notice it")
	}
	a.Port.(*port).Look()
	select {
	case <-near.writable:
	default:
		t.Error("it is not writable")
	}
}

// If Close comes before a failure, Down is not called. If the failure comes first, Down is called
// once.
func TestCloseRacesFailure(t *testing.T) {
	a, b := start(t), start(t)
	for range 300 {
		s := newSink(nil)
		sc, err := a.Port.Dial(t.Context(), b.Port.Addr(), s)
		if err != nil {
			t.Fatal(err)
		}
		b.accepted(t)
		c := sc.(*conn) // not started, so only this test calls fail
		var isClosedFirst bool
		var wg sync.WaitGroup
		wg.Go(func() { isClosedFirst = c.end() })
		wg.Go(func() { c.fail(errors.New("a failure")) })
		wg.Wait()
		want := 1
		if isClosedFirst {
			want = 0
		}
		if n := len(s.down); n != want {
			t.Fatalf("%d calls of Down, want %d", n, want)
		}
	}
}

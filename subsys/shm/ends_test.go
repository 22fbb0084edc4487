// SPDX-License-Identifier: Apache-2.0

//go:build linux

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

	"github.com/rocl-go/rocl/buffers"
	"github.com/rocl-go/rocl/internal/testkit/eventually"
	"github.com/rocl-go/rocl/internal/testkit/short"
	"github.com/rocl-go/rocl/internal/testkit/try"
	"github.com/rocl-go/rocl/subsys"
)

// lendSome lends n payloads over s.
func lendSome(t *testing.T, from *node, s *sink, n int) {
	t.Helper()
	for i := range n {
		from.sendOwn(t, s, uint32(i), 40_000)
	}
}

func keepAll(t *testing.T, s *sink, n int) {
	t.Helper()
	s.wantFrames(t, n)
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
		b := try.Get(n.Pool.Get(40_000))(t)
		clear(b.Bytes())
		defer b.Release()
	}
}

// Held messages do not change after their connection or either context has closed, and their memory
// is not used again meanwhile. Memory of a sender that lives comes back when they are released.
//
// Promise (Shared memory): A message that is held stays as it was when its connection or either
// context is closed.
func TestHeldWhenClosed(t *testing.T) {
	const count = 20
	for _, what := range []string{"sender's connection", "receiver's connection", "sender", "receiver"} {
		t.Run(what, func(t *testing.T) {
			b := start(t)
			makeNapPage(t, b)
			_, before := resources()
			a := start(t)
			near, far := pair(t, a, b)
			far.keep(1)
			lendSome(t, a, near, count)
			keepAll(t, far, count)
			closed, out := near, int64(count)
			switch what {
			case "sender's connection":
				near.conn.Close()
				closed = far
			case "receiver's connection":
				far.conn.Close()
			case "sender":
				try.OK(t, a.Port.Close())
				closed, out = far, 0 // the buffers are abandoned
			case "receiver":
				try.OK(t, b.Close())
			}
			_ = closed.wantDown(t)
			scribble(t, a)
			if in := a.Pool.Stats().InUse; in != out {
				t.Errorf("%d buffers are out, not %d", in, out)
			}
			if what == "sender" {
				try.OK(t, a.Close())
			}
			try.Gives(far.release())(t, count, "held")
			wantBack(t, a)
			eventually.True(t, "the connections are gone", func() bool { return conns(a)+conns(b) == 0 })
			if what == "sender" {
				eventually.True(t, "nothing of it is mapped", func() bool { _, m := resources(); return m <= before })
			}
		})
	}
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
	wantBack(t, a, b)
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
	try.OK(t, a.load(near, 3000, 1))
	far.wantFrames(t, 3000)
	c := near.conn.(*conn)
	eventually.True(t, "all is back", func() bool { return c.out.loansOut.Load() == 0 })

	near, far = pair(t, a, b)
	var held []*kept
	far.keep(1)
	done := make(chan error, 1)
	go func() { done <- a.load(near, 2*maxLoans, 1) }()
	for end := false; !end; {
		select {
		case err := <-done:
			try.OK(t, err)
			end = true
		default:
		}
		far.mu.Lock()
		held, far.kept = append(held, far.kept...), nil // room for more
		far.mu.Unlock()
	}
	far.wantFrames(t, 2*maxLoans)
	try.Works(far.release())(t)
	for _, k := range held {
		k.buf.Release()
	}
}

// An arena that its owner unmaps is unmapped by its readers too.
func TestArenaForgotten(t *testing.T) {
	a, b := start(t), start(t)
	near, far := pair(t, a, b)
	a.sendOwn(t, near, 0, 8<<20)
	far.wantFrames(t, 1)
	mapped := func() (n int) {
		b, _ := os.ReadFile("/proc/self/maps")
		return strings.Count(string(b), "rocl-arena")
	}
	eventually.True(t, "both have it mapped", func() bool { return mapped() >= 2 })
	wantBack(t, a)
	// More than a pool keeps, besides the last one. The oldest is unmapped first.
	for range 5 {
		defer try.Get(a.Pool.Get(64 << 20))(t).Release()
	}
	var xs []*buffers.Buffer
	for range 6 {
		xs = append(xs, try.Get(a.Pool.Get(60<<20))(t))
	}
	for _, x := range xs {
		x.Release()
	}
	eventually.True(t, "the reader has let go", func() bool { return b.mapped(far) == 0 })
}

// A process that dies with notes unread resets the socket. What it published before is read all the
// same.
func TestResetBehindArena(t *testing.T) {
	a, b := start(t), start(t)
	c := raw(t, a, b.Port.Addr()) // not started: it reads nothing
	far := b.accepted(t)
	b.Hold.Lock()
	lendSome(t, b, far, 1) // a note that stays unread
	a.sendOwn(t, &sink{conn: c}, 0, 40_000)
	c.Close()
	b.Hold.Unlock()
	far.wantDownAs(t, subsys.ErrPeerClosed)
	try.Gives(far.frames())(t, 1, "frames came")
}

// A port may be closed while another goroutine dials from it, or to it. Dial fails or its
// connection ends, and nothing is leaked.
func TestCloseWhileDialling(t *testing.T) {
	for round := range 200 {
		a := try.Get(open(""))(t)
		b := try.Get(open(""))(t)
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
		err := first.Port.Close()
		dialling.Wait()
		close(done)
		taking.Wait()
		try.OK(t, errors.Join(err, first.Close(), second.Close()))
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
			try.Gives(c.Send([]subsys.Frame{{Header: subsys.Header{Type: 16}}}))(t, 1, "took")
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
	o := &near.conn.(*conn).out
	o.mu.Lock()
	first := o.loans[0]
	o.loans = o.loans[:0] // so that the next loan has this number too
	o.mu.Unlock()
	a.sendOwn(t, near, 1, 40_000)
	far.wantDownAs(t, subsys.ErrProtocol)
	_ = near.wantDown(t)
	try.Gives(far.release())(t, 1, "held")
	first.buf.Release()
}

// A peer that closes while its notes are read is noticed all the same.
func TestCloseWhileListening(t *testing.T) {
	a, b := start(t), start(t)
	rounds := 300
	if short.Form(t) {
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
		near.wantDownAs(t, subsys.ErrPeerClosed)
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
		sc := try.Get(a.Port.Dial(t.Context(), b.Port.Addr(), s))(t)
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

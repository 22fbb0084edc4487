// SPDX-License-Identifier: Apache-2.0

package dispatch

import (
	"context"
	"errors"
	"flag"
	"io"
	"math/rand/v2"
	"net"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/rocl-go/rocl/internal/testkit/eventually"
	"github.com/rocl-go/rocl/internal/testkit/short"
	"github.com/rocl-go/rocl/internal/testkit/try"
	"github.com/rocl-go/rocl/subsys"
	"github.com/rocl-go/rocl/subsys/tcp"
)

// A relay forwards TCP connections to one address. It cuts each connection after a number of bytes
// in either direction, as often as the test says.
type relay struct {
	ln    net.Listener
	to    string
	after int64
	cuts  atomic.Int32 // cuts still to make
	done  sync.WaitGroup
	pass  func(n int) // returns when n bytes may go to the address; nil: they may at once

	swallows atomic.Bool // bytes are dropped and connections stay, as when the network is cut
	mu       sync.Mutex
	conns    []net.Conn
}

func newRelay(t *testing.T, to string, after int64, cuts int32) *relay {
	t.Helper()
	return startRelay(t, to, &relay{after: after}, cuts)
}

// startRelay starts r, which makes the given number of cuts.
func startRelay(t *testing.T, to string, r *relay, cuts int32) *relay {
	t.Helper()
	ln := try.Get(net.Listen("tcp", "127.0.0.1:0"))(t)
	_, host, _ := strings.Cut(to, "://")
	r.ln, r.to = ln, host
	r.cuts.Store(cuts)
	r.done.Go(func() {
		for {
			c, err := ln.Accept()
			if err != nil {
				return
			}
			r.done.Go(func() { r.serve(c) })
		}
	})
	t.Cleanup(func() { ln.Close(); r.end(); r.done.Wait() })
	return r
}

// end ends the connections.
func (r *relay) end() {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, c := range r.conns {
		c.Close()
	}
	r.conns = nil
}

func (r *relay) serve(a net.Conn) {
	defer a.Close()
	if r.pass != nil { // what waits here has left the sender: it must not be much
		_ = a.(*net.TCPConn).SetReadBuffer(1 << 20)
	}
	b, err := net.Dial("tcp", r.to)
	if err != nil {
		return
	}
	defer b.Close()
	r.mu.Lock()
	r.conns = append(r.conns, a, b)
	r.mu.Unlock()
	var left atomic.Int64
	left.Store(r.after)
	pump := func(dst, src net.Conn) {
		defer func() {
			if !r.swallows.Load() {
				a.Close()
				b.Close()
			}
		}()
		buf := make([]byte, 4096)
		for {
			n, err := src.Read(buf)
			if n > 0 && !r.swallows.Load() {
				if r.pass != nil && dst == b {
					r.pass(n)
				}
				if remaining := left.Add(-int64(n)); remaining < 0 && r.cuts.Add(-1) >= 0 {
					_, _ = dst.Write(buf[:max(0, int64(n)+remaining)])
					return
				}
				if _, err := dst.Write(buf[:n]); err != nil {
					return
				}
			}
			if err != nil {
				return
			}
		}
	}
	var both sync.WaitGroup
	both.Go(func() { pump(a, b) })
	pump(b, a)
	both.Wait()
}

var long = flag.Bool("long", false, "cut at every byte: some minutes")

// A connection that is cut anywhere, in the handshake, between two frames or inside a frame, in
// either direction, loses nothing and doubles nothing.
//
// Promise (Delivery): A message arrives exactly once while both contexts live, wherever the
// connection breaks, even if it is larger than each connection carries. See also
// TestLargerThanConnections.
func TestCutAnywhere(t *testing.T) {
	const messages = 60
	cutsAt(t, 101, 997, 11_000, func(after int64) { cutOnce(t, after, messages) })
}

// cutsAt calls cut with numbers of bytes up to most: each one in the long form, else one of step,
// or with -short one of brief. Each run has others.
func cutsAt(t *testing.T, step, brief, most int64, cut func(after int64)) {
	switch {
	case *long:
		step = 1
	case short.Form(t):
		step = brief
	}
	for after := 1 + rand.Int64N(step); after < most; after += step {
		cut(after)
	}
}

// cutPair returns two contexts that reach each other only through relays, which cut three
// connections in all after so many bytes. end closes all.
func cutPair(t *testing.T, after int64, change func(*Config)) (a, b *Dispatcher, end func()) {
	w := newWorld()
	a, b = w.node(t, 1, tcp.New(), change), w.node(t, 2, tcp.New(), change)
	ra, rb := newRelay(t, a.Addrs()[0], after, 1), newRelay(t, b.Addrs()[0], after, 2)
	w.setAddrs(a.self, "tcp://"+ra.ln.Addr().String())
	w.setAddrs(b.self, "tcp://"+rb.ln.Addr().String())
	return a, b, func() {
		try.Check(t, flushAndClose(soon(t), a, b), "cut after %d: closing", after)
		ra.ln.Close()
		rb.ln.Close()
	}
}

func cutOnce(t *testing.T, after int64, messages int) {
	a, b, end := cutPair(t, after, unreported(t))
	ctx := soon(t)
	ma, mb := box(t, a, 1, 0), box(t, b, 1, 0)
	var wg sync.WaitGroup
	exchange := func(from *Dispatcher, src *Mailbox, to *Mailbox) {
		wg.Go(func() {
			f := flow(t, from, to)
			for i := range messages {
				p := buf(t, from, strings.Repeat("x", i*7%200))
				if i == 30 {
					p.Release()
					p = buf(t, from, strings.Repeat("y", 20_000))
				}
				if err := f.Send(ctx, 1, uint64(i), p); err != nil {
					t.Errorf("cut after %d: send %d: %v", after, i, err)
					return
				}
			}
		})
		wg.Go(func() {
			for i := range messages {
				m, err := to.Recv(ctx)
				if err != nil {
					t.Errorf("cut after %d: recv %d: %v", after, i, err)
					return
				}
				want := i * 7 % 200
				if i == 30 {
					want = 20_000
				}
				if m.Tag() != uint64(i) || m.Len() != want {
					t.Errorf("cut after %d: got message %d of %d bytes, want %d of %d", after, m.Tag(), m.Len(), i, want)
				}
				m.Release()
			}
		})
	}
	exchange(a, ma, mb)
	exchange(b, mb, ma)
	wg.Wait()
	try.Fails(ma.TryRecv())(t, ErrEmpty, "cut after %d: a message too many", after)
	end()
}

// flushAndClose closes two contexts whose connections were cut. A cut can take the acknowledgement
// of what was delivered: Flush waits until the link is back and has acknowledged it. Without Flush,
// b reports as undelivered what a can no longer acknowledge.
func flushAndClose(ctx context.Context, a, b *Dispatcher) error {
	return errors.Join(a.Flush(ctx), b.Flush(ctx), a.Close(ctx), b.Close(ctx))
}

// Both sides begin to send at the same instant: they get one link.
//
// Promise (Delivery): Contexts that dial each other at once get one link.
func TestSimultaneousDial(t *testing.T) {
	over(t, transports(), func(t *testing.T, _ *world, tr subsys.Transport) {
		for range 50 {
			w := newWorld()
			a, b := w.node(t, 1, tr), w.node(t, 2, tr)
			ma, mb := box(t, a, 1, 0), box(t, b, 1, 0)
			ctx := soon(t)
			var wg sync.WaitGroup
			for _, s := range []struct {
				d    *Dispatcher
				mine *Mailbox
				to   *Mailbox
			}{{a, ma, mb}, {b, mb, ma}} {
				wg.Go(func() {
					f := flow(t, s.d, s.to)
					for i := range uint64(20) {
						if err := f.Send(ctx, 1, i, buf(t, s.d, "hi")); err != nil {
							t.Error(err)
							return
						}
					}
					for i := range uint64(20) {
						m, err := s.mine.Recv(ctx)
						if err != nil || m.Tag() != i {
							t.Errorf("message %d: %v %v", i, m, err)
							return
						}
						m.Release()
					}
				})
			}
			wg.Wait()
			a.Close(ctx)
			b.Close(ctx)
		}
	})
}

// A connection that sends garbage instead of a handshake, another key or another cluster's name is
// closed. Other links are unaffected.
//
// Promise (Hostile peers): A connection that sends garbage, a wrong key or another cluster's name
// gets no answer and affects no link. See also TestHandshakeRefuses.
func TestUnauthenticated(t *testing.T) {
	w := newWorld()
	a, b := w.node(t, 1, tcp.New()), w.node(t, 2, tcp.New())
	mb := box(t, b, 1, 0)
	ctx := soon(t)
	talk(t, a, b, mb, 4)
	before, _ := onlyLink(b, a)
	before.mu.Lock()
	conn := before.conn
	before.mu.Unlock()
	addr := strings.TrimPrefix(b.Addrs()[0], "tcp://")
	for _, junk := range [][]byte{
		[]byte("GET / HTTP/1.1\r\n\r\n................................"),
		make([]byte, 4096),
		append([]byte{0xff, 0xff, 0xff, 0xff, 1}, make([]byte, 100)...),
		append([]byte{0, 0, 0, 0x70, 1, 0, 0, 0}, make([]byte, 100)...),
	} {
		c := try.Get(net.Dial("tcp", addr))(t)
		_, _ = c.Write(junk)
		_ = c.SetReadDeadline(time.Now().Add(10 * time.Second))
		if n, err := io.Copy(io.Discard, c); n > 0 || errors.Is(err, os.ErrDeadlineExceeded) {
			t.Errorf("answered %d bytes to %q…: %v", n, junk[:8], err)
		}
		c.Close()
	}
	for i, change := range []func(*Config){
		func(c *Config) { c.Trust = trusting("", "another") },
		func(c *Config) { c.Trust = trusting("another", "key") },
		func(c *Config) { c.Trust = trusting("", "one", "another") },
		func(c *Config) { c.Trust = nil },
	} {
		reported := make(chan error, 1)
		s := w.node(t, uint64(10+i), tcp.New(), change, func(c *Config) {
			c.GiveUp, c.Undelivered = 50*time.Millisecond, func(u Undelivered) { reported <- u.Err }
		})
		f := flow(t, s, mb)
		try.OK(t, f.Send(ctx, 1, 0, buf(t, s, "x")))
		try.Fails(<-reported)(t, ErrUnreachable, "peer %d", i)
	}
	talk(t, a, b, mb, 5)
	after, _ := onlyLink(b, a)
	after.mu.Lock()
	defer after.mu.Unlock()
	if after != before || after.conn != conn {
		t.Error("the link between two other contexts is not the one before, or has another connection")
	}
}

// hasWaiters reports whether senders wait for credit.
func hasWaiters(f *Flow) bool {
	if f.l == nil {
		f.mb.mu.Lock()
		defer f.mb.mu.Unlock()
		return f.in.waiters.First() != nil
	}
	f.l.mu.Lock()
	defer f.l.mu.Unlock()
	return f.waiters.First() != nil
}

// Promise (Mailboxes): A slow receiver stops its senders at its mailbox's limit, and no other
// goroutine or context.
func TestSlowReceiver(t *testing.T) {
	over(t, transports(), func(t *testing.T, w *world, tr subsys.Transport) {
		a, b := w.node(t, 1, tr), w.node(t, 2, tr)
		const limit = 256 << 10
		slow, quick := box(t, b, 1, limit), box(t, b, 2, limit)
		ctx := soon(t)
		stop, cancel := context.WithCancelCause(ctx)
		enough := errors.New("enough")
		f := flow(t, a, slow)
		stuck := make(chan error, 1)
		go func() {
			for i := uint64(0); ; i++ {
				p := buf(t, a, strings.Repeat("z", 1000))
				if err := f.Send(stop, 1, i, p); err != nil {
					p.Release()
					stuck <- err
					return
				}
			}
		}()
		g := flow(t, a, quick)
		for i := range uint64(2000) {
			try.OK(t, g.Send(ctx, 1, i, buf(t, a, strings.Repeat("q", 1000))))
			takeTag(t, quick, i)
		}
		eventually.True(t, "the sender has no credit left", func() bool { return hasWaiters(f) })
		if _, stored := slow.Len(); stored > limit || stored == 0 {
			t.Errorf("the slow mailbox keeps %d bytes, its limit is %d", stored, limit)
		}
		cancel(enough)
		if err := <-stuck; !errors.Is(err, enough) {
			t.Errorf("the sender got %v", err)
		}
		for i := uint64(0); ; i++ { // all accepted messages arrive
			m, err := slow.TryRecv()
			if errors.Is(err, ErrEmpty) {
				break
			}
			if err != nil || m.Tag() != i {
				t.Fatal(m, err)
			}
			m.Release()
		}
	})
}

// A receive that is cancelled as its message arrives returns the message or leaves it in the
// mailbox.
//
// Promise (Receiving): A receive that is cancelled as its message arrives loses nothing.
func TestCancelledRecv(t *testing.T) {
	over(t, transports(), func(t *testing.T, w *world, tr subsys.Transport) {
		a, b := w.node(t, 1, tr), w.node(t, 2, tr)
		mb := box(t, b, 1, 0)
		f := flow(t, a, mb)
		ctx := soon(t)
		const n = 2000
		go func() {
			for i := range uint64(n) {
				try.Check(t, f.Send(ctx, 1, i, buf(t, a, "m")))
				if i%16 == 0 {
					time.Sleep(20 * time.Microsecond) // the load pauses, so that receivers really wait
				}
			}
		}()
		cancelled := 0
		for i := uint64(0); i < n; {
			rctx, cancel := context.WithTimeout(ctx, time.Duration(i%50)*time.Microsecond)
			m, err := mb.Recv(rctx)
			cancel()
			if err != nil {
				if ctx.Err() != nil {
					t.Fatal(i, err)
				}
				cancelled++
				continue
			}
			if m.Tag() != i {
				t.Fatalf("got %d, want %d: lost or out of order", m.Tag(), i)
			}
			m.Release()
			i++
		}
		t.Logf("%d receives were cancelled", cancelled)
	})
}

// Close at any moment returns, wakes all waiting goroutines, and leaves nothing.
//
// Promise (Delivery): `Close` may be called at any moment. It returns, and blocked calls return.
// See also TestCloseWhileDialling.
func TestCloseDuringEverything(t *testing.T) {
	over(t, transports(), func(t *testing.T, _ *world, tr subsys.Transport) {
		for round := range 30 {
			w := newWorld()
			a, b := w.node(t, 1, tr), w.node(t, 2, tr)
			closeAmid(t, a, b, 3, []Lane{""}, time.Duration(round*100)*time.Microsecond, nil)
		}
	})
}

// closeAmid closes two contexts after a while. Until then goroutines of each context send to the
// other one over the lanes in turn, others receive, and one calls meanwhile again and again.
func closeAmid(t *testing.T, a, b *Dispatcher, senders int, lanes []Lane, after time.Duration, meanwhile func(*Dispatcher)) {
	t.Helper()
	ctx := soon(t)
	var wg sync.WaitGroup
	for _, s := range []struct {
		d, to *Dispatcher
		mine  *Mailbox
	}{{a, b, box(t, a, 1, 0)}, {b, a, box(t, b, 1, 64<<10)}} {
		for range senders {
			wg.Go(func() {
				for n := 0; ; n++ {
					f, err := s.d.FlowOver(s.to.self, 1, lanes[n%len(lanes)])
					if err != nil {
						return
					}
					if err := f.try(ctx, uint64(n), n%4*700); err != nil && (errors.Is(err, ErrClosed) || s.d.isClosing()) {
						return
					} else if ctx.Err() != nil {
						t.Errorf("stuck: %v", err)
						return
					}
				}
			})
			wg.Go(func() {
				for {
					m, err := s.mine.Recv(ctx)
					if err != nil {
						if !errors.Is(err, ErrClosed) {
							t.Errorf("recv: %v", err)
						}
						return
					}
					m.Release()
				}
			})
		}
		if meanwhile != nil {
			wg.Go(func() {
				for !s.d.isClosing() {
					meanwhile(s.d)
				}
			})
		}
	}
	time.Sleep(after) // the moment of Close varies
	cctx, cancel := context.WithTimeout(ctx, 200*time.Millisecond)
	defer cancel()
	wg.Go(func() { _ = a.Close(cctx) })
	wg.Go(func() { _ = b.Close(cctx) })
	wg.Wait()
}

func (d *Dispatcher) isClosing() bool {
	d.mu.RLock()
	defer d.mu.RUnlock()
	return d.closing
}

// Messages are neither lost, doubled nor reordered with more paced links than slots, with senders
// that give up, and with connections over both transports that are cut in turn.
func TestManyStreams(t *testing.T) {
	over(t, transports(), func(t *testing.T, w *world, tr subsys.Transport) {
		// Two dozen handshakes at once take long on a busy machine.
		a := w.node(t, 1000, tr, func(c *Config) { c.GiveUp = time.Minute })
		ctx, cancel := context.WithTimeout(t.Context(), 3*time.Minute)
		defer cancel()
		var wg sync.WaitGroup
		const peers, each = 24, 3000
		for i := range uint64(peers) {
			b := w.node(t, 1+i, tr)
			mb := box(t, b, 1, 2*FirstCredit)
			f := flow(t, a, mb)
			wg.Go(func() {
				for n := uint64(0); n < each; {
					sctx, cancel := ctx, context.CancelFunc(func() {})
					if n%7 == 0 {
						sctx, cancel = context.WithTimeout(ctx, 50*time.Microsecond)
					}
					err := f.SendBytes(sctx, 1, n, make([]byte, n%300))
					cancel()
					switch {
					case err == nil:
						n++
					case ctx.Err() != nil:
						t.Errorf("send %d to %d: %v", n, i, err)
						return
					}
				}
			})
			wg.Go(func() {
				for n := range uint64(each) {
					m, err := mb.Recv(ctx)
					if err != nil || m.Tag() != n || m.Len() != int(n%300) {
						t.Errorf("recv %d of %d: %v %v", n, i, m, err)
						return
					}
					m.Release()
				}
			})
		}
		wg.Wait()
	})
}

// SPDX-License-Identifier: Apache-2.0

package dispatch

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"testing"

	"github.com/rocl-go/rocl/dispatch/internal/session"
	"github.com/rocl-go/rocl/internal/testkit/eventually"
	"github.com/rocl-go/rocl/internal/testkit/try"
	"github.com/rocl-go/rocl/subsys"
	"github.com/rocl-go/rocl/subsys/tcp"
)

// replies answers each request to m with as many random bytes as it asks for.
func replies(t *testing.T, m *Mailbox) {
	for {
		msg, err := m.Recv(context.Background())
		if err != nil {
			return
		}
		b := buf(t, m.d, string(random(int(binary.LittleEndian.Uint32(msg.Bytes())))))
		if err := m.Reply(context.Background(), msg, b); err != nil {
			b.Release()
		}
		msg.Release()
	}
}

// asksFor returns a request for n bytes.
func asksFor(n int) []byte { return binary.LittleEndian.AppendUint32(nil, uint32(n)) }

// random returns n random bytes, which are the same each time.
func random(n int) []byte {
	p := make([]byte, n)
	fill(p, uint64(n))
	return p
}

// lies reports whether the payload of msg lies at the beginning of p.
func lies(msg *Message, p []byte) bool {
	return msg.Len() == 0 || len(p) > 0 && &msg.Bytes()[0] == &p[0]
}

// The payload of a reply lies in the memory that the caller has given, if it fits. Over TCP large
// payloads are read into that memory: next to nothing is copied.
func TestReplyLands(t *testing.T) {
	over(t, allTransports(t), func(t *testing.T, w *world, tr subsys.Transport) {
		a, b := w.node(t, 1, tr, unreported(t)), w.node(t, 2, tr, unreported(t))
		ma, mb := box(t, a, 1, 0), box(t, b, 7, 0)
		f := flow(t, a, mb)
		go replies(t, mb)
		for _, n := range []int{0, 5, 3000, 20_000, session.WholeLen, session.WholeLen + 1, 3*session.PieceLen + 5, 4 << 20} {
			for _, more := range []int{0, 1, -1} {
				if n+more < 0 {
					continue
				}
				reply := random(n)
				dst := bytes.Repeat([]byte{'x'}, n+more)
				before := a.count.CopiedB.Load()
				c := try.Get(ma.RequestInto(soon(t), f, 3, asksFor(n), dst))(t)
				msg, err := c.Wait(soon(t))
				if err != nil || msg.Tag() != 3 || !bytes.Equal(msg.Bytes(), reply) {
					t.Fatalf("%d bytes into %d: not the reply: %v", n, len(dst), err)
				}
				if fits := n <= len(dst); lies(msg, dst) != (fits || n == 0) {
					t.Errorf("%d bytes into %d lie elsewhere", n, len(dst))
				} else if fits && (!bytes.Equal(dst[:n], reply) || !bytes.Equal(dst[n:], bytes.Repeat([]byte{'x'}, len(dst)-n))) {
					t.Errorf("%d bytes into %d: other bytes", n, len(dst))
				} else if fits && msg.ReadOnly() {
					t.Errorf("%d bytes into %d can only be read", n, len(dst))
				}
				if copied := a.count.CopiedB.Load() - before; tr.Name() == "tcp" && n > 100_000 && more >= 0 && copied > 50_000 {
					t.Errorf("%d bytes into %d: %d bytes were copied", n, len(dst), copied)
				}
				msg.Release()
			}
		}
		noCalls(t, a, 0)
		if n := a.calls.landings.Load(); n != 0 {
			t.Errorf("%d landings are left", n)
		}
	})
}

// landed starts a call, from b to a through a gate. When it returns, the reply of n bytes has come
// in part.
func landed(t *testing.T, tr subsys.Transport, n int, change ...func(*Config)) (c Pending, reply, dst []byte, g *gate, ma, mb *Mailbox) {
	t.Helper()
	a, b, g, _ := gated(t, tr, 64<<10, change...)
	ma, mb = box(t, a, 1, 0), box(t, b, 2, 0)
	talk(t, a, b, mb, 1) // makes the connection through the gate
	reply, dst = random(n), make([]byte, n)
	go replies(t, ma)
	c, err := mb.RequestInto(soon(t), flow(t, b, ma), 3, asksFor(n), dst)
	try.OK(t, err)
	g.let(int64(n) / 2)
	eventually.True(t, "a part of the reply is there", func() bool {
		b.progress.Poll(true)
		b.progress.Lock()
		defer b.progress.Unlock()
		return dst[n/4] == reply[n/4] && dst[n/4+1] == reply[n/4+1] && dst[n/4+2] == reply[n/4+2] && dst[n/4+3] == reply[n/4+3]
	})
	return c, reply, dst, g, ma, mb
}

// A call that is given up while its reply is being read leaves the memory alone from then on. The
// connection stays, and the next call is answered over it.
func TestGivenUpWhileItLands(t *testing.T) {
	for name, tr := range streamTransports(t) {
		for _, n := range []int{session.WholeLen, session.PieceLen + 1, 6 << 20} {
			t.Run(fmt.Sprint(name, " ", n), func(t *testing.T) {
				c, reply, dst, g, ma, mb := landed(t, tr, n)
				ctx, cancel := context.WithCancelCause(soon(t))
				cause := errors.New("no patience")
				cancel(cause)
				if _, err := c.Wait(ctx); !errors.Is(err, cause) {
					t.Fatal(err)
				}
				clear(dst)
				g.let(1 << 40)
				d := mb.d
				again := make([]byte, n)
				c, err := mb.RequestInto(soon(t), flow(t, d, ma), 3, asksFor(n), again)
				try.OK(t, err)
				msg, err := c.Wait(soon(t))
				if err != nil || !lies(msg, again) || !bytes.Equal(again, reply) {
					t.Fatal("the next reply: ", err)
				}
				msg.Release()
				if !bytes.Equal(dst, make([]byte, n)) {
					t.Error("bytes were written after the call had been given up")
				}
				noCalls(t, d, 1)
				if s := d.Stats(); s.Resumed > 0 {
					t.Errorf("%d connections broke", s.Resumed)
				}
			})
		}
	}
}

// After any end of a call while its reply is being read, nothing is written to the memory.
func TestEndsWhileItLands(t *testing.T) {
	for _, n := range []int{session.WholeLen, session.PieceLen + 1, 6 << 20} {
		for name, end := range map[string]func(*testing.T, *Mailbox, *Mailbox){
			"the caller's resource closes": func(_ *testing.T, _, mb *Mailbox) { mb.Close() },
			"the caller's context closes":  func(t *testing.T, _, mb *Mailbox) { go mb.d.Close(soon(t)) },
			"the link dies": func(_ *testing.T, ma, mb *Mailbox) {
				l, _ := onlyLink(mb.d, ma.d)
				l.endLink(ErrUnreachable)
			},
		} {
			t.Run(fmt.Sprint(n, " ", name), func(t *testing.T) {
				c, _, dst, g, ma, mb := landed(t, tcp.New(), n)
				end(t, ma, mb)
				if msg, err := c.Wait(soon(t)); err == nil {
					t.Fatal("a reply of ", msg.Len())
				}
				clear(dst)
				g.let(1 << 40)
				for range 100 {
					mb.d.progress.Poll(true)
				}
				if !bytes.Equal(dst, make([]byte, n)) {
					t.Error("bytes were written after the end")
				}
			})
		}
	}
}

// If a connection is cut anywhere within a reply, the reply is read again, and is right.
func TestLandsThroughCuts(t *testing.T) {
	over(t, streamTransports(t), func(t *testing.T, w *world, tr subsys.Transport) {
		const cuts = 30
		a, b := w.node(t, 1, tr, unreported(t)), w.node(t, 2, tr, unreported(t))
		r := newRelay(t, a.Addrs()[0], session.PieceLen+70_001, cuts)
		w.setAddrs(a.self, tr.Name()+"://"+r.ln.Addr().String())
		w.setAddrs(b.self)
		defer func() { // runs before the relay waits for its connections
			try.Check(t, errors.Join(a.Close(soon(t)), b.Close(soon(t))))
		}()
		ma, mb := box(t, a, 1, 0), box(t, b, 2, 0)
		f := flow(t, b, ma)
		go replies(t, ma)
		for i := 0; r.cuts.Load() > 0; i++ {
			reply := random(100_000 + i%7*150_000)
			dst := make([]byte, len(reply))
			c := try.Get(mb.RequestInto(soon(t), f, 3, asksFor(len(dst)), dst))(t)
			msg, err := c.Wait(soon(t))
			if err != nil || !lies(msg, dst) || !bytes.Equal(dst, reply) {
				t.Fatal("another reply: ", err)
			}
			msg.Release()
		}
		noCalls(t, b, 0)
	})
}

// A call that never begins leaves no landing.
func TestLandingOfNoCall(t *testing.T) {
	w := newWorld()
	a, b := w.node(t, 1, tcp.New()), w.node(t, 2, tcp.New())
	ma, mb := box(t, a, 1, 0), box(t, b, 7, 0)
	ctx, cancel := context.WithCancel(soon(t))
	f := flow(t, a, mb)
	mb.Close()
	talk(t, a, b, box(t, b, 8, 0), 1)
	if c, err := ma.RequestInto(ctx, f, 3, nil, make([]byte, 10)); err == nil {
		if _, err = c.Wait(ctx); !errors.Is(err, ErrGone) {
			t.Error(err)
		}
	}
	cancel()
	if n := a.calls.landings.Load(); n != 0 {
		t.Errorf("%d landings are left", n)
	}
}

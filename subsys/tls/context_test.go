// SPDX-License-Identifier: Apache-2.0

package tls_test

import (
	"bytes"
	"context"
	"errors"
	"math/rand/v2"
	"net"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/rocl-go/rocl"
	"github.com/rocl-go/rocl/internal/testkit/eventually"
	"github.com/rocl-go/rocl/rocltest"
	"github.com/rocl-go/rocl/subsys"
	"github.com/rocl-go/rocl/subsys/tls"
)

func cred(t testing.TB, b byte) *tls.Secrets {
	t.Helper()
	c, err := tls.FromSecrets("test", bytes.Repeat([]byte{b}, 32))
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// pair opens two contexts, each with a resource.
func pair(t testing.TB, a, b subsys.Transport) (me, you *rocl.Resource) {
	t.Helper()
	cl := rocltest.Cluster(t, 1)
	for i, tr := range []subsys.Transport{a, b} {
		c := cl.Open(0, rocl.WithTransports(tr), rocl.WithListen("tls://127.0.0.1:0"))
		if !strings.HasPrefix(c.Addrs()[0], "tls://127.0.0.1:") {
			t.Errorf("reached at %q", c.Addrs())
		}
		r, err := c.Register(t.Context(), nil)
		if err != nil {
			t.Fatal(err)
		}
		if i == 0 {
			me = r
		} else {
			you = r
		}
	}
	return me, you
}

// talk sends n messages of 0 to most bytes and checks that they arrive unchanged, once, and in
// order.
func talk(t testing.TB, from, to *rocl.Resource, n, most int) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	size := func(i int) int {
		switch i {
		case 0:
			return 0
		case 1:
			return most
		}
		r := rand.New(rand.NewPCG(7, uint64(i)))
		return r.IntN(1 << r.IntN(1+bits(most)))
	}
	fill := func(b []byte, i int) {
		for j := range b {
			b[j] = byte(i + j>>8 + j)
		}
	}
	var wg sync.WaitGroup
	wg.Go(func() {
		for i := range n {
			b, err := from.Context().Buffer(size(i))
			if err != nil {
				t.Error(err)
				return
			}
			fill(b.Bytes(), i)
			if err := from.Send(ctx, to.ID(), uint64(i), b); err != nil {
				t.Error(err)
				return
			}
		}
	})
	want := make([]byte, most)
	for i := range n {
		m, err := to.Recv(ctx)
		if err != nil {
			t.Error(err)
			break
		}
		w := want[:size(i)]
		fill(w, i)
		if m.Tag() != uint64(i) || !bytes.Equal(m.Bytes(), w) {
			t.Errorf("message %d: tag %d, %d bytes", i, m.Tag(), m.Len())
		}
		m.Release()
	}
	wg.Wait()
}

func bits(n int) (b int) {
	for ; n > 1; n >>= 1 {
		b++
	}
	return b
}

// Messages of every size go both ways, and Close leaves nothing.
func TestContexts(t *testing.T) {
	c := cred(t, 1)
	me, you := pair(t, tls.New(c), tls.New(c))
	var wg sync.WaitGroup
	wg.Go(func() { talk(t, me, you, 400, 1<<20) })
	wg.Go(func() { talk(t, you, me, 400, 1<<20) })
	wg.Wait()
	if s := me.Context().Stats(); s.Sent["tls"] != 400 || s.Received["tls"] != 400 {
		t.Errorf("sent %v, received %v", s.Sent, s.Received)
	}
}

// The connection breaks anywhere, and the link resumes over the next one.
//
// Promise (TLS): When a TLS connection breaks or its key is used up, no message is lost or doubled.
// See also TestWorn.
func TestCutAndResumed(t *testing.T) {
	c := cred(t, 1)
	cuts := new(atomic.Int32)
	cuts.Store(12)
	me, you := pair(t, relayed{tls.New(c), t, cuts}, relayed{tls.New(c), t, cuts})
	var wg sync.WaitGroup
	wg.Go(func() { talk(t, me, you, 400, 1<<20) })
	wg.Go(func() { talk(t, you, me, 400, 1<<20) })
	wg.Wait()
	if n := me.Context().Stats().Resumed + you.Context().Stats().Resumed; n == 0 || cuts.Load() > 0 {
		t.Errorf("resumed %d times, %d cuts are left", n, cuts.Load())
	}
}

// A connection whose key has sealed as many records as it may is replaced by another.
func TestWorn(t *testing.T) {
	c := cred(t, 1)
	me, you := pair(t, tls.NewWorn(c, 300), tls.NewWorn(c, 300))
	talk(t, me, you, 2000, 64<<10)
	if s := me.Context().Stats(); s.Resumed == 0 || s.Undelivered > 0 {
		t.Errorf("resumed %d times, %d undelivered", s.Resumed, s.Undelivered)
	}
}

// Contexts with different secrets do not link, although one directory knows both.
func TestContextsApart(t *testing.T) {
	cl := rocltest.Cluster(t, 1)
	reported := make(chan rocl.Undelivered, 1)
	a := cl.Open(0, rocl.WithTransports(tls.New(cred(t, 1))), rocl.WithGiveUp(50*time.Millisecond), rocl.WithUndelivered(func(u rocl.Undelivered) { reported <- u }))
	b := cl.Open(0, rocl.WithTransports(tls.New(cred(t, 2))))
	me, err := a.Register(t.Context(), nil)
	if err != nil {
		t.Fatal(err)
	}
	you, err := b.Register(t.Context(), nil)
	if err != nil {
		t.Fatal(err)
	}
	if err := me.SendBytes(t.Context(), you.ID(), 7, []byte("hello")); err != nil {
		t.Fatal(err)
	}
	if u := eventually.Value(t, "the report", reported); !errors.Is(u.Err, rocl.ErrUnreachable) || u.Tag != 7 {
		t.Errorf("reported %+v", u)
	}
	if n, _ := you.Waiting(); n > 0 {
		t.Error("it arrived")
	}
}

// relayed is a transport whose ports are reached through a relay. The relay cuts connections after
// some bytes, cuts times in all.
type relayed struct {
	subsys.Transport
	t    testing.TB
	cuts *atomic.Int32
}

func (r relayed) Listen(addr string, cfg subsys.Config) (subsys.Port, error) {
	p, err := r.Transport.Listen(addr, cfg)
	if err != nil {
		return nil, err
	}
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		p.Close()
		return nil, err
	}
	q := &relayedPort{Port: p, ln: ln}
	q.wg.Go(func() {
		for {
			c, err := ln.Accept()
			if err != nil {
				return
			}
			q.wg.Go(func() { relay(c, strings.TrimPrefix(p.Addr(), "tls://"), r.cuts) })
		}
	})
	return q, nil
}

type relayedPort struct {
	subsys.Port
	ln net.Listener
	wg sync.WaitGroup
}

func (p *relayedPort) Addr() string { return "tls://" + p.ln.Addr().String() }

func (p *relayedPort) Close() error {
	err := p.Port.Close()
	p.ln.Close()
	p.wg.Wait()
	return err
}

func relay(a net.Conn, to string, cuts *atomic.Int32) {
	defer a.Close()
	b, err := net.Dial("tcp", to)
	if err != nil {
		return
	}
	defer b.Close()
	left := int64(1 << 62)
	switch c := cuts.Load(); {
	case c <= 0:
	case c%2 == 0: // after both handshakes, within a few messages
		left = 16<<10 + rand.Int64N(512<<10)
	default: // in one of them
		left = rand.Int64N(8 << 10)
	}
	var n atomic.Int64
	pump := func(dst, src net.Conn) {
		defer a.Close()
		defer b.Close()
		buf := make([]byte, 4096)
		for {
			k, err := src.Read(buf)
			if excess := n.Add(int64(k)) - left; excess > 0 {
				cuts.Add(-1)
				_, _ = dst.Write(buf[:max(0, int64(k)-excess)])
				return
			}
			if _, werr := dst.Write(buf[:k]); err != nil || werr != nil {
				return
			}
		}
	}
	var wg sync.WaitGroup
	wg.Go(func() { pump(a, b) })
	pump(b, a)
	wg.Wait()
}

// BenchmarkRoundTrip measures a message there and back.
func BenchmarkRoundTrip(b *testing.B) {
	for _, size := range []int{64, 1 << 20} {
		b.Run(strconv.Itoa(size), func(b *testing.B) { roundTrip(b, size) })
	}
}

func roundTrip(b *testing.B, size int) {
	c := cred(b, 1)
	me, you := pair(b, tls.New(c), tls.New(c))
	ctx, cancel := context.WithCancel(context.Background())
	var wg sync.WaitGroup
	wg.Go(func() {
		for m, err := range you.Messages(ctx) {
			if err != nil {
				return
			}
			if err := you.Send(ctx, m.From(), 0, m.Buffer()); err != nil {
				b.Error(err)
			}
			m.Release()
		}
	})
	b.ReportAllocs()
	b.SetBytes(int64(2 * size))
	for b.Loop() {
		buf, err := me.Context().Buffer(size)
		if err == nil {
			err = me.Send(ctx, you.ID(), 0, buf)
		}
		if err != nil {
			b.Fatal(err)
		}
		m, err := me.Recv(ctx)
		if err != nil {
			b.Fatal(err)
		}
		m.Release()
	}
	cancel()
	wg.Wait()
}

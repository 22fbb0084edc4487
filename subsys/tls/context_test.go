// SPDX-License-Identifier: Apache-2.0

package tls_test

import (
	"bytes"
	"context"
	"errors"
	"math/bits"
	"math/rand/v2"
	"net"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/rocl-go/rocl"
	"github.com/rocl-go/rocl/internal/testkit/eventually"
	"github.com/rocl-go/rocl/internal/testkit/relay"
	"github.com/rocl-go/rocl/internal/testkit/try"
	"github.com/rocl-go/rocl/rocltest"
	"github.com/rocl-go/rocl/subsys"
	"github.com/rocl-go/rocl/subsys/tls"
)

func cred(t testing.TB, b byte) *tls.Secrets {
	t.Helper()
	return try.Get(tls.FromSecrets("test", bytes.Repeat([]byte{b}, 32)))(t)
}

// pair opens two contexts, each with a resource.
func pair(t testing.TB, a, b subsys.Transport) (me, you *rocl.Resource) {
	t.Helper()
	cl := rocltest.Cluster(t, 1)
	open := func(tr subsys.Transport) *rocl.Resource {
		c := cl.Open(0, rocl.WithTransports(tr), rocl.WithListen("tls://127.0.0.1:0"))
		if !strings.HasPrefix(c.Addrs()[0], "tls://127.0.0.1:") {
			t.Errorf("reached at %q", c.Addrs())
		}
		return try.Get(c.Register(t.Context(), nil))(t)
	}
	return open(a), open(b)
}

// talk sends n messages of 0 to most bytes and checks that they arrive unchanged, once, and in
// order.
func talk(t testing.TB, from, to *rocl.Resource, n, most int) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	size := func(i int) int {
		if i < 2 {
			return i * most
		}
		r := rand.New(rand.NewPCG(7, uint64(i)))
		return r.IntN(1 << r.IntN(bits.Len(uint(most))))
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

// The connection breaks anywhere, and the link resumes over the next one.
//
// Promise (TLS): When a TLS connection breaks or its key is used up, no message is lost or doubled.
// See also TestWorn.
func TestCutAndResumed(t *testing.T) {
	c := cred(t, 1)
	cuts := new(atomic.Int32)
	cuts.Store(12)
	me, you := pair(t, cutting(tls.New(c), cuts), cutting(tls.New(c), cuts))
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
	if s := me.Context().Stats(); s.Sent["tls"] < 2000 || s.Resumed == 0 || s.Undelivered > 0 {
		t.Errorf("sent %v, resumed %d times, %d undelivered", s.Sent, s.Resumed, s.Undelivered)
	}
}

// Contexts with different secrets do not link, although one directory knows both.
func TestContextsApart(t *testing.T) {
	cl := rocltest.Cluster(t, 1)
	reported := make(chan rocl.Undelivered, 1)
	a := cl.Open(0, rocl.WithTransports(tls.New(cred(t, 1))), rocl.WithGiveUp(50*time.Millisecond), rocl.WithUndelivered(func(u rocl.Undelivered) { reported <- u }))
	b := cl.Open(0, rocl.WithTransports(tls.New(cred(t, 2))))
	me := try.Get(a.Register(t.Context(), nil))(t)
	you := try.Get(b.Register(t.Context(), nil))(t)
	try.OK(t, me.SendBytes(t.Context(), you.ID(), 7, []byte("hello")))
	if u := eventually.Value(t, "the report", reported); !errors.Is(u.Err, rocl.ErrUnreachable) || u.Tag != 7 {
		t.Errorf("reported %+v", u)
	}
	if n, _ := you.Waiting(); n > 0 {
		t.Error("it arrived")
	}
}

// cutting returns tr with a relay that cuts connections after some bytes, cuts times in all.
func cutting(tr subsys.Transport, cuts *atomic.Int32) subsys.Transport {
	return relay.New(tr, func(net.Conn) func(to, from net.Conn) {
		left := int64(1 << 62)
		switch c := cuts.Load(); {
		case c <= 0:
		case c%2 == 0: // after both handshakes, within a few messages
			left = 16<<10 + rand.Int64N(512<<10)
		default: // in one of them
			left = rand.Int64N(8 << 10)
		}
		var n atomic.Int64
		return func(to, from net.Conn) {
			buf := make([]byte, 4096)
			for {
				k, err := from.Read(buf)
				if excess := n.Add(int64(k)) - left; excess > 0 {
					cuts.Add(-1)
					_, _ = to.Write(buf[:max(0, int64(k)-excess)])
					return
				}
				if _, werr := to.Write(buf[:k]); err != nil || werr != nil {
					return
				}
			}
		}
	})
}

// SPDX-License-Identifier: Apache-2.0

package rocl_test

import (
	"context"
	"testing"

	"github.com/rocl-go/rocl"
	"github.com/rocl-go/rocl/internal/testkit/ownnode"
	"github.com/rocl-go/rocl/internal/testkit/try"
	"github.com/rocl-go/rocl/rocltest"
	"go.uber.org/goleak"
)

// TestMain checks for leaked goroutines. memberlist's probes end with their timeouts, shortly after
// its Shutdown.
func TestMain(m *testing.M) {
	ownnode.Main(m, goleak.IgnoreAnyFunction("github.com/hashicorp/memberlist.(*Memberlist).probeNode"))
}

func reg(t *testing.T, c *rocl.Context, attrs ...string) *rocl.Resource {
	t.Helper()
	a := rocl.Attrs{}
	for i := 0; i < len(attrs); i += 2 {
		a[attrs[i]] = attrs[i+1]
	}
	return try.Get(c.Register(context.Background(), a))(t)
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
			p := try.Get(a.Buffer(size))(t)
			where := &p.Bytes()[0]
			if err := me.Send(ctx, target.ID(), 0, p); err != nil {
				t.Fatal(err)
			}
			m := try.Get(target.Recv(ctx))(t)
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

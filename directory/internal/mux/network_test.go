// SPDX-License-Identifier: Apache-2.0

package mux

import (
	"bytes"
	"context"
	"net"
	"testing"
	"testing/synctest"
	"time"

	"github.com/rocl-go/rocl/internal/testkit/eventually"
	"github.com/rocl-go/rocl/internal/testkit/try"
	"github.com/rocl-go/rocl/resource"
	"github.com/rocl-go/rocl/subsys/simnet"
)

// A port works over a network that is not the kernel's: hellos, datagrams, large payloads and
// streams.
func TestNetworkInMemory(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := simnet.New(1)
		n.SetDelay(time.Millisecond, 2*time.Millisecond)
		streams := make(chan net.Conn, 1)
		at := func(self resource.NodeID) *node {
			return start(t, self, func(c *Config) {
				c.Bind, c.Network = ":7946", n.AddHost("").Start()
				c.Stream = func(nc net.Conn) { streams <- nc }
			})
		}
		a, b := at(1), at(2)
		if got, err := a.Hello(eventually.Context(t), b.Addr()); got != 2 || err != nil {
			t.Fatalf("a hello was answered by %d: %v", got, err)
		}
		try.Fails(a.Probe(eventually.Context(t), b.Addr()))(t, ErrRefused, "probing")
		a.Meet(2, b.Epoch(), b.Addr())
		b.Meet(1, a.Epoch(), a.Addr())
		for _, p := range [][]byte{[]byte("small"), bytes.Repeat([]byte("large"), MaxPayload)} {
			a.Send(Out{To: 2, Payload: p})
			if got := eventually.Value(t, "the payload", b.got); got.from != 1 || !bytes.Equal(got.p, p) {
				t.Errorf("%d bytes came from %d, not %d", len(got.p), got.from, len(p))
			}
		}
		near := try.Get(a.Dial(context.Background(), 2))(t)
		defer near.Close()
		try.Get(near.Write([]byte("x")))(t)
		far := eventually.Value(t, "the stream", streams)
		defer far.Close()
		var x [1]byte
		if _, err := far.Read(x[:]); err != nil || x[0] != 'x' {
			t.Errorf("read %q: %v", x, err)
		}
	})
}

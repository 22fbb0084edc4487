// SPDX-License-Identifier: Apache-2.0

package bulk_test

import (
	"bytes"
	"net"
	"sync/atomic"
	"testing"

	"github.com/rocl-go/rocl"
	"github.com/rocl-go/rocl/bulk"
	"github.com/rocl-go/rocl/internal/testkit/relay"
	"github.com/rocl-go/rocl/internal/testkit/try"
	"github.com/rocl-go/rocl/rocltest"
	"github.com/rocl-go/rocl/subsys"
	"github.com/rocl-go/rocl/subsys/tcp"
)

// fragile returns TCP whose connections break after a number of bytes, as often as cuts says.
func fragile(after int64, cuts *atomic.Int64) subsys.Transport {
	return relay.New(tcp.New(), func(net.Conn) func(to, from net.Conn) {
		left := &atomic.Int64{} // of both directions
		left.Store(after)
		return func(to, from net.Conn) {
			p := make([]byte, 64<<10)
			for {
				n, err := from.Read(p)
				if left.Add(-int64(n)) < 0 && cuts.Add(-1) >= 0 {
					return // with bytes that were accepted and do not arrive
				}
				if _, e := to.Write(p[:n]); e != nil || err != nil {
					return
				}
			}
		}
	})
}

// The connection breaks again and again during large transfers, of 1 GiB in the long form. rocl
// resumes it, and all bytes are right.
//
// Promise (Package bulk): Transfers go on when connections break.
func TestConnectionCut(t *testing.T) {
	const cuts = 10
	n := longOr(1<<30, 15<<20)
	var left atomic.Int64 // connections that are still to break
	f := fragile(int64(n/15+12345), &left)
	cl := rocltest.Cluster(t, 1)
	origin, target := endpoint(t, cl.Open(0, rocl.WithTransports(f))), endpoint(t, cl.Open(0, rocl.WithTransports(f)))
	want := counting(n)
	for name, isRegistered := range map[string]bool{"plain": false, "registered": true} {
		t.Run(name, func(t *testing.T) {
			left.Store(cuts)
			segs, gather := segments(t, origin.c, [][]byte{bytes.Clone(want)}, isRegistered)
			r := expose(t, origin, bulk.ReadWrite, segs...)
			pulls(t, target, r.Handle(), 0, want)
			got := counting(n + 1)[1:]
			try.Get(target.Push(deadline(t), r.Handle(), 0, got))(t)
			if left.Load() > 0 {
				t.Error("connections that did not break: ", left.Load())
			}
			if err := r.Revoke(deadline(t)); err != nil || !bytes.Equal(gather(), got) {
				t.Fatal("other bytes were pushed: ", err)
			}
		})
	}
}

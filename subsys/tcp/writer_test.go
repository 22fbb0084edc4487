// SPDX-License-Identifier: Apache-2.0

package tcp

import (
	"context"
	"log/slog"
	"net"
	"testing"

	"github.com/rocl-go/rocl/buffers"
	"github.com/rocl-go/rocl/internal/testkit/must"
	"github.com/rocl-go/rocl/subsys"
)

// Frames that the socket has no room for are kept until they are written or the connection is
// closed. The sender may have released them before.
func TestUnwrittenIsKept(t *testing.T) {
	ln := must.Get(net.Listen("tcp", "127.0.0.1:0"))
	defer ln.Close()
	count := new(subsys.Counters)
	poller := must.Get(subsys.NewPoller(count))
	defer poller.Close()
	pool := buffers.New()
	defer pool.Close()
	p := must.Get(New().Listen("", subsys.Config{Pool: pool, Poller: func() *subsys.Poller { return poller }, Logger: slog.New(slog.DiscardHandler), Count: count}))
	defer p.Close()
	c := must.Get(p.Dial(context.Background(), "tcp://"+ln.Addr().String(), nil))
	c.Start()
	peer := must.Get(ln.Accept())
	defer peer.Close()

	var last *buffers.Buffer
	for seq := uint32(0); ; seq++ {
		last = must.Get(pool.Get(1 << 20))
		f := subsys.Frame{Header: subsys.Header{Type: 16, Seq: seq, Len: 1 << 20}, Data: last.Bytes(), Buf: last}
		if n, err := c.Send([]subsys.Frame{f}); n != 1 || err != nil {
			t.Fatalf("%d frames were taken, and the one before was not kept: %v", n, err)
		}
		if last.Refs() > 1 {
			break
		}
		last.Release()
	}
	if n := last.Refs(); n != 2 {
		t.Errorf("%d references to what is being written", n)
	}
	if n, err := c.Send([]subsys.Frame{{Header: subsys.Header{Type: 16}}}); n != 0 || err != nil {
		t.Errorf("what is written was kept: a socket with room took %d frames, %v", n, err)
	}
	c.Close()
	if n := last.Refs(); n != 1 {
		t.Errorf("%d references after the end", n)
	}
	last.Release()
}

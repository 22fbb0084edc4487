// SPDX-License-Identifier: Apache-2.0

package tcp

import (
	"context"
	"log/slog"
	"net"
	"testing"

	"github.com/rocl-go/rocl/buffers"
	"github.com/rocl-go/rocl/internal/testkit/try"
	"github.com/rocl-go/rocl/subsys"
)

// Frames that the socket has no room for are kept until they are written or the connection is
// closed. The sender may have released them before.
func TestUnwrittenIsKept(t *testing.T) {
	ln := try.Get(net.Listen("tcp", "127.0.0.1:0"))(t)
	defer ln.Close()
	count := new(subsys.Counters)
	poller := try.Get(subsys.NewPoller(count))(t)
	defer poller.Close()
	pool := buffers.New()
	defer pool.Close()
	p := try.Get(New().Listen("", subsys.Config{Pool: pool, Poller: func() *subsys.Poller { return poller }, Logger: slog.New(slog.DiscardHandler), Count: count}))(t)
	defer p.Close()
	c := try.Get(p.Dial(context.Background(), "tcp://"+ln.Addr().String(), nil))(t)
	c.Start()
	peer := try.Get(ln.Accept())(t)
	defer peer.Close()

	var last *buffers.Buffer
	for seq := uint32(0); ; seq++ {
		last = try.Get(pool.Get(1 << 20))(t)
		f := subsys.Frame{Header: subsys.Header{Type: 16, Seq: seq, Len: 1 << 20}, Data: last.Bytes(), Buf: last}
		if n, err := c.Send([]subsys.Frame{f}); n != 1 || err != nil {
			t.Fatalf("%d frames were taken, and the one before was not kept: %v", n, err)
		}
		if last.Refs() > 1 {
			break
		}
		last.Release()
	}
	try.Equal(t, last.Refs(), 2, "references to what is being written")
	try.Gives(c.Send([]subsys.Frame{{Header: subsys.Header{Type: 16}}}))(t, 0, "frames taken by a socket with room: what is written was kept")
	c.Close()
	try.Equal(t, last.Refs(), 1, "references after the end")
	last.Release()
}

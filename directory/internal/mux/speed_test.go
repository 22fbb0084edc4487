// SPDX-License-Identifier: Apache-2.0

package mux

import (
	"net"
	"testing"

	"github.com/rocl-go/rocl/internal/testkit/must"
	"github.com/rocl-go/rocl/resource"
	"github.com/rocl-go/rocl/subsys"
	"golang.org/x/sys/unix"
)

// BenchmarkRound measures what a question and its answer cost both ports, in one goroutine.
// BenchmarkBare measures the same datagrams without ports.
func BenchmarkRound(b *testing.B) {
	var got int
	answer := make([]byte, 60)
	var y *Mux
	x := must.Get(Open(Config{Self: 1, Bind: "127.0.0.1:0", Receive: func(resource.NodeID, *net.UDPAddr, []byte) { got++ }}))
	defer x.Close()
	y = must.Get(Open(Config{Self: 2, Bind: "127.0.0.1:0", Receive: func(from resource.NodeID, at *net.UDPAddr, p []byte) {
		y.Send(Out{To: from, At: at, Payload: answer})
	}}))
	defer y.Close()
	x.Meet(2, y.Epoch(), y.Addr())
	y.Meet(1, x.Epoch(), x.Addr())
	b.ReportAllocs()
	want := 0
	for b.Loop() {
		want++
		x.Send(Out{To: 2, Payload: answer})
		y.main.more, x.main.more = false, false // as for a goroutine that polls and finds nothing in between
		y.main.Ready(subsys.Readable)
		x.main.Ready(subsys.Readable)
		if got != want {
			b.Fatal("lost")
		}
	}
}

func BenchmarkBare(b *testing.B) {
	mk := func() *socket {
		s := must.Get(newSocket(&net.UDPAddr{IP: net.IPv4(127, 0, 0, 1)}, false))
		return s
	}
	x, y := mk(), mk()
	defer x.close()
	defer y.close()
	local := func(s *socket) *net.UDPAddr {
		sa := must.Get(unix.Getsockname(s.fd))
		return &net.UDPAddr{IP: net.IPv4(127, 0, 0, 1), Port: sa.(*unix.SockaddrInet4).Port}
	}
	xa, ya := local(x), local(y)
	p := make([]byte, 97)
	b.ReportAllocs()
	for b.Loop() {
		_ = x.writeOne(p, ya)
		y.readOne()
		_ = y.writeOne(p, xa)
		x.readOne()
	}
}

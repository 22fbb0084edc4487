// SPDX-License-Identifier: Apache-2.0

//go:build unix

package stream

import (
	"net"
	"testing"

	"github.com/rocl-go/rocl/internal/testkit/try"
	"github.com/rocl-go/rocl/subsys"
	"go.uber.org/goleak"
	"golang.org/x/sys/unix"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// pair returns a socket, and the other end of its connection, which the test does not read.
func pair(t *testing.T) (*socket, *net.TCPConn) {
	t.Helper()
	l := try.Get(net.ListenTCP("tcp", &net.TCPAddr{IP: net.IPv4(127, 0, 0, 1)}))(t)
	defer l.Close()
	nc := try.Get(net.DialTCP("tcp", nil, l.Addr().(*net.TCPAddr)))(t)
	s := new(socket)
	try.OK(t, s.adopt(nc, new(subsys.Counters)))
	t.Cleanup(func() { s.drop() })
	peer := try.Get(l.AcceptTCP())(t)
	t.Cleanup(func() { peer.Close() })
	return s, peer
}

// A socket to this machine has small buffers.
func TestLocalBuffers(t *testing.T) {
	s, peer := pair(t)
	raw := try.Get(peer.SyscallConn())(t)
	for name, opt := range map[string]int{"receive": unix.SO_RCVBUF, "send": unix.SO_SNDBUF} {
		got := try.Get(unix.GetsockoptInt(s.fd, unix.SOL_SOCKET, opt))(t)
		want := 0 // buffer size that the kernel derives from localBuffer
		try.OK(t, raw.Control(func(fd uintptr) {
			try.OK(t, unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, opt, localBuffer))
			want = try.Get(unix.GetsockoptInt(int(fd), unix.SOL_SOCKET, opt))(t)
		}))
		try.Equal(t, got, want, "%s: bytes of the buffer", name)
	}
}

// SPDX-License-Identifier: Apache-2.0

package stream

import (
	"fmt"
	"net"
	"sync/atomic"

	"github.com/rocl-go/rocl/subsys"
)

// localBuffer is the size in bytes of a socket's buffers for each direction if the peer is on this
// machine. Bytes in so small a buffer stay in the processor's cache until they are read, unlike
// those in the megabytes that the kernel would allow. Between machines the kernel chooses the size
// by their distance.
const localBuffer = 1 << 20

// A socket is a connected, non-blocking socket. Its methods that use the descriptor are called
// between tryRetain and drop. Otherwise the descriptor could be closed during a system call and
// belong to another file.
type socket struct {
	fd    int
	refs  atomic.Int32 // users of fd, plus one while the socket is open
	count *subsys.Counters

	isLocal bool // the peer is on this machine
}

// adopt takes the socket out of the runtime's poller. nc is closed in any case.
func (s *socket) adopt(nc *net.TCPConn, count *subsys.Counters) error {
	defer nc.Close()
	_ = nc.SetNoDelay(true)
	raw, err := nc.SyscallConn()
	if err != nil {
		return err
	}
	if e := raw.Control(func(fd uintptr) { s.fd, err = duplicate(fd) }); e != nil {
		return e
	}
	if err != nil {
		return fmt.Errorf("duplicating a socket: %w", err)
	}
	s.boundResends()
	if s.isLocal = isLocal(nc); s.isLocal {
		s.setBuffers(localBuffer)
	}
	s.count = count
	s.refs.Store(1)
	return nil
}

// isLocal reports whether both ends of a connection are on this machine.
func isLocal(nc *net.TCPConn) bool {
	near, isNear := nc.LocalAddr().(*net.TCPAddr)
	far, isFar := nc.RemoteAddr().(*net.TCPAddr)
	return isNear && isFar && (near.IP.Equal(far.IP) || far.IP.IsLoopback())
}

// tryRetain keeps the descriptor open until drop. It reports false if the socket is closed.
func (s *socket) tryRetain() bool {
	for {
		n := s.refs.Load()
		if n == 0 {
			return false
		}
		if s.refs.CompareAndSwap(n, n+1) {
			return true
		}
	}
}

// drop undoes one tryRetain, or adopt. It reports true for the last user, which must free the read
// buffers.
func (s *socket) drop() bool {
	if s.refs.Add(-1) > 0 {
		return false
	}
	s.close()
	return true
}

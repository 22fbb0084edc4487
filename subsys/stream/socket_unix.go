// SPDX-License-Identifier: Apache-2.0

//go:build unix

package stream

import (
	"errors"

	"golang.org/x/sys/unix"
)

// An Iovec is a piece of what Writev writes.
type Iovec = unix.Iovec

// duplicate returns another descriptor of a socket, which does not block.
func duplicate(fd uintptr) (int, error) { return unix.FcntlInt(fd, unix.F_DUPFD_CLOEXEC, 0) }

// setBuffers sets the size of the buffers of each direction.
func (s *socket) setBuffers(n int) {
	_ = unix.SetsockoptInt(s.fd, unix.SOL_SOCKET, unix.SO_RCVBUF, n)
	_ = unix.SetsockoptInt(s.fd, unix.SOL_SOCKET, unix.SO_SNDBUF, n)
}

// close closes the descriptor.
func (s *socket) close() { unix.Close(s.fd) }

// shut ends both directions. Bytes already written are still sent.
func (s *socket) shut() { _ = unix.Shutdown(s.fd, unix.SHUT_RDWR) }

// isEnded reports whether err means that the peer has closed the connection. The last bytes that
// the peer sent may still be unread.
func isEnded(err error) bool {
	return errors.Is(err, unix.EPIPE) || errors.Is(err, unix.ECONNRESET)
}

// SPDX-License-Identifier: Apache-2.0

//go:build unix

package mux

import (
	"golang.org/x/net/ipv4"
	"golang.org/x/sys/unix"
)

// descriptor is what package syscall takes for a socket.
type descriptor = int

// truncated is the flag of a message whose datagram did not fit.
const truncated = unix.MSG_TRUNC

// closeSocket closes a descriptor.
func closeSocket(fd int) { unix.Close(fd) }

// readBatch reads datagrams into the messages of s, and returns how many there are.
func (s *socket) readBatch() (int, error) { return s.io.ReadBatch(s.ms, unix.MSG_DONTWAIT) }

// writeBatch writes datagrams, and returns how many the kernel has taken.
func (s *socket) writeBatch(ms []ipv4.Message) (int, error) {
	return s.io.WriteBatch(ms, unix.MSG_DONTWAIT)
}

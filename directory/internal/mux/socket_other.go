// SPDX-License-Identifier: Apache-2.0

//go:build unix && (!linux || portable)

package mux

import (
	"errors"
	"net"
	"syscall"

	"golang.org/x/net/ipv4"
	"golang.org/x/sys/unix"
)

// source is not used on this system.
type source struct{}

// openSocket makes a UDP socket that does not block.
func openSocket(family int) (fd int, err error) {
	syscall.ForkLock.RLock() // no program is started that would have the descriptor
	defer syscall.ForkLock.RUnlock()
	if fd, err = unix.Socket(family, unix.SOCK_DGRAM, 0); err == nil {
		unix.CloseOnExec(fd)
		err = unix.SetNonblock(fd, true)
	}
	return fd, err
}

// readOne reads one datagram into the first message. A datagram that does not fit has a length
// above the size of the buffer.
func (s *socket) readOne() (*net.UDPAddr, int, syscall.Errno) {
	ms := s.ms[:1]
	n, err := s.io.ReadBatch(ms, 0)
	if err == nil && n == 0 {
		err = unix.EAGAIN
	}
	if err != nil {
		e := unix.EIO
		_ = errors.As(err, &e)
		return nil, 0, e
	}
	from, ok := ms[0].Addr.(*net.UDPAddr)
	if !ok || ms[0].Flags&unix.MSG_TRUNC != 0 {
		return nil, datagramSize + 1, 0
	}
	return from, ms[0].N, 0
}

// write writes one datagram to the address that the socket is connected to.
func (s *socket) write(b []byte) error {
	_, err := unix.Write(s.fd, b)
	return err
}

// sendTo writes one datagram to an address.
func (s *socket) sendTo(b []byte, to *net.UDPAddr) error {
	ms := [1]ipv4.Message{{Buffers: [][]byte{b}, Addr: to}}
	_, err := s.io.WriteBatch(ms[:], 0)
	return err
}

// SPDX-License-Identifier: Apache-2.0

package mux

import (
	"errors"
	"net"
	"strconv"
	"syscall"
	"unsafe"

	"golang.org/x/net/ipv4"
	"golang.org/x/sys/windows"
)

// descriptor is what package syscall takes for a socket.
type descriptor = syscall.Handle

// truncated is the flag of a message whose datagram did not fit.
const truncated = 1

// source is not used on this system.
type source struct{}

// fionbio is the request of WSAIoctl that makes a socket block or not.
const fionbio = 0x8004667e

// openSocket makes a UDP socket that does not block.
func openSocket(family int) (fd int, err error) {
	h, err := windows.WSASocket(int32(family), windows.SOCK_DGRAM, 0, nil, 0, windows.WSA_FLAG_OVERLAPPED|windows.WSA_FLAG_NO_HANDLE_INHERIT)
	if err != nil {
		return -1, err
	}
	on, n := uint32(1), uint32(0)
	if err = windows.WSAIoctl(h, fionbio, (*byte)(unsafe.Pointer(&on)), uint32(unsafe.Sizeof(on)), nil, 0, &n, nil, 0); err != nil {
		closeSocket(int(h))
		return -1, err
	}
	return int(h), nil
}

// closeSocket closes a descriptor.
func closeSocket(fd int) { _ = windows.Closesocket(windows.Handle(fd)) }

// readOne reads one datagram into the first message. A datagram that does not fit has a length
// above the size of the buffer.
func (s *socket) readOne() (*net.UDPAddr, int, syscall.Errno) {
	b := s.ms[0].Buffers[0]
	var n, flags uint32
	var from windows.RawSockaddrAny
	size := int32(unsafe.Sizeof(from))
	err := windows.WSARecvFrom(windows.Handle(s.fd), &windows.WSABuf{Len: uint32(len(b)), Buf: &b[0]}, 1, &n, &flags, &from, &size, nil, nil)
	switch err {
	case nil:
	case windows.WSAEWOULDBLOCK:
		return nil, 0, syscall.EAGAIN
	case windows.WSAENOTSOCK:
		return nil, 0, syscall.EBADF
	case windows.WSAEMSGSIZE:
		return nil, datagramSize + 1, 0
	default:
		e := syscall.EIO
		_ = errors.As(err, &e)
		return nil, 0, e
	}
	sa, err := from.Sockaddr()
	if err != nil {
		return nil, datagramSize + 1, 0
	}
	addr := new(net.UDPAddr)
	switch sa := sa.(type) {
	case *windows.SockaddrInet4:
		addr.IP, addr.Port = sa.Addr[:], sa.Port
	case *windows.SockaddrInet6:
		addr.IP, addr.Port = sa.Addr[:], sa.Port
		if sa.ZoneId != 0 {
			addr.Zone = strconv.FormatUint(uint64(sa.ZoneId), 10)
		}
	}
	return addr, int(n), 0
}

// readBatch reads one datagram into the first message of s.
func (s *socket) readBatch() (int, error) {
	from, n, e := s.readOne()
	if e != 0 {
		return 0, e
	}
	m := &s.ms[0]
	m.Addr, m.N, m.Flags = from, n, 0
	if n > datagramSize {
		m.Flags = truncated
	}
	return 1, nil
}

// write writes one datagram to the address that the socket is connected to.
func (s *socket) write(b []byte) error {
	var n uint32
	return windows.WSASend(windows.Handle(s.fd), &windows.WSABuf{Len: uint32(len(b)), Buf: unsafe.SliceData(b)}, 1, &n, 0, nil, nil)
}

// sendTo writes one datagram to an address.
func (s *socket) sendTo(b []byte, to *net.UDPAddr) error {
	var sa windows.Sockaddr
	if ip := to.IP.To4(); s.is4 && ip != nil {
		sa = &windows.SockaddrInet4{Port: to.Port, Addr: [4]byte(ip)}
	} else {
		six := &windows.SockaddrInet6{Port: to.Port}
		copy(six.Addr[:], to.IP.To16())
		if ifi, err := net.InterfaceByName(to.Zone); err == nil {
			six.ZoneId = uint32(ifi.Index)
		} else if n, err := strconv.ParseUint(to.Zone, 10, 32); err == nil {
			six.ZoneId = uint32(n)
		}
		sa = six
	}
	var n uint32
	return windows.WSASendto(windows.Handle(s.fd), &windows.WSABuf{Len: uint32(len(b)), Buf: unsafe.SliceData(b)}, 1, &n, 0, sa, nil, nil)
}

// writeBatch writes the first datagram.
func (s *socket) writeBatch(ms []ipv4.Message) (int, error) {
	if err := s.writeOne(ms[0].Buffers[0], ms[0].Addr.(*net.UDPAddr)); err != nil {
		return 0, err
	}
	return 1, nil
}

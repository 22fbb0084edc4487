// SPDX-License-Identifier: Apache-2.0

//go:build !portable

package mux

import (
	"encoding/binary"
	"net"
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"
)

// source is the address that the last datagram came from, in both forms.
type source struct {
	addr *net.UDPAddr // never modified
	raw  [unix.SizeofSockaddrInet6]byte
}

// openSocket makes a UDP socket that does not block.
func openSocket(family int) (fd int, err error) {
	return unix.Socket(family, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
}

// readOne reads one datagram into the first message. It returns the datagram's length, which may
// exceed the size of the buffer.
func (s *socket) readOne() (*net.UDPAddr, int, syscall.Errno) {
	var sa [unix.SizeofSockaddrInet6]byte
	size := uint32(len(sa))
	b := s.ms[0].Buffers[0]
	n, _, e := syscall.RawSyscall6(unix.SYS_RECVFROM, uintptr(s.fd), uintptr(unsafe.Pointer(&b[0])), uintptr(len(b)),
		unix.MSG_DONTWAIT|unix.MSG_TRUNC, uintptr(unsafe.Pointer(&sa)), uintptr(unsafe.Pointer(&size)))
	if e != 0 {
		return nil, 0, e
	}
	if last := &s.source; last.addr == nil || sa != last.raw { // mostly the sender is the same again
		last.addr = &net.UDPAddr{Port: int(sa[2])<<8 | int(sa[3])} // the port is big-endian, in both families
		if s.is4 {
			last.addr.IP = net.IPv4(sa[4], sa[5], sa[6], sa[7]).To4()
		} else {
			last.addr.IP = append(net.IP(nil), sa[8:24]...)
		}
		last.raw = sa
	}
	return s.source.addr, int(n), 0
}

// write writes one datagram to the address that the socket is connected to.
func (s *socket) write(b []byte) error {
	_, _, e := syscall.RawSyscall(syscall.SYS_WRITE, uintptr(s.fd), uintptr(unsafe.Pointer(unsafe.SliceData(b))), uintptr(len(b)))
	if e != 0 {
		return e
	}
	return nil
}

// sendTo writes one datagram to an address.
func (s *socket) sendTo(b []byte, to *net.UDPAddr) error {
	var sa [unix.SizeofSockaddrInet6]byte
	size := uintptr(len(sa))
	sa[2], sa[3] = byte(to.Port>>8), byte(to.Port)
	if ip := to.IP.To4(); s.is4 && ip != nil {
		binary.NativeEndian.PutUint16(sa[:], unix.AF_INET)
		copy(sa[4:], ip)
		size = unix.SizeofSockaddrInet4
	} else {
		binary.NativeEndian.PutUint16(sa[:], unix.AF_INET6)
		copy(sa[8:], to.IP.To16())
		if to.Zone != "" {
			if ifi, err := net.InterfaceByName(to.Zone); err == nil {
				binary.NativeEndian.PutUint32(sa[24:], uint32(ifi.Index))
			}
		}
	}
	if _, _, e := syscall.RawSyscall6(unix.SYS_SENDTO, uintptr(s.fd), uintptr(unsafe.Pointer(unsafe.SliceData(b))), uintptr(len(b)),
		unix.MSG_DONTWAIT, uintptr(unsafe.Pointer(&sa)), size); e != 0 {
		return e
	}
	return nil
}

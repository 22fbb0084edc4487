// SPDX-License-Identifier: Apache-2.0

package stream

import (
	"errors"
	"os"
	"syscall"
	"unsafe"

	"golang.org/x/sys/windows"
)

// An Iovec is a piece of what Writev writes. It has the form of a windows.WSABuf.
type Iovec struct {
	Len  uint32
	Base *byte
}

// SetLen sets the length.
func (v *Iovec) SetLen(n int) { v.Len = uint32(n) }

// The descriptor of a socket is a second handle: the first one belongs to the Go runtime, which
// waits for it alone.

// fionbio is the request of WSAIoctl that makes a socket block or not.
const fionbio = 0x8004667e

// fromProtocolInfo stands for the family, type and protocol of the socket that is duplicated.
const fromProtocolInfo = -1

// duplicate returns another handle of a socket, which does not block.
func duplicate(fd uintptr) (int, error) {
	var info windows.WSAProtocolInfo
	if err := windows.WSADuplicateSocket(windows.Handle(fd), windows.GetCurrentProcessId(), &info); err != nil {
		return -1, os.NewSyscallError("WSADuplicateSocket", err)
	}
	h, err := windows.WSASocket(fromProtocolInfo, fromProtocolInfo, fromProtocolInfo, &info, 0,
		windows.WSA_FLAG_OVERLAPPED|windows.WSA_FLAG_NO_HANDLE_INHERIT)
	if err != nil {
		return -1, os.NewSyscallError("WSASocket", err)
	}
	on, n := uint32(1), uint32(0)
	if err := windows.WSAIoctl(h, fionbio, (*byte)(unsafe.Pointer(&on)), uint32(unsafe.Sizeof(on)), nil, 0, &n, nil, 0); err != nil {
		windows.Closesocket(h)
		return -1, os.NewSyscallError("WSAIoctl", err)
	}
	return int(h), nil
}

// setBuffers sets the size of the buffers of each direction.
func (s *socket) setBuffers(n int) {
	_ = windows.SetsockoptInt(windows.Handle(s.fd), windows.SOL_SOCKET, windows.SO_RCVBUF, n)
	_ = windows.SetsockoptInt(windows.Handle(s.fd), windows.SOL_SOCKET, windows.SO_SNDBUF, n)
}

// close closes the descriptor.
func (s *socket) close() { _ = windows.Closesocket(windows.Handle(s.fd)) }

// shut ends both directions. Bytes already written are still sent.
func (s *socket) shut() { _ = windows.Shutdown(windows.Handle(s.fd), windows.SHUT_RDWR) }

// isEnded reports whether err means that the peer has closed the connection. The last bytes that
// the peer sent may still be unread.
func isEnded(err error) bool {
	return errors.Is(err, windows.WSAECONNRESET) || errors.Is(err, windows.WSAECONNABORTED) || errors.Is(err, windows.WSAESHUTDOWN)
}

// boundResends does nothing: this system has no such option.
func (*socket) boundResends() {}

// read reads what has arrived. It returns syscall.EAGAIN, not wrapped, if nothing has.
func (s *socket) read(b []byte) (int, error) {
	s.count.Reads.Add(1)
	var n, flags uint32
	err := windows.WSARecv(windows.Handle(s.fd), &windows.WSABuf{Len: uint32(len(b)), Buf: &b[0]}, 1, &n, &flags, nil, nil)
	return result("WSARecv", n, err)
}

// write writes as much as there is room for. If there is none, it returns syscall.EAGAIN, not
// wrapped.
func (s *socket) write(b []byte) (int, error) {
	return s.writev([]Iovec{{uint32(len(b)), &b[0]}})
}

// writev is write for bytes in several pieces.
func (s *socket) writev(iov []Iovec) (int, error) {
	s.count.Writes.Add(1)
	var n uint32
	err := windows.WSASend(windows.Handle(s.fd), (*windows.WSABuf)(unsafe.Pointer(&iov[0])), uint32(len(iov)), &n, 0, nil, nil)
	return result("WSASend", n, err)
}

// result returns what read and write return for the result of a call.
func result(name string, n uint32, err error) (int, error) {
	switch err {
	case nil:
		return int(n), nil
	case windows.WSAEWOULDBLOCK:
		return 0, syscall.EAGAIN
	}
	return 0, os.NewSyscallError(name, err)
}

// SPDX-License-Identifier: Apache-2.0

package subsys

import (
	"os"
	"unsafe"

	"golang.org/x/sys/windows"
)

// A bell wakes a thread that waits for its descriptor r to be readable. It is a UDP socket of the
// loopback interface that is connected to itself.
type bell struct{ r int }

// fionbio is the request of WSAIoctl that makes a socket block or not.
const fionbio = 0x8004667e

func newBell() (b bell, err error) {
	h, err := windows.WSASocket(windows.AF_INET, windows.SOCK_DGRAM, 0, nil, 0, windows.WSA_FLAG_OVERLAPPED|windows.WSA_FLAG_NO_HANDLE_INHERIT)
	if err != nil {
		return b, os.NewSyscallError("WSASocket", err)
	}
	on, n := uint32(1), uint32(0)
	err = windows.WSAIoctl(h, fionbio, (*byte)(unsafe.Pointer(&on)), uint32(unsafe.Sizeof(on)), nil, 0, &n, nil, 0)
	var self windows.Sockaddr = &windows.SockaddrInet4{Addr: [4]byte{127, 0, 0, 1}}
	if err == nil {
		err = windows.Bind(h, self)
	}
	if err == nil {
		self, err = windows.Getsockname(h)
	}
	if err == nil {
		err = windows.Connect(h, self)
	}
	if err != nil {
		_ = windows.Closesocket(h)
		return b, os.NewSyscallError("making a bell", err)
	}
	return bell{int(h)}, nil
}

// ring makes r readable until drain. A socket whose buffer is full is readable already.
func (b *bell) ring() {
	var n uint32
	one := byte(1)
	_ = windows.WSASend(windows.Handle(b.r), &windows.WSABuf{Len: 1, Buf: &one}, 1, &n, 0, nil, nil)
}

func (b *bell) drain() {
	var buf [1]byte
	for {
		var n, flags uint32
		if windows.WSARecv(windows.Handle(b.r), &windows.WSABuf{Len: 1, Buf: &buf[0]}, 1, &n, &flags, nil, nil) != nil {
			return
		}
	}
}

func (b *bell) close() { _ = windows.Closesocket(windows.Handle(b.r)) }

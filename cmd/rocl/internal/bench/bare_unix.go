// SPDX-License-Identifier: Apache-2.0

//go:build unix

package bench

import (
	"io"
	"os"
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"
)

// dup returns a duplicate of a connection's socket.
func dup(nc syscall.Conn) (n int) {
	var err error
	check(must(nc.SyscallConn()).Control(func(s uintptr) { n, err = unix.FcntlInt(s, unix.F_DUPFD_CLOEXEC, 0) }))
	check(err)
	return n
}

func (f fd) Read(b []byte) (int, error) {
	if f.wait == blocks {
		n, err := unix.Read(f.n, b)
		if n == 0 && err == nil { // hangUp
			err = io.EOF
		}
		return n, err
	}
	for {
		n, _, e := syscall.RawSyscall(syscall.SYS_READ, uintptr(f.n), uintptr(unsafe.Pointer(&b[0])), uintptr(len(b)))
		switch {
		case e == 0 && n == 0:
			return 0, io.EOF
		case e == 0:
			return int(n), nil
		case e == syscall.EAGAIN && f.wait == sleeps:
			if _, err := unix.Poll([]unix.PollFd{{Fd: int32(f.n), Events: unix.POLLIN}}, -1); err != nil && err != unix.EINTR {
				return 0, err
			}
		case e != syscall.EAGAIN && e != syscall.EINTR:
			return 0, e
		}
	}
}

func (f fd) Write(b []byte) (int, error) {
	for done := 0; done < len(b); {
		n, _, e := syscall.RawSyscall(syscall.SYS_WRITE, uintptr(f.n), uintptr(unsafe.Pointer(&b[done])), uintptr(len(b)-done))
		switch e {
		case 0:
			done += int(n)
		case syscall.EAGAIN, syscall.EINTR:
		default:
			return done, e
		}
	}
	return len(b), nil
}

func (f fd) Close() error { return unix.Close(f.n) }

// shut ends reads and writes of the socket.
func (f fd) shut() { _ = unix.Shutdown(f.n, unix.SHUT_RDWR) }

// newUDP returns a socket at a port of its own.
func newUDP() (f fd, port int) {
	f.n = must(unix.Socket(unix.AF_INET, unix.SOCK_DGRAM, 0))
	unix.CloseOnExec(f.n)
	check(unix.Bind(f.n, loopback(0)))
	return f, must(unix.Getsockname(f.n)).(*unix.SockaddrInet4).Port
}

// connect makes a socket of newUDP that of the datagrams from and to another port.
func (f *fd) connect(port int, wait waiting) {
	f.wait = wait
	check(unix.Connect(f.n, loopback(port)))
	check(unix.SetNonblock(f.n, wait != blocks))
}

func loopback(port int) *unix.SockaddrInet4 {
	return &unix.SockaddrInet4{Port: port, Addr: [4]byte{127, 0, 0, 1}}
}

// mapShared maps a file for this process and others.
func mapShared(f *os.File, size int) ([]byte, error) {
	return unix.Mmap(int(f.Fd()), 0, size, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
}

// unmapShared undoes mapShared.
func unmapShared(mem []byte) { _ = unix.Munmap(mem) }

// SPDX-License-Identifier: Apache-2.0

//go:build unix && (!linux || portable)

package stream

import (
	"os"
	"unsafe"

	"golang.org/x/sys/unix"
)

// boundResends does nothing: this system has no such option.
func (*socket) boundResends() {}

// read reads what has arrived. It returns syscall.EAGAIN, not wrapped, if nothing has.
func (s *socket) read(b []byte) (int, error) {
	s.count.Reads.Add(1)
	return call("read", func() (int, error) { return unix.Read(s.fd, b) })
}

// write writes as much as there is room for. If there is none, it returns syscall.EAGAIN, not
// wrapped.
func (s *socket) write(b []byte) (int, error) {
	s.count.Writes.Add(1)
	return call("write", func() (int, error) { return unix.Write(s.fd, b) })
}

// writev is write for bytes in several pieces.
func (s *socket) writev(iov []unix.Iovec) (int, error) {
	if len(iov) == 1 {
		return s.write(unsafe.Slice(iov[0].Base, iov[0].Len))
	}
	s.count.Writes.Add(1)
	pieces := make([][]byte, len(iov))
	for i, v := range iov {
		pieces[i] = unsafe.Slice(v.Base, v.Len)
	}
	return call("sendmsg", func() (int, error) { return unix.SendmsgBuffers(s.fd, pieces, nil, nil, 0) })
}

// call makes a system call, again if a signal has interrupted it.
func call(name string, f func() (int, error)) (int, error) {
	for {
		switch n, err := f(); err {
		case nil:
			return n, nil
		case unix.EINTR:
		case unix.EAGAIN:
			return 0, err
		default:
			return 0, os.NewSyscallError(name, err)
		}
	}
}

// SPDX-License-Identifier: Apache-2.0

//go:build !portable

package stream

import (
	"os"
	"syscall"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

// Up to so many bytes, a system call is made without a notice to the runtime. A longer one may keep
// a processor from other goroutines. On loopback a write also does the peer's receiving, so its
// limit is lower.
const (
	quickRead  = 16 << 10
	quickWrite = 2 << 10
)

// resendMost bounds the time between two attempts of the kernel to send what the peer's machine did
// not accept, in milliseconds. Without it the attempts can be two minutes apart after the peer's
// process has read nothing for long, and the silence of the machine is noticed only at the next
// one. Linux 6.15 and later have the option.
const resendMost = 1000

func (s *socket) boundResends() {
	_ = unix.SetsockoptInt(s.fd, unix.IPPROTO_TCP, unix.TCP_RTO_MAX_MS, resendMost) // older kernels refuse the option
}

// A knock is what other systems need, see knock.go.
type knock struct{}

func (*knock) begin(*Conn, bool) {}
func (*knock) end()              {}
func (*knock) came()             {}

// unanswered implements the method of [subsys.Prober].
func (c *Conn) unanswered() (owes bool, heard time.Duration) { return c.sock.unanswered() }

// unanswered asks the kernel.
func (s *socket) unanswered() (owes bool, heard time.Duration) {
	i, err := unix.GetsockoptTCPInfo(s.fd, unix.IPPROTO_TCP, unix.TCP_INFO)
	if err != nil {
		return false, 0
	}
	return isOwed(i), time.Duration(i.Last_ack_recv) * time.Millisecond
}

// isOwed reports whether the peer's kernel has not answered what was sent to it last: data, or a
// window probe. If it has no room for data, it acknowledges what came before. The data is sent
// again at growing intervals, and no answer is owed between an answer and the next attempt.
func isOwed(i *unix.TCPInfo) bool {
	return i.Probes > 0 || i.Unacked > 0 && i.Last_ack_recv > i.Last_data_sent
}

// read reads what has arrived. It returns syscall.EAGAIN, not wrapped, if nothing has.
func (s *socket) read(b []byte) (int, error) {
	s.count.Reads.Add(1)
	return s.call("read", syscall.SYS_READ, unsafe.Pointer(&b[0]), len(b), len(b) <= quickRead)
}

// write writes as much as there is room for. If there is none, it returns syscall.EAGAIN, not
// wrapped.
func (s *socket) write(b []byte) (int, error) {
	s.count.Writes.Add(1)
	return s.call("write", syscall.SYS_WRITE, unsafe.Pointer(&b[0]), len(b), len(b) <= quickWrite)
}

// writev is write for bytes in several pieces.
func (s *socket) writev(iov []unix.Iovec) (int, error) {
	if len(iov) == 1 {
		return s.write(unsafe.Slice(iov[0].Base, iov[0].Len))
	}
	s.count.Writes.Add(1)
	return s.call("write", syscall.SYS_WRITEV, unsafe.Pointer(&iov[0]), len(iov), false)
}

// call makes a system call on the n bytes or pieces at p. A call that isQuick copies so little that
// the runtime is not notified.
func (s *socket) call(name string, trap uintptr, p unsafe.Pointer, n int, isQuick bool) (int, error) {
	for {
		var done uintptr
		var e syscall.Errno
		if isQuick {
			done, _, e = syscall.RawSyscall(trap, uintptr(s.fd), uintptr(p), uintptr(n))
		} else {
			done, _, e = syscall.Syscall(trap, uintptr(s.fd), uintptr(p), uintptr(n))
		}
		switch e {
		case 0:
			return int(done), nil
		case syscall.EINTR:
			continue
		case syscall.EAGAIN:
			return 0, e
		}
		return 0, os.NewSyscallError(name, e)
	}
}

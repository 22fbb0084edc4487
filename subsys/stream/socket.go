// SPDX-License-Identifier: Apache-2.0

package stream

import (
	"errors"
	"fmt"
	"net"
	"os"
	"sync/atomic"
	"syscall"
	"time"
	"unsafe"

	"github.com/rocl-go/rocl/subsys"
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

// localBuffer is the size in bytes of a socket's buffers for each direction if the peer is on this
// machine. Bytes in so small a buffer stay in the processor's cache until they are read, unlike
// those in the megabytes that the kernel would allow. Between machines the kernel chooses the size
// by their distance.
const localBuffer = 1 << 20

// A socket is a connected, non-blocking socket. Its methods that use the descriptor are called
// between tryRetain and drop. Otherwise the descriptor could be closed during a system call and
// belong to another file.
type socket struct {
	fd    int
	refs  atomic.Int32 // users of fd, plus one while the socket is open
	count *subsys.Counters

	isLocal bool // the peer is on this machine
}

// adopt takes the socket out of the runtime's poller. nc is closed in any case.
func (s *socket) adopt(nc *net.TCPConn, count *subsys.Counters) error {
	defer nc.Close()
	_ = nc.SetNoDelay(true)
	raw, err := nc.SyscallConn()
	if err != nil {
		return err
	}
	if e := raw.Control(func(fd uintptr) { s.fd, err = unix.FcntlInt(fd, unix.F_DUPFD_CLOEXEC, 0) }); e != nil {
		return e
	}
	if err != nil {
		return fmt.Errorf("duplicating a socket: %w", err)
	}
	_ = unix.SetsockoptInt(s.fd, unix.IPPROTO_TCP, unix.TCP_RTO_MAX_MS, resendMost) // older kernels refuse the option
	if s.isLocal = isLocal(nc); s.isLocal {
		_ = unix.SetsockoptInt(s.fd, unix.SOL_SOCKET, unix.SO_RCVBUF, localBuffer)
		_ = unix.SetsockoptInt(s.fd, unix.SOL_SOCKET, unix.SO_SNDBUF, localBuffer)
	}
	s.count = count
	s.refs.Store(1)
	return nil
}

// isLocal reports whether both ends of a connection are on this machine.
func isLocal(nc *net.TCPConn) bool {
	near, isNear := nc.LocalAddr().(*net.TCPAddr)
	far, isFar := nc.RemoteAddr().(*net.TCPAddr)
	return isNear && isFar && (near.IP.Equal(far.IP) || far.IP.IsLoopback())
}

// tryRetain keeps the descriptor open until drop. It reports false if the socket is closed.
func (s *socket) tryRetain() bool {
	for {
		n := s.refs.Load()
		if n == 0 {
			return false
		}
		if s.refs.CompareAndSwap(n, n+1) {
			return true
		}
	}
}

// drop undoes one tryRetain, or adopt. It reports true for the last user, which must free the read
// buffers.
func (s *socket) drop() bool {
	if s.refs.Add(-1) > 0 {
		return false
	}
	unix.Close(s.fd)
	return true
}

// unanswered implements the method of [subsys.Prober].
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

// shut ends both directions. Bytes already written are still sent.
func (s *socket) shut() { _ = unix.Shutdown(s.fd, unix.SHUT_RDWR) }

// read reads what has arrived. It returns unix.EAGAIN, not wrapped, if nothing has.
func (s *socket) read(b []byte) (int, error) {
	s.count.Reads.Add(1)
	return s.call("read", syscall.SYS_READ, unsafe.Pointer(&b[0]), len(b), len(b) <= quickRead)
}

// write writes as much as there is room for. It returns unix.EAGAIN, not wrapped, if there is none.
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

// isEnded reports whether err means that the peer has closed the connection. The last bytes that
// the peer sent may still be unread.
func isEnded(err error) bool {
	return errors.Is(err, unix.EPIPE) || errors.Is(err, unix.ECONNRESET)
}

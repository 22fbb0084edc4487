// SPDX-License-Identifier: Apache-2.0

package posix

import (
	"errors"
	"math"
	"net"
	"os"
	"os/exec"
	"syscall"
	"time"
	"unsafe"

	"golang.org/x/sys/windows"
)

// SIGSTOP stops a process, and SIGCONT lets it go on.
const (
	SIGSTOP = syscall.Signal(19)
	SIGCONT = syscall.Signal(18)
)

var (
	ntdll   = windows.NewLazySystemDLL("ntdll.dll")
	suspend = ntdll.NewProc("NtSuspendProcess")
	resume  = ntdll.NewProc("NtResumeProcess")
)

// Signal sends a signal to a process that this one has started: SIGSTOP, SIGCONT, or one that ends
// the process.
func Signal(p *os.Process, s syscall.Signal) error {
	proc := resume
	switch s {
	case SIGSTOP:
		proc = suspend
	case SIGCONT:
	default:
		return p.Kill()
	}
	var status uintptr
	if err := p.WithHandle(func(h uintptr) { status, _, _ = proc.Call(h) }); err != nil {
		return err
	}
	if status != 0 {
		return windows.NTStatus(status)
	}
	return nil
}

// Kill sends a signal to the process of a number, as Signal does. Signal 0 only finds whether it
// runs. There are no groups.
func Kill(pid int, s syscall.Signal) error {
	if pid < 0 {
		return errors.ErrUnsupported
	}
	h, err := windows.OpenProcess(windows.SYNCHRONIZE, false, uint32(pid))
	if err != nil {
		return syscall.ESRCH
	}
	defer windows.CloseHandle(h)
	if of, err := windows.WaitForSingleObject(h, 0); err != nil || of == windows.WAIT_OBJECT_0 {
		return syscall.ESRCH
	}
	if s == 0 {
		return nil
	}
	p, err := os.FindProcess(pid)
	if err != nil {
		return syscall.ESRCH
	}
	defer func() { _ = p.Release() }()
	return Signal(p, s)
}

// As does nothing: no test of this system is root.
func As(*exec.Cmd, uint32, ...uint32) {}

// IsUnix says that this system has lists of rights in place of modes, that an open file cannot be
// removed, and that there is no shell.
const IsUnix = false

// IsMissing reports whether a call has failed because the system cannot do such a thing: wine has
// no Unix sockets, and not all users may make symbolic links.
func IsMissing(err error) bool {
	for _, e := range []error{errors.ErrUnsupported, windows.WSAEAFNOSUPPORT, windows.WSAESOCKTNOSUPPORT, windows.ERROR_PRIVILEGE_NOT_HELD} {
		if errors.Is(err, e) {
			return true
		}
	}
	return false
}

// Symlink makes a symbolic link. Some versions of wine report success and make none.
func Symlink(target, path string) error {
	if err := os.Symlink(target, path); err != nil {
		return err
	}
	if _, err := os.Lstat(path); err != nil {
		return errors.ErrUnsupported
	}
	return nil
}

// Mkfifo fails: a file of this system is no pipe.
func Mkfifo(string) error { return errors.ErrUnsupported }

// Usage returns the processor time of this process. This system does not count sleeps.
func Usage() (cpu time.Duration, sleeps, preemptions int64, err error) {
	var created, ended, kernel, user windows.Filetime
	err = windows.GetProcessTimes(windows.CurrentProcess(), &created, &ended, &kernel, &user)
	of := func(t windows.Filetime) time.Duration {
		return 100 * time.Duration(int64(t.HighDateTime)<<32|int64(t.LowDateTime))
	}
	return of(kernel) + of(user), 0, 0, err
}

// TryLock takes the lock of a file as a node does, or fails with syscall.EWOULDBLOCK if another
// process has it. A shared lock excludes only those that are not.
func TryLock(f *os.File, isShared bool) error {
	how := uint32(windows.LOCKFILE_FAIL_IMMEDIATELY)
	if !isShared {
		how |= windows.LOCKFILE_EXCLUSIVE_LOCK
	}
	err := windows.LockFileEx(windows.Handle(f.Fd()), how, 0, 1, 0, &windows.Overlapped{OffsetHigh: math.MaxInt32})
	if err == windows.ERROR_LOCK_VIOLATION || err == windows.ERROR_IO_PENDING {
		return syscall.EWOULDBLOCK
	}
	return err
}

// Pipe returns descriptors of two ends, which a poller can watch. They do not block. They are
// sockets of the loopback interface: this system's pipes cannot be watched.
func Pipe() (r, w int, err error) {
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return -1, -1, err
	}
	defer ln.Close()
	out, err := net.Dial("tcp", ln.Addr().String())
	if err != nil {
		return -1, -1, err
	}
	defer out.Close()
	in, err := ln.Accept()
	if err != nil {
		return -1, -1, err
	}
	defer in.Close()
	if r, err = duplicate(in); err == nil {
		w, err = duplicate(out)
	}
	return r, w, err
}

// duplicate returns a second handle of a connection, which does not block.
func duplicate(nc net.Conn) (fd int, err error) {
	raw, err := nc.(*net.TCPConn).SyscallConn()
	if err != nil {
		return -1, err
	}
	var info windows.WSAProtocolInfo
	failed := raw.Control(func(fd uintptr) {
		err = windows.WSADuplicateSocket(windows.Handle(fd), windows.GetCurrentProcessId(), &info)
	})
	if err = errors.Join(failed, err); err != nil {
		return -1, err
	}
	const same = -1 // the family, type and protocol of info
	h, err := windows.WSASocket(same, same, same, &info, 0, windows.WSA_FLAG_OVERLAPPED|windows.WSA_FLAG_NO_HANDLE_INHERIT)
	if err != nil {
		return -1, err
	}
	const fionbio = 0x8004667e
	on, n := uint32(1), uint32(0)
	return int(h), windows.WSAIoctl(h, fionbio, (*byte)(unsafe.Pointer(&on)), uint32(unsafe.Sizeof(on)), nil, 0, &n, nil, 0)
}

// Read reads what was written to the other end of a pipe. It fails if that is nothing.
func Read(fd int, b []byte) (int, error) {
	var n, flags uint32
	err := windows.WSARecv(windows.Handle(fd), &windows.WSABuf{Len: uint32(len(b)), Buf: unsafe.SliceData(b)}, 1, &n, &flags, nil, nil)
	return int(n), err
}

// Write writes to an end of a pipe.
func Write(fd int, b []byte) (int, error) {
	var n uint32
	err := windows.WSASend(windows.Handle(fd), &windows.WSABuf{Len: uint32(len(b)), Buf: unsafe.SliceData(b)}, 1, &n, 0, nil, nil)
	return int(n), err
}

// Close closes an end of a pipe.
func Close(fd int) { _ = windows.Closesocket(windows.Handle(fd)) }

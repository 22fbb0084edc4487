// SPDX-License-Identifier: Apache-2.0

//go:build unix

package posix

import (
	"errors"
	"os"
	"os/exec"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// SIGSTOP stops a process, and SIGCONT lets it go on.
const (
	SIGSTOP = syscall.SIGSTOP
	SIGCONT = syscall.SIGCONT
)

// Signal sends a signal to a process that this one has started.
func Signal(p *os.Process, s syscall.Signal) error { return p.Signal(s) }

// Kill sends a signal to the process of a number, or to a group if the number is negative.
func Kill(pid int, s syscall.Signal) error { return syscall.Kill(pid, s) }

// As makes a command run as a user of some groups, of which the first is the user's own.
func As(cmd *exec.Cmd, user uint32, groups ...uint32) {
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: user, Gid: groups[0], Groups: groups[1:]}}
}

// IsUnix says that the mode of a file keeps other users out and tells its kind, that an open file
// can be removed, and that there is a shell.
const IsUnix = true

// IsMissing reports whether a call has failed because the system cannot do such a thing.
func IsMissing(err error) bool { return errors.Is(err, errors.ErrUnsupported) }

// Symlink makes a symbolic link.
func Symlink(target, path string) error { return os.Symlink(target, path) }

// Mkfifo makes a named pipe.
func Mkfifo(path string) error { return syscall.Mkfifo(path, 0o600) }

// Usage returns the processor time of this process, how often its threads have gone to sleep, and
// how often the kernel has taken a processor from them.
func Usage() (cpu time.Duration, sleeps, preemptions int64, err error) {
	var u unix.Rusage
	err = unix.Getrusage(unix.RUSAGE_SELF, &u)
	return time.Duration(u.Utime.Nano() + u.Stime.Nano()), int64(u.Nvcsw), int64(u.Nivcsw), err
}

// TryLock takes the lock of a file as a node does, or fails with syscall.EWOULDBLOCK if another
// process has it. A shared lock excludes only those that are not.
func TryLock(f *os.File, isShared bool) error {
	how := unix.LOCK_EX
	if isShared {
		how = unix.LOCK_SH
	}
	return unix.Flock(int(f.Fd()), how|unix.LOCK_NB)
}

// Pipe returns descriptors of two ends, which a poller can watch. They do not block.
func Pipe() (r, w int, err error) {
	var p [2]int
	if err = unix.Pipe(p[:]); err != nil {
		return -1, -1, err
	}
	for _, fd := range p {
		if err = unix.SetNonblock(fd, true); err != nil {
			return -1, -1, err
		}
	}
	return p[0], p[1], nil
}

// Read reads what was written to the other end of a pipe. It fails if that is nothing.
func Read(fd int, b []byte) (int, error) { return unix.Read(fd, b) }

// Write writes to an end of a pipe.
func Write(fd int, b []byte) (int, error) { return unix.Write(fd, b) }

// Close closes an end of a pipe.
func Close(fd int) { _ = unix.Close(fd) }

// SPDX-License-Identifier: Apache-2.0

//go:build unix

package tpvm

import (
	"fmt"
	"os"
	"strconv"
	"syscall"

	"golang.org/x/sys/unix"
)

// readRest reads the bytes that are in the pipe, without waiting.
func (s *stream) readRest(p []byte) (n int) {
	raw, err := s.r.SyscallConn()
	if err == nil {
		_ = raw.Control(func(fd uintptr) { n, err = syscall.Read(int(fd), p) })
	}
	if err != nil {
		return 0
	}
	return n
}

// openOutput opens for reading the pipe with an inode number that is the standard output or error
// of this process. It returns nil if neither is that pipe, for example behind a shell's
// redirection.
func openOutput(number string) *os.File {
	for std := 1; std <= 2; std++ {
		if strconv.FormatUint(pipeNumber(std), 10) != number {
			continue
		}
		fd, err := unix.Open(fmt.Sprintf("/proc/self/fd/%d", std), unix.O_RDONLY|unix.O_NONBLOCK|unix.O_CLOEXEC, 0)
		if err != nil {
			return nil
		}
		return os.NewFile(uintptr(fd), "output")
	}
	return nil
}

// pipeNumber returns the inode number of a pipe, or 0 if fd is not a pipe.
func pipeNumber(fd int) uint64 {
	var s syscall.Stat_t
	if syscall.Fstat(fd, &s) != nil || s.Mode&syscall.S_IFMT != syscall.S_IFIFO {
		return 0
	}
	return s.Ino
}

// discard replaces the standard output or error of this process with the null device, if it is the
// pipe r.
func discard(r *os.File) {
	var pipe syscall.Stat_t
	raw, err := r.SyscallConn()
	if err != nil || raw.Control(func(fd uintptr) { err = syscall.Fstat(int(fd), &pipe) }) != nil || err != nil {
		return
	}
	null, err := os.OpenFile(os.DevNull, os.O_WRONLY, 0)
	if err != nil {
		return
	}
	defer null.Close()
	for fd := 1; fd <= 2; fd++ {
		var s syscall.Stat_t
		if syscall.Fstat(fd, &s) == nil && s.Ino == pipe.Ino && s.Dev == pipe.Dev {
			_ = replace(fd, int(null.Fd()))
		}
	}
}

// SPDX-License-Identifier: Apache-2.0

//go:build unix

package memfd

import (
	"errors"
	"os"

	"golang.org/x/sys/unix"
)

// ErrUnsealed is returned for a descriptor that is not a file as Create makes it.
var ErrUnsealed = errors.New("memfd: the file is not sealed, or has another size")

// Dup returns another descriptor of the same file.
func Dup(fd int) (int, error) {
	fd, err := unix.FcntlInt(uintptr(fd), unix.F_DUPFD_CLOEXEC, 0)
	return fd, os.NewSyscallError("fcntl", err)
}

// Close closes a descriptor.
func Close(fd int) { unix.Close(fd) }

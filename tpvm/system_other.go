// SPDX-License-Identifier: Apache-2.0

//go:build unix && !linux

package tpvm

import (
	"syscall"

	"golang.org/x/sys/unix"
)

// endWithParent does nothing: on this system a program ends with its parent only if it notices the
// end itself.
func endWithParent(*syscall.SysProcAttr) {}

// fionread is FIONREAD, which has this value on all of these systems.
const fionread = 0x4004667f

// unread returns how many bytes of a pipe are unread.
func unread(fd int) int {
	n, _ := unix.IoctlGetInt(fd, fionread)
	return n
}

// replace makes fd another descriptor of the file of by.
func replace(fd, by int) error { return syscall.Dup2(by, fd) }

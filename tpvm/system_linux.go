// SPDX-License-Identifier: Apache-2.0

package tpvm

import (
	"syscall"

	"golang.org/x/sys/unix"
)

// endWithParent makes the kernel send SIGTERM to a process when the thread that starts it ends.
func endWithParent(a *syscall.SysProcAttr) { a.Pdeathsig = syscall.SIGTERM }

// unread returns how many bytes of a pipe are unread.
func unread(fd int) int {
	n, _ := unix.IoctlGetInt(fd, unix.TIOCINQ)
	return n
}

// replace makes fd another descriptor of the file of by.
func replace(fd, by int) error { return syscall.Dup3(by, fd, 0) }

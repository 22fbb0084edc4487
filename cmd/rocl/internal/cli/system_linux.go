// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"syscall"

	"golang.org/x/sys/unix"
)

// endsWithThread makes the kernel send SIGTERM to a process when the thread that starts it ends.
func endsWithThread() *syscall.SysProcAttr { return &syscall.SysProcAttr{Pdeathsig: syscall.SIGTERM} }

// canShareMemory returns an error if the kernel gives this process no memory that can be shared.
func canShareMemory() error {
	fd, err := unix.MemfdCreate("rocl-doctor", unix.MFD_CLOEXEC)
	if err == nil {
		unix.Close(fd)
	}
	return err
}

// socketPeer returns the number of the process at the other end of a Unix socket, 0 if the kernel
// does not tell.
func socketPeer(fd int) int {
	cred, err := unix.GetsockoptUcred(fd, unix.SOL_SOCKET, unix.SO_PEERCRED)
	if err != nil {
		return 0
	}
	return int(cred.Pid)
}

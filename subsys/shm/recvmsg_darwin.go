// SPDX-License-Identifier: Apache-2.0

package shm

import (
	"syscall"

	"golang.org/x/sys/unix"
)

// recvmsg receives a message without waiting.
func recvmsg(fd int, b, oob []byte) (n, oobn, flags int, err error) {
	syscall.ForkLock.RLock() // no program is started that would have the descriptors
	defer syscall.ForkLock.RUnlock()
	n, oobn, flags, _, err = unix.Recvmsg(fd, b, oob, unix.MSG_DONTWAIT)
	if err == nil {
		fds, _ := descriptors(oob[:oobn])
		for _, fd := range fds {
			unix.CloseOnExec(fd)
		}
	}
	return n, oobn, flags, err
}

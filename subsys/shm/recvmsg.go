// SPDX-License-Identifier: Apache-2.0

//go:build linux || freebsd || netbsd || openbsd

package shm

import "golang.org/x/sys/unix"

// recvmsg receives a message without waiting.
func recvmsg(fd int, b, oob []byte) (n, oobn, flags int, err error) {
	n, oobn, flags, _, err = unix.Recvmsg(fd, b, oob, unix.MSG_DONTWAIT|unix.MSG_CMSG_CLOEXEC)
	return n, oobn, flags, err
}

// SPDX-License-Identifier: Apache-2.0

//go:build unix && (portable || !(linux || darwin || dragonfly || freebsd || netbsd || openbsd))

package subsys

import "golang.org/x/sys/unix"

// pollFd says what poll watches of one descriptor, and what it reports.
type pollFd = unix.PollFd

// Conditions of a descriptor.
const (
	pollIn  = unix.POLLIN
	pollOut = unix.POLLOUT
	pollErr = unix.POLLERR
	pollHup = unix.POLLHUP
)

// poll waits up to ms milliseconds for a condition. If ms is less than 0, it waits without a limit.
func poll(fds []pollFd, ms int) (n int, err error) { return unix.Poll(fds, ms) }

// pollable returns a descriptor in the form of a pollFd.
func pollable(fd int) int32 { return int32(fd) }

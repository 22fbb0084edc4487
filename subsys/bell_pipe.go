// SPDX-License-Identifier: Apache-2.0

//go:build unix && (!linux || portable)

package subsys

import (
	"fmt"
	"syscall"

	"golang.org/x/sys/unix"
)

// A bell wakes a thread that waits for its descriptor r to be readable. It is a pipe.
type bell struct{ r, w int }

func newBell() (b bell, err error) {
	var fds [2]int
	syscall.ForkLock.RLock() // no program is started that would have the descriptors
	defer syscall.ForkLock.RUnlock()
	if err = unix.Pipe(fds[:]); err != nil {
		return b, fmt.Errorf("making a pipe: %w", err)
	}
	for _, fd := range fds {
		unix.CloseOnExec(fd)
		_ = unix.SetNonblock(fd, true)
	}
	return bell{fds[0], fds[1]}, nil
}

// ring makes r readable until drain. A full pipe is readable already.
func (b *bell) ring() { _, _ = unix.Write(b.w, []byte{1}) }

func (b *bell) drain() {
	var buf [64]byte
	for n := len(buf); n == len(buf); {
		n, _ = unix.Read(b.r, buf[:])
	}
}

func (b *bell) close() {
	unix.Close(b.r)
	unix.Close(b.w)
}

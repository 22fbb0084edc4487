// SPDX-License-Identifier: Apache-2.0

//go:build linux || darwin || freebsd || netbsd || openbsd

package shm

import (
	"os"
	"slices"
	"syscall"
)

// onSocket returns what f returns for the descriptor of a socket.
func onSocket[T any](raw syscall.RawConn, f func(fd int) (T, error)) (v T, err error) {
	if e := raw.Control(func(fd uintptr) { v, err = f(int(fd)) }); e != nil {
		err = e
	}
	return v, err
}

// member reports whether this process is in a group.
func member(group int) bool {
	of, err := os.Getgroups()
	return os.Getegid() == group || err == nil && slices.Contains(of, group)
}

// SPDX-License-Identifier: Apache-2.0

package subsys

import (
	"unsafe"

	"golang.org/x/sys/windows"
)

// pollFd says what poll watches of one socket, and what it reports. It has the form of a WSAPOLLFD.
type pollFd struct {
	Fd              uintptr
	Events, Revents int16
}

// Conditions of a socket.
const (
	pollIn  = 0x300
	pollOut = 0x10
	pollErr = 0x1
	pollHup = 0x2
)

var wsaPoll = windows.NewLazySystemDLL("ws2_32.dll").NewProc("WSAPoll")

// poll waits up to ms milliseconds for a condition. If ms is less than 0, it waits without a limit.
func poll(fds []pollFd, ms int) (n int, err error) {
	r, _, err := wsaPoll.Call(uintptr(unsafe.Pointer(&fds[0])), uintptr(len(fds)), uintptr(ms))
	if int32(r) < 0 {
		return 0, err
	}
	return int(r), nil
}

// pollable returns a descriptor in the form of a pollFd.
func pollable(fd int) uintptr { return uintptr(fd) }

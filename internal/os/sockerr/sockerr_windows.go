// SPDX-License-Identifier: Apache-2.0

package sockerr

import (
	"errors"
	"syscall"

	"golang.org/x/sys/windows"
)

// numbers are those that sockets of Windows have for errors of package syscall.
var numbers = map[error]error{
	syscall.EACCES:        windows.WSAEACCES,
	syscall.EADDRINUSE:    windows.WSAEADDRINUSE,
	syscall.EADDRNOTAVAIL: windows.WSAEADDRNOTAVAIL,
	syscall.EAGAIN:        windows.WSAEWOULDBLOCK,
	syscall.ECONNREFUSED:  windows.WSAECONNREFUSED,
	syscall.ECONNRESET:    windows.WSAECONNRESET,
	syscall.EMFILE:        windows.WSAEMFILE,
	syscall.ENETDOWN:      windows.WSAENETDOWN,
	syscall.ENETUNREACH:   windows.WSAENETUNREACH,
	syscall.ENOBUFS:       windows.WSAENOBUFS,
	syscall.EPIPE:         windows.WSAECONNABORTED,
}

// Is is errors.Is for an error of a socket.
func Is(err, target error) bool {
	number, ok := numbers[target]
	return errors.Is(err, target) || ok && errors.Is(err, number)
}

// SPDX-License-Identifier: Apache-2.0

package peercred

import "golang.org/x/sys/unix"

// Of returns the process and the user at the other end of a socket.
func Of(fd int) (Credentials, error) {
	c, err := unix.GetsockoptUcred(fd, unix.SOL_SOCKET, unix.SO_PEERCRED)
	if err != nil {
		return Credentials{}, err
	}
	return Credentials{int(c.Pid), c.Uid}, nil
}

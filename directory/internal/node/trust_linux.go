// SPDX-License-Identifier: Apache-2.0

package node

import "golang.org/x/sys/unix"

// socketPeer returns the process and the user at the other end of a socket.
func socketPeer(fd int) (credentials, error) {
	c, err := unix.GetsockoptUcred(fd, unix.SOL_SOCKET, unix.SO_PEERCRED)
	if err != nil {
		return credentials{}, err
	}
	return credentials{int(c.Pid), c.Uid}, nil
}

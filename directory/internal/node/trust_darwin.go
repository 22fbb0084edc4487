// SPDX-License-Identifier: Apache-2.0

package node

import "golang.org/x/sys/unix"

// socketPeer returns the process and the user at the other end of a socket.
func socketPeer(fd int) (credentials, error) {
	c, err := unix.GetsockoptXucred(fd, unix.SOL_LOCAL, unix.LOCAL_PEERCRED)
	if err != nil {
		return credentials{}, err
	}
	pid, _ := unix.GetsockoptInt(fd, unix.SOL_LOCAL, unix.LOCAL_PEERPID)
	return credentials{pid, c.Uid}, nil
}

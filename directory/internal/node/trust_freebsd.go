// SPDX-License-Identifier: Apache-2.0

package node

import "golang.org/x/sys/unix"

// socketPeer returns the user at the other end of a socket.
func socketPeer(fd int) (credentials, error) {
	const level = 0 // SOL_LOCAL
	c, err := unix.GetsockoptXucred(fd, level, unix.LOCAL_PEERCRED)
	if err != nil {
		return credentials{}, err
	}
	return credentials{uid: c.Uid}, nil
}

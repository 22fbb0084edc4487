// SPDX-License-Identifier: Apache-2.0

package node

import "golang.org/x/sys/unix"

// socketPeer returns the process and the user at the other end of a socket. The option's value is a
// struct sockpeercred: user, group and process, of 32 bits each. Package unix has no function for
// it, and reads it as another structure of words that has room.
func socketPeer(fd int) (credentials, error) {
	c, err := unix.GetsockoptICMPv6Filter(fd, unix.SOL_SOCKET, unix.SO_PEERCRED)
	if err != nil {
		return credentials{}, err
	}
	return credentials{pid: int(c.Filt[2]), uid: c.Filt[0]}, nil
}

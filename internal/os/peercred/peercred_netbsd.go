// SPDX-License-Identifier: Apache-2.0

package peercred

import "golang.org/x/sys/unix"

// Of returns the process and the user at the other end of a socket. The option's value is a struct
// unpcbid: process, user and group, of 32 bits each. Package unix has no function for it, and reads
// it as another structure of words that has room.
func Of(fd int) (Credentials, error) {
	const level, peerID = 0, 3 // SOL_LOCAL, LOCAL_PEEREID
	c, err := unix.GetsockoptICMPv6Filter(fd, level, peerID)
	if err != nil {
		return Credentials{}, err
	}
	return Credentials{PID: int(c.Filt[0]), UID: c.Filt[1]}, nil
}

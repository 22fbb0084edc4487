// SPDX-License-Identifier: Apache-2.0

package peercred

import "golang.org/x/sys/unix"

// Of returns the process and the user at the other end of a socket. The option's value is a struct
// sockpeercred: user, group and process, of 32 bits each. Package unix has no function for it, and
// reads it as another structure of words that has room.
func Of(fd int) (Credentials, error) {
	c, err := unix.GetsockoptICMPv6Filter(fd, unix.SOL_SOCKET, unix.SO_PEERCRED)
	if err != nil {
		return Credentials{}, err
	}
	return Credentials{PID: int(c.Filt[2]), UID: c.Filt[0]}, nil
}

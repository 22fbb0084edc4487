// SPDX-License-Identifier: Apache-2.0

package peercred

import "golang.org/x/sys/unix"

// Of returns the user at the other end of a socket.
func Of(fd int) (Credentials, error) {
	const level = 0 // SOL_LOCAL
	c, err := unix.GetsockoptXucred(fd, level, unix.LOCAL_PEERCRED)
	if err != nil {
		return Credentials{}, err
	}
	return Credentials{UID: c.Uid}, nil
}

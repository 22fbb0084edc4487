// SPDX-License-Identifier: Apache-2.0

package peercred

import "golang.org/x/sys/unix"

// Of returns the process and the user at the other end of a socket.
func Of(fd int) (Credentials, error) {
	c, err := unix.GetsockoptXucred(fd, unix.SOL_LOCAL, unix.LOCAL_PEERCRED)
	if err != nil {
		return Credentials{}, err
	}
	pid, _ := unix.GetsockoptInt(fd, unix.SOL_LOCAL, unix.LOCAL_PEERPID)
	return Credentials{pid, c.Uid}, nil
}

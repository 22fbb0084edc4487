// SPDX-License-Identifier: Apache-2.0

package node

import (
	"syscall"

	"golang.org/x/sys/unix"
)

// beforeBind gives a socket the mode 0600 before it can be seen.
func beforeBind(_, _ string, raw syscall.RawConn) error {
	var err error
	if e := raw.Control(func(fd uintptr) { err = unix.Fchmod(int(fd), 0o600) }); e != nil {
		return e
	}
	return err
}

func afterBind(string) error { return nil }

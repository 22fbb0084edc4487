// SPDX-License-Identifier: Apache-2.0

package main

import "syscall"

// beforeBind gives a Unix socket the mode 0600 before it can be seen.
func beforeBind(_, _ string, raw syscall.RawConn) (err error) {
	if e := raw.Control(func(fd uintptr) { err = syscall.Fchmod(int(fd), 0o600) }); e != nil {
		return e
	}
	return err
}

// SPDX-License-Identifier: Apache-2.0

//go:build unix

package web

import (
	"io/fs"
	"syscall"
)

// openFlags are the flags by which a file is opened that another user may have made.
const openFlags = syscall.O_NOFOLLOW | syscall.O_NONBLOCK

// owner returns the user that a file belongs to. ok is false if the system does not tell.
func owner(fi fs.FileInfo) (uid int, ok bool) {
	st, ok := fi.Sys().(*syscall.Stat_t)
	if !ok {
		return 0, false
	}
	return int(st.Uid), true
}

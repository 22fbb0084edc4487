// SPDX-License-Identifier: Apache-2.0

//go:build unix

package cli

import (
	"fmt"
	"io/fs"
	"os"
	"strconv"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"
)

// ownerOf returns the user that a file belongs to, -1 if the system does not tell.
func ownerOf(fi fs.FileInfo) int {
	if st, ok := fi.Sys().(*syscall.Stat_t); ok {
		return int(st.Uid)
	}
	return -1
}

// lockHolder returns the process that holds the lock of the node, as flock(2) takes it, by the
// kernel's list. ok is false if the list does not have it: it lacks locks of other containers.
func lockHolder(path string) (pid int, ok bool, err error) {
	var st unix.Stat_t
	if err := unix.Stat(path, &st); err != nil {
		return 0, false, &fs.PathError{Op: "stat", Path: path, Err: err}
	}
	b, err := os.ReadFile("/proc/locks")
	if err != nil {
		return 0, false, err
	}
	file := fmt.Sprintf("%02x:%02x:%d", unix.Major(uint64(st.Dev)), unix.Minor(uint64(st.Dev)), st.Ino)
	for line := range strings.Lines(string(b)) { // 1: FLOCK ADVISORY WRITE pid device:inode from to
		if f := strings.Fields(line); len(f) > 5 && f[1] == "FLOCK" && f[5] == file {
			pid, _ = strconv.Atoi(f[4])
			return max(pid, 0), true, nil
		}
	}
	return 0, false, nil
}

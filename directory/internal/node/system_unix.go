// SPDX-License-Identifier: Apache-2.0

//go:build unix

package node

import (
	"fmt"
	"io/fs"
	"os"
	"strconv"
	"syscall"

	"golang.org/x/sys/unix"
)

// openFlags are the flags by which openFile follows no symbolic link and does not wait.
const openFlags = unix.O_NOFOLLOW | unix.O_NONBLOCK

// openToRead opens a file whose content readFile reads.
func openToRead(path string) (*os.File, error) { return os.OpenFile(path, os.O_RDONLY|openFlags, 0) }

// tempVariable names the environment variable with the folder of temporary files.
const tempVariable = "TMPDIR"

// userFolder returns the name of the folder of this user beside those of others.
func userFolder() string { return "rocl-" + strconv.Itoa(os.Getuid()) }

// tryLock takes the lock of a file, or fails with syscall.EWOULDBLOCK if another process has it.
func tryLock(f *os.File) error { return unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB) }

// unlink removes a file.
func unlink(path string) error { return unix.Unlink(path) }

// rename replaces the file at to by the one at from.
func rename(from, to string) error { return os.Rename(from, to) }

// ownerOf returns the user that a file belongs to. ok is false if the system does not tell.
func ownerOf(fi fs.FileInfo) (uid uint32, ok bool) {
	if st, ok := fi.Sys().(*syscall.Stat_t); ok {
		return st.Uid, true
	}
	return 0, false
}

// checkSize returns an error if the process may not write a file of n bytes. The kernel would send
// the process SIGXFSZ, which ends it.
func checkSize(n int) error {
	var most unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_FSIZE, &most); err == nil && uint64(n) > uint64(most.Cur) {
		// Cause: file sizes are limited. Remedy: raise `ulimit -f`.
		return fmt.Errorf("%w: files of this process may have %d bytes (ulimit -f), %d are wanted", unix.EFBIG, most.Cur, n)
	}
	return nil
}

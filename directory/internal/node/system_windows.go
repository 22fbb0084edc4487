// SPDX-License-Identifier: Apache-2.0

package node

import (
	"errors"
	"fmt"
	"io/fs"
	"math"
	"os"
	"syscall"
	"time"

	"golang.org/x/sys/windows"
)

// openFlags is the flag by which openFile opens a symbolic link itself, and refuses it as no
// regular file. No file makes it wait.
const openFlags = windows.O_FILE_FLAG_OPEN_REPARSE_POINT

// openToRead opens a file whose content readFile reads. Other processes can remove the file
// meanwhile, which package os does not allow: the clients that read the address of a dead server,
// again and again, would keep the next server from removing it.
func openToRead(path string) (f *os.File, err error) {
	name, err := windows.UTF16PtrFromString(path)
	if err != nil {
		return nil, &os.PathError{Op: "open", Path: path, Err: err}
	}
	const share = windows.FILE_SHARE_READ | windows.FILE_SHARE_WRITE | windows.FILE_SHARE_DELETE
	const flags = windows.FILE_FLAG_BACKUP_SEMANTICS | windows.FILE_FLAG_OPEN_REPARSE_POINT // folders, and links themselves
	err = untilFree(func() error {
		h, err := windows.CreateFile(name, windows.GENERIC_READ, share, nil, windows.OPEN_EXISTING, flags, 0)
		if err != nil {
			return &os.PathError{Op: "open", Path: path, Err: err}
		}
		f = os.NewFile(uintptr(h), path)
		return nil
	})
	return f, err
}

// tempVariable names the environment variable with the folder of temporary files, which is in the
// profile of the user: the list of rights of the profile keeps other users out.
const tempVariable = "TMP"

// userFolder returns the name of the folder in that of temporary files.
func userFolder() string { return "rocl" }

// tryLock takes the lock of a file, or fails with syscall.EWOULDBLOCK if another process has it. It
// locks a byte far behind the content, because no other process may read a locked byte.
func tryLock(f *os.File) error {
	at := windows.Overlapped{OffsetHigh: math.MaxInt32}
	err := windows.LockFileEx(windows.Handle(f.Fd()), windows.LOCKFILE_EXCLUSIVE_LOCK|windows.LOCKFILE_FAIL_IMMEDIATELY, 0, 1, 0, &at)
	if err == windows.ERROR_LOCK_VIOLATION || err == windows.ERROR_IO_PENDING {
		return syscall.EWOULDBLOCK
	}
	return os.NewSyscallError("LockFileEx", err)
}

// A file that another process has open for a moment cannot be replaced or removed, and one that is
// being removed cannot be opened. rename, unlink and openToRead try again so often, after such a
// pause.
const (
	busyTries = 100
	busyPause = time.Millisecond
)

// untilFree calls f until it does not fail because another process has a file open.
func untilFree(f func() error) (err error) {
	for range busyTries {
		if err = f(); !errors.Is(err, windows.ERROR_SHARING_VIOLATION) && !errors.Is(err, windows.ERROR_ACCESS_DENIED) {
			return err
		}
		time.Sleep(busyPause)
	}
	return err
}

// unlink removes a file.
func unlink(path string) error { return untilFree(func() error { return os.Remove(path) }) }

// rename replaces the file at to by the one at from.
func rename(from, to string) error { return untilFree(func() error { return os.Rename(from, to) }) }

// closeRemoved closes f and removes its file, unless another process has opened it meanwhile. An
// open file cannot be removed.
func closeRemoved(f *os.File) {
	f.Close()
	_ = os.Remove(f.Name())
}

// ownerOf returns no user: files have lists of rights on this system.
func ownerOf(fs.FileInfo) (uid uint32, ok bool) { return 0, false }

// mayServe reports true: see ownerOf.
func mayServe(uint32, string) bool { return true }

// checkPrivate returns an error if dir is no folder. Other users have no rights to it: see
// tempVariable.
func checkPrivate(dir string) error {
	fi, err := os.Lstat(dir)
	if err != nil {
		return fmt.Errorf("directory: %w", err)
	}
	if !fi.IsDir() {
		return fmt.Errorf("directory: %w: %s is no folder", ErrUntrusted, dir)
	}
	return nil
}

// checkSize does nothing: this system does not limit the size of files.
func checkSize(int) error { return nil }

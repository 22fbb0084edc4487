// SPDX-License-Identifier: Apache-2.0

package node

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"syscall"

	"github.com/rocl-go/rocl/internal/os/secretfile"
)

// Suffixes of the socket's path for the files beside the socket.
const (
	lockSuffix   = ".lock"
	nodeSuffix   = ".node"
	memberSuffix = ".member"
)

// maxFile limits what is read of a file beside the socket. Labels have at most 16 KiB, in base64.
const maxFile = 64 << 10

// openFile opens a file beside the socket. It follows no symbolic link and does not wait for the
// other end of a pipe. It returns ErrOccupied for anything but a regular file, and ErrUntrusted for
// a file of another user or one that other users can access.
func openFile(path string, flags int) (*os.File, error) {
	f, err := os.OpenFile(path, flags|openFlags, 0o600)
	return checkOpened(path, f, err)
}

// checkOpened returns f if opening path has succeeded and openFile may return the file. Else it
// closes f and returns an error as openFile does. err is the error of opening.
func checkOpened(path string, f *os.File, err error) (*os.File, error) {
	if errors.Is(err, syscall.ELOOP) || errors.Is(err, syscall.EMLINK) { // EMLINK on FreeBSD
		return nil, fmt.Errorf("directory: opening %s: %w: it is a symbolic link", path, ErrOccupied)
	}
	if errors.Is(err, syscall.EISDIR) {
		return nil, fmt.Errorf("directory: opening %s: %w: it is a folder", path, ErrOccupied)
	}
	if err != nil {
		return nil, fmt.Errorf("directory: %w", err)
	}
	fi, err := f.Stat()
	if err == nil {
		switch uid, ok := ownerOf(fi); {
		case !fi.Mode().IsRegular():
			err = fmt.Errorf("%w: it is no regular file (%v)", ErrOccupied, fi.Mode())
		case ok && !mayServe(uid, filepath.Dir(path)):
			err = fmt.Errorf("%w: it is of user %d", ErrUntrusted, uid)
		default:
			if insecure := secretfile.CheckMode(fi); insecure != nil {
				err = fmt.Errorf("%w: %w", ErrUntrusted, insecure)
			}
		}
	}
	if err != nil {
		f.Close()
		return nil, fmt.Errorf("directory: opening %s: %w", path, err)
	}
	return f, nil
}

// readFile returns the content of a file beside the socket.
func readFile(path string) ([]byte, error) {
	f, err := openToRead(path)
	if f, err = checkOpened(path, f, err); err != nil {
		return nil, err
	}
	defer f.Close()
	b, err := io.ReadAll(io.LimitReader(f, maxFile+1))
	if err == nil && len(b) > maxFile {
		err = fmt.Errorf("%w: it has more than %d bytes", ErrOccupied, maxFile)
	}
	if err != nil {
		return nil, fmt.Errorf("directory: reading %s: %w", path, err)
	}
	return b, nil
}

// writeFile replaces a file beside the socket as a whole: after a crash there is the old file or
// the new one. It does not change the target of a symbolic link.
func writeFile(path string, content []byte) error {
	if err := checkSize(len(content)); err != nil {
		return fmt.Errorf("directory: writing %s: %w", path, err)
	}
	f, err := os.CreateTemp(filepath.Dir(path), ".rocl-node-*")
	if err != nil {
		return fmt.Errorf("directory: writing %s: %w", path, err)
	}
	_, err = f.Write(content)
	err = errors.Join(err, f.Chmod(0o600), f.Close())
	if err == nil {
		err = rename(f.Name(), path)
	}
	if err != nil {
		os.Remove(f.Name())
		return fmt.Errorf("directory: writing %s: %w", path, err)
	}
	return nil
}

// overwriteFile writes b over the bytes of a file at offset at.
func overwriteFile(path string, b []byte, at int) error {
	f, err := openFile(path, os.O_WRONLY)
	if err != nil {
		return err
	}
	if err = checkSize(at + len(b)); err == nil {
		_, err = f.WriteAt(b, int64(at))
	}
	if err = errors.Join(err, f.Close()); err != nil {
		return fmt.Errorf("directory: writing %s: %w", path, err)
	}
	return nil
}

// noSocket returns the error for a file at a socket's path that is not a socket.
func noSocket(fi os.FileInfo) error {
	return fmt.Errorf("%w: it is not a socket (%v)", ErrOccupied, fi.Mode())
}

// owner returns the user that an open file belongs to. ok is false if the system does not tell.
func owner(f *os.File) (uid uint32, ok bool) {
	fi, err := f.Stat()
	if err != nil {
		return 0, false
	}
	return ownerOf(fi)
}

// identify returns what isFile compares. Windows reads the number of a file when it is first
// compared, and by then another file may be at path: identify compares it at once.
func identify(path string) (fs.FileInfo, error) {
	fi, err := os.Lstat(path)
	if err == nil {
		os.SameFile(fi, fi)
	}
	return fi, err
}

// isFile reports whether the file at path is the one that fi describes.
func isFile(path string, fi fs.FileInfo) bool {
	now, err := os.Lstat(path)
	return err == nil && fi != nil && os.SameFile(now, fi)
}

// isOpen reports whether f is the file at path.
func isOpen(path string, f *os.File) bool {
	fi, err := f.Stat()
	return err == nil && isFile(path, fi)
}

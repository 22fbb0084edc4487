// SPDX-License-Identifier: Apache-2.0

package node

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"syscall"
	"time"

	"github.com/rocl-go/rocl/internal/os/secretfile"
	"golang.org/x/sys/unix"
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
	f, err := os.OpenFile(path, flags|unix.O_NOFOLLOW|unix.O_NONBLOCK, 0o600)
	if errors.Is(err, unix.ELOOP) || errors.Is(err, unix.EMLINK) { // EMLINK on FreeBSD
		return nil, fmt.Errorf("directory: opening %s: %w: it is a symbolic link", path, ErrOccupied)
	}
	if errors.Is(err, unix.EISDIR) {
		return nil, fmt.Errorf("directory: opening %s: %w: it is a folder", path, ErrOccupied)
	}
	if err != nil {
		return nil, fmt.Errorf("directory: %w", err)
	}
	fi, err := f.Stat()
	if err == nil {
		switch st, ok := fi.Sys().(*syscall.Stat_t); {
		case !fi.Mode().IsRegular():
			err = fmt.Errorf("%w: it is no regular file (%v)", ErrOccupied, fi.Mode())
		case ok && !mayServe(st.Uid, filepath.Dir(path)):
			err = fmt.Errorf("%w: it is of user %d", ErrUntrusted, st.Uid)
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
	f, err := openFile(path, os.O_RDONLY)
	if err != nil {
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
		err = os.Rename(f.Name(), path)
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

// freePath makes the socket's path free. It removes only a socket that no process serves. The
// node's lock must be held.
func freePath(path string) error {
	fi, err := os.Lstat(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("directory: serving %s: %w", path, err)
	}
	if fi.Mode().Type() != fs.ModeSocket {
		return fmt.Errorf("directory: serving %s: %w", path, noSocket(fi))
	}
	nc, err := net.DialTimeout("unix", path, time.Second)
	switch {
	case err == nil:
		nc.Close()
		err = errServed
	case errors.Is(err, unix.EAGAIN) || errors.Is(err, os.ErrDeadlineExceeded): // the server's queue is full
		err = errServed
	case errors.Is(err, fs.ErrNotExist):
		return nil
	case errors.Is(err, unix.ECONNREFUSED):
		if err = unix.Unlink(path); err == nil || errors.Is(err, fs.ErrNotExist) {
			return nil
		}
		err = fmt.Errorf("removing the socket that a dead server left: %w", err)
	default: // EPROTOTYPE: a socket of another type
		err = fmt.Errorf("%w: %w", ErrOccupied, err)
	}
	return fmt.Errorf("directory: serving %s: %w", path, err)
}

// noSocket returns the error for a file at a socket's path that is not a socket.
func noSocket(fi os.FileInfo) error {
	return fmt.Errorf("%w: it is not a socket (%v)", ErrOccupied, fi.Mode())
}

// bind listens at path, which must be free. The socket has mode 0600. Where a system sets the mode
// after the socket can be seen, the Listener refuses other users that connect meanwhile.
func bind(path string) (*net.UnixListener, error) {
	lc := net.ListenConfig{Control: beforeBind}
	ln, err := lc.Listen(context.Background(), "unix", path)
	if err != nil {
		return nil, fmt.Errorf("directory: listening at %s: %w", path, err)
	}
	if err := afterBind(path); err != nil {
		ln.Close()
		return nil, fmt.Errorf("directory: listening at %s: %w", path, err)
	}
	return ln.(*net.UnixListener), nil
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

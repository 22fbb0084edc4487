// SPDX-License-Identifier: Apache-2.0

package directory

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// ErrOccupied is returned when something lies where the directory would put a
// file of its own and is not the directory's to remove.
var ErrOccupied = errors.New("rocl: the directory's path is occupied")

// errServed says that a process accepts connections at the socket's path.
var errServed = fmt.Errorf("%w: its socket accepts connections", ErrInUse)

// A path has a suffix for each file beside the socket.
const (
	lockSuffix = ".lock"
	nodeSuffix = ".node"
)

// sideMost bounds what is read of a side file: labels have 16 KiB at most, in
// base64.
const sideMost = 64 << 10

// place returns path as a file system path for every call: net takes a leading @
// for the kernel's abstract names, which any user may take.
func place(path string) string {
	if strings.HasPrefix(path, "@") {
		return "./" + path
	}
	return path
}

// openSide opens a file beside the socket. It follows no symbolic link, does not
// wait for the other end of a pipe, and opens nothing but a regular file.
func openSide(path string, flags int) (*os.File, error) {
	f, err := os.OpenFile(path, flags|unix.O_NOFOLLOW|unix.O_NONBLOCK, 0o600)
	if errors.Is(err, unix.ELOOP) {
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
		case fi.Mode().Perm()&0o077 != 0:
			err = fmt.Errorf("%w: other users have rights to it (%v)", ErrUntrusted, fi.Mode())
		}
	}
	if err != nil {
		f.Close()
		return nil, fmt.Errorf("directory: opening %s: %w", path, err)
	}
	return f, nil
}

// readSide reads a file beside the socket.
func readSide(path string) ([]byte, error) {
	f, err := openSide(path, os.O_RDONLY)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	b, err := io.ReadAll(io.LimitReader(f, sideMost+1))
	if err == nil && len(b) > sideMost {
		err = fmt.Errorf("%w: it has more than %d bytes", ErrOccupied, sideMost)
	}
	if err != nil {
		return nil, fmt.Errorf("directory: reading %s: %w", path, err)
	}
	return b, nil
}

// writeSide replaces a file beside the socket as a whole: a crash leaves the old
// one or the new one. What a symbolic link leads to is not touched.
func writeSide(path string, content []byte) error {
	if err := mayHave(len(content)); err != nil {
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

// overwriteSide writes b over what the file has at offset at.
func overwriteSide(path string, b []byte, at int) error {
	f, err := openSide(path, os.O_WRONLY)
	if err != nil {
		return err
	}
	if err = mayHave(at + len(b)); err == nil {
		_, err = f.WriteAt(b, int64(at))
	}
	if err = errors.Join(err, f.Close()); err != nil {
		return fmt.Errorf("directory: writing %s: %w", path, err)
	}
	return nil
}

// mayHave returns an error where the process may not write a file of n bytes: it
// would be sent SIGXFSZ, which ends it.
func mayHave(n int) error {
	var most unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_FSIZE, &most); err == nil && uint64(n) > most.Cur {
		return fmt.Errorf("%w: files of this process may have %d bytes (ulimit -f), %d are wanted", unix.EFBIG, most.Cur, n)
	}
	return nil
}

// vacate makes the socket's path free. It removes nothing but a socket that no
// process serves. The node's lock must be held.
func vacate(path string) error {
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
	case errors.Is(err, unix.EAGAIN) || errors.Is(err, os.ErrDeadlineExceeded): // too many wait to be accepted
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

// noSocket is the error that anything but a socket lies at a socket's path.
func noSocket(fi os.FileInfo) error {
	return fmt.Errorf("%w: it is not a socket (%v)", ErrOccupied, fi.Mode())
}

// bind listens at path, where nothing may be. The socket has mode 0600 from the
// moment it can be seen.
func bind(path string) (*net.UnixListener, error) {
	lc := net.ListenConfig{Control: func(_, _ string, raw syscall.RawConn) error {
		var err error
		if e := raw.Control(func(fd uintptr) { err = unix.Fchmod(int(fd), 0o600) }); e != nil {
			return e
		}
		return err
	}}
	ln, err := lc.Listen(context.Background(), "unix", path)
	if err != nil {
		return nil, fmt.Errorf("directory: listening at %s: %w", path, err)
	}
	return ln.(*net.UnixListener), nil
}

// SPDX-License-Identifier: Apache-2.0

package directory

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// ErrUntrusted is returned when another user could have put a directory, or one
// of its files, where it was looked for. Nothing was said to it.
var ErrUntrusted = errors.New("rocl: the directory is not trusted")

// mayServe reports whether files and sockets of a user in folder dir are to be
// trusted: the process's own user and root. Root also trusts the owner of the
// folder, where no other user may write.
func mayServe(uid uint32, dir string) bool {
	switch euid := os.Geteuid(); {
	case uid == 0 || int(uid) == euid:
		return true
	case euid != 0:
		return false
	}
	var st unix.Stat_t
	return unix.Stat(dir, &st) == nil && st.Uid == uid && st.Mode&0o022 == 0
}

// private refuses a directory into which others could put a socket of theirs.
func private(dir string) error {
	fi, err := os.Lstat(dir)
	if err != nil {
		return fmt.Errorf("directory: %w", err)
	}
	st, ok := fi.Sys().(*syscall.Stat_t)
	if fi.IsDir() && fi.Mode().Perm()&0o077 == 0 && (!ok || int(st.Uid) == os.Geteuid()) {
		return nil
	}
	owner := "?"
	if ok {
		owner = fmt.Sprint(st.Uid)
	}
	return fmt.Errorf("directory: %w: %s must be a directory of user %d with mode 0700, it is %v of user %s; remove it, or set ROCL_SOCKET or XDG_RUNTIME_DIR",
		ErrUntrusted, dir, os.Geteuid(), fi.Mode(), owner)
}

// peerOf returns who is at the other end.
func peerOf(nc *net.UnixConn) (cred *unix.Ucred, err error) {
	raw, err := nc.SyscallConn()
	if err != nil {
		return nil, err
	}
	if e := raw.Control(func(fd uintptr) {
		cred, err = unix.GetsockoptUcred(int(fd), unix.SOL_SOCKET, unix.SO_PEERCRED)
	}); e != nil {
		return nil, e
	}
	if err != nil {
		return nil, fmt.Errorf("directory: asking who the peer is: %w", err)
	}
	return cred, nil
}

// dialUnix connects to a server that is to be trusted.
func dialUnix(ctx context.Context, path string) (*net.UnixConn, error) {
	if err := CheckSocket(path); err != nil {
		return nil, err
	}
	if filepath.Clean(path) == builtin() {
		if err := private(filepath.Dir(path)); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return nil, err
		}
	}
	var d net.Dialer
	nc, err := d.DialContext(ctx, "unix", path)
	for errors.Is(err, unix.EAGAIN) { // the kernel queues no more connections: the server is slow
		if err := sleep(ctx, time.Millisecond); err != nil {
			return nil, fmt.Errorf("directory: connecting to %s: %w", path, err)
		}
		nc, err = d.DialContext(ctx, "unix", path)
	}
	if err != nil {
		return nil, unreached(path, err)
	}
	uc := nc.(*net.UnixConn)
	cred, err := peerOf(uc)
	if err == nil && !mayServe(cred.Uid, filepath.Dir(path)) {
		err = fmt.Errorf("directory: connecting to %s: %w: process %d of user %d serves there", path, ErrUntrusted, cred.Pid, cred.Uid)
	}
	if err != nil {
		uc.Close()
		return nil, err
	}
	return uc, nil
}

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

// ErrUntrusted is returned when another user could have put a directory, or one of its files, at
// its path. Nothing is sent to such a directory.
var ErrUntrusted = errors.New("rocl: the directory is not trusted")

// mayServe reports whether files and sockets of a user in folder dir are trusted. Those of the
// process's own user and of root are. Root also trusts the owner of the folder, if no other user
// may write there.
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

// private returns an error if other users can access the folder dir and so could put a socket
// there.
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

// peerOf returns the process and the user at the other end of nc.
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

// dialUnix connects to a server, or returns ErrUntrusted if the server is not to be trusted.
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
	for errors.Is(err, unix.EAGAIN) { // the server's queue of connections is full
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

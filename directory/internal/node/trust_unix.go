// SPDX-License-Identifier: Apache-2.0

//go:build unix

package node

import (
	"fmt"
	"net"
	"os"
	"syscall"

	"github.com/rocl-go/rocl/directory/internal/wire"
	"github.com/rocl-go/rocl/internal/os/peercred"
	"golang.org/x/sys/unix"
)

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

// checkPrivate returns an error if other users can access the folder dir and so could put a socket
// there.
func checkPrivate(dir string) error {
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
func peerOf(nc *net.UnixConn) (c peercred.Credentials, err error) {
	raw, err := nc.SyscallConn()
	if err != nil {
		return c, err
	}
	if e := raw.Control(func(fd uintptr) { c, err = peercred.Of(int(fd)) }); e != nil {
		return c, e
	}
	if err != nil {
		return c, fmt.Errorf("directory: reading the credentials of the peer: %w", err)
	}
	return c, nil
}

// allowed returns an error unless the process at the other end belongs to the same user or to root.
// The error crosses the wire to that process.
func allowed(nc *net.UnixConn) error {
	cred, err := peerOf(nc)
	if err != nil {
		return err
	}
	if uid := int(cred.UID); uid != 0 && uid != os.Geteuid() {
		// Cause: the process runs as another user than the directory. Remedy: run all programs of a
		// node as one user.
		return fmt.Errorf("%w: process %d is of user %d, and the directory of user %d", wire.ErrForbidden, cred.PID, cred.UID, os.Geteuid())
	}
	return nil
}

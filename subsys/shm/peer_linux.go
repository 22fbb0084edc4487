// SPDX-License-Identifier: Apache-2.0

//go:build !portable

package shm

import (
	"fmt"
	"os"
	"slices"
	"syscall"
	"unsafe"

	"github.com/rocl-go/rocl/internal/os/peercred"
	"golang.org/x/sys/unix"
)

// peer returns the credentials of the process at the other end of a socket, or an error if that
// process may not be a peer. isBeside is set if the ends have met in the folder.
func (p *port) peer(raw syscall.RawConn, isBeside bool) (c peercred.Credentials, err error) {
	cred, err := onSocket(raw, func(fd int) (*unix.Ucred, error) {
		return unix.GetsockoptUcred(fd, unix.SOL_SOCKET, unix.SO_PEERCRED)
	})
	if err != nil {
		return c, fmt.Errorf("reading the credentials of the peer: %w", err)
	}
	c = peercred.Credentials{PID: int(cred.Pid), UID: cred.Uid}
	if isBeside && p.meeting.folder.trusts(cred.Uid) {
		return c, nil
	}
	return c, p.checkPeer(cred, raw)
}

// checkPeer returns an error unless the process at the other end of a socket may be a peer, and so
// read all that this context's pool shares. It must have the same user, or be in the group. The
// kernel provides its credentials.
func (p *port) checkPeer(cred *unix.Ucred, raw syscall.RawConn) error {
	if p.group == nil {
		if int(cred.Uid) != os.Getuid() {
			return fmt.Errorf("the peer is of user %d, not %d", cred.Uid, os.Getuid())
		}
		return nil
	}
	if int(cred.Gid) == *p.group {
		return nil
	}
	of, err := onSocket(raw, peerGroups)
	if err != nil {
		return fmt.Errorf("reading the groups of user %d: %w", cred.Uid, err)
	}
	if !slices.Contains(of, uint32(*p.group)) {
		return fmt.Errorf("the peer is of user %d, which is not in group %d", cred.Uid, *p.group)
	}
	return nil
}

// peerGroups returns the supplementary groups of the process at the other end of a socket.
func peerGroups(fd int) ([]uint32, error) {
	for room := 32; ; {
		of := make([]uint32, room)
		size := uint32(4 * room)
		_, _, e := unix.Syscall6(unix.SYS_GETSOCKOPT, uintptr(fd), unix.SOL_SOCKET, unix.SO_PEERGROUPS, uintptr(unsafe.Pointer(&of[0])), uintptr(unsafe.Pointer(&size)), 0)
		switch {
		case e == 0:
			return of[:min(int(size/4), room)], nil
		case e != unix.ERANGE || int(size/4) <= room || size > 4<<16: // ERANGE comes with the number of groups
			return nil, os.NewSyscallError("getsockopt", e)
		}
		room = int(size / 4)
	}
}

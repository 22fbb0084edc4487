// SPDX-License-Identifier: Apache-2.0

package shm

import (
	"fmt"
	"os"
	"slices"
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"
)

// peer says which process is at the other end of a socket, if it may be a peer.
func (p *port) peer(raw syscall.RawConn) (who *unix.Ucred, err error) {
	if e := raw.Control(func(fd uintptr) {
		who, err = unix.GetsockoptUcred(int(fd), unix.SOL_SOCKET, unix.SO_PEERCRED)
	}); e != nil {
		err = e
	}
	if err != nil {
		return nil, fmt.Errorf("asking who the peer is: %w", err)
	}
	return who, p.lets(who, raw)
}

// lets says whether the process at the other end of a socket may be a peer, which
// is to say read all that our pool shares: one of the same user, or of the group.
// The kernel tells who it is.
func (p *port) lets(who *unix.Ucred, raw syscall.RawConn) error {
	if p.group == nil {
		if int(who.Uid) != os.Getuid() {
			return fmt.Errorf("user %d listens or dials, not %d", who.Uid, os.Getuid())
		}
		return nil
	}
	if int(who.Gid) == *p.group {
		return nil
	}
	var of []uint32
	var err error
	if e := raw.Control(func(fd uintptr) { of, err = peerGroups(fd) }); e != nil {
		err = e
	}
	if err != nil {
		return fmt.Errorf("asking of which groups user %d is: %w", who.Uid, err)
	}
	if !slices.Contains(of, uint32(*p.group)) {
		return fmt.Errorf("user %d, who listens or dials, is not of group %d", who.Uid, *p.group)
	}
	return nil
}

// member says whether this process is of a group.
func member(group int) bool {
	of, err := os.Getgroups()
	return os.Getegid() == group || err == nil && slices.Contains(of, group)
}

// peerGroups are the other groups of the process at the other end of a socket.
func peerGroups(fd uintptr) ([]uint32, error) {
	for room := 32; ; {
		of := make([]uint32, room)
		size := uint32(4 * room)
		_, _, e := unix.Syscall6(unix.SYS_GETSOCKOPT, fd, unix.SOL_SOCKET, unix.SO_PEERGROUPS, uintptr(unsafe.Pointer(&of[0])), uintptr(unsafe.Pointer(&size)), 0)
		switch {
		case e == 0:
			return of[:min(int(size/4), room)], nil
		case e != unix.ERANGE || int(size/4) <= room || size > 4<<16: // which it says how many there are with
			return nil, os.NewSyscallError("getsockopt", e)
		}
		room = int(size / 4)
	}
}

// SPDX-License-Identifier: Apache-2.0

//go:build linux || darwin || freebsd || netbsd || openbsd

package shm

import (
	"errors"

	"github.com/rocl-go/rocl/internal/os/memfd"
	"github.com/rocl-go/rocl/subsys"
	"golang.org/x/sys/unix"
)

// The form of a note, sent over the socket after the hellos: kind u16, hops u16, arena u32, size
// u64.
const (
	noteLen   = 16
	noteArena = 1 // a new arena, with its descriptor; hops is how often the arena was passed on
	noteGone  = 2
	noteRing  = 3 // a ring of the bell, between users, instead of an eventfd

	// The size of an arena is a multiple of arenaUnit, also where pages are larger. The most is
	// that of the largest message, rounded up.
	arenaUnit = 4096
	mostArena = subsys.MaxPayload + arenaUnit

	mostNotes = 64      // notes that are read before another connection has its turn
	allNotes  = 1 << 12 // notes that a connection reads to find a certain one: more than a socket holds
)

// sendNote sends a note. It fails if it would have to wait.
func (c *conn) sendNote(kind, arena uint32, size uint64, fd int) error {
	return c.sendNoteHops(kind, 0, arena, size, fd)
}

// sendNoteHops is sendNote for an arena that was passed on hops times.
func (c *conn) sendNoteHops(kind, hops, arena uint32, size uint64, fd int) error {
	var b [noteLen]byte
	le.PutUint32(b[:], kind|hops<<16)
	le.PutUint32(b[4:], arena)
	le.PutUint64(b[8:], size)
	var oob []byte
	if fd >= 0 {
		oob = unix.UnixRights(fd)
	}
	c.port.cfg.Count.Writes.Add(1)
	_, err := unix.SendmsgN(c.sock, b[:], oob, nil, unix.MSG_DONTWAIT|unix.MSG_NOSIGNAL)
	return err
}

// readNotes reads the notes that have arrived, at most most. It reports whether there may be more,
// and whether the socket has ended.
func (c *conn) readNotes(most int) (more, ended bool, err error) {
	for range most {
		var b [noteLen + spare]byte
		var oob [24]byte // room for two descriptors, because one is padded to 8 bytes; no note may have two
		c.port.cfg.Count.Reads.Add(1)
		n, oobn, flags, err := recvmsg(c.sock, b[:], oob[:])
		switch {
		case errors.Is(err, unix.EAGAIN):
			return false, false, nil
		case errors.Is(err, unix.EINTR):
			continue
		case errors.Is(err, unix.ECONNRESET):
			continue // returned once if a peer died with notes unread; notes sent before follow
		case err != nil || n == 0:
			return false, true, nil
		}
		fds, err := descriptors(oob[:oobn])
		if err == nil {
			switch {
			case flags&unix.MSG_CTRUNC != 0:
				err = errors.New("shm: an arena came without its descriptor: too many are open here")
			case n != noteLen:
				err = broken("a note of %d bytes", n)
			default:
				err = c.in.note(c, b[:], fds)
			}
		}
		for _, fd := range fds {
			if fd >= 0 { // -1: the arena keeps the descriptor
				unix.Close(fd)
			}
		}
		if err != nil {
			return false, false, err
		}
	}
	return true, false, nil
}

// note executes a note. It sets the descriptors that it keeps to -1.
func (in *receiver) note(c *conn, b []byte, fds []int) error {
	kind, hops, id, size := le.Uint16(b), le.Uint16(b[2:]), le.Uint32(b[4:]), le.Uint64(b[8:])
	if in.finished.Load() {
		return nil
	}
	a := in.arenas[id]
	switch {
	case kind != noteArena && hops != 0:
		return broken("note %d with %d hops", kind, hops)
	case kind == noteArena && a == nil && len(fds) == 1 && hops <= mostHops && size <= mostArena && size%arenaUnit == 0:
		if arenas, bytes := c.granted.get(); len(in.arenas) >= arenas || size > bytes-in.mapped {
			return broken("arena %d of %d bytes beside %d of %d bytes: more than was granted", id, size, len(in.arenas), in.mapped)
		}
		mem, err := memfd.Open(fds[0], int(size))
		if err != nil {
			return err
		}
		if in.arenas == nil {
			in.arenas = map[uint32]*arena{}
		}
		a = newArena(c, id, int(hops), mem, fds)
		in.arenas[id] = a
		in.mapped += size
		c.back.uses.Add(1)
		c.refs.Add(1)
	case kind == noteGone && a != nil && size == 0 && len(fds) == 0:
		in.unlist(c, a)
	case kind == noteRing && id == 0 && size == 0 && len(fds) == 0:
		in.noteRang = true
	default:
		return broken("note %d about arena %d, of %d bytes, with %d descriptors", kind, id, size, len(fds))
	}
	return nil
}

// SPDX-License-Identifier: Apache-2.0

//go:build !portable

package shm

import (
	"errors"
	"fmt"
	"os"
	"strconv"
	"sync/atomic"
	"unsafe"

	"github.com/rocl-go/rocl/internal/os/futex"
	"github.com/rocl-go/rocl/internal/os/memfd"
	"github.com/rocl-go/rocl/subsys"
	"golang.org/x/sys/unix"
)

// watched returns the descriptor of a port's bell that the poller watches: an eventfd.
func watched() (int, error) {
	fd, err := unix.Eventfd(0, unix.EFD_CLOEXEC|unix.EFD_NONBLOCK)
	return fd, os.NewSyscallError("eventfd", err)
}

// openBell maps the bell that a peer has passed on. fd is its eventfd, or -1 if notes are sent
// instead. Unless openBell fails, the bell owns fd.
func openBell(page, nap, fd int) (*bell, error) {
	if fd >= 0 { // a write to another kind of file could block
		name, err := os.Readlink("/proc/self/fd/" + strconv.Itoa(fd))
		flags, _ := unix.FcntlInt(uintptr(fd), unix.F_GETFL, 0)
		if err != nil || name != "anon_inode:[eventfd]" || flags&unix.O_NONBLOCK == 0 {
			return nil, errors.New("the bell of a peer is no eventfd")
		}
	}
	mem, err := memfd.Open(page, bellLen)
	if err != nil {
		return nil, fmt.Errorf("mapping the bell of a peer: %w", err)
	}
	napMem, err := memfd.OpenShared(nap, subsys.NapPageLen)
	if err != nil {
		memfd.Unmap(mem)
		return nil, fmt.Errorf("mapping the nap page of a peer: %w", err)
	}
	return &bell{
		word: (*atomic.Uint64)(unsafe.Pointer(&mem[0])), mem: mem, page: -1, fd: fd,
		nap: (*atomic.Uint32)(unsafe.Pointer(&napMem[0])), napMem: napMem,
	}, nil
}

// ring wakes the peer's context if it is idle, unless c has rung in the same period. The caller
// must have published its records before.
func (c *conn) ring() {
	b := c.bell
	w := b.word.Load()
	how := subsys.IdleMode(w & modeMask)
	if how == subsys.Awake || c.rungAt.Swap(w) == w {
		return
	}
	if how == subsys.Napping {
		c.port.cfg.Count.Writes.Add(1)
		b.nap.Add(1)
		futex.Wake(b.nap)
		return
	}
	c.wake()
}

// wake wakes the peer's context out of epoll_wait. It never blocks. Another user's eventfd could
// be made blocking and full after any check, so such a peer is sent a note. If the socket is full
// of notes, the peer has one to wake up for.
func (c *conn) wake() {
	if c.bell.fd < 0 {
		_ = c.sendNote(noteRing, 0, 0, -1)
		return
	}
	one := [8]byte{1}
	c.port.cfg.Count.Writes.Add(1)
	_, _ = unix.Write(c.bell.fd, one[:])
}

// bellFDs returns how many descriptors follow the segment in a hello: the bell's word, the page on
// which the context naps, and, between processes of one user, the bell's eventfd.
func (c *conn) bellFDs() int {
	if c.isWary() {
		return 2
	}
	return 3
}

// bellDescriptors returns these descriptors of this end. They stay their owners'.
func (c *conn) bellDescriptors() ([]int, error) {
	p := c.port
	nap, err := c.poller.NapPage()
	if err != nil {
		return nil, err
	}
	if c.isWary() {
		c.poller.BoundNaps()
		return []int{p.bell.page, nap}, nil
	}
	return []int{p.bell.page, nap, p.bell.fd}, nil
}

// takeBell opens the peer's bell, whose descriptors are fds. It sets those that it keeps to -1.
func (c *conn) takeBell(fds []int) (err error) {
	fd := -1
	if len(fds) == 3 {
		fd = fds[2]
	}
	if c.bell, err = openBell(fds[0], fds[1], fd); err == nil && fd >= 0 {
		fds[2] = -1
	}
	return err
}

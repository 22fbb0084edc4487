// SPDX-License-Identifier: Apache-2.0

//go:build (linux && portable) || darwin || freebsd || netbsd || openbsd

package shm

import (
	"fmt"
	"sync/atomic"
	"unsafe"

	"github.com/rocl-go/rocl/internal/os/memfd"
	"github.com/rocl-go/rocl/subsys"
	"golang.org/x/sys/unix"
)

// watched returns the descriptor of a port's bell that the poller watches. No peer rings by it, and
// it only makes the port a Ring of its poller: it is a socket that receives nothing.
func watched() (int, error) {
	fd, err := datagramSocket()
	if err == nil {
		_ = unix.SetNonblock(fd, true)
	}
	return fd, err
}

// ring wakes the peer's context if it is idle, unless c has rung in the same period. The caller
// must have published its records before.
func (c *conn) ring() {
	w := c.bell.word.Load()
	if subsys.IdleMode(w&modeMask) != subsys.Awake && c.rungAt.Swap(w) != w {
		c.wake()
	}
}

// wake wakes the peer's context by a note, which the poller of that context notices. If the socket
// is full of notes, the peer has one to wake up for.
func (c *conn) wake() {
	var b [noteLen]byte
	le.PutUint32(b[:], noteRing)
	c.port.cfg.Count.Writes.Add(1)
	_ = unix.Send(c.sock, b[:], unix.MSG_DONTWAIT|unix.MSG_NOSIGNAL) // makes no garbage, other than sendNote
}

// bellFDs returns how many descriptors follow the segment in a hello: that of the bell's word.
func (*conn) bellFDs() int { return 1 }

// bellDescriptors returns that descriptor of this end. It stays its owner's.
func (c *conn) bellDescriptors() ([]int, error) { return []int{c.port.bell.page}, nil }

// takeBell maps the peer's bell.
func (c *conn) takeBell(fds []int) error {
	mem, err := memfd.Open(fds[0], bellLen)
	if err != nil {
		return fmt.Errorf("mapping the bell of a peer: %w", err)
	}
	c.bell = &bell{word: (*atomic.Uint64)(unsafe.Pointer(&mem[0])), mem: mem, page: -1, fd: -1}
	return nil
}

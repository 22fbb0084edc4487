// SPDX-License-Identifier: Apache-2.0

//go:build linux || darwin || freebsd || netbsd || openbsd

package shm

import (
	"context"
	"sync/atomic"
	"unsafe"

	"github.com/rocl-go/rocl/internal/os/memfd"
	"github.com/rocl-go/rocl/subsys"
	"golang.org/x/sys/unix"
)

const bellLen = 4096

// A bell tells peers whether the context of a port looks at its connections. The lower bits of its
// word are the subsys.IdleMode of the context. The other bits count its changes.
type bell struct {
	word *atomic.Uint64
	mem  []byte
	page int // the word's descriptor, which is passed to peers; -1 for a peer's bell

	// What the poller of the port watches, on Linux an eventfd, never read: each write is an edge
	// for epoll. -1 for a peer that is rung by notes.
	fd int

	// The word on which a peer's context naps; nil for the port's own bell, and where no context
	// naps.
	nap    *atomic.Uint32
	napMem []byte
}

const (
	modeMask   = 3            // bits of the word that have the IdleMode
	modePeriod = modeMask + 1 // added for each new period
)

func newBell() (*bell, error) {
	page, mem, err := memfd.Create(context.Background(), "rocl-bell", bellLen)
	if err != nil {
		return nil, err
	}
	fd, err := watched()
	if err != nil {
		memfd.Unmap(mem)
		memfd.Close(page)
		return nil, err
	}
	b := &bell{word: (*atomic.Uint64)(unsafe.Pointer(&mem[0])), mem: mem, page: page, fd: fd}
	b.word.Store(uint64(subsys.Asleep)) // before the first SetIdle
	return b, nil
}

// setMode publishes the idle mode of this context.
func (b *bell) setMode(how subsys.IdleMode) {
	// Each call begins a new period, also with the same mode. A peer that rang in the last period
	// rings again.
	b.word.Store(((b.word.Load() &^ modeMask) + modePeriod) | uint64(how))
}

func (b *bell) close() {
	memfd.Unmap(b.mem)
	if b.napMem != nil {
		memfd.Unmap(b.napMem)
	}
	if b.page >= 0 {
		unix.Close(b.page)
	}
	if b.fd >= 0 {
		unix.Close(b.fd)
	}
}

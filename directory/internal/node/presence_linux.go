// SPDX-License-Identifier: Apache-2.0

//go:build !portable

package node

import (
	"fmt"
	"math"
	"net"
	"os"

	"github.com/rocl-go/rocl/resource"
	"golang.org/x/sys/unix"
)

// maxQueries limits how often a server asks the kernel for ranges of PATH.lock: twice for each
// context.
const maxQueries = 1 << 14

// A Presence shows that a context lives, by the lock of one byte of PATH.lock. The byte's offset is
// the context's number. The zero value shows nothing.
type Presence struct{ file *os.File }

// Show ensures that the byte of the context self is locked in the lock file of the server at the
// other end of nc, where the next server will look for it. If the byte cannot be locked, Show
// returns the reason, and the next server does not wait for the context. A connection in memory has
// no lock file, and no next server.
func (p *Presence) Show(nc net.Conn, self resource.GID) error {
	path := lockFile(nc)
	if path == "" {
		p.End()
		return nil
	}
	if p.file != nil && isOpen(path, p.file) {
		return nil
	}
	p.End()
	f, err := openFile(path, os.O_RDONLY)
	if err != nil {
		return err
	}
	lock := unix.Flock_t{Type: unix.F_RDLCK, Start: int64(self.Ctx()), Len: 1}
	if err := unix.FcntlFlock(f.Fd(), unix.F_OFD_SETLK, &lock); err != nil {
		f.Close()
		return fmt.Errorf("directory: locking a byte of %s: %w", path, err)
	}
	p.file = f
	return nil
}

// End shows that the context does not live any more.
func (p *Presence) End() {
	if p.file != nil {
		p.file.Close()
		p.file = nil
	}
}

// living returns the contexts with numbers of at least from and less than to that live. areAll is
// false if the kernel does not say, or there are too many.
func (b *socket) living(from, to int64) (all []uint64, areAll bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.closed {
		return nil, true
	}
	type span struct{ from, to int64 }
	asked := 0
	for todo := []span{{from, to}}; len(todo) > 0; asked++ {
		if asked == maxQueries {
			return all, false
		}
		at := todo[len(todo)-1]
		todo = todo[:len(todo)-1]
		lock := unix.Flock_t{Type: unix.F_WRLCK, Start: at.from, Len: at.to - at.from}
		if err := unix.FcntlFlock(b.lock.Fd(), unix.F_OFD_GETLK, &lock); err != nil {
			return all, false
		}
		if lock.Type == unix.F_UNLCK {
			continue
		}
		if lock.Len == 1 {
			all = append(all, uint64(lock.Start))
		}
		if lock.Len <= 0 { // to the end of the file
			lock.Len = math.MaxInt64 - lock.Start
		}
		if lock.Start > at.from { // if there are several locks, the kernel names any of them
			todo = append(todo, span{at.from, lock.Start})
		}
		if end := lock.Start + lock.Len; end < at.to {
			todo = append(todo, span{end, at.to})
		}
	}
	return all, true
}

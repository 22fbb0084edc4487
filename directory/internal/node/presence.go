// SPDX-License-Identifier: Apache-2.0

package node

import (
	"fmt"
	"math"
	"net"
	"os"
	"slices"
	"strings"
	"sync"

	"github.com/rocl-go/rocl/resource"
	"golang.org/x/sys/unix"
)

// A server that follows another one cannot ask its predecessor which contexts live. So each context
// that has joined at a socket holds a lock of its own in PATH.lock: a lock of the one byte whose
// offset is the context's number. The kernel ends the lock when the context's process ends in any
// way. A process serves by another lock, of the whole file with flock, which does not conflict with
// these.

// maxQueries limits how often a server asks the kernel for ranges of PATH.lock: twice for each
// context.
const maxQueries = 1 << 14

// A Presence shows that a context lives, by the lock of one byte. The zero value shows nothing.
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

// lockFile returns the path of the lock file of the server at the other end of nc, or "".
func lockFile(nc net.Conn) string {
	if t, ok := nc.(*tcpConn); ok {
		return strings.TrimSuffix(t.nodeFile, nodeSuffix) + lockSuffix
	}
	if at, ok := nc.RemoteAddr().(*net.UnixAddr); ok && at.Name != "" {
		return filePath(at.Name) + lockSuffix
	}
	return ""
}

// End shows that the context does not live any more.
func (p *Presence) End() {
	if p.file != nil {
		p.file.Close()
		p.file = nil
	}
}

// latecomers are the contexts that lived when a server began and that have not joined it.
type latecomers struct {
	mu       sync.Mutex
	isListed bool // left has been filled
	isUnsure bool // the kernel has not listed all contexts that lived
	left     []latecomer
}

// latecomer is one context whose byte is locked in the lock file of a socket.
type latecomer struct {
	at  *socket
	ctx uint64
}

// Awaits reports whether a context that lived when this server began still lives and has not
// joined. It reports true if the kernel does not list all of these contexts. joined reports whether
// the context with a number has joined; it must not call the Listener.
func (l *Listener) Awaits(joined func(ctx uint64) bool) bool {
	late := &l.latecomers
	if !late.mu.TryLock() { // another goroutine is looking, which takes a while if there are many contexts
		return true
	}
	defer late.mu.Unlock()
	if !late.isListed {
		late.isListed = true
		for _, b := range l.all() {
			all, areAll := b.living(0, math.MaxInt64)
			late.isUnsure = late.isUnsure || !areAll
			for _, ctx := range all {
				late.left = append(late.left, latecomer{b, ctx})
			}
		}
	}
	late.left = slices.DeleteFunc(late.left, func(c latecomer) bool {
		if joined(c.ctx) {
			return true
		}
		lives, isSure := c.at.living(int64(c.ctx), int64(c.ctx)+1)
		return isSure && len(lives) == 0
	})
	return late.isUnsure || len(late.left) > 0
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

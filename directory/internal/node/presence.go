// SPDX-License-Identifier: Apache-2.0

package node

import (
	"math"
	"net"
	"os"
	"slices"
	"sync"

	"github.com/rocl-go/rocl/resource"
	"golang.org/x/sys/unix"
)

// A server that follows another one cannot ask its predecessor which contexts live. So each context
// that has joined at a Unix socket holds a lock of its own in PATH.lock: a lock of the one byte
// whose offset is the context's number. The kernel ends the lock when the context's process ends in
// any way. A process serves by another lock, of the whole file with flock, which does not conflict
// with these.

// maxQueries limits how often a server asks the kernel for ranges of PATH.lock: twice for each
// context. Contexts beyond that are not waited for.
const maxQueries = 1 << 14

// A Presence shows that a context lives, by the lock of one byte. The zero value shows nothing.
type Presence struct{ file *os.File }

// Show ensures that the byte of the context self is locked in the lock file of the server at the
// other end of nc, where the next server will look for it. If nc does not lead to a Unix socket, or
// the byte cannot be locked, Show ends what was shown before. Then servers wait for the context no
// longer than for any.
func (p *Presence) Show(nc net.Conn, self resource.GID) {
	at, ok := nc.RemoteAddr().(*net.UnixAddr)
	if !ok || at.Name == "" { // not a Unix socket with a path
		p.End()
		return
	}
	path := filePath(at.Name) + lockSuffix
	if p.file == nil || !isOpen(path, p.file) {
		p.End()
		p.file = lockByte(path, int64(self.Ctx()))
	}
}

// End shows that the context does not live any more.
func (p *Presence) End() {
	if p.file != nil {
		p.file.Close()
		p.file = nil
	}
}

// lockByte locks one byte of a file for as long as the result is open. It returns nil if it cannot.
func lockByte(path string, at int64) *os.File {
	f, err := openFile(path, os.O_RDONLY)
	if err != nil {
		return nil
	}
	lock := unix.Flock_t{Type: unix.F_RDLCK, Start: at, Len: 1}
	if err := unix.FcntlFlock(f.Fd(), unix.F_OFD_SETLK, &lock); err != nil {
		f.Close()
		return nil
	}
	return f
}

// latecomers are the contexts that lived when a server began and that have not joined it.
type latecomers struct {
	mu       sync.Mutex
	isListed bool // left has been filled
	left     []latecomer
}

// latecomer is one context whose byte is locked in the lock file of a socket.
type latecomer struct {
	at  *socket
	ctx uint64
}

// Awaits reports whether a context that lived when this server began still lives and has not
// joined. joined reports whether the context with a number has joined; it must not call the
// Listener.
func (l *Listener) Awaits(joined func(ctx uint64) bool) bool {
	late := &l.latecomers
	if !late.mu.TryLock() { // another goroutine is looking, which takes a while if there are many contexts
		return true
	}
	defer late.mu.Unlock()
	if !late.isListed {
		late.isListed = true
		for _, b := range l.all() {
			for _, ctx := range b.living(0, math.MaxInt64) {
				late.left = append(late.left, latecomer{b, ctx})
			}
		}
	}
	late.left = slices.DeleteFunc(late.left, func(c latecomer) bool {
		return joined(c.ctx) || len(c.at.living(int64(c.ctx), int64(c.ctx)+1)) == 0
	})
	return len(late.left) > 0
}

// living returns the contexts with numbers of at least from and less than to that live.
func (b *socket) living(from, to int64) (all []uint64) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.closed {
		return nil
	}
	type span struct{ from, to int64 }
	asked := 0
	for todo := []span{{from, to}}; len(todo) > 0 && asked < maxQueries; asked++ {
		at := todo[len(todo)-1]
		todo = todo[:len(todo)-1]
		lock := unix.Flock_t{Type: unix.F_WRLCK, Start: at.from, Len: at.to - at.from}
		if err := unix.FcntlFlock(b.lock.Fd(), unix.F_OFD_GETLK, &lock); err != nil || lock.Type == unix.F_UNLCK {
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
	return all
}

// SPDX-License-Identifier: Apache-2.0

package directory

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

// marksMost limits how often a server asks the kernel for ranges of PATH.lock: twice for each
// context. Contexts beyond that are not waited for.
const marksMost = 1 << 14

// mark locks the byte of the context self in the lock file. The context counts as alive as long as
// the result is open. It returns nil if it cannot lock; then servers wait for the context no longer
// than for any.
func mark(file string, self resource.GID) *os.File {
	f, err := openSide(file, os.O_RDONLY)
	if err != nil {
		return nil
	}
	lock := unix.Flock_t{Type: unix.F_RDLCK, Start: int64(self.Ctx()), Len: 1}
	if err := unix.FcntlFlock(f.Fd(), unix.F_OFD_SETLK, &lock); err != nil {
		f.Close()
		return nil
	}
	return f
}

// present ensures that the context's mark is in the lock file of the server at the other end of nc,
// where the next server will look for it.
func (c *Client) present(nc net.Conn) {
	at, ok := nc.RemoteAddr().(*net.UnixAddr)
	if !ok || at.Name == "" { // not a Unix socket with a path
		c.absent()
		return
	}
	file := place(at.Name) + lockSuffix
	if c.mark == nil || !holds(file, c.mark) {
		c.absent()
		c.mark = mark(file, c.self)
	}
}

// absent removes the mark.
func (c *Client) absent() {
	if c.mark != nil {
		c.mark.Close()
		c.mark = nil
	}
}

// latecomers are the contexts that lived when a server began and that have not joined it.
type latecomers struct {
	mu       sync.Mutex
	isListed bool // left has been filled
	left     []latecomer
}

// latecomer is one context whose mark is in the lock file of a socket.
type latecomer struct {
	at  *socket
	ctx uint64
}

// awaits reports whether a context that lives has not joined yet.
func (s *Server) awaits() bool {
	l := &s.missed
	if !l.mu.TryLock() { // another goroutine is looking, which takes a while if there are many contexts
		return true
	}
	defer l.mu.Unlock()
	if !l.isListed {
		l.isListed = true
		s.mu.Lock()
		bound := slices.Clone(s.bound)
		s.mu.Unlock()
		for _, b := range bound {
			for _, ctx := range b.marked(0, math.MaxInt64) {
				l.left = append(l.left, latecomer{b, ctx})
			}
		}
	}
	l.left = slices.DeleteFunc(l.left, func(c latecomer) bool {
		return s.hasJoined(c.ctx) || len(c.at.marked(int64(c.ctx), int64(c.ctx)+1)) == 0
	})
	return len(l.left) > 0
}

// hasJoined reports whether the context with number ctx has a life connection.
func (s *Server) hasJoined(ctx uint64) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.lives[resource.MakeGID(s.id.Node, ctx, 0)] != nil
}

// marked returns the contexts whose marks have offsets of at least from and less than to.
func (b *socket) marked(from, to int64) (all []uint64) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.over {
		return nil
	}
	type span struct{ from, to int64 }
	asked := 0
	for todo := []span{{from, to}}; len(todo) > 0 && asked < marksMost; asked++ {
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

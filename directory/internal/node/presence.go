// SPDX-License-Identifier: Apache-2.0

package node

import (
	"math"
	"net"
	"slices"
	"strings"
	"sync"
)

// A server that follows another one cannot ask its predecessor which contexts live. So each context
// that has joined at a socket holds a lock of its own, which the kernel ends when the context's
// process ends in any way. A process serves by another lock, of the whole file PATH.lock with
// flock, which does not conflict with these.

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

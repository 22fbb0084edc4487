// SPDX-License-Identifier: Apache-2.0

//go:build linux || darwin || freebsd || netbsd || openbsd

package shm

import (
	"math/rand/v2"
	"os"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

const (
	sweepMost = 64          // sockets at which a new port looks
	sweepAge  = time.Minute // of a socket that may be removed: a younger one may not be bound yet
)

// sweep removes sockets that killed processes have left in a folder. Their names begin with prefix.
// It looks at a sample, so the time does not depend on the number of contexts, and few dead sockets
// remain among many living ones.
func sweep(dir, prefix string) {
	names, err := os.ReadDir(dir)
	if err != nil {
		return
	}
	rand.Shuffle(len(names), func(i, j int) { names[i], names[j] = names[j], names[i] })
	looked := 0
	for _, e := range names {
		if !strings.HasPrefix(e.Name(), prefix) {
			continue
		}
		if looked++; looked > sweepMost {
			return
		}
		path := dir + "/" + e.Name()
		if fi, err := e.Info(); err == nil && time.Since(fi.ModTime()) > sweepAge && isDead(path) {
			_ = os.Remove(path)
		}
	}
}

// isDead reports whether no process has the socket at a path. It connects with another type of
// socket, which the kernel refuses with EPROTOTYPE if a process has the socket. That process does
// not notice.
func isDead(path string) bool {
	fd, err := datagramSocket()
	if err != nil {
		return false
	}
	defer unix.Close(fd)
	return unix.Connect(fd, &unix.SockaddrUnix{Name: path}) == unix.ECONNREFUSED
}

// datagramSocket returns a new Unix socket for datagrams.
func datagramSocket() (int, error) {
	syscall.ForkLock.RLock() // no program is started that would have the descriptor
	defer syscall.ForkLock.RUnlock()
	fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_DGRAM, 0)
	if err == nil {
		unix.CloseOnExec(fd)
	}
	return fd, os.NewSyscallError("socket", err)
}

// SPDX-License-Identifier: Apache-2.0

//go:build unix

package directory

import (
	"net"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// slowQuestion is the time after which a goroutine watches whether the asking end of a question
// still exists.
const slowQuestion = 50 * time.Millisecond

// onHangup calls gone if the other end hangs up before stop is called. So the server does not work
// on, and hold a descriptor for, a slow question whose answer no process wants. onHangup reads
// nothing, so the other end may send more meanwhile. Further calls of stop do nothing.
func onHangup(nc net.Conn, gone func()) (stop func()) {
	sc, ok := nc.(syscall.Conn)
	if !ok {
		return func() {}
	}
	raw, err := sc.SyscallConn()
	if err != nil {
		return func() {}
	}
	looked := make(chan struct{})
	t := time.AfterFunc(slowQuestion, func() {
		defer close(looked)
		left := false
		err := raw.Read(func(fd uintptr) bool {
			var b [1]byte
			n, _, err := unix.Recvfrom(int(fd), b[:], unix.MSG_PEEK|unix.MSG_DONTWAIT)
			left = err == nil && n == 0 || err != nil && err != unix.EAGAIN && err != unix.EINTR
			return left || n > 0
		})
		if err == nil && left {
			gone()
		}
	})
	return sync.OnceFunc(func() { // a second call of the timer's Stop would report that it has fired
		if !t.Stop() {
			_ = nc.SetReadDeadline(time.Now())
			<-looked
			_ = nc.SetReadDeadline(time.Time{})
		}
	})
}

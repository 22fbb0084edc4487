package subsys

import (
	"time"

	"golang.org/x/sys/unix"
)

// Nap sleeps for d in the kernel, holding a thread: with a processor idle, the
// runtime rounds a short time.Sleep up to the millisecond that its epoll_wait
// can tell. A signal may end it early.
func Nap(d time.Duration) {
	t := unix.NsecToTimespec(int64(d))
	_ = unix.Nanosleep(&t, nil)
}

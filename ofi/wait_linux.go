// SPDX-License-Identifier: Apache-2.0

package ofi

import (
	"time"

	"golang.org/x/sys/unix"
)

// newTimer returns a timer's descriptor, which setTimer makes readable after d.
func newTimer() (fd int, err error) {
	return unix.TimerfdCreate(unix.CLOCK_MONOTONIC, unix.TFD_NONBLOCK|unix.TFD_CLOEXEC)
}

func setTimer(fd int, d time.Duration) {
	_ = unix.TimerfdSettime(fd, 0, &unix.ItimerSpec{Value: unix.NsecToTimespec(int64(d))}, nil)
}

// drainTimer makes the descriptor of a timer unreadable.
func drainTimer(fd int) {
	var b [8]byte
	_, _ = unix.Read(fd, b[:])
}

// newEvent returns a descriptor that is never readable.
func newEvent() (fd int, err error) { return unix.Eventfd(0, unix.EFD_NONBLOCK|unix.EFD_CLOEXEC) }

// isReadable reports whether a read of fd would not wait.
func isReadable(fd int) bool {
	one := [1]unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}
	n, _ := unix.Poll(one[:], 0)
	return n > 0
}

func closeFD(fd int) { unix.Close(fd) }

// unanswered reports whether the kernel of the peer's machine owes an answer at a TCP socket, and
// how long ago it was heard. If it owes none, unanswered sends ping, so that it will.
func unanswered(fd int, ping []byte) (owes bool, heard time.Duration) {
	i, err := unix.GetsockoptTCPInfo(fd, unix.IPPROTO_TCP, unix.TCP_INFO)
	if err != nil {
		return false, 0
	}
	if i.Unacked == 0 {
		_, _ = unix.Write(fd, ping)
	}
	return i.Probes > 0 || i.Unacked > 0 && i.Last_ack_recv > i.Last_data_sent, time.Duration(i.Last_ack_recv) * time.Millisecond
}

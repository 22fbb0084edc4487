// SPDX-License-Identifier: Apache-2.0

//go:build linux && !portable

package subsys

import (
	"fmt"
	"os"
	"syscall"

	"golang.org/x/sys/unix"
)

// A set has the descriptors that a Poller watches. Two epoll sets are nested. The inner set holds
// the descriptors, edge-triggered. The outer set, the gate, holds only the inner one and is watched
// by the Go runtime's poller. The gate is armed only while no other goroutine makes progress. So a
// message that a polling or sleeping goroutine is about to read does not wake a thread of the
// runtime as well.
//
// The holder of the progress token calls ready, await, event, handled and drainWake. The Poller
// holds its mutex to call add, remove, want, wake and close.
type set struct {
	fd     int
	bell   int // eventfd in the set
	events [128]unix.EpollEvent
	gate   *os.File
	gateC  syscall.RawConn

	// The callbacks of the runtime's poller, made once so that no closure is allocated per call.
	armGate    func(fd uintptr)
	fired      func(fd uintptr) bool
	gateEvents [1]unix.EpollEvent
}

// open makes the set. It fails only if no descriptors are left.
func (s *set) open() (err error) {
	if s.fd, err = unix.EpollCreate1(unix.EPOLL_CLOEXEC); err != nil {
		return fmt.Errorf("making an epoll set: %w", err)
	}
	if s.bell, err = unix.Eventfd(0, unix.EFD_CLOEXEC|unix.EFD_NONBLOCK); err != nil {
		unix.Close(s.fd)
		return fmt.Errorf("making an eventfd: %w", err)
	}
	gate, err := unix.EpollCreate1(unix.EPOLL_CLOEXEC)
	if err != nil {
		s.close()
		return fmt.Errorf("making an epoll set: %w", err)
	}
	_ = unix.SetNonblock(gate, true)
	_ = unix.EpollCtl(s.fd, unix.EPOLL_CTL_ADD, s.bell, &unix.EpollEvent{Events: unix.EPOLLIN | unix.EPOLLET, Fd: int32(s.bell)})
	_ = unix.EpollCtl(gate, unix.EPOLL_CTL_ADD, s.fd, &unix.EpollEvent{Events: unix.EPOLLONESHOT, Fd: int32(s.fd)})
	s.gate = os.NewFile(uintptr(gate), "rocl-gate")
	if s.gateC, err = s.gate.SyscallConn(); err != nil {
		s.endPark()
		s.close()
		return fmt.Errorf("watching an epoll set: %w", err)
	}
	s.armGate = func(fd uintptr) {
		_ = unix.EpollCtl(int(fd), unix.EPOLL_CTL_MOD, s.fd, &unix.EpollEvent{Events: unix.EPOLLIN | unix.EPOLLONESHOT, Fd: int32(s.fd)})
	}
	s.fired = func(fd uintptr) bool {
		n, err := unix.EpollWait(int(fd), s.gateEvents[:], 0)
		return n > 0 || (err != nil && err != unix.EINTR)
	}
	return nil
}

// add starts watching fd for input.
func (s *set) add(fd int) error {
	return unix.EpollCtl(s.fd, unix.EPOLL_CTL_ADD, fd, &unix.EpollEvent{Events: unix.EPOLLIN | unix.EPOLLRDHUP | unix.EPOLLET, Fd: int32(fd)})
}

// remove stops watching fd, which must be open.
func (s *set) remove(fd int) { _ = unix.EpollCtl(s.fd, unix.EPOLL_CTL_DEL, fd, nil) }

// want sets whether fd is also watched for room to write.
func (s *set) want(fd int, want bool) {
	ev := unix.EpollEvent{Events: unix.EPOLLIN | unix.EPOLLRDHUP | unix.EPOLLET, Fd: int32(fd)}
	if want {
		ev.Events |= unix.EPOLLOUT
	}
	_ = unix.EpollCtl(s.fd, unix.EPOLL_CTL_MOD, fd, &ev)
}

// ready returns the number of events that there are, without waiting.
func (s *set) ready() int {
	n, _, e := syscall.RawSyscall6(syscall.SYS_EPOLL_PWAIT, uintptr(s.fd), addr(&s.events[0]), uintptr(len(s.events)), 0, 0, 0)
	if e != 0 {
		return 0
	}
	return int(n)
}

// await is ready that waits up to ms milliseconds for an event. A signal may end it early.
func (s *set) await(ms int) int {
	n, err := unix.EpollWait(s.fd, s.events[:], ms)
	if err != nil { // EINTR: the caller looks again in any case
		return 0
	}
	return n
}

// event returns the descriptor and the conditions of an event of the last ready or await.
func (s *set) event(i int) (fd int32, on Readiness) {
	ev := &s.events[i]
	return ev.Fd, readiness(ev.Events)
}

// readiness returns the conditions that events of epoll report.
func readiness(events uint32) (on Readiness) {
	if events&^unix.EPOLLOUT != 0 {
		on |= Readable
	}
	if events&(unix.EPOLLOUT|unix.EPOLLERR|unix.EPOLLHUP) != 0 {
		on |= Writable
	}
	if events&(unix.EPOLLRDHUP|unix.EPOLLERR|unix.EPOLLHUP) != 0 {
		on |= Ended
	}
	return on
}

// handled is called after the source of fd has delivered so many frames because of an event.
func (*set) handled(fd int32, on Readiness, frames int) {}

// isWake reports whether fd is the one by which wake ends await.
func (s *set) isWake(fd int32) bool { return fd == int32(s.bell) }

// wake ends await, and park once the gate is armed. It has effect until drainWake.
func (s *set) wake() {
	one := [8]byte{1}
	_, _ = unix.Write(s.bell, one[:])
}

// drainWake ends the effect of wake.
func (s *set) drainWake() {
	var b [8]byte
	_, _ = unix.Read(s.bell, b[:])
}

// arm opens the gate, which fires once.
func (s *set) arm() { _ = s.gateC.Control(s.armGate) }

// park waits without a thread until the gate fires. It reports false after endPark.
func (s *set) park() bool { return s.gateC.Read(s.fired) == nil }

// endPark ends park, and every later one at once.
func (s *set) endPark() { s.gate.Close() }

// close frees the descriptors, after endPark.
func (s *set) close() {
	unix.Close(s.fd)
	unix.Close(s.bell)
}

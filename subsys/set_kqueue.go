// SPDX-License-Identifier: Apache-2.0

//go:build (darwin || dragonfly || freebsd || netbsd || openbsd) && !portable

package subsys

import (
	"fmt"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// A set has the descriptors that a Poller watches: a kqueue, edge-triggered by EV_CLEAR. The gate
// is a thread in poll(2), because no system lets the Go runtime watch a kqueue. A descriptor that
// is ready ends poll(2), and stays ready for ready and await.
//
// The holder of the progress token calls ready, await, event, handled and drainWake. The Poller
// holds its mutex to call add, remove, want, wake and close.
type set struct {
	fd     int
	bell   bell // in the kqueue; wake writes to it
	end    bell // endPark writes to it
	events [128]unix.Kevent_t
	parked sync.Mutex // held by park
}

// open makes the set. It fails only if no descriptors are left.
func (s *set) open() (err error) {
	if s.fd, err = unix.Kqueue(); err != nil {
		return fmt.Errorf("making a kqueue: %w", err)
	}
	unix.CloseOnExec(s.fd)
	if s.bell, err = newBell(); err == nil {
		if s.end, err = newBell(); err != nil {
			s.bell.close()
		}
	}
	if err != nil {
		unix.Close(s.fd)
		return err
	}
	if err = s.add(s.bell.r); err != nil {
		s.close()
		return fmt.Errorf("watching a pipe: %w", err)
	}
	return nil
}

// change adds or deletes the event of fd with a filter.
func (s *set) change(fd, filter, flags int) error {
	var k [1]unix.Kevent_t
	unix.SetKevent(&k[0], fd, filter, flags)
	_, err := unix.Kevent(s.fd, k[:], nil, nil)
	return err
}

// add starts watching fd for input.
func (s *set) add(fd int) error { return s.change(fd, unix.EVFILT_READ, unix.EV_ADD|unix.EV_CLEAR) }

// remove stops watching fd, which must be open.
func (s *set) remove(fd int) {
	_ = s.change(fd, unix.EVFILT_READ, unix.EV_DELETE)
	_ = s.change(fd, unix.EVFILT_WRITE, unix.EV_DELETE)
}

// want sets whether fd is also watched for room to write.
func (s *set) want(fd int, want bool) {
	flags := unix.EV_DELETE
	if want {
		flags = unix.EV_ADD | unix.EV_CLEAR
	}
	_ = s.change(fd, unix.EVFILT_WRITE, flags)
}

// ready returns the number of events that there are, without waiting.
func (s *set) ready() int { return s.await(0) }

// await is ready that waits up to ms milliseconds for an event. A signal may end it early.
func (s *set) await(ms int) int {
	t := unix.NsecToTimespec(int64(ms) * int64(time.Millisecond))
	n, err := unix.Kevent(s.fd, nil, s.events[:], &t)
	if err != nil { // EINTR: the caller looks again in any case
		return 0
	}
	return n
}

// event returns the descriptor and the conditions of an event of the last ready or await.
func (s *set) event(i int) (fd int32, on Readiness) {
	ev := &s.events[i]
	if ev.Filter == unix.EVFILT_WRITE {
		on = Writable
	} else if on = Readable; ev.Flags&unix.EV_EOF != 0 {
		on |= Ended
	}
	return int32(ev.Ident), on
}

// handled is called after the source of fd has delivered so many frames because of an event.
func (*set) handled(fd int32, on Readiness, frames int) {}

// isWake reports whether fd is the one by which wake ends await.
func (s *set) isWake(fd int32) bool { return fd == int32(s.bell.r) }

// wake ends await and park. It has effect until drainWake.
func (s *set) wake() { s.bell.ring() }

// drainWake ends the effect of wake.
func (s *set) drainWake() { s.bell.drain() }

// arm does nothing: park looks at the kqueue itself.
func (*set) arm() {}

// park waits until there is an event, and holds a thread meanwhile. It reports false after endPark.
func (s *set) park() bool {
	s.parked.Lock()
	defer s.parked.Unlock()
	fds := [2]unix.PollFd{{Fd: int32(s.end.r), Events: unix.POLLIN}, {Fd: int32(s.fd), Events: unix.POLLIN}}
	for {
		n, err := unix.Poll(fds[:], -1)
		if n > 0 || err != nil && err != unix.EINTR {
			return fds[0].Revents == 0
		}
	}
}

// endPark ends park, and every later one at once.
func (s *set) endPark() { s.end.ring() }

// close frees the descriptors, after endPark.
func (s *set) close() {
	s.parked.Lock()
	defer s.parked.Unlock()
	unix.Close(s.fd)
	s.bell.close()
	s.end.close()
}

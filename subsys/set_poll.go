// SPDX-License-Identifier: Apache-2.0

//go:build portable || !(linux || darwin || dragonfly || freebsd || netbsd || openbsd)

package subsys

import (
	"sync"
	"sync/atomic"
	"time"
)

// A set has the descriptors that a Poller watches, for poll(2), which every Unix system has,
// and Windows as WSAPoll. It serves a few descriptors, and tests: Linux uses it with the build tag
// portable.
//
// poll(2) reports a condition for as long as it lasts, and a source may leave its input unread, for
// lack of memory. So a source that was called in vain twice is not watched for a while.
//
// The holder of the progress token calls ready, await, event, handled and drainWake. The Poller
// holds its mutex to call add, remove, want, wake and close.
type set struct {
	bell   bell // wake rings it
	gate   bell // ends park so that it looks at the descriptors again
	fds    []pollFd
	parked sync.Mutex // held by park; guards gated
	gated  []pollFd

	isEnded atomic.Bool

	mu      sync.Mutex // guards the following fields; a leaf
	watched map[int32]*watch
	one     [1]pollFd // for hasInputLocked
}

// A watch is what a set knows of one descriptor.
type watch struct {
	wants bool // for room to write
	vain  int  // consecutive calls of the source that delivered nothing and left input unread
	until time.Time
}

// A source that was called in vain vainMost times is not watched for vainTime.
const (
	vainMost = 2
	vainTime = 10 * time.Millisecond
)

// open makes the set. It fails only if no descriptors are left.
func (s *set) open() (err error) {
	s.watched = map[int32]*watch{}
	if s.bell, err = newBell(); err != nil {
		return err
	}
	if s.gate, err = newBell(); err != nil {
		s.bell.close()
	}
	return err
}

// change makes a change, and threads that wait look at the descriptors again.
func (s *set) change(f func()) {
	s.mu.Lock()
	f()
	s.mu.Unlock()
	s.bell.ring()
	s.gate.ring()
}

// add starts watching fd for input.
func (s *set) add(fd int) error {
	s.change(func() { s.watched[int32(fd)] = new(watch) })
	return nil
}

// remove stops watching fd, which must be open.
func (s *set) remove(fd int) { s.change(func() { delete(s.watched, int32(fd)) }) }

// want sets whether fd is also watched for room to write.
func (s *set) want(fd int, want bool) {
	s.change(func() {
		if w := s.watched[int32(fd)]; w != nil {
			*w = watch{wants: want}
		}
	})
}

// list appends what poll(2) is to watch. If it leaves out a source, wait is how many milliseconds
// to wait at most, else -1.
func (s *set) list(fds []pollFd) (all []pollFd, wait int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	wait = -1
	for fd, w := range s.watched {
		if w.vain >= vainMost {
			if time.Until(w.until) > 0 {
				wait = int(vainTime / time.Millisecond)
				continue
			}
			w.vain = 0
		}
		f := pollFd{Fd: pollable(int(fd)), Events: pollIn}
		if w.wants {
			f.Events |= pollOut
		}
		fds = append(fds, f)
	}
	return fds, wait
}

// ready returns the number of events that there are, without waiting.
func (s *set) ready() int { return s.await(0) }

// await is ready that waits up to ms milliseconds for an event. A signal may end it early.
func (s *set) await(ms int) int {
	var most int
	s.fds, most = s.list(append(s.fds[:0], pollFd{Fd: pollable(s.bell.r), Events: pollIn}))
	if most >= 0 {
		ms = min(ms, most)
	}
	_, _ = poll(s.fds, ms) // EINTR: the caller looks again in any case
	n := 0
	for _, f := range s.fds {
		if f.Revents != 0 {
			s.fds[n] = f
			n++
		}
	}
	return n
}

// event returns the descriptor and the conditions of an event of the last ready or await.
func (s *set) event(i int) (fd int32, on Readiness) {
	f := &s.fds[i]
	if f.Revents&^pollOut != 0 {
		on |= Readable
	}
	if f.Revents&(pollOut|pollErr|pollHup) != 0 {
		on |= Writable
	}
	if f.Revents&(pollErr|pollHup) != 0 {
		on |= Ended
	}
	return int32(f.Fd), on
}

// handled is called after the source of fd has delivered so many frames because of an event.
func (s *set) handled(fd int32, on Readiness, frames int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	w := s.watched[fd]
	switch {
	case w == nil || on&Readable == 0:
	case frames > 0 || !s.hasInputLocked(fd):
		w.vain = 0
	default:
		w.vain++
		w.until = time.Now().Add(vainTime)
	}
}

// hasInputLocked reports whether there is still something to read. mu must be held.
func (s *set) hasInputLocked(fd int32) bool {
	s.one[0] = pollFd{Fd: pollable(int(fd)), Events: pollIn}
	n, _ := poll(s.one[:], 0)
	return n > 0
}

// isWake reports whether fd is the one by which wake ends await.
func (s *set) isWake(fd int32) bool { return fd == int32(s.bell.r) }

// wake ends await and park. It has effect until drainWake.
func (s *set) wake() { s.bell.ring() }

// drainWake ends the effect of wake.
func (s *set) drainWake() { s.bell.drain() }

// arm does nothing: park looks at the descriptors itself.
func (*set) arm() {}

// park waits until there is an event, and holds a thread meanwhile. It reports false after endPark.
func (s *set) park() bool {
	s.parked.Lock()
	defer s.parked.Unlock()
	for !s.isEnded.Load() {
		var most int
		s.gated, most = s.list(append(s.gated[:0],
			pollFd{Fd: pollable(s.gate.r), Events: pollIn}, pollFd{Fd: pollable(s.bell.r), Events: pollIn}))
		n, _ := poll(s.gated, most)
		if s.gated[0].Revents != 0 {
			s.gate.drain()
			n--
		}
		if n > 0 {
			return !s.isEnded.Load() // endPark rings the bell too
		}
	}
	return false
}

// endPark ends park, and every later one at once.
func (s *set) endPark() { s.change(func() { s.isEnded.Store(true) }) }

// close frees the descriptors, after endPark.
func (s *set) close() {
	s.parked.Lock()
	defer s.parked.Unlock()
	s.bell.close()
	s.gate.close()
}

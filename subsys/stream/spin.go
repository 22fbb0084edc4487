// SPDX-License-Identifier: Apache-2.0

package stream

import (
	"syscall"
	"time"
)

// spinFrom is the number of bytes of a read or a write from which spinning is worth its price.
const spinFrom = 64 << 10

// mostSkips limits how many spins are left out after one that was in vain.
const mostSkips = 8

// A spinner repeats a system call on a socket that was empty or full in the middle of a large
// payload. A peer on this machine reads or fills the buffer of a socket in less time than it takes
// to sleep and be woken. A spin in vain wastes a processor that the peer may need: after it the
// next spins are left out, twice as many each time.
type spinner struct {
	most        time.Duration // length of a spin; 0 turns spinning off
	skip, skips int           // spins to leave out: still, and after the last one in vain
}

// repeat makes the call until it returns something other than EAGAIN, for at most s.most.
func (s *spinner) repeat(call func() (int, error)) (n int, err error) {
	if s.skip > 0 || s.most == 0 {
		s.skip = max(0, s.skip-1)
		return 0, syscall.EAGAIN
	}
	for start := time.Now(); ; {
		if n, err = call(); err != syscall.EAGAIN {
			s.skips = 0
			return n, err
		}
		if time.Since(start) >= s.most {
			break
		}
	}
	s.skips = min(max(1, 2*s.skips), mostSkips)
	s.skip = s.skips
	return 0, syscall.EAGAIN
}

// SPDX-License-Identifier: Apache-2.0

package stream

import (
	"time"

	"golang.org/x/sys/unix"
)

// lookTime is how long a look lasts. It is a little more than the time in which a peer on this
// machine reads or fills the buffer of a socket.
const lookTime = 200 * time.Microsecond

// lookLeast is the number of bytes of a read or a write from which a look is worth it.
const lookLeast = 64 << 10

// mostSkips limits how many looks are left out after one that found nothing.
const mostSkips = 256

// A look is a bounded busy wait for a peer on this machine in the middle of a large payload. To
// sleep and be woken costs as much time as the peer needs for the next part of it. A look that
// finds nothing wastes a processor, which the peer may need: then the next ones are left out, twice
// as many each time.
type look struct {
	skip, skips int
}

// try calls again until it returns something other than EAGAIN, for at most lookTime.
func (l *look) try(again func() (int, error)) (n int, err error) {
	if l.skip > 0 {
		l.skip--
		return 0, unix.EAGAIN
	}
	for start := time.Now(); time.Since(start) < lookTime; {
		if n, err = again(); err != unix.EAGAIN {
			l.skips = 0
			return n, err
		}
	}
	l.skips = min(max(1, 2*l.skips), mostSkips)
	l.skip = l.skips
	return 0, unix.EAGAIN
}

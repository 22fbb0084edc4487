// SPDX-License-Identifier: Apache-2.0

// Package clock reads a clock that the processes of a machine share.
package clock

import (
	"hash/fnv"
	"os"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// A Clock is CLOCK_MONOTONIC, which the processes of a machine share.
type Clock struct {
	// ID differs from those of the clocks of other machines, of other time namespaces, and of the
	// time before a boot. 0: the system does not identify its clock.
	ID   uint64
	base int64 // what the clock showed at start
	at   time.Time
}

// Own returns the clock of this process.
var Own = sync.OnceValue(func() Clock {
	boot, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	var t unix.Timespec
	if err != nil || unix.ClockGettime(unix.CLOCK_MONOTONIC, &t) != nil {
		return Clock{}
	}
	space, _ := os.Readlink("/proc/self/ns/time") // old kernels have no time namespaces
	h := fnv.New64a()
	_, _ = h.Write(append(boot, space...))
	return Clock{ID: h.Sum64(), base: t.Nano(), at: time.Now()}
})

// Now returns the time in nanoseconds.
func (c Clock) Now() int64 { return c.base + int64(time.Since(c.at)) }

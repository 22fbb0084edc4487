// SPDX-License-Identifier: Apache-2.0

package rpc

import (
	"os"
	"sync"
	"time"

	"github.com/cespare/xxhash/v2"
	"golang.org/x/sys/unix"
)

// A clock is CLOCK_MONOTONIC, which the processes of a machine share. Its identity differs from
// those of the clocks of other machines, of other time namespaces, and of the time before a boot.
type clock struct {
	id   uint64 // 0: the system does not identify its clock
	base int64  // what the clock showed at start
	at   time.Time
}

// ownClock returns the clock of this process.
var ownClock = sync.OnceValue(func() clock {
	boot, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	var t unix.Timespec
	if err != nil || unix.ClockGettime(unix.CLOCK_MONOTONIC, &t) != nil {
		return clock{}
	}
	space, _ := os.Readlink("/proc/self/ns/time") // old kernels have no time namespaces
	return clock{id: xxhash.Sum64String(string(boot) + space), base: t.Nano(), at: time.Now()}
})

// now returns the time in nanoseconds.
func (c clock) now() int64 { return c.base + int64(time.Since(c.at)) }

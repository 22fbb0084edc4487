// SPDX-License-Identifier: Apache-2.0

package bench

import (
	"fmt"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

// look measures the place: round trips over two atomic words between two threads, each on a
// processor of its own. The fastest batch counts, because other programs only make it slower.
func look() place {
	var all unix.CPUSet
	if unix.SchedGetaffinity(0, &all) != nil || all.Count() < 2 || runtime.GOMAXPROCS(0) < 2 {
		return unknown
	}
	var words [65]atomic.Uint32 // the two lie in cache lines that are not next to each other
	there, back := &words[0], &words[64]
	start, best := time.Now(), time.Duration(0)
	// await polls w until it is x, and reports false when the time is over.
	await := func(w *atomic.Uint32, x uint32) bool {
		for i := 1; w.Load() != x; i++ {
			if i%1024 == 0 && time.Since(start) > placeTime {
				return false
			}
		}
		return true
	}
	var busy sync.WaitGroup
	cpu := 0
	pinned := func(f func()) {
		for !all.IsSet(cpu) {
			cpu++
		}
		var one unix.CPUSet
		one.Set(cpu)
		cpu++
		busy.Go(func() {
			runtime.LockOSThread()
			defer runtime.UnlockOSThread()
			if unix.SchedSetaffinity(0, &one) == nil {
				defer func() { _ = unix.SchedSetaffinity(0, &all) }()
			}
			f()
		})
	}
	const batches = 10
	pinned(func() {
		for x := uint32(1); x <= batches*placeTrips && await(there, x); x++ {
			back.Store(x)
		}
	})
	pinned(func() {
		for batch := range uint32(batches) {
			began := time.Now()
			for i := range uint32(placeTrips) {
				x := batch*placeTrips + i + 1
				if there.Store(x); !await(back, x) {
					return
				}
			}
			if took := time.Since(began) / placeTrips; best == 0 || took < best {
				best = took
			}
		}
	})
	busy.Wait()
	switch {
	case best == 0:
		return unknown
	case best <= placeMost:
		return near
	}
	return far
}

// readProcess reads the memory of a process at an address.
func readProcess(pid int, address uintptr, to []byte) error {
	const most = 4 << 20 // bytes of one call
	for part := range slices.Chunk(to, most) {
		from := address + uintptr(unsafe.Pointer(&part[0])) - uintptr(unsafe.Pointer(&to[0]))
		local := []unix.Iovec{{Base: &part[0]}}
		local[0].SetLen(len(part))
		if n, err := unix.ProcessVMReadv(pid, local, []unix.RemoteIovec{{Base: from, Len: len(part)}}, 0); err != nil || n != len(part) {
			return fmt.Errorf("reading %d bytes of process %d: %d, %w", len(part), pid, n, err)
		}
	}
	return nil
}

// threadTime returns the processor time of this thread.
func threadTime() time.Duration {
	var t unix.Timespec
	check(unix.ClockGettime(unix.CLOCK_THREAD_CPUTIME_ID, &t))
	return time.Duration(t.Nano())
}

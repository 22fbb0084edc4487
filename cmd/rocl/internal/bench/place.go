// SPDX-License-Identifier: Apache-2.0

package bench

import (
	"runtime"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"
)

// A place says how far apart the processors of this machine are. The host of a virtual machine may
// place them near each other or far apart, and may change that at any time, which changes small
// times over shared memory several times.
type place string

const (
	near    place = "near"
	far     place = "far"
	moved   place = "changed" // near in one round, and far in another
	unknown place = ""        // there is one processor, or other programs had it
)

// and returns the place of two measurements.
func (p place) and(q place) place {
	switch {
	case p == unknown || p == q:
		return q
	case q == unknown:
		return p
	}
	return moved
}

const (
	placeMost  = 400 * time.Nanosecond // a round trip between near processors; 180 ns is usual, and 660 between far ones
	placeTrips = 200                   // round trips of a batch
	placeTime  = 20 * time.Millisecond // time limit of a look, in case other programs have the processors
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

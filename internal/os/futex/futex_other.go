// SPDX-License-Identifier: Apache-2.0

//go:build !linux || portable

package futex

import (
	"sync/atomic"
	"time"
)

// pause is the length of a Wait on systems other than Linux.
const pause = 50 * time.Microsecond

// Wait returns at once if w does not have the value old, else after a short sleep.
func Wait(w *atomic.Uint32, old uint32, d time.Duration) {
	if w.Load() == old {
		time.Sleep(pause)
	}
}

// Wake does nothing: each Wait is short.
func Wake(*atomic.Uint32) {}

// SPDX-License-Identifier: Apache-2.0

//go:build !linux || portable

package subsys

import (
	"sync/atomic"
	"time"
)

// nap is empty: without a futex a Poller never naps.
type nap struct{ streak int }

func (*nap) slept(time.Duration, int) {}

// Naps reports whether the next sleep should be Nap rather than Sleep. On this system it reports
// false.
func (*Poller) Naps() bool { return false }

// Nap is Sleep on this system.
func (p *Poller) Nap(d time.Duration, unless *atomic.Uint32) int { return p.Sleep(d, unless) }

// EndNap does nothing on this system.
func (*Poller) EndNap() {}

func (*Poller) wakeNap() bool { return false }

func (*Poller) stopNaps() {}

func (*Poller) freeNapPage() {}

// SleepThread sleeps for d. On this system it is time.Sleep.
func SleepThread(d time.Duration) { time.Sleep(d) }

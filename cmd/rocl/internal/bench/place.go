// SPDX-License-Identifier: Apache-2.0

package bench

import "time"

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

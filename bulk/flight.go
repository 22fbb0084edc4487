// SPDX-License-Identifier: Apache-2.0

package bulk

import "sync/atomic"

// inFlightMost is how many bytes all transfers of an endpoint have under way, where that is less than what each
// would have by itself. More do not arrive sooner, and do not stay in the processor's caches until they are used. What lies in
// shared memory does not arrive, and is not counted.
const inFlightMost = 32 << 20

// A flight counts the transfers that an endpoint makes at a time.
type flight struct{ transfers atomic.Int64 }

// depth returns how many pieces of a transfer with an origin are under way now.
func (ep *Endpoint) depth(h *Handle, piece int64, wanted int) int {
	if isShared, _ := ep.sharing.with(ep.c, h.origin); isShared {
		return wanted
	}
	return ep.flight.depth(piece, wanted)
}

func (f *flight) begin() { f.transfers.Add(1) }
func (f *flight) end()   { f.transfers.Add(-1) }

// depth returns how many pieces one transfer has under way now: as many as it wants, if it is alone, and else a part of
// what all may have, but at least one, so that no transfer waits for another.
func (f *flight) depth(piece int64, wanted int) int {
	n := f.transfers.Load()
	if n <= 1 {
		return wanted
	}
	return int(min(max(inFlightMost/piece/n, 1), int64(wanted)))
}

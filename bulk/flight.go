// SPDX-License-Identifier: Apache-2.0

package bulk

import "sync/atomic"

// inFlightMost bounds how many bytes all transfers of an endpoint have in progress together. More
// bytes do not arrive sooner, and leave the processor's caches before they are used. Transfers over
// shared memory are not counted, because their bytes do not cross a connection.
const inFlightMost = 32 << 20

// A flight counts the transfers that an endpoint makes at a time.
type flight struct{ transfers atomic.Int64 }

// depth returns how many pieces of a transfer with h's origin may be in progress now.
func (ep *Endpoint) depth(h *Handle, piece int64, wanted int) int {
	if ep.sharing.route(ep.c, h.origin) == shared {
		return wanted
	}
	return ep.flight.depth(piece, wanted)
}

// pipelineDepth returns how many pieces of a pipeline may be in progress now. Pieces do not come in
// order, and those that come before their turn take memory until the loop has reached them. In a
// context whose memory is limited, they get a quarter of it, so that there is room for the piece
// that the loop waits for.
func (ep *Endpoint) pipelineDepth(h *Handle, piece int64, wanted int) int {
	if ep.memory > 0 {
		wanted = int(min(max(ep.memory/4/piece/max(ep.flight.transfers.Load(), 1), 1), int64(wanted)))
	}
	return ep.depth(h, piece, wanted)
}

func (f *flight) begin() { f.transfers.Add(1) }
func (f *flight) end()   { f.transfers.Add(-1) }

// depth returns how many pieces one transfer may have in progress now. A single transfer gets what
// it wants. Several share inFlightMost, but each gets at least one piece, so that no transfer waits
// for another.
func (f *flight) depth(piece int64, wanted int) int {
	n := f.transfers.Load()
	if n <= 1 {
		return wanted
	}
	return int(min(max(inFlightMost/piece/n, 1), int64(wanted)))
}

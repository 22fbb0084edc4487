// SPDX-License-Identifier: Apache-2.0

package bulk

import (
	"testing"

	"github.com/rocl-go/rocl/internal/testkit/try"
)

// Simultaneous transfers share the limit of bytes in progress. Each has at least one piece, and a
// single transfer has what it wants.
func TestFlightDepth(t *testing.T) {
	for _, x := range []struct {
		transfers, piece int64
		wanted, want     int
	}{
		{0, 1 << 20, 4, 4},
		{1, 1 << 30, 8, 8},
		{2, 1 << 20, 4, 4},
		{16, 1 << 20, 4, 2},
		{64, 1 << 20, 4, 1},
		{2, 64 << 20, 4, 1},
		{64, 16 << 10, 4, 4},
		{1 << 40, 1, 1000, 1},
	} {
		var f flight
		f.transfers.Store(x.transfers)
		try.Equal(t, f.depth(x.piece, x.wanted), x.want, "%+v", x)
	}
}

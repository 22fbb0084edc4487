// SPDX-License-Identifier: Apache-2.0

package buffers

import (
	"context"
	"testing"
	"time"
)

// A large buffer is given beside a reservation that lasts and small buffers that nothing releases.
// A buffer takes little more of a small limit than its own length.
func TestLargeBesideReservation(t *testing.T) {
	p := New(WithLimit(2 << 20))
	defer p.Close()
	p.ReserveForGood(256 << 10)
	p.Reserve(768 << 10)
	small := get(t, p, 16<<10)
	defer small.Release()
	for _, n := range []int{600_000, 1<<20 - 100, 1 << 20, 3 << 19} {
		ctx, end := context.WithTimeout(t.Context(), time.Second)
		b, err := p.GetWait(ctx, n)
		if end(); err != nil {
			t.Fatalf("%d bytes: %v", n, err)
		}
		if used := p.Limit() - p.Unused(); used > int64(n)+64<<10 {
			t.Errorf("%d bytes take %d", n, used)
		}
		s, err := p.Get(10_000) // which the use of b may need
		if err != nil {
			t.Fatalf("beside %d bytes: %v", n, err)
		}
		s.Release()
		b.Release()
	}
}

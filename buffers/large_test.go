// SPDX-License-Identifier: Apache-2.0

package buffers

import (
	"context"
	"testing"
	"time"

	"github.com/rocl-go/rocl/internal/testkit/try"
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

// Memory beyond the limit is for GetReserved alone, as much as the discounted buffers have, and
// until they are free.
func TestDiscount(t *testing.T) {
	p := New(WithLimit(2 << 20))
	defer p.Close()
	p.ReserveForGood(256 << 10)
	full := get(t, p, 3<<19)
	if b, err := p.GetReserved(3 << 19); err == nil {
		t.Fatalf("%d bytes beside as many, of %d", b.Len(), p.Limit())
	}
	came := false
	p.Await(t, func() { came = true })
	part := full.Slice(100, 200)
	part.Discount() // as often as it waits
	full.Discount()
	if want := p.Limit(); !came || p.Left() != want {
		t.Errorf("%d bytes are left, of %d; Await was called: %t", p.Left(), want, came)
	}
	if b, err := p.Get(1 << 20); err == nil {
		t.Errorf("Get gave %d bytes beyond the limit", b.Len())
	}
	more := try.Get(p.GetReserved(3 << 19))(t)
	if b, err := p.GetReserved(3 << 19); err == nil {
		t.Errorf("%d bytes more than the discounted buffer has", b.Len())
	}
	part.Release()
	full.Release()
	if got := p.Stats().Mapped; got > p.Limit() || p.Left() != p.Unused() {
		t.Errorf("%d bytes are mapped, %d are left and %d unused", got, p.Left(), p.Unused())
	}
	more.Release()
	again := get(t, p, 3<<19)
	try.Equal(t, p.Left(), p.Unused(), "a buffer that is used again is discounted")
	again.Release()
}

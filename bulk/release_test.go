// SPDX-License-Identifier: Apache-2.0

package bulk_test

import (
	"bytes"
	"testing"

	"github.com/rocl-go/rocl/bulk"
	"github.com/rocl-go/rocl/internal/testkit/eventually"
	"github.com/rocl-go/rocl/internal/testkit/try"
)

// Release does not wait, refuses later transfers, and releases the region's reference to a buffer.
// A view stays valid.
//
// Promise (Package bulk): `Release` does not wait, and gives buffers back when transfers have
// ended.
func TestRelease(t *testing.T) {
	overEach(t, func(t *testing.T, origin, target side) {
		b := try.Get(origin.c.Buffer(100_000))(t)
		copy(b.Bytes(), counting(100_000))
		for _, s := range []bulk.Segment{bulk.Buffer(b), bulk.Bytes(counting(100_000))} {
			r := expose(t, origin, bulk.ReadOnly, s)
			m := try.Get(target.View(deadline(t), r.Handle(), 0, 100_000))(t)
			r.Release()
			try.Fails(target.Pull(deadline(t), r.Handle(), 0, make([]byte, 10)))(t, bulk.ErrRevoked)
			if !bytes.Equal(m.Bytes(), counting(100_000)) {
				t.Error("the view has other bytes")
			}
			m.Release()
			eventually.True(t, "the region has no reference to the buffer", func() bool { return b.Refs() == 1 })
			r.Release()
			try.Check(t, r.Revoke(deadline(t)))
		}
		b.Release()
		if n := origin.Stats().Regions; n != 0 {
			t.Errorf("%d regions", n)
		}
	})
}

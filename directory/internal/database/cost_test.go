// SPDX-License-Identifier: Apache-2.0

package database

import (
	"fmt"
	"testing"

	"github.com/rocl-go/rocl/internal/testkit/must"
	"github.com/rocl-go/rocl/resource"
)

// The cost of deleting resources with many attributes grows with the length of their lists, not
// with its square. The database answers nothing else meanwhile.
func TestManyAttributesCost(t *testing.T) {
	scanned := func(attrs int) uint64 {
		d := New()
		var l resource.List
		for i := range attrs {
			_ = l.AddString(fmt.Sprint(i), "")
		}
		owner := resource.MakeGID(1, 1, 0)
		const n = 50
		for i := range uint32(n) {
			must.Get(d.Put(owner.WithSerial(1+i), owner, &l))
		}
		for i := range uint32(n) {
			must.OK(d.Delete(owner.WithSerial(1 + i)))
		}
		return d.scanned
	}
	half, full := scanned(resource.MaxAttrs/2), scanned(resource.MaxAttrs)
	if half == 0 || full > 3*half {
		t.Errorf("%d attributes are looked at for lists of %d, and %d for lists of %d", half, resource.MaxAttrs/2, full, resource.MaxAttrs)
	}
}

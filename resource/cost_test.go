// SPDX-License-Identifier: Apache-2.0

//go:build !race

package resource

import (
	"fmt"
	"testing"
)

// The cost of matching and filling grows with the length of the lists and not with its square.
// Matching that compared each attribute with each other one would make 800 million comparisons or
// more here. The test does not measure the cost: such work shows only in how long the test takes.
func TestManyAttributesCost(t *testing.T) {
	r, p, want := numbered(MaxAttrs, 4, false), numbered(MaxAttrs, 4, true), new(List)
	large := numbered(MaxAttrs, 7<<10, true)
	for i := range MaxAttrs {
		_ = want.Want(fmt.Sprintf("%04d", i))
	}
	for range 100 {
		if !Matches(r, p) {
			t.Fatal("it does not match")
		}
	}
	for range 4 {
		l := want.Clone()
		l.FilledLen(large)
		if l.Fill(large); !l.Complete() {
			t.Fatal("it is not filled")
		}
	}
}

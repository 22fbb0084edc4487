// SPDX-License-Identifier: Apache-2.0

//go:build !race

package resource

import (
	"fmt"
	"testing"
	"time"
)

// The cost of matching and filling grows with the length of the lists and not with its square.
func TestManyAttributesCost(t *testing.T) {
	r, p, want := numbered(MaxAttrs, 4, false), numbered(MaxAttrs, 4, true), new(List)
	large := numbered(MaxAttrs, 7<<10, true)
	for i := range MaxAttrs {
		_ = want.Want(fmt.Sprintf("%04d", i))
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		for range 1000 {
			if !Matches(r, p) {
				t.Error("it does not match")
				return
			}
		}
		for range 4 {
			l := want.Clone()
			l.FilledLen(large)
			if l.Fill(large); !l.Complete() {
				t.Error("it is not filled")
				return
			}
		}
	}()
	select {
	case <-done:
	case <-time.After(40 * time.Second):
		t.Fatal("the cost grows with the square of the number of attributes")
	}
}

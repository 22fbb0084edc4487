// SPDX-License-Identifier: Apache-2.0

package resource

import (
	"errors"
	"testing"

	"github.com/rocl-go/rocl/internal/testkit/must"
)

func TestIDs(t *testing.T) {
	a, b := MakeGID(1, 2, 3), MakeGID(4, 5, 6)
	for _, want := range [][]GID{nil, {a}, {b, a, b}} {
		l := must.Get(NewIDs(want...))
		got, ok := IDs(l)
		if !ok || len(got) != min(len(want), 2) {
			t.Errorf("%v of %v, %v", got, want, ok)
		}
		for _, id := range want {
			if _, ok := got[id]; !ok {
				t.Errorf("%v is not among %v", id, got)
			}
		}
	}
	if _, ok := IDs(new(List)); ok {
		t.Error("an empty pattern has identifiers")
	}
	if _, err := NewIDs(make([]GID, 3)...); err != nil {
		t.Error(err)
	}
	many := make([]GID, MaxValue/16+1)
	for i := range many {
		many[i] = a.WithSerial(uint32(i))
	}
	if _, err := NewIDs(many...); !errors.Is(err, ErrTooLarge) {
		t.Error(err)
	}
	if _, err := NewIDs(many[1:]...); err != nil {
		t.Error(err)
	}
}

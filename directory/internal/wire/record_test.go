// SPDX-License-Identifier: Apache-2.0

package wire

import (
	"errors"
	"slices"
	"testing"

	"github.com/rocl-go/rocl/internal/testkit/try"
	"github.com/rocl-go/rocl/resource"
	"go.uber.org/goleak"
)

// FuzzBatch parses arbitrary bytes as a batch.
func FuzzBatch(f *testing.F) {
	var b Builder
	for i := range uint32(2) {
		r := resource.Record{ID: resource.MakeGID(1, 2, i+1), Owner: resource.MakeGID(1, 2, 0), Revision: 3}
		b.BatchRecord(&r, new(resource.List))
	}
	f.Add(b.out)
	f.Add(b.out[:len(b.out)-1])
	f.Fuzz(func(t *testing.T, b []byte) {
		before := slices.Clone(b)
		for a, err := range Batch(b) {
			if err != nil && !errors.Is(err, ErrProtocol) {
				t.Fatal(err)
			}
			if err == nil && a.Attrs.Conditional() {
				t.Fatal("an answer has conditions")
			}
		}
		if !slices.Equal(b, before) {
			t.Fatal("the batch was changed")
		}
	})
}

// The body of a message end has a number, and whole identifiers of nodes.
func TestParseEnd(t *testing.T) {
	for _, b := range [][]byte{nil, {1}, {1, 0, 0, 0, 1}, make([]byte, 4+8+7)} {
		try.Fails(ParseEnd(b))(t, ErrProtocol, "%d bytes", len(b))
	}
	covered, failed, err := ParseEnd([]byte{3, 0, 0, 0, 9, 0, 0, 0, 0, 0, 0, 0})
	if covered != 3 || !slices.Equal(failed, []resource.NodeID{9}) || err != nil {
		t.Error(covered, failed, err)
	}
}

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

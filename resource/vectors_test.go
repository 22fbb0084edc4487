// SPDX-License-Identifier: Apache-2.0

package resource

import (
	"testing"

	"github.com/rocl-go/rocl/internal/testkit/try"
	"github.com/rocl-go/rocl/internal/testkit/vectors"
)

// The wire form of identifiers, lists and conditions must stay.
func TestVectors(t *testing.T) {
	var id [16]byte
	PutGID(id[:], MakeGID(1, 2, 3))
	var empty, list, pattern, conditions, alternatives List
	for _, err := range []error{
		list.AddString("type", "server"), list.AddString("load", "0.5"), list.AddString("load", ""),
		pattern.AddString("type", "server"), pattern.Want("load"),
		conditions.Compare("cores", Ge, "4"), conditions.OrderBy("load", true), conditions.OwnedBy(MakeGID(1, 2, 0)),
		alternatives.OneOf("zone", "a", "bc", ""),
	} {
		try.OK(t, err)
	}
	answer := pattern.Answer(&list)
	all := []vectors.Vector{vectors.Of("identifier", id[:], map[string]any{"text": MakeGID(1, 2, 3)})}
	for _, l := range []struct {
		name string
		*List
	}{{"empty list", &empty}, {"list", &list}, {"pattern", &pattern}, {"its answer", &answer}, {"conditions", &conditions}, {"alternatives", &alternatives}} {
		all = append(all, vectors.Of(l.name, l.Wire(), map[string]any{"text": l.String()}))
	}
	vectors.Check(t, "lists", all)
}

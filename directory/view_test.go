// SPDX-License-Identifier: Apache-2.0

package directory

import (
	"testing"

	"github.com/rocl-go/rocl/resource"
)

// An update that a server reported to its watches and did not live to acknowledge is unknown to the
// next server. There, another update may have the same revision. A watch that joins only then is
// told of that update. State that is the same is reported once.
func TestViewSameRevision(t *testing.T) {
	id := resource.MakeGID(1, 1, 1)
	told := func(v *View, value string) bool {
		l := list(t, resource.Attrs{"a": value})
		ev, tell := v.Take(Event{Kind: Appeared, Record: resource.Record{ID: id, Revision: 2, Attrs: *l}})
		return tell && ev.Attrs.GetString("a") == value
	}
	var v View
	v.Begin()
	if !told(&v, "not acknowledged") {
		t.Error("what is new was not told")
	}
	v.Begin() // the next server begins
	if !told(&v, "acknowledged") {
		t.Error("other attributes of the same revision were not told")
	}
	v.Begin()
	if told(&v, "acknowledged") {
		t.Error("what is the same was told again")
	}
	if v.Missing() != 0 {
		t.Error("what was told again is missing")
	}
}

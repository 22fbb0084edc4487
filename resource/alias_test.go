// SPDX-License-Identifier: Apache-2.0

package resource

import (
	"testing"

	"github.com/rocl-go/rocl/internal/testkit/must"
)

// A value that is a view of the list itself may be given to another of its attributes, whether the
// list gets longer or shorter.
func TestSetOfOwnValue(t *testing.T) {
	for _, old := range []string{"", "0", "a value longer than the other"} {
		var l List
		_ = l.AddString("a", old)
		_ = l.AddString("b", "0123456789")
		v, _ := l.Get("b")
		must.OK(l.Set("a", v))
		if a, b := l.GetString("a"), l.GetString("b"); a != "0123456789" || b != "0123456789" {
			t.Errorf("a is %q and b %q after %q", a, b, old)
		}
	}
}

// Parsing a list from the wire allocates nothing.
func TestParseAllocs(t *testing.T) {
	var l List
	for _, n := range []string{"type", "a name that is longer than thirty-two bytes", "site"} {
		_ = l.AddString(n, "value")
	}
	if n := testing.AllocsPerRun(100, func() { _, _ = ParseList(l.Wire()) }); n > 0 {
		t.Errorf("%v allocations", n)
	}
}

// SPDX-License-Identifier: Apache-2.0

package directory

import (
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/rocl-go/rocl/internal/testkit/try"
	"github.com/rocl-go/rocl/resource"
)

// labels returns a as Labels.
func labels(t testing.TB, a resource.Attributes) Labels {
	t.Helper()
	return try.Get(NewLabels(a))(t)
}

// many returns n labels.
func many(n int, value string) *resource.List {
	l := new(resource.List)
	for i := range n {
		_ = l.AddString("label"+strconv.Itoa(i), value)
	}
	return l
}

// Labels have limits, are copied, and survive the file of the identity.
//
// Promise (Nodes): Labels that are malformed, reserved, too many or too large are refused with the
// reason. See also TestWrong.
func TestLabels(t *testing.T) {
	for _, c := range []struct {
		a    resource.Attributes
		want error // nil: the labels are valid
	}{
		{nil, nil},
		{resource.Attrs{}, nil},
		{resource.Attrs{"zone": "a", "": "x"}, resource.ErrEmptyName},
		{resource.Attrs{"\xff": "x"}, resource.ErrBadName},
		{resource.Attrs{"rocl.kind": "context"}, resource.ErrReservedName},
		{resource.Attrs{"rocl.": "x"}, resource.ErrReservedName},
		{resource.Attrs{"rocl": "fine"}, nil},
		{resource.Attrs{strings.Repeat("n", resource.MaxName+1): "x"}, resource.ErrTooLarge},
		{list(t, nil, "blank"), ErrIncomplete},
		{many(maxLabels, "x"), nil},
		{many(600, "x"), ErrLabels},
		{many(1, strings.Repeat("x", maxLabelBytes)), ErrLabels},
		{many(200, strings.Repeat("x", 1000)), ErrLabels},
	} {
		l, err := NewLabels(c.a)
		try.Fails(err)(t, c.want, "%.40v", c.a)
		if err != nil {
			try.Equal(t, l.list.Len(), 0, "%.40v: refused, but kept", c.a)
			continue
		}
		if got := parseLabels(l.wire()); !got.list.Equal(&l.list) {
			t.Errorf("%.40v: kept as %v", c.a, &got.list)
		}
	}
	twice := new(resource.List)
	_ = twice.AddString("gpu", "a")
	_ = twice.AddString("gpu", "b")
	l := labels(t, twice)
	_ = twice.AddString("gpu", "c") // changes the caller's list alone
	if got := slices.Collect(l.list.Values("gpu")); len(got) != 2 {
		t.Errorf("%q", got)
	}
	// Bytes that no server has written count as no labels.
	for _, b := range []string{"", "x", "\x00", string(append(labels(t, resource.Attrs{"a": "b"}).wire(), 0))} {
		if got := parseLabels([]byte(b)); got.list.Len() != 0 {
			t.Errorf("%q: %v", b, &got.list)
		}
	}
}

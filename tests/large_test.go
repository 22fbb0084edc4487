// SPDX-License-Identifier: Apache-2.0

package tests

import (
	"strings"
	"testing"

	lib "github.com/rocl-go/rocl"
	"github.com/rocl-go/rocl/internal/testkit/eventually"
	"github.com/rocl-go/rocl/internal/testkit/try"
	"github.com/rocl-go/rocl/resource"
)

// fullest returns attributes of which the list has the largest size, to the byte.
func fullest(t *testing.T) lib.Attrs {
	t.Helper()
	a := lib.Attrs{"name": "huge", "a": strings.Repeat("a", resource.MaxValue), "b": ""}
	size := func() int {
		l := try.Get(resource.NewPattern(resource.Match(a)))(t)
		return len(l.Wire())
	}
	a["b"] = strings.Repeat("b", resource.MaxList-size())
	if n := size(); n != resource.MaxList {
		t.Fatalf("a list of %d bytes", n)
	}
	return a
}

// A resource whose list of attributes has the largest size is registered, found with all of its
// attributes, listed and looked up, by its own context and by another one. A byte more is refused.
func TestLargestList(t *testing.T) {
	ctx := eventually.Context(t)
	attrs := fullest(t)
	want := []string{"a", "b"} // the name is in the question
	sock := socket(t)
	start(t, `"serving"`, dirserver, "--socket", sock)
	c, other := open(t, sock), open(t, sock)
	r := try.Get(c.Register(ctx, attrs))(t)
	for _, c := range []*lib.Context{c, other} {
		check := func(how string, f lib.Found, err error) {
			t.Helper()
			if err != nil || f.ID != r.ID() {
				t.Fatalf("%s: %v, %v", how, f.ID, err)
			}
			for name, v := range attrs {
				if got := f.Attrs.GetString(name); got != v {
					t.Errorf("%s: %d bytes of %q, want %d", how, len(got), name, len(v))
				}
			}
		}
		f, err := c.Find(ctx, lib.Match{"name": "huge"}, lib.Want(want...))
		check("find", f, err)
		n := 0
		for f, err := range c.FindAll(ctx, lib.Match{"name": "huge"}, lib.Want(want...)) {
			check("list", f, err)
			n++
		}
		f, err = c.Lookup(ctx, r.ID())
		check("look-up", f, err)
		if n != 1 {
			t.Errorf("%d are listed", n)
		}
	}
	attrs["b"] += "b"
	try.Fails(c.Register(ctx, attrs))(t, lib.ErrTooLarge, "a byte more")
}

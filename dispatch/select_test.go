// SPDX-License-Identifier: Apache-2.0

package dispatch

import (
	"errors"
	"math"
	"slices"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"github.com/rocl-go/rocl/internal/testkit/try"
	"github.com/rocl-go/rocl/resource"
	"github.com/rocl-go/rocl/subsys/inproc"
)

func id(serial uint32) resource.GID { return resource.MakeGID(1, uint64(serial)/4, serial) }

// Selectors that contradict each other fail, and the error says why. The last selector does not
// win.
func TestSelectConflicts(t *testing.T) {
	w := newWorld()
	d := w.node(t, 1, inproc.NewNetwork().Transport())
	m := box(t, d, 1, 0)
	a, b := id(1), id(2)
	for name, sel := range map[string][]Select{
		"two tags":             {Tag(1), Tag(2)},
		"two origins":          {From(a), From(b)},
		"no origin":            {From()},
		"no tag":               {Tag()},
		"no alternative":       {Any()},
		"an empty alternative": {Any(Tag(1), From())},
		"an empty range":       {Tags(2, 1)},
		"bits beyond the mask": {TagMask(1, 2)},
		"tag beyond range":     {Tags(1, 5), Tag(6)},
		"ranges apart":         {Tags(1, 5), Tags(6, 9)},
		"bits that differ":     {TagMask(3, 1), TagMask(1, 0)},
		"bits beyond range":    {TagMask(1, 1), Tags(2, 2)},
		"lists apart":          {Tag(1, 2), Tag(3, 4)},
		"list beyond range":    {Tag(1, 2, 9), Tags(3, 8)},
		"origins apart":        {From(a, b), From(id(3), id(4))},
		"no alternative left":  {Any(Tag(1), From(a)), Tag(2), From(b)},
		"inner conjunction":    {Any(All(Tag(1), Tag(2)), Tag(3))},
		"third":                {From(a), Tag(1), Tag(2)},
		"valid and invalid":    {Tag(1), From()},
	} {
		for what, receive := range map[string]func() (*Message, error){
			"Recv":    func() (*Message, error) { return m.Recv(t.Context(), sel...) },
			"TryRecv": func() (*Message, error) { return m.TryRecv(sel...) },
		} {
			if _, err := receive(); !errors.Is(err, ErrSelect) || strings.Count(err.Error(), ":") < 2 {
				t.Errorf("%s: %s: %v", name, what, err)
			}
		}
	}
	for name, sel := range map[string][]Select{
		"the same twice": {Tag(1), Tag(1)},
		"list and one":   {Tag(1, 2), Tag(2), From(a, b), From(a)},
		"range and bits": {Tags(2, 3), TagMask(1, 1)},
		"everything":     {Tags(0, math.MaxUint64), TagMask(0, 0), All(), Select{}},
		"alternatives":   {Any(Tag(1), From(a)), Any(Tag(2), From(b))},
	} {
		try.Fails(m.TryRecv(sel...))(t, ErrEmpty, name)
	}
}

// Many alternatives are refused, not multiplied.
func TestSelectAlternatives(t *testing.T) {
	var sel []Select
	for i := range 40 {
		sel = append(sel, Any(TagMask(1<<i, 0), TagMask(1<<i, 1<<i), From(id(uint32(i)))))
	}
	if _, err := merge(sel, new(Select)); !errors.Is(err, ErrSelect) {
		t.Fatalf("3 to the power of 40 alternatives: %v", err)
	}
}

// The usual selectors allocate no memory.
func TestSelectAllocs(t *testing.T) {
	a, sum := id(1), uint64(0)
	if n := testing.AllocsPerRun(100, func() {
		for _, sel := range [][]Select{{}, {From(a)}, {Tag(1)}, {From(a), Tag(1)}, {Tags(1, 3)}, {TagMask(3, 1), From(a)}} {
			f := try.Get(merge(sel, new(Select)))(t)
			sum += f.first
		}
	}); n > 0 {
		t.Errorf("%v allocations", n)
	}
}

// A condition is a model of Select: it reports whether a message matches.
type condition func(from resource.GID, tag uint64) bool

// drawSelect draws a selector of origins 0 to 7 and small tags, with its model.
func drawSelect(t *rapid.T, depth int) (Select, condition) {
	tag := rapid.Uint64Range(0, 15)
	from := rapid.Custom(func(t *rapid.T) resource.GID { return id(rapid.Uint32Range(0, 7).Draw(t, "serial")) })
	switch rapid.IntRange(0, 4+depth).Draw(t, "kind") {
	case 0:
		ids := rapid.SliceOfN(from, 1, 4).Draw(t, "from")
		return From(ids...), func(f resource.GID, _ uint64) bool { return slices.Contains(ids, f) }
	case 1, 2:
		tags := rapid.SliceOfN(tag, 1, 4).Draw(t, "tags")
		return Tag(tags...), func(_ resource.GID, n uint64) bool { return slices.Contains(tags, n) }
	case 3:
		a, b := tag.Draw(t, "first"), tag.Draw(t, "last")
		a, b = min(a, b), max(a, b)
		return Tags(a, b), func(_ resource.GID, n uint64) bool { return a <= n && n <= b }
	case 4:
		mask := tag.Draw(t, "mask")
		value := tag.Draw(t, "value") & mask
		return TagMask(mask, value), func(_ resource.GID, n uint64) bool { return n&mask == value }
	}
	var sel []Select
	var is []condition
	for range rapid.IntRange(1, 3).Draw(t, "length") {
		s, c := drawSelect(t, depth-1)
		sel, is = append(sel, s), append(is, c)
	}
	if rapid.Bool().Draw(t, "any") {
		return Any(sel...), func(f resource.GID, n uint64) bool {
			return slices.ContainsFunc(is, func(c condition) bool { return c(f, n) })
		}
	}
	return All(sel...), func(f resource.GID, n uint64) bool {
		return !slices.ContainsFunc(is, func(c condition) bool { return !c(f, n) })
	}
}

// A conjunction matches the messages that each of its selectors matches. It is an error if no
// message matches and there is no contradiction within Any.
//
// Promise (Receiving): All selectors of a receive must match. Selectors that no message can match
// fail with `ErrSelect`. See also TestSelectConflicts.
func TestSelectModel(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var sel []Select
		var is []condition
		within := false // an alternative that no message can match
		for range rapid.IntRange(0, 4).Draw(t, "selectors") {
			s, c := drawSelect(t, 2)
			sel, is = append(sel, s), append(is, c)
			within = within || s.err() != nil
		}
		f, err := merge(sel, new(Select))
		matched := false
		expected := map[resource.GID]bool{}
		for serial := range uint32(8) {
			for tag := range uint64(16) {
				from := id(serial)
				want := !slices.ContainsFunc(is, func(c condition) bool { return !c(from, tag) })
				matched = matched || want
				if err != nil {
					continue
				}
				if got := f.matches(&Message{from: from, tag: tag}); got != want {
					t.Fatalf("origin %v, tag %d: %v, want %v", from, tag, got, want)
				}
				if want {
					expected[from.Context()] = true
				}
			}
		}
		switch {
		case within && !errors.Is(err, ErrSelect):
			t.Fatalf("an invalid selector is taken: %v", err)
		case !within && matched != (err == nil):
			t.Fatalf("there is a match: %v, and the error is: %v", matched, err)
		}
		if err != nil {
			return
		}
		for serial := range uint32(8) {
			c := id(serial).Context()
			only := len(expected) == 1 && expected[c]
			if expected[c] && !f.expects(c, false) {
				t.Fatalf("nothing is expected of %v", c)
			} else if f.expects(c, true) && !only {
				t.Fatalf("messages only of %v are expected, and %v match", c, expected)
			}
		}
		if g, _ := merge(sel, new(Select)); !f.equals(g) {
			t.Fatal("a selector does not equal itself")
		}
	})
}

// SPDX-License-Identifier: Apache-2.0

package resource

import (
	"fmt"
	"math/rand/v2"
	"testing"

	"github.com/rocl-go/rocl/internal/testkit/try"
)

// numbered returns a list of n attributes with values of size bytes, in the order of their numbers
// or in reverse.
func numbered(n, size int, reverse bool) *List {
	var l List
	for i := range n {
		if reverse {
			i = n - 1 - i
		}
		_ = l.Add(fmt.Sprintf("%04d", i), make([]byte, size))
	}
	return &l
}

// Lists of many attributes are matched and filled as lists of few are.
//
// Promise (Resources): The cost of attribute lists grows with their length, not with its square.
// See also TestManyAttributesChurn.
func TestManyAttributes(t *testing.T) {
	for seed := range uint64(400) {
		rnd := rand.New(rand.NewPCG(seed, 1))
		random := func(n, names int) *List {
			var l List
			for range n {
				name := fmt.Sprint(rnd.IntN(names))
				if rnd.IntN(4) == 0 {
					_ = l.Want(name)
				} else {
					_ = l.AddString(name, fmt.Sprint(rnd.IntN(2)))
				}
			}
			return &l
		}
		r, p := random(few+1+rnd.IntN(200), 20), random(1+rnd.IntN(60), 20)
		if seed%2 == 0 { // a pattern that matches, sometimes except for one attribute
			p = new(List)
			for range few + 1 + rnd.IntN(60) {
				var all []attr
				for a := range each(r.Wire()) {
					all = append(all, a)
				}
				a := all[rnd.IntN(len(all))]
				_ = add(p, string(a.name), a.value, !a.known)
			}
			if seed%4 == 0 {
				_ = p.AddString("nobody", "has this")
			}
		}
		want := true
		for a, at := KnownAt(p.Wire(), 0); a != nil; a, at = KnownAt(p.Wire(), at) {
			want = want && has(r.Wire(), a)
		}
		if got := Matches(r, p); got != want {
			t.Fatalf("seed %d: matches is %v, want %v", seed, got, want)
		}

		var filled List
		for a := range each(p.Wire()) {
			v, ok := a.value, a.known
			if !ok {
				v, ok = r.Get(string(a.name))
			}
			_ = add(&filled, string(a.name), v, !ok)
		}
		if n := p.FilledLen(r); n != len(filled.Wire()) {
			t.Fatalf("seed %d: %d bytes when filled, want %d", seed, n, len(filled.Wire()))
		}
		if p.Fill(r); !p.Equal(&filled) {
			t.Fatalf("seed %d: filled is %v, want %v", seed, p, &filled)
		}
	}

	// An attribute whose value would exceed the limit of the list stays absent.
	l, r := new(List), numbered(MaxAttrs, MaxList/MaxAttrs, false)
	for i := range few + 1 {
		_ = r.Set(fmt.Sprintf("%04d", i), make([]byte, 8<<10))
	}
	for range MaxAttrs {
		_ = l.Want("0000")
	}
	if l.Fill(r); len(l.Wire()) > MaxList || len(l.Wire()) < MaxList-16<<10 {
		t.Errorf("filled with %d bytes, at most %d", len(l.Wire()), MaxList)
	}
	try.Get(ParseList(l.Wire()))(t)
}

// SPDX-License-Identifier: Apache-2.0

package list

import (
	"slices"
	"testing"

	"pgregory.net/rapid"
)

type element struct {
	n    int
	here Place[element]
}

// A list has the elements that a slice has after the same operations, in both directions.
func TestModel(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var l List[element]
		var model []*element
		for n := range rapid.IntRange(0, 30).Draw(t, "operations") {
			e := &element{n: n}
			switch rapid.IntRange(0, 3).Draw(t, "operation") {
			case 0:
				l.PushBack(e, &e.here)
				model = append(model, e)
			case 1:
				l.PushFront(e, &e.here)
				model = slices.Insert(model, 0, e)
			case 2:
				if len(model) == 0 {
					continue
				}
				i := rapid.IntRange(0, len(model)-1).Draw(t, "at")
				if l.Replace(&model[i].here, e, &e.here); model[i].here.IsListed() {
					t.Fatal("an element that was replaced is listed")
				}
				model[i] = e
			default:
				if len(model) == 0 {
					continue
				}
				i := rapid.IntRange(0, len(model)-1).Draw(t, "at")
				e = model[i]
				model = slices.Delete(model, i, i+1)
				if l.Remove(&e.here); e.here.IsListed() || e.here.Next() != nil || e.here.Prev() != nil {
					t.Fatal("an element that was removed has neighbours")
				}
			}
		}
		var forth, back []*element
		for e := l.First(); e != nil; e = e.here.Next() {
			forth = append(forth, e)
		}
		for e := l.Last(); e != nil; e = e.here.Prev() {
			back = append([]*element{e}, back...)
		}
		if !slices.Equal(forth, model) || !slices.Equal(back, model) {
			t.Fatalf("%v and %v, want %v", forth, back, model)
		}
		if slices.ContainsFunc(model, func(e *element) bool { return !e.here.IsListed() }) {
			t.Fatal("an element is said to be in no list")
		}
	})
}

func TestNoAllocs(t *testing.T) {
	var l List[element]
	e := new(element)
	if n := testing.AllocsPerRun(100, func() { l.PushBack(e, &e.here); l.Remove(&e.here) }); n > 0 {
		t.Errorf("%v allocations", n)
	}
}

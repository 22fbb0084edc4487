// SPDX-License-Identifier: Apache-2.0

package database

import (
	"fmt"
	"testing"

	"github.com/rocl-go/rocl/internal/testkit/try"
	"github.com/rocl-go/rocl/resource"
)

// Find does not allocate.
func TestFindAllocs(t *testing.T) {
	d := New()
	ctx := resource.MakeGID(1, 1, 0)
	for i := range 100 {
		l, _ := resource.NewPattern(resource.Attrs{"type": "worker", "name": fmt.Sprint(i)})
		try.Get(d.Put(ctx.WithSerial(uint32(i+1)), ctx, l))(t)
	}
	for _, m := range []resource.Match{{"type": "worker"}, {"name": "7"}, {"type": "worker", "name": "8"}, {"name": "none"}} {
		p, _ := resource.NewPattern(m)
		if n := testing.AllocsPerRun(100, func() { d.Find(p) }); n > 0 {
			t.Errorf("%v: %v allocations", m, n)
		}
	}
}

// Attributes that a reader holds stay the same, whatever happens to the resource.
func TestViewsStay(t *testing.T) {
	d := New()
	ctx := resource.MakeGID(1, 1, 0)
	list := func(i, round int) *resource.List {
		l, _ := resource.NewPattern(resource.Attrs{"n": fmt.Sprint(i), "round": fmt.Sprint(round), "pad": string(make([]byte, 2000))})
		return l
	}
	const n = 3000
	held := make([]Record, n)
	for i := range n {
		try.Get(d.Put(ctx.WithSerial(uint32(i+1)), ctx, list(i, 0)))(t)
		held[i], _ = d.Get(ctx.WithSerial(uint32(i + 1)))
	}
	for round := 1; round < 4; round++ { // long enough for compact to run
		for i := range n {
			try.Get(d.Update(ctx.WithSerial(uint32(i+1)), 0, list(i, round)))(t)
		}
	}
	d.DeleteOwner(ctx)
	for i := range held {
		if !held[i].Attrs.Equal(list(i, 0)) {
			t.Fatalf("resource %d reads %v", i, &held[i].Attrs)
		}
	}
}

func ExampleDB_Find() {
	d := New()
	ctx := resource.MakeGID(0xa1, 1, 0)
	attrs, _ := resource.NewPattern(resource.Attrs{"type": "worker", "site": "porto"})
	_, _ = d.Put(ctx.WithSerial(1), ctx, attrs)
	pattern, _ := resource.NewPattern(resource.Match{"site": "porto"})
	r, ok := d.Find(pattern)
	fmt.Println(r.ID, r.Revision, &r.Attrs, ok)
	// Output: 0000000000a1-1-1 1 {site=porto, type=worker} true
}

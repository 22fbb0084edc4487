// SPDX-License-Identifier: Apache-2.0

package database

import (
	"fmt"
	"math/rand/v2"
	"testing"

	"github.com/rocl-go/rocl/internal/testkit/must"
	"github.com/rocl-go/rocl/resource"
)

// When resources of many attributes come and go in any order, the postings still have all other
// resources.
func TestManyAttributesChurn(t *testing.T) {
	d := New()
	rnd := rand.New(rand.NewPCG(1, 2))
	owner := resource.MakeGID(1, 1, 0)
	there := map[uint32]map[int]bool{}
	for step := range 2000 {
		serial := uint32(1 + rnd.IntN(12))
		if there[serial] != nil {
			must.OK(d.Delete(owner.WithSerial(serial)))
			delete(there, serial)
		} else {
			var l resource.List
			has := map[int]bool{}
			for range 1 + rnd.IntN(80) {
				n := rnd.IntN(60)
				has[n] = true
				_ = l.AddString("n", fmt.Sprint(n))
			}
			must.Get(d.Put(owner.WithSerial(serial), owner, &l))
			there[serial] = has
		}
		n := step % 60
		p, _ := resource.NewPattern(resource.Match{"n": fmt.Sprint(n)})
		want, got := 0, 0
		for _, has := range there {
			if has[n] {
				want++
			}
		}
		for c := d.Cursor(p); ; got++ {
			if _, ok := c.Next(); !ok {
				break
			}
		}
		if got != want {
			t.Fatalf("step %d: %d resources, want %d", step, got, want)
		}
	}
}

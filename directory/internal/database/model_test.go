// SPDX-License-Identifier: Apache-2.0

package database

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"testing"

	"github.com/rocl-go/rocl/internal/testkit/try"
	"github.com/rocl-go/rocl/resource"
	"go.uber.org/goleak"
	"pgregory.net/rapid"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

type entry struct {
	owner resource.GID
	rev   uint64
	attrs resource.List
}

// The database behaves as a map does, and a watch ends up knowing the same resources.
//
// Promise (Resources): No answer is wrong because of a hash: answers come by comparison.
//
// Promise (Watches): A watch tells what all members hold, then `Synced`, then what happens, in
// order for each resource. In the end it has told every resource that matches. See also
// directory/cluster: TestWatch.
func TestAgainstModel(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		d := New()
		model := map[resource.GID]*entry{}
		ids := make([]resource.GID, 12)
		for i := range ids {
			ids[i] = resource.MakeGID(1, uint64(1+i%3), uint32(1+i))
		}
		var watched resource.List
		_ = watched.AddString("a", "1")
		w := d.Watch(&watched)
		defer w.Close()
		knows := map[resource.GID]uint64{}
		drain := func() {
			for {
				w.mu.Lock()
				ev, ok := w.nextLocked()
				w.mu.Unlock()
				if !ok {
					return
				}
				_, known := knows[ev.ID]
				switch ev.Kind {
				case Appeared:
					if known {
						t.Fatalf("%v appeared twice", ev.ID)
					}
					knows[ev.ID] = ev.Revision
				case Changed:
					if !known {
						t.Fatalf("%v changed before it appeared", ev.ID)
					}
					knows[ev.ID] = ev.Revision
				case Gone:
					if !known {
						t.Fatalf("%v went before it appeared", ev.ID)
					}
					delete(knows, ev.ID)
				}
			}
		}
		t.Repeat(map[string]func(*rapid.T){
			"put": func(t *rapid.T) {
				id, l := rapid.SampledFrom(ids).Draw(t, "id"), randomList.Draw(t, "l")
				_, err := d.Put(id, id.Context(), &l)
				if model[id] != nil {
					if !errors.Is(err, ErrExists) {
						t.Fatal(err)
					}
					return
				}
				try.OK(t, err)
				model[id] = &entry{id.Context(), 1, l.Clone()}
			},
			"update": func(t *rapid.T) {
				id, l := rapid.SampledFrom(ids).Draw(t, "id"), randomList.Draw(t, "l")
				expect := rapid.Uint64Max(3).Draw(t, "expect")
				rev, err := d.Update(id, expect, &l)
				e := model[id]
				switch {
				case e == nil:
					if !errors.Is(err, ErrNotFound) {
						t.Fatal(err)
					}
				case expect != 0 && expect != e.rev:
					if !errors.Is(err, ErrRevision) {
						t.Fatal(err)
					}
				default:
					e.rev++
					e.attrs = l.Clone()
					if err != nil || rev != e.rev {
						t.Fatal(rev, err)
					}
				}
			},
			"delete": func(t *rapid.T) {
				id := rapid.SampledFrom(ids).Draw(t, "id")
				err := d.Delete(id)
				if (model[id] == nil) != errors.Is(err, ErrNotFound) {
					t.Fatal(err)
				}
				delete(model, id)
			},
			"deleteOwner": func(t *rapid.T) {
				o := rapid.SampledFrom(ids).Draw(t, "id").Context()
				n := d.DeleteOwner(o)
				for id, e := range model {
					if e.owner == o {
						delete(model, id)
						n--
					}
				}
				try.Equal(t, n, 0, "deleted another number")
			},
			"read": func(*rapid.T) { drain() },
			"": func(t *rapid.T) {
				if d.Len() != len(model) {
					t.Fatalf("%d resources, want %d", d.Len(), len(model))
				}
				p := randomList.Draw(t, "pattern")
				want := map[resource.GID]bool{}
				for id, e := range model {
					if resource.Matches(&e.attrs, &p) {
						want[id] = true
					}
				}
				if r, ok := d.Find(&p); ok != (len(want) > 0) || ok && !want[r.ID] {
					t.Fatalf("find %v: %v %v", &p, r.ID, ok)
				}
				d.Cursor(&p).Take(func(r Record) bool {
					e := model[r.ID]
					if !want[r.ID] || !r.Attrs.Equal(&e.attrs) || r.Revision != e.rev || r.Owner != e.owner {
						t.Fatalf("cursor %v yields %+v", &p, r)
					}
					delete(want, r.ID)
					return true
				})
				if len(want) > 0 {
					t.Fatalf("cursor %v misses %v", &p, want)
				}
			},
		})
		drain()
		for id, e := range model {
			if resource.Matches(&e.attrs, &watched) {
				if knows[id] != e.rev {
					t.Fatalf("the watch knows %v at %d, it is at %d", id, knows[id], e.rev)
				}
				delete(knows, id)
			}
		}
		if len(knows) > 0 {
			t.Fatalf("the watch still knows %v", knows)
		}
	})
}

// count returns how many resources match.
func count(d *DB, p *resource.List) (n int) {
	d.Cursor(p).Take(func(Record) bool { n++; return true })
	return n
}

// randomList draws a list of few names and values.
var randomList = rapid.Custom(func(t *rapid.T) resource.List {
	var l resource.List
	for range rapid.IntRange(0, 4).Draw(t, "n") {
		_ = l.AddString(rapid.SampledFrom([]string{"a", "b", "c"}).Draw(t, "name"), rapid.SampledFrom([]string{"", "1", "2"}).Draw(t, "value"))
	}
	return l
})

// Changes in long postings move records within them, and the chunks are compacted.
func TestChurn(t *testing.T) {
	d := New()
	ctx := resource.MakeGID(1, 1, 0)
	put := func(i int) {
		l, _ := resource.NewPattern(resource.Attrs{"all": "same", "mod": fmt.Sprint(i % 7), "own": fmt.Sprint(i), "pad": string(make([]byte, 500))})
		try.Get(d.Put(ctx.WithSerial(uint32(i+1)), ctx, l))(t)
	}
	const n = 20_000
	for i := range n {
		put(i)
	}
	for i := range n {
		if i%3 != 0 {
			try.OK(t, d.Delete(ctx.WithSerial(uint32(i+1))))
		}
	}
	if s := d.Stats(); s.DeadBytes > s.AttributeBytes+8<<20 {
		t.Errorf("%d dead bytes beside %d living", s.DeadBytes, s.AttributeBytes)
	}
	for m := range 7 {
		p, _ := resource.NewPattern(resource.Match{"mod": fmt.Sprint(m), "all": "same"})
		got, want := count(d, p), 0
		for i := range n {
			if i%3 == 0 && i%7 == m {
				want++
			}
		}
		try.Equal(t, got, want, "resources with mod=%d", m)
	}
	if k := d.DeleteOwner(ctx); k != (n+2)/3 || d.Len() != 0 {
		t.Errorf("deleted %d, %d left", k, d.Len())
	}
}

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
			try.OK(t, d.Delete(owner.WithSerial(serial)))
			delete(there, serial)
		} else {
			var l resource.List
			has := map[int]bool{}
			for range 1 + rnd.IntN(80) {
				n := rnd.IntN(60)
				has[n] = true
				_ = l.AddString("n", fmt.Sprint(n))
			}
			try.Get(d.Put(owner.WithSerial(serial), owner, &l))(t)
			there[serial] = has
		}
		n := step % 60
		p, _ := resource.NewPattern(resource.Match{"n": fmt.Sprint(n)})
		want, got := 0, count(d, p)
		for _, has := range there {
			if has[n] {
				want++
			}
		}
		if got != want {
			t.Fatalf("step %d: %d resources, want %d", step, got, want)
		}
	}
}

// The cost of deleting resources with many attributes grows with the length of their lists, not
// with its square. The database answers nothing else meanwhile.
func TestManyAttributesCost(t *testing.T) {
	scanned := func(attrs int) uint64 {
		d := New()
		var l resource.List
		for i := range attrs {
			_ = l.AddString(fmt.Sprint(i), "")
		}
		owner := resource.MakeGID(1, 1, 0)
		const n = 50
		for i := range uint32(n) {
			try.Get(d.Put(owner.WithSerial(1+i), owner, &l))(t)
		}
		for i := range uint32(n) {
			try.OK(t, d.Delete(owner.WithSerial(1+i)))
		}
		return d.scanned
	}
	half, full := scanned(resource.MaxAttrs/2), scanned(resource.MaxAttrs)
	if half == 0 || full > 3*half {
		t.Errorf("%d attributes are looked at for lists of %d, and %d for lists of %d", half, resource.MaxAttrs/2, full, resource.MaxAttrs)
	}
}

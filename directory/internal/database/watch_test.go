// SPDX-License-Identifier: Apache-2.0

package database

import (
	"context"
	"errors"
	"runtime"
	"testing"
	"testing/synctest"
	"weak"

	"github.com/rocl-go/rocl/internal/testkit/try"
	"github.com/rocl-go/rocl/resource"
)

// While a watch is held, resources added with Tell come before Synced. Each causes one event,
// however often it changes unread. A resource that came and went unread causes none.
func TestHeldWatch(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := New()
		var p resource.List
		_ = p.AddString("a", "1")
		here, there := resource.MakeGID(1, 1, 1), resource.MakeGID(2, 1, 1)
		try.Get(d.Put(here, here.Context(), &p))(t)
		w := d.Watch(&p)
		w.Hold()
		want := func(kind Kind, id resource.GID, rev uint64) {
			t.Helper()
			ev, err := w.Next(t.Context())
			if err != nil || ev.Kind != kind || ev.ID != id || ev.Revision != rev {
				t.Fatalf("%v %v, revision %d, %v; want %v %v, %d", ev.Kind, ev.ID, ev.Revision, err, kind, id, rev)
			}
		}
		want(Appeared, here, 1)
		ctx, cancel := context.WithCancel(t.Context())
		go func() {
			synctest.Wait()
			cancel()
		}()
		if ev, err := w.Next(ctx); !errors.Is(err, context.Canceled) {
			t.Fatalf("while held: %v, %v", ev.Kind, err)
		}
		w.Drop(there) // was never told
		w.Put(Record{ID: there, Revision: 1, Attrs: p})
		w.Put(Record{ID: there, Revision: 2, Attrs: p})
		w.Release()
		w.Put(Record{ID: there.WithSerial(2), Revision: 7, Attrs: p}) // too late to come before Synced
		want(Appeared, there, 2)
		want(Synced, resource.GID{}, 0)
		want(Appeared, there.WithSerial(2), 7)
		w.Hold() // no effect after Synced
		w.Put(Record{ID: there, Revision: 3, Attrs: p})
		want(Changed, there, 3)
		w.Release()
		w.Drop(there)
		w.Drop(there)
		want(Gone, there, 3)
		w.Put(Record{ID: there, Revision: 4, Attrs: p}) // comes and goes unread
		w.Drop(there)
		try.OK(t, d.Delete(here))
		want(Gone, here, 1)
		w.Close()
		try.Fails(w.Next(t.Context()))(t, ErrWatchClosed)
	})
}

// A watch that is not read keeps an entry for what matches now and for what its reader knows. It
// keeps no entry and no chunk of attributes of what came and went.
//
// Promise (Watches): A watch that is not read keeps an entry a resource, and nothing of those that
// came and went. See also directory: TestUnreadWatch.
func TestUnreadWatch(t *testing.T) {
	d := New()
	owner := resource.MakeGID(1, 1, 0)
	var p resource.List
	_ = p.AddString("a", "1")
	large := p.Clone()
	_ = large.Add("large", make([]byte, 60<<10))
	id := func(i int) resource.GID { return owner.WithSerial(uint32(i)) }
	put := func(i int, l *resource.List) {
		t.Helper()
		try.Get(d.Put(id(i), owner, l))(t)
	}
	remove := func(i int) {
		t.Helper()
		try.OK(t, d.Delete(id(i)))
	}
	const read, registered = 2, 4 // the watch has read resources 1 and 2, not 3 and 4
	for i := 1; i <= registered; i++ {
		put(i, &large)
	}
	w := d.Watch(&p)
	defer w.Close()
	for range read {
		if ev, err := w.Next(t.Context()); err != nil || ev.Kind != Appeared {
			t.Fatal(ev.Kind, err)
		}
	}
	far := resource.MakeGID(2, 1, 0)
	chunks := []weak.Pointer[byte]{}
	seen := map[*byte]bool{}
	for i := range 500 { // 30 MiB
		put(100+i, &large)
		if c := d.chunks[len(d.chunks)-1]; !seen[&c[0]] {
			clear(seen)
			seen[&c[0]] = true
			chunks = append(chunks, weak.Make(&c[0]))
		}
		remove(100 + i)
		w.Put(Record{ID: far.WithSerial(uint32(i)), Revision: 1, Attrs: p}) // a resource of another node
		w.Drop(far.WithSerial(uint32(i)))
	}
	clear(seen)
	if n := d.Stats().Watched; n != registered {
		t.Errorf("the watch keeps %d entries for %d resources", n, registered)
	}
	runtime.GC()
	kept := 0
	for _, c := range chunks {
		if c.Value() != nil {
			kept++
		}
	}
	if most := len(d.chunks); kept > most {
		t.Errorf("%d of %d chunks are kept, the database has %d", kept, len(chunks), most)
	}
	for i := 1; i <= registered; i++ {
		remove(i)
	}
	if n := d.Stats().Watched; n != read {
		t.Errorf("the watch keeps %d entries, of %d resources its reader has read", n, read)
	}
	for _, want := range []Kind{Synced, Gone, Gone} {
		ev, err := w.Next(t.Context())
		if err != nil || ev.Kind != want || want == Gone && ev.Attrs.Len() != 2 {
			t.Errorf("%v %v, %v; want %v", ev.Kind, ev.ID, err, want)
		}
	}
	if n := d.Stats().Watched; n != 0 {
		t.Errorf("%d entries when all was read", n)
	}
}

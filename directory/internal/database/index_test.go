// SPDX-License-Identifier: Apache-2.0

package database

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"testing"

	"github.com/rocl-go/rocl/directory/internal/index"
	"github.com/rocl-go/rocl/internal/os/memfd"
	"github.com/rocl-go/rocl/internal/testkit/try"
	"github.com/rocl-go/rocl/resource"
	"pgregory.net/rapid"
)

// indexErr returns the reason why d's last index ended. It returns nil while there is an index, and
// if there never was one.
func indexErr(d *DB) error {
	d.mu.RLock()
	defer d.mu.RUnlock()
	return d.indexErr
}

// openIndex returns a reader of d's index.
func openIndex(t testing.TB, d *DB) *index.Reader {
	t.Helper()
	fd, size, err := d.IndexFile()
	try.OK(t, err)
	defer memfd.Close(fd)
	r := try.Get(index.Open(fd, size))(t)
	t.Cleanup(r.Close)
	return r
}

// agree checks that an index and the database give the same answers, for each pattern and each
// identifier.
func agree(t rapid.TB, d *DB, r *index.Reader, patterns []resource.List, ids []resource.GID) {
	t.Helper()
	for i := range patterns {
		p := &patterns[i]
		_, ok := d.Find(p)
		rec, v := r.Find(p, nil)
		if v == index.Ended || v == index.Found && (!ok || !resource.Matches(&rec.Attrs, p)) || v == index.None && ok {
			t.Fatalf("%v: the index says %v, the database %v", p, v, ok)
		}
	}
	for _, id := range ids {
		want, ok := d.Get(id)
		rec, v := r.Lookup(id, nil)
		if ok != (v == index.Found) || ok && (rec.ID != want.ID || rec.Owner != want.Owner || rec.Revision != want.Revision || !rec.Attrs.Equal(&want.Attrs)) {
			t.Fatalf("%v: the index says %v %+v, the database %v %+v", id, v, rec, ok, want)
		}
	}
}

// An index that is filled while the database changes has the database's content in the end, and
// follows later changes.
func TestIndexAgainstDatabase(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		d := New()
		defer d.DropIndex()
		var filling *index.Writer
		var r *index.Reader
		end := func() {
			if r != nil {
				r.Close()
			}
			r = nil
		}
		defer end()
		ids := make([]resource.GID, 30)
		for i := range ids {
			ids[i] = resource.MakeGID(1, uint64(1+i%3), uint32(1+i))
		}
		pick := rapid.SampledFrom(ids)
		t.Repeat(map[string]func(*rapid.T){
			"put": func(t *rapid.T) {
				id, l := pick.Draw(t, "id"), randomList.Draw(t, "l")
				_, _ = d.Put(id, id.Context(), &l)
			},
			"update": func(t *rapid.T) {
				l := randomList.Draw(t, "l")
				_, _ = d.Update(pick.Draw(t, "id"), 0, &l)
			},
			"delete": func(t *rapid.T) { _ = d.Delete(pick.Draw(t, "id")) },
			"delete owner": func(t *rapid.T) {
				if rapid.IntRange(0, 9).Draw(t, "seldom") == 0 {
					d.DeleteOwner(pick.Draw(t, "id").Context())
				}
			},
			"index": func(t *rapid.T) {
				if r != nil || filling != nil {
					return
				}
				var err error
				if filling, err = d.beginIndex(0); err != nil {
					t.Skip(err)
				}
			},
			"fill": func(t *rapid.T) {
				if filling == nil {
					return
				}
				done := try.Get(d.fill(filling, rapid.IntRange(1, 8).Draw(t, "n")))(t)
				if !done {
					return
				}
				filling = nil
				fd, size, err := d.IndexFile()
				if err == nil {
					r, err = index.Open(fd, size)
					memfd.Close(fd)
				}
				try.OK(t, err)
			},
			"drop": func(t *rapid.T) {
				if r != nil && rapid.IntRange(0, 9).Draw(t, "seldom") == 0 {
					d.DropIndex()
					if _, v := r.Lookup(ids[0], nil); v != index.Ended {
						t.Fatalf("an index that was dropped says %v", v)
					}
					end()
				}
			},
			"": func(t *rapid.T) {
				if r != nil {
					agree(t, d, r, []resource.List{randomList.Draw(t, "pattern"), randomList.Draw(t, "another")}, ids)
				}
				if err := indexErr(d); err != nil && !errors.Is(err, index.ErrEnded) {
					t.Fatal(err)
				}
			},
		})
	})
}

// The same with several goroutines and with long postings.
func TestIndexWhileChanging(t *testing.T) {
	d := New()
	defer d.DropIndex()
	ctx := resource.MakeGID(1, 1, 0)
	list := func(i, round int) *resource.List {
		l, err := resource.NewPattern(resource.Attrs{"all": "same", "mod": fmt.Sprint(i % 7), "own": fmt.Sprint(i), "round": fmt.Sprint(round % 3)})
		if err != nil {
			t.Error(err)
		}
		return l
	}
	const n, changers = 4000, 3
	for i := range n / 2 {
		try.Get(d.Put(ctx.WithSerial(uint32(i+1)), ctx, list(i, 0)))(t)
	}
	var wg sync.WaitGroup
	for c := range changers {
		wg.Go(func() {
			for round := range 4 * n {
				i := rand.IntN(n/changers)*changers + c
				id := ctx.WithSerial(uint32(i + 1))
				switch rand.IntN(3) {
				case 0:
					_, _ = d.Put(id, ctx, list(i, round))
				case 1:
					_, _ = d.Update(id, 0, list(i, round))
				default:
					_ = d.Delete(id)
				}
			}
		})
	}
	if err := d.MakeIndex(t.Context(), 64<<20); err != nil {
		t.Skip(err)
	}
	try.Fails(d.MakeIndex(t.Context(), 64<<20))(t, ErrHasIndex)
	wg.Wait()
	r := openIndex(t, d)
	var patterns []resource.List
	var ids []resource.GID
	for i := range n {
		patterns = append(patterns, *list(i, 0), *list(i, 1))
		ids = append(ids, ctx.WithSerial(uint32(i+1)))
	}
	agree(t, d, r, patterns, ids)
	d.DeleteOwner(ctx)
	agree(t, d, r, patterns, ids)
}

// An index that cannot go on is dropped, and the database works on.
func TestIndexFails(t *testing.T) {
	d := New()
	if err := d.MakeIndex(t.Context(), 1); err != nil {
		t.Skip(err)
	}
	r := openIndex(t, d)
	ctx := resource.MakeGID(1, 1, 0)
	pad := string(make([]byte, 60_000))
	for i := range uint32(200) {
		l, _ := resource.NewPattern(resource.Attrs{"i": fmt.Sprint(i), "pad": pad})
		try.Get(d.Put(ctx.WithSerial(i+1), ctx, l))(t)
	}
	try.Fails(indexErr(d))(t, index.ErrFull)
	if _, v := r.Lookup(ctx.WithSerial(1), nil); v != index.Ended {
		t.Errorf("an index that is full says %v", v)
	}
	try.Fails(d.IndexFile())(t, index.ErrFull)
	try.Fails(d.MakeIndex(t.Context(), 1))(t, index.ErrFull, "too small an index was made")
	ended, end := context.WithCancel(t.Context())
	end()
	try.Fails(d.MakeIndex(ended, 64<<20))(t, context.Canceled)
	if d.Len() != 200 || d.Stats().IndexBytes != 0 {
		t.Errorf("%+v", d.Stats())
	}
}

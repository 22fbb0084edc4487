// SPDX-License-Identifier: Apache-2.0

package database

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"testing"
	"time"

	"github.com/rocl-go/rocl/directory/image"
	"github.com/rocl-go/rocl/internal/memfd"
	"github.com/rocl-go/rocl/resource"
	"pgregory.net/rapid"
)

// openImage returns a reader of d's image.
func openImage(t testing.TB, d *DB) *image.Reader {
	t.Helper()
	fd, size, err := d.ImageFile()
	if err != nil {
		t.Fatal(err)
	}
	defer memfd.Close(fd)
	r, err := image.Open(fd, size)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(r.Close)
	return r
}

// agree checks that an image and the database give the same answers, for each pattern and each
// identifier.
func agree(t interface {
	Helper()
	Fatalf(string, ...any)
}, d *DB, r *image.Reader, patterns []resource.List, ids []resource.GID) {
	t.Helper()
	for i := range patterns {
		p := &patterns[i]
		_, ok := d.Find(p)
		rec, v := r.Find(p, nil)
		if v == image.Over || v == image.Found && (!ok || !resource.Matches(&rec.Attrs, p)) || v == image.None && ok {
			t.Fatalf("%v: the image says %v, the database %v", p, v, ok)
		}
	}
	for _, id := range ids {
		want, ok := d.Get(id)
		rec, v := r.Lookup(id, nil)
		if ok != (v == image.Found) || ok && (rec.ID != want.ID || rec.Owner != want.Owner || rec.Revision != want.Revision || !rec.Attrs.Equal(&want.Attrs)) {
			t.Fatalf("%v: the image says %v %+v, the database %v %+v", id, v, rec, ok, want)
		}
	}
}

// An image that is filled while the database changes has the database's content in the end, and
// follows later changes.
func TestImageAgainstDatabase(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		d := New()
		defer d.DropImage()
		var filling *image.Writer
		var r *image.Reader
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
		draw := rapid.Custom(func(t *rapid.T) resource.List {
			var l resource.List
			for range rapid.IntRange(0, 4).Draw(t, "n") {
				_ = l.AddString(rapid.SampledFrom([]string{"a", "b", "c"}).Draw(t, "name"), rapid.SampledFrom([]string{"", "1", "2"}).Draw(t, "value"))
			}
			return l
		})
		pick := rapid.SampledFrom(ids)
		t.Repeat(map[string]func(*rapid.T){
			"put": func(t *rapid.T) {
				id, l := pick.Draw(t, "id"), draw.Draw(t, "l")
				_, _ = d.Put(id, id.Context(), &l)
			},
			"put 2": func(t *rapid.T) {
				id, l := pick.Draw(t, "id"), draw.Draw(t, "l")
				_, _ = d.Put(id, id.Context(), &l)
			},
			"update": func(t *rapid.T) {
				l := draw.Draw(t, "l")
				_, _ = d.Update(pick.Draw(t, "id"), 0, &l)
			},
			"delete": func(t *rapid.T) { _ = d.Delete(pick.Draw(t, "id")) },
			"delete owner": func(t *rapid.T) {
				if rapid.IntRange(0, 9).Draw(t, "seldom") == 0 {
					d.DeleteOwner(pick.Draw(t, "id").Context())
				}
			},
			"image": func(t *rapid.T) {
				if r != nil || filling != nil {
					return
				}
				var err error
				if filling, err = d.beginImage(0); err != nil {
					t.Skip(err)
				}
			},
			"fill": func(t *rapid.T) {
				if filling == nil {
					return
				}
				done, err := d.fill(filling, rapid.IntRange(1, 8).Draw(t, "n"))
				if err != nil {
					t.Fatal(err)
				}
				if !done {
					return
				}
				filling = nil
				fd, size, err := d.ImageFile()
				if err == nil {
					r, err = image.Open(fd, size)
					memfd.Close(fd)
				}
				if err != nil {
					t.Fatal(err)
				}
			},
			"drop": func(t *rapid.T) {
				if r != nil && rapid.IntRange(0, 9).Draw(t, "seldom") == 0 {
					d.DropImage()
					if _, v := r.Lookup(ids[0], nil); v != image.Over {
						t.Fatalf("an image that was dropped says %v", v)
					}
					end()
				}
			},
			"": func(t *rapid.T) {
				if r != nil {
					agree(t, d, r, []resource.List{draw.Draw(t, "pattern"), draw.Draw(t, "another")}, ids)
				}
				if err := d.ImageErr(); err != nil && !errors.Is(err, image.ErrEnded) {
					t.Fatal(err)
				}
			},
		})
	})
}

// The same with several goroutines and with long postings.
func TestImageWhileChanging(t *testing.T) {
	d := New()
	defer d.DropImage()
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
		if _, err := d.Put(ctx.WithSerial(uint32(i+1)), ctx, list(i, 0)); err != nil {
			t.Fatal(err)
		}
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
	if err := d.Image(t.Context(), 64<<20); err != nil {
		t.Skip(err)
	}
	if err := d.Image(t.Context(), 64<<20); !errors.Is(err, ErrImaged) {
		t.Error(err)
	}
	wg.Wait()
	r := openImage(t, d)
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

// An image that cannot go on is dropped, and the database works on.
func TestImageFails(t *testing.T) {
	d := New()
	if err := d.Image(t.Context(), 0); err != nil {
		t.Skip(err)
	}
	r := openImage(t, d)
	ctx := resource.MakeGID(1, 1, 0)
	pad := string(make([]byte, 60_000))
	for i := range uint32(200) {
		l, _ := resource.NewPattern(resource.Attrs{"i": fmt.Sprint(i), "pad": pad})
		if _, err := d.Put(ctx.WithSerial(i+1), ctx, l); err != nil {
			t.Fatal(err)
		}
	}
	if err := d.ImageErr(); !errors.Is(err, image.ErrFull) {
		t.Error(err)
	}
	if _, v := r.Lookup(ctx.WithSerial(1), nil); v != image.Over {
		t.Errorf("an image that is full says %v", v)
	}
	if _, _, err := d.ImageFile(); !errors.Is(err, image.ErrFull) {
		t.Error(err)
	}
	if err := d.Image(t.Context(), 0); !errors.Is(err, image.ErrFull) {
		t.Errorf("too small an image was made: %v", err)
	}
	ended, end := context.WithCancel(t.Context())
	end()
	if err := d.Image(ended, 64<<20); !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
	if d.Len() != 200 || d.Stats().ImageBytes != 0 {
		t.Errorf("%+v", d.Stats())
	}
}

// BenchmarkImageMillion measures an image of one million resources.
func BenchmarkImageMillion(b *testing.B) {
	const n = 1_000_000
	for range b.N {
		d := New()
		if err := d.Image(b.Context(), image.DefaultSize); err != nil {
			b.Fatal(err)
		}
		lists := make([]resource.List, 1<<16)
		build := func(i int, l *resource.List) {
			l.Reset()
			var id [8]byte
			binary.LittleEndian.PutUint64(id[:], uint64(i))
			_ = l.AddString("type", "worker")
			_ = l.AddString("site", fmt.Sprint(i%4))
			_ = l.Add("serial", id[:])
			_ = l.Add("slot", append(id[:], 's'))
		}
		owner := resource.MakeGID(1, 1, 0)
		var took time.Duration
		own := 0
		for i := 0; i < n; {
			k := min(len(lists), n-i)
			for j := range k {
				build(i+j, &lists[j])
				own += len("typeworkersite") + 1 + len("serial") + 8 + len("slot") + 9
			}
			start := time.Now()
			for j := range k {
				if _, err := d.Put(owner.WithSerial(uint32(i+j+1)), owner, &lists[j]); err != nil {
					b.Fatal(err)
				}
			}
			took += time.Since(start)
			i += k
		}
		b.ReportMetric(n/took.Seconds(), "put/s")
		b.ReportMetric((float64(d.Stats().ImageBytes)-float64(own))/n, "B/resource")
		r := openImage(b, d)
		for i := range lists {
			build((i*7919)%n, &lists[i])
		}
		buf := make([]byte, 256)
		for range 2 {
			start := time.Now()
			for i := range lists {
				if _, v := r.Find(&lists[i], buf); v != image.Found {
					b.Fatal(v)
				}
			}
			b.ReportMetric(float64(time.Since(start).Nanoseconds())/float64(len(lists)), "find-ns")
		}
		start := time.Now()
		for i := range lists {
			if _, ok := d.Find(&lists[i]); !ok {
				b.Fatal("no")
			}
		}
		b.ReportMetric(float64(time.Since(start).Nanoseconds())/float64(len(lists)), "db-find-ns")
		d.DropImage()
	}
}

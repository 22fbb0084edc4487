package database

import (
	"encoding/binary"
	"fmt"
	"testing"
	"time"

	"github.com/rocl-go/rocl/directory/image"
	"github.com/rocl-go/rocl/internal/memfd"
	"github.com/rocl-go/rocl/resource"
)

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

func BenchmarkImageMillion(b *testing.B) {
	const n = 1_000_000
	for range b.N {
		d := New()
		if err := d.Image(image.DefaultSize); err != nil {
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

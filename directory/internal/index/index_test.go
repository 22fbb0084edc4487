// SPDX-License-Identifier: Apache-2.0

//go:build linux && !portable

package index

import (
	"encoding/binary"
	"fmt"
	"hash/crc32"
	"math/rand/v2"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/rocl-go/rocl/internal/os/memfd"
	"github.com/rocl-go/rocl/internal/testkit/eventually"
	"github.com/rocl-go/rocl/internal/testkit/try"
	"github.com/rocl-go/rocl/resource"
	"go.uber.org/goleak"
	"pgregory.net/rapid"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// db is the smallest index that can write an index: postings with positions.
type db struct {
	w    *Writer
	post map[string][]uint32
	recs map[uint32]*resource.Record
	pos  map[uint32]map[string]uint32
}

// tb is a test, also one of package rapid.
type tb interface {
	rapid.TB
	Cleanup(func())
}

// newDB returns a db with an empty index that readers may use.
func newDB(t tb, size int) *db {
	t.Helper()
	w, err := New(size)
	if err != nil {
		t.Skip(err)
	}
	t.Cleanup(w.Close)
	w.Live()
	return &db{w, map[string][]uint32{}, map[uint32]*resource.Record{}, map[uint32]map[string]uint32{}}
}

func (d *db) open(t tb) *Reader {
	t.Helper()
	fd, size, err := d.w.File()
	try.OK(t, err)
	defer memfd.Close(fd)
	r := try.Get(Open(fd, size))(t)
	t.Cleanup(r.Close)
	return r
}

// finds checks the verdict on a pattern.
func finds(t *testing.T, r *Reader, m resource.Match, want Verdict) {
	t.Helper()
	p := list(t, m)
	if _, v := r.Find(&p, nil); v != want {
		t.Errorf("%v: %v, want %v", m, v, want)
	}
}

// attrsOf returns the encoded attributes of l that have values.
func attrsOf(l *resource.List) (all []string) {
	wire := l.Wire()
	for a, next := resource.KnownAt(wire, 0); a != nil; a, next = resource.KnownAt(wire, next) {
		all = append(all, string(a))
	}
	return all
}

func (d *db) addPostings(i uint32, l *resource.List) {
	d.pos[i] = map[string]uint32{}
	for _, a := range attrsOf(l) {
		if _, twice := d.pos[i][a]; twice {
			continue
		}
		d.pos[i][a] = uint32(len(d.post[a]))
		d.post[a] = append(d.post[a], i)
		d.w.AddPosting([]byte(a), i, d.pos[i][a])
	}
}

func (d *db) removePostings(i uint32) {
	for a, pos := range d.pos[i] {
		p := d.post[a]
		from := uint32(len(p) - 1)
		d.w.RemovePosting([]byte(a), pos, from)
		p[pos] = p[from]
		d.pos[p[pos]][a] = pos
		d.post[a] = p[:from]
	}
	delete(d.pos, i)
}

func record(id, owner resource.GID, revision uint64, l resource.List) resource.Record {
	return resource.Record{ID: id, Owner: owner, Revision: revision, Attrs: l}
}

func (d *db) put(i uint32, r resource.Record) {
	if d.recs[i] != nil {
		d.removePostings(i)
	}
	d.addPostings(i, &r.Attrs)
	d.w.Put(i, r.ID, r.Owner, r.Revision, resource.IsSystem(&r.Attrs), &r.Attrs)
	d.w.Commit()
	d.recs[i] = &r
}

func (d *db) remove(i uint32) {
	d.w.Remove(i)
	d.removePostings(i)
	d.w.Commit()
	delete(d.recs, i)
}

var anybody = resource.MakeGID(7, 3, 0)

func list(t tb, a resource.Attributes, want ...string) resource.List {
	l := try.Get(resource.NewPattern(a, want...))(t)
	return *l
}

// An index gives the same answers as a map, under random changes.
func TestAgainstModel(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		d := newDB(t, minSize)
		r := d.open(t)
		draw := rapid.Custom(func(t *rapid.T) resource.List {
			var l resource.List
			for range rapid.IntRange(0, 5).Draw(t, "n") {
				name := rapid.SampledFrom([]string{"a", "b", "c", "rocl.kind"}).Draw(t, "name")
				_ = l.AddString(name, rapid.SampledFrom([]string{"", "1", "2", "a long value, so that the list is longer than what is kept within the record, with others"}).Draw(t, "value"))
			}
			return l
		})
		number := rapid.Uint32Range(0, 60)
		var rev uint64
		t.Repeat(map[string]func(*rapid.T){
			"put": func(t *rapid.T) {
				i := number.Draw(t, "i")
				rev++
				owner := rapid.SampledFrom([]resource.GID{anybody, resource.MakeGID(9, 9, 0)}).Draw(t, "owner")
				d.put(i, record(anybody.WithSerial(i+1), owner, rev, draw.Draw(t, "l")))
			},
			"remove": func(t *rapid.T) {
				if i := number.Draw(t, "i"); d.recs[i] != nil {
					d.remove(i)
				}
			},
			"": func(t *rapid.T) {
				try.OK(t, d.w.Err())
				p := draw.Draw(t, "pattern")
				some := false
				for _, rec := range d.recs {
					some = some || resource.Matches(&rec.Attrs, &p) && (!resource.IsSystem(&rec.Attrs) || resource.SeesSystem(&p))
				}
				rec, v := r.Find(&p, nil)
				switch {
				case v == Found:
					if !resource.Matches(&rec.Attrs, &p) || !same(d.recs[rec.ID.Serial()-1], &rec) {
						t.Fatalf("%v finds %v", &p, &rec.Attrs)
					}
				case v == Ended, v == None && some, v == Ask && len(attrsOf(&p)) > 0:
					t.Fatalf("%v: %v, some: %v", &p, v, some)
				}
				i := number.Draw(t, "id")
				rec, v = r.Lookup(anybody.WithSerial(i+1), nil)
				if want := d.recs[i]; (want != nil) != (v == Found) || v == Found && !same(want, &rec) || v != Found && v != None {
					t.Fatalf("record %d: %v %v", i, v, rec)
				}
			},
		})
	})
}

// same reports whether a and b are equal.
func same(a, b *resource.Record) bool {
	return a != nil && a.ID == b.ID && a.Owner == b.Owner && a.Revision == b.Revision && a.Attrs.Equal(&b.Attrs)
}

// When many records come and go, none is lost, and memory is used again.
func TestGrowth(t *testing.T) {
	d := newDB(t, 64<<20)
	r := d.open(t)
	const n = 20_000
	var least int
	for round := range 6 {
		for i := range uint32(n) {
			d.put(i, record(anybody.WithSerial(i+1), anybody, uint64(round), list(t, resource.Attrs{
				"all": "same", "mod": fmt.Sprint(i % 7), "own": fmt.Sprint(i), "round": fmt.Sprint(round), "pad": string(make([]byte, int(i)%300))})))
		}
		try.OK(t, d.w.Err())
		for i := range uint32(n) {
			p := list(t, resource.Match{"all": "same", "own": fmt.Sprint(i)}, "mod")
			if rec, v := r.Find(&p, nil); v != Found || rec.ID.Serial() != i+1 || rec.Revision != uint64(round) {
				t.Fatalf("round %d, %d: %v %v", round, i, v, rec)
			}
		}
		finds(t, r, resource.Match{"round": fmt.Sprint(round - 1)}, None)
		if round%2 == 1 {
			for i := range uint32(n) {
				d.remove(i)
			}
		}
		switch {
		case round == 1:
			least = d.w.Bytes()
		case round > 1 && d.w.Bytes() > least*3/2:
			t.Errorf("round %d takes %d bytes, the second %d", round, d.w.Bytes(), least)
		}
	}
	finds(t, r, resource.Match{"all": "same"}, None)
}

// A record that does not fit ends the index, and readers see that.
func TestFull(t *testing.T) {
	d := newDB(t, minSize)
	r := d.open(t)
	pad := string(make([]byte, 1000))
	for i := uint32(0); d.w.Err() == nil; i++ {
		if i > 4000 {
			t.Fatal("more fits than there is")
		}
		d.put(i, record(anybody.WithSerial(i+1), anybody, 1, list(t, resource.Attrs{"i": fmt.Sprint(i), "pad": pad})))
	}
	try.Fails(d.w.Err())(t, ErrFull)
	if _, v := r.Lookup(anybody.WithSerial(1), nil); v != Ended {
		t.Errorf("a full index says %v", v)
	}
	d.remove(0) // no effect
}

// An index of which most is not in use ends, because a new one takes less memory.
func TestWorn(t *testing.T) {
	d := newDB(t, 1<<30)
	pad := string(make([]byte, 30_000))
	const n = 4000
	for i := range uint32(n) {
		d.put(i, record(anybody.WithSerial(i+1), anybody, 1, list(t, resource.Attrs{"i": fmt.Sprint(i), "pad": pad})))
	}
	for i := range uint32(n) {
		d.remove(i)
	}
	try.Fails(d.w.Err())(t, ErrWorn)
}

// A list that is too large is not kept, and readers answer Ask for its record.
func TestLarge(t *testing.T) {
	d := newDB(t, minSize)
	r := d.open(t)
	l := list(t, resource.Attrs{"type": "big", "pad": string(make([]byte, maxKept))})
	d.put(0, record(anybody.WithSerial(1), anybody, 1, l))
	big := resource.Match{"type": "big"}
	finds(t, r, big, Ask)
	if _, v := r.Lookup(anybody.WithSerial(1), nil); v != Ask {
		t.Errorf("lookup: %v", v)
	}
	d.put(0, record(anybody.WithSerial(1), anybody, 2, list(t, resource.Attrs{"type": "big"})))
	finds(t, r, big, Found)
	d.remove(0)
	finds(t, r, big, None)
}

// Two attributes with one hash end the index when both have a first position.
func TestCollision(t *testing.T) {
	d := newDB(t, minSize)
	d.w.addPosting(77, 0, 0)
	d.w.addPosting(77, 1, 0)
	try.Fails(d.w.Err())(t, ErrCollision)
}

// A reader answers Ask if it would have to read a long posting without a match.
func TestBounded(t *testing.T) {
	d := newDB(t, 16<<20)
	r := d.open(t)
	for i := range uint32(2 * maxLooks) {
		d.put(i, record(anybody.WithSerial(i+1), anybody, 1, list(t, resource.Attrs{"a": fmt.Sprint(i % 2), "b": fmt.Sprint(i % 2)})))
	}
	d.remove(0)
	finds(t, r, resource.Match{"a": "0", "b": "1"}, None) // as many as are looked at
	p := list(t, resource.Match{"a": "1", "b": "0"})
	d.put(0, record(anybody.WithSerial(1), anybody, 1, list(t, resource.Attrs{"a": "1", "b": "1"})))
	if _, v := r.Find(&p, nil); v != None && v != Ask {
		t.Errorf("more: %v", v)
	}
	finds(t, r, nil, Found)
}

// During a change a reader never denies what the change concerns, and it notices a change since it
// began. It finds resources that exist.
func TestMidst(t *testing.T) {
	d := newDB(t, minSize)
	r := d.open(t)
	l := list(t, resource.Attrs{"a": "1", "b": "1"})
	d.put(0, record(anybody.WithSerial(1), anybody, 1, l))
	a1 := resource.Match{"a": "1"}
	s := lookup{Reader: r}
	before, _ := s.posting(r.of([]byte(attrsOf(&l)[0])))
	if !s.stood(&before) {
		t.Error("nothing has changed, and it is noticed")
	}
	d.removePostings(0)
	finds(t, r, a1, Ask)
	d.addPostings(0, &l)
	finds(t, r, a1, Found)
	denied := 0 // except for those that happen to have the place of what changes
	for i := range 100 {
		p := list(t, resource.Match{"a": fmt.Sprint("not ", i)})
		if _, v := r.Find(&p, nil); v == None {
			denied++
		} else if v != Ask {
			t.Errorf("a=not %d: %v", i, v)
		}
	}
	if denied == 0 {
		t.Error("nothing is denied")
	}
	if s.stood(&before) {
		t.Error("a change under way is not noticed")
	}
	d.w.Commit()
	finds(t, r, a1, Found)
	if s.stood(&before) {
		t.Error("a change is not noticed")
	}
	d.w.w[d.w.w[atPages].Load()&0xffffffff].Add(1) // the record's sequence number
	finds(t, r, a1, Ask)
	if _, v := r.Lookup(anybody.WithSerial(1), nil); v != Ask {
		t.Errorf("a record that changes: %v", v)
	}
	d.w.w[d.w.w[atPages].Load()&0xffffffff].Add(1)
	finds(t, r, a1, Found)
}

// Readers see what SetAlone says, until the index ends.
func TestAlone(t *testing.T) {
	d := newDB(t, minSize)
	r := d.open(t)
	if r.Alone() {
		t.Error("alone before anybody said so")
	}
	d.w.SetAlone(true)
	if !r.Alone() {
		t.Error("not alone")
	}
	d.w.Close()
	if r.Alone() {
		t.Error("alone, though ended")
	}
	finds(t, r, nil, Ended)
}

// Reading does not allocate if the buffer is large enough.
func TestReadAllocs(t *testing.T) {
	d := newDB(t, minSize)
	r := d.open(t)
	for i := range uint32(100) {
		d.put(i, record(anybody.WithSerial(i+1), anybody, 1, list(t, resource.Attrs{"type": "worker", "name": fmt.Sprint(i)})))
	}
	buf := make([]byte, 1024)
	for _, m := range []resource.Match{{"type": "worker"}, {"name": "7"}, {"type": "worker", "name": "8"}, {"name": "none"}} {
		p := list(t, m)
		if n := testing.AllocsPerRun(100, func() { r.Find(&p, buf) }); n > 0 {
			t.Errorf("%v: %v allocations", m, n)
		}
	}
	if n := testing.AllocsPerRun(100, func() { r.Lookup(anybody.WithSerial(9), buf) }); n > 0 {
		t.Errorf("looking up: %v allocations", n)
	}
}

// A reader may be closed while it is read.
func TestCloseWhileRead(t *testing.T) {
	for range 50 {
		d := newDB(t, minSize)
		d.put(0, record(anybody.WithSerial(1), anybody, 1, list(t, resource.Attrs{"a": "1"})))
		r := d.open(t)
		var wg sync.WaitGroup
		begun := make(chan struct{}, 4)
		for range 4 {
			wg.Go(func() {
				p := list(t, resource.Match{"a": "1"})
				begun <- struct{}{}
				for {
					if _, v := r.Find(&p, nil); v == Ended {
						return
					}
				}
			})
		}
		<-begun
		r.Close()
		r.Close()
		wg.Wait()
	}
}

// checked returns a list with a checksum that shows whether the list is complete.
func checked(key, fill, round uint32) (l resource.List) {
	pad := make([]byte, fill%120) // so that some lists are in the record and others in a block
	for i := range pad {
		pad[i] = byte(round) + byte(i)
	}
	_ = l.AddString("type", "c")
	_ = l.AddString("key", fmt.Sprint(key))
	_ = l.AddString("r", fmt.Sprint(round))
	_ = l.Add("pad", pad)
	_ = l.Add("sum", binary.LittleEndian.AppendUint32(nil, crc32.ChecksumIEEE(l.Wire())))
	return l
}

// whole reports whether a list of checked is complete.
func whole(l *resource.List) bool {
	sum, _ := l.Get("sum")
	var rest resource.List
	for name, v := range l.All() {
		if name != "sum" {
			_ = rest.Add(name, v)
		}
	}
	return len(sum) == 4 && binary.LittleEndian.Uint32(sum) == crc32.ChecksumIEEE(rest.Wire())
}

// Readers run beside a writer that never pauses. They see no torn record, they find what exists all
// the time, and they see every revision that was committed before.
//
// Promise (Index): A reader of the index sees no torn record. Readers and the writer never wait for
// each other. See also TestIndexWhileChanging.
func TestHammer(t *testing.T) {
	for _, procs := range []int{1, runtime.GOMAXPROCS(0)} {
		t.Run(fmt.Sprint(procs), func(t *testing.T) {
			defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(procs))
			hammer(t)
		})
	}
}

// listed lists all records that hammer makes, of which the first keys always exist. It reports
// whether each came at most once, and each of the first keys came.
func listed(t *testing.T, r *Reader, keys uint32) bool {
	p := list(t, resource.Match{"type": "c"})
	l, v := r.List(&p)
	seen := map[resource.GID]bool{}
	always := uint32(0)
	for recs := make([]resource.Record, 0, 7); v == Found && l.Left() > 0; {
		recs, v = l.Next(recs[:0])
		for i := range recs {
			rec := &recs[i]
			if !whole(&rec.Attrs) || rec.Attrs.GetString("key") != fmt.Sprint(rec.ID.Serial()-1) {
				t.Errorf("listed what is torn: %v %v", rec.ID, &rec.Attrs)
				return false
			}
			if seen[rec.ID] {
				t.Errorf("%v is listed twice", rec.ID)
				return false
			}
			if seen[rec.ID] = true; rec.ID.Serial() <= keys {
				always++
			}
		}
	}
	if v == Ended || v == Found && always != keys {
		t.Errorf("%d of %d that are always there are listed: %d", always, keys, v)
		return false
	}
	return true
}

// hammer runs the readers and the writer of the tests above.
func hammer(t *testing.T) {
	d := newDB(t, 64<<20)
	const keys, comes = 200, 50 // the first keys always exist, the others come and go
	for i := range uint32(keys) {
		d.put(i, record(anybody.WithSerial(i+1), anybody, 1, checked(i, i, 0)))
	}
	var committed [keys]atomic.Uint64 // revisions that were committed
	stop := make(chan struct{})
	var wg sync.WaitGroup
	wg.Go(func() {
		for round := uint32(2); ; round++ {
			select {
			case <-stop:
				return
			default:
			}
			i := rand.Uint32N(keys + comes)
			switch {
			case i < keys:
				d.put(i, record(anybody.WithSerial(i+1), anybody, uint64(round), checked(i, rand.Uint32(), round)))
				committed[i].Store(uint64(round))
			case d.recs[i] != nil:
				d.remove(i)
			default:
				d.put(i, record(anybody.WithSerial(i+1), anybody, uint64(round), checked(i, rand.Uint32(), round)))
			}
			if round%64 == 0 {
				runtime.Gosched()
			}
		}
	})
	var found, denied, asked atomic.Int64
	for range 3 {
		r := d.open(t)
		wg.Go(func() {
			for {
				select {
				case <-stop:
					return
				default:
				}
				i := rand.Uint32N(keys + comes)
				known := uint64(0)
				if i < keys {
					known = committed[i].Load()
				}
				var rec resource.Record
				var v Verdict
				switch rand.IntN(4) {
				case 3:
					if !listed(t, r, keys) {
						return
					}
					continue
				case 0:
					p := list(t, resource.Match{"type": "c", "key": fmt.Sprint(i)})
					rec, v = r.Find(&p, nil)
				case 1:
					rec, v = r.Lookup(anybody.WithSerial(i+1), nil)
				default:
					p := list(t, resource.Match{"type": "c"})
					rec, v = r.Find(&p, nil)
					i, known = rec.ID.Serial()-1, 0
				}
				switch {
				case v == Ended:
					t.Error("the index has ended")
					return
				case v == Ask:
					asked.Add(1)
				case v == None && i < keys:
					t.Errorf("%d is there and was denied", i)
					return
				case v == Found && (!whole(&rec.Attrs) || rec.ID != anybody.WithSerial(i+1) || rec.Attrs.GetString("key") != fmt.Sprint(i)):
					t.Errorf("asked for %d: torn: %v %v", i, rec.ID, &rec.Attrs)
					return
				case v == Found && rec.Revision < known:
					t.Errorf("%d is at %d, after %d was told", i, rec.Revision, known)
					return
				case v == Found:
					found.Add(1)
				default:
					denied.Add(1)
				}
			}
		})
	}
	reached := eventually.Within(eventually.Timeout, func() bool { return t.Failed() || found.Load() >= 5000 && denied.Load() >= 300 })
	close(stop)
	wg.Wait()
	t.Logf("%d found, %d denied, %d to be asked", found.Load(), denied.Load(), asked.Load())
	if !reached || d.w.Err() != nil {
		t.Error("too few questions were answered", d.w.Err())
	}
}

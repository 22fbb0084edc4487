// SPDX-License-Identifier: Apache-2.0

//go:build linux && !portable

package index

import (
	"context"
	"encoding/binary"
	"math/rand/v2"
	"testing"

	"github.com/rocl-go/rocl/internal/os/memfd"
	"github.com/rocl-go/rocl/internal/testkit/try"
	"github.com/rocl-go/rocl/resource"
)

// page returns memory of this process that a reader takes for an index. The caller closes the
// reader.
func page(t testing.TB, size int) (mem []byte, read func() *Reader) {
	fd, mem, err := memfd.Create(context.Background(), "hostile", size)
	if err != nil {
		t.Skip(err)
	}
	t.Cleanup(func() { memfd.Close(fd); memfd.Unmap(mem) })
	return mem, func() *Reader {
		return try.Get(Open(fd, size))(t)
	}
}

// questions asks all kinds of questions and ignores the answers: each must come.
func questions(t testing.TB, r *Reader, known []resource.List) {
	check := func(rec resource.Record, v Verdict) {
		if v == Found {
			try.Get(resource.ParseList(rec.Attrs.Wire()))(t)
		}
	}
	for i := range known {
		check(r.Find(&known[i], nil))
		l, v := r.List(&known[i])
		for recs := make([]resource.Record, 0, 64); v == Found && l.Left() > 0; {
			recs, v = l.Next(recs[:0])
			for _, rec := range recs {
				check(rec, Found)
			}
		}
	}
	for i := range uint32(8) {
		check(r.Lookup(anybody.WithSerial(i), nil))
	}
	r.Alone()
}

// patterns match resources in the index of hostile.
func patterns(t testing.TB) []resource.List {
	return []resource.List{{}, list(t, resource.Match{"type": "c"}), list(t, resource.Match{"key": "3"}), list(t, resource.Match{"key": "3", "type": "c"}), list(t, resource.Match{"no": "such"})}
}

// template returns a valid index of some resources.
func template(t testing.TB) []byte {
	d := newDB(t, minSize)
	for i := range uint32(40) {
		d.put(i, record(anybody.WithSerial(i+1), anybody, 1, checked(i%20, i, 0)))
	}
	d.w.SetAlone(true)
	return append([]byte(nil), d.w.mem[:8*d.w.space.next]...)
}

// An index with changed bits, wherever they are, is read without harm.
//
// Promise (Index): An index of nonsense is read without a panic or an endless loop. See also
// TestIndexNonsense.
func TestScribbled(t *testing.T) {
	good := template(t)
	mem, read := page(t, minSize)
	known := patterns(t)
	rng := rand.New(rand.NewPCG(1, 2))
	end := len(good)
	for end > 0 && good[end-1] == 0 {
		end--
	}
	// most of the directory of pages is empty: it is left as it is
	const used = 8 * (atPages + 8)
	for round := range 3000 {
		copy(mem, good)
		for range 1 + rng.IntN(20) {
			at := rng.IntN(used)
			if rng.IntN(2) == 0 {
				at = 8*atData + rng.IntN(end-8*atData)
			}
			switch rng.IntN(3) {
			case 0:
				mem[at] ^= 1 << rng.IntN(8)
			case 1:
				binary.NativeEndian.PutUint64(mem[at&^7:], rng.Uint64())
			default: // a word from another place
				copy(mem[at&^7:at&^7+8], good[8*atData+rng.IntN(end-8*atData)&^7:])
			}
		}
		copy(mem, good[:32]) // magic, key and state, without which nothing is read
		r := read()
		questions(t, r, known)
		r.Close()
		if t.Failed() {
			t.Fatalf("round %d", round)
		}
	}
}

// A file that is no index is not opened.
func TestOpenRefuses(t *testing.T) {
	mem, _ := page(t, minSize)
	fd, short, err := memfd.Create(context.Background(), "short", 4096)
	if err != nil {
		t.Skip(err)
	}
	defer memfd.Close(fd)
	defer memfd.Unmap(short)
	for _, size := range []int{-1, 0, 4096, minSize, minSize + 1} {
		try.Rejects(Open(fd, size))(t, "%d bytes were opened", size)
	}
	if newReader(mem) != nil {
		t.Error("nothing but zeros was taken for an index")
	}
}

// SPDX-License-Identifier: Apache-2.0

package pack_test

import (
	"bytes"
	"encoding/binary"
	"errors"
	"io"
	"math"
	"reflect"
	"strings"
	"testing"

	"github.com/rocl-go/rocl"
	"github.com/rocl-go/rocl/internal/testkit/try"
	"github.com/rocl-go/rocl/rocltest"
	"github.com/rocl-go/rocl/tpvm/pack"
)

var encodings = []pack.Encoding{pack.Default, pack.Raw, pack.InPlace}

// A failed Unpack consumes nothing, whatever was asked for.
func TestNoData(t *testing.T) {
	for _, enc := range encodings {
		for _, typed := range []bool{false, true} {
			r := reader(t, enc, typed, numbers([]int32{7, 8}, 1))
			try.Fails(pack.Unpack(r, make([]int32, 3), 1))(t, pack.ErrNoData)
			try.Fails(pack.Unpack(r, make([]int32, 9), 4))(t, pack.ErrNoData)
			_, err := pack.View[int32](r, math.MaxInt)
			try.Fails(err)(t, pack.ErrNoData)
			_, err = pack.View[int32](r, -1)
			try.Fails(err)(t, pack.ErrBadParam)
			if !typed {
				_, err = r.UnpackString() // seven bytes, of which the message has four
				try.Fails(err)(t, pack.ErrNoData)
				_, err = r.UnpackMessage()
				try.Fails(err)(t, pack.ErrNoData)
				try.Fails(pack.Unpack(r, make([]float64, 2), 1))(t, pack.ErrNoData)
			}
			got := make([]int32, 2)
			if err := pack.Unpack(r, got, 1); err != nil || got[0] != 7 || got[1] != 8 {
				t.Fatalf("%v, typed %v: got %v, %v", enc, typed, got, err)
			}
			try.Fails(pack.Unpack(r, got[:1], 1))(t, pack.ErrNoData)
			_, err = r.UnpackString()
			try.Fails(err)(t, pack.ErrNoData)
			_, err = r.UnpackMessage()
			try.Fails(err)(t, pack.ErrNoData)
			try.Check(t, pack.Unpack(r, got[:0], 1), "nothing from the end")
		}
	}
}

// A typed message is unpacked as the types that were packed, or not at all.
func TestType(t *testing.T) {
	for _, enc := range encodings {
		r := reader(t, enc, true, numbers([]int32{1, 2, 3}, 1), numbers([]float32{4}, 1), text("five"),
			numbers([]uint8{6, 7, 8, 9, 10}, 1))
		try.Fails(pack.Unpack(r, make([]uint32, 3), 1))(t, pack.ErrType)
		try.Fails(pack.Unpack(r, make([]int32, 4), 1))(t, pack.ErrType) // the fourth is a float
		try.Fails(r.UnpackString())(t, pack.ErrType)
		try.Fails(r.UnpackMessage())(t, pack.ErrType)
		try.OK(t, pack.Unpack(r, make([]int32, 2), 1))
		try.Fails(pack.Unpack(r, make([]int32, 2), 1))(t, pack.ErrType)
		try.Fails(pack.View[int64](r, 1))(t, pack.ErrType)
		for _, s := range []step{numbers([]int32{3}, 1), numbers([]float32{4}, 1), text("five")} {
			try.OK(t, s.unpack(r))
		}
		if enc == pack.Default { // the padding would be taken for bytes
			try.Fails(r.UnpackBytes(make([]byte, 2)))(t, pack.ErrType)
			try.Fails(r.UnpackBytes(make([]byte, 6)))(t, pack.ErrNoData)
		} else if err := r.UnpackBytes(make([]byte, 2)); err != nil {
			t.Fatal(err)
		}
	}
}

// A long that needs more than four bytes is not cut off. Debian's PVM cuts it off.
func TestOverflow(t *testing.T) {
	b := new(pack.Buffer)
	for _, v := range []int64{math.MaxInt32 + 1, math.MinInt32 - 1, math.MaxInt64, math.MinInt64} {
		try.Fails(pack.Pack(b, []int64{1, v, 2}, 1))(t, pack.ErrOverflow)
		try.Fails(pack.PackOne(b, v))(t, pack.ErrOverflow)
		if err := pack.Pack(b, []int64{1, v, 2}, 2); err != nil || b.Len() != 8 {
			t.Errorf("%d is not packed, but: %v", v, err)
		}
		b.Reset(pack.Default)
	}
	try.Fails(pack.PackOne[uint64](b, math.MaxUint32+1))(t, pack.ErrOverflow)
	try.Fails(pack.PackOne[uint64](b, math.MaxUint64))(t, pack.ErrOverflow)
	try.Equal(t, b.Len(), 0, "bytes were packed")
}

func TestBadParam(t *testing.T) {
	b, v := new(pack.Buffer), []int32{1, 2, 3}
	for _, stride := range []int{0, -1, math.MinInt} {
		try.Fails(pack.Pack(b, v, stride))(t, pack.ErrBadParam)
		try.Fails(pack.Unpack(new(pack.Reader), v, stride))(t, pack.ErrBadParam)
	}
	for _, enc := range []pack.Encoding{3, 255} {
		b.Reset(enc)
		try.Fails(pack.Pack(b, v, 1))(t, pack.ErrBadParam)
		try.Fails(pack.Pack(b, v[:0], 1))(t, pack.ErrBadParam)
		try.Fails(pack.PackOne(b, 1))(t, pack.ErrBadParam)
		try.Fails(b.PackString("x"))(t, pack.ErrBadParam)
		try.Fails(b.PackMessage(new(pack.Reader)))(t, pack.ErrBadParam)
		try.Fails(b.PackMessageBody(new(pack.Reader)))(t, pack.ErrBadParam)
		try.Fails(pack.NewReader(enc, false, nil))(t, pack.ErrDamaged)
	}
	for _, enc := range encodings {
		b.Reset(enc)
		for _, stride := range []int{4, math.MaxInt/2 + 1, math.MaxInt} {
			try.OK(t, errors.Join(pack.Pack(b, v, stride), pack.Pack(b, []complex128{5, 6}, stride)))
		}
		p := make([]byte, b.Size())
		try.Fails(b.Encode(p[1:]))(t, io.ErrShortBuffer, "short by one")
		try.Gives(b.Encode(p))(t, 3*20)
		r, _ := pack.NewReader(enc, false, p)
		for _, stride := range []int{4, math.MaxInt/2 + 1, math.MaxInt} {
			i, c := []int32{0, -1}, []complex128{0, -1}
			if err := errors.Join(pack.Unpack(r, i, stride), pack.Unpack(r, c, stride)); err != nil || i[0] != 1 || i[1] != -1 || c[0] != 5 || c[1] != -1 {
				t.Errorf("stride %d: got %v, %v, %v", stride, i, c, err)
			}
		}
	}
}

func TestTooLarge(t *testing.T) {
	b := pack.NewBuffer(pack.InPlace)
	v := make([]uint64, 1<<20)
	for range 1<<31/(8<<20) - 1 {
		try.OK(t, pack.Pack(b, v, 1))
	}
	was := b.Size()
	try.Fails(pack.Pack(b, v, 1))(t, rocl.ErrTooLarge)
	try.Fails(pack.Pack(b, v, 1))(t, rocl.ErrTooLarge)
	try.Equal(t, b.Size(), was, "a Pack that failed has packed something")
}

// Values InPlace are read by Encode; other values are read by Pack.
func TestInPlace(t *testing.T) {
	for _, enc := range encodings {
		b, v, one := pack.NewBuffer(enc), []int32{1, 0, 2}, int32(9)
		try.OK(t, errors.Join(b.PackString("a"), pack.Pack(b, v, 2), pack.PackOne(b, one), b.PackBytes([]byte("xyz"))))
		v[0], v[2] = 3, 4
		for range 2 { // a message may be sent again
			p, _ := b.AppendTo(nil)
			r, _ := pack.NewReader(enc, false, p)
			want := []int32{1, 2}
			if enc == pack.InPlace {
				want = []int32{3, 4}
			}
			for _, s := range []step{text("a"), numbers(want, 1), numbers([]int32{9}, 1), numbers([]byte("xyz"), 1)} {
				try.Check(t, s.unpack(r), "%v", enc)
			}
		}
	}
}

// Whole returns the rocl.Buffer of a message that is nothing else.
func TestWhole(t *testing.T) {
	c := rocltest.Cluster(t, 1).Open(0)
	m := try.Get(c.Buffer(8))(t)
	defer m.Release()
	copy(m.Bytes(), "12345678")
	for _, enc := range encodings {
		b := pack.NewBuffer(enc)
		try.OK(t, b.PackBuffer(m))
		w, ok := b.Whole()
		if ok != (enc == pack.InPlace) || ok && (w != m || m.Refs() != 2) || !ok && m.Refs() != 1 {
			t.Errorf("%v: got %v, %v, %d references", enc, w, ok, m.Refs())
		}
		try.Equal(t, string(try.Get(b.AppendTo(nil))(t)), "12345678", "%v: got", enc)
		try.OK(t, pack.PackOne[int8](b, 'x'))
		if w, ok := b.Whole(); ok {
			t.Errorf("%v: more than one item are %v", enc, w)
		}
		b.Reset(enc)
		try.Equal(t, m.Refs(), 1, "references after Reset")
	}
	b := pack.NewBuffer(pack.InPlace, pack.WithTypes())
	try.OK(t, b.PackBuffer(m))
	if _, ok := b.Whole(); ok {
		t.Error("a typed message is more than its buffer")
	}
	b.Reset(pack.Raw)
}

func TestMismatch(t *testing.T) {
	plain := func(enc pack.Encoding) *pack.Reader { return reader(t, enc, false, numbers([]int32{1}, 1)) }
	try.Fails(pack.NewBuffer(pack.Default).PackMessageBody(plain(pack.Raw)))(t, pack.ErrMismatch)
	try.Fails(pack.NewBuffer(pack.InPlace).PackMessageBody(plain(pack.Default)))(t, pack.ErrMismatch)
	try.Fails(pack.NewBuffer(pack.Raw, pack.WithTypes()).PackMessageBody(plain(pack.Raw)))(t, pack.ErrMismatch)
	try.Check(t, pack.NewBuffer(pack.Raw).PackMessageBody(plain(pack.InPlace)))
}

// A typed message that is cut off or has a changed byte is refused, or its values are refused or
// read from within the message.
func TestDamaged(t *testing.T) {
	steps := []step{numbers([]byte{1, 2, 3}, 1), text("four"), numbers([]int64{5, 1 << 40}, 1), numbers(make([]float64, 12), 1),
		{func(b *pack.Buffer) error {
			return b.PackMessage(reader(t, pack.Raw, true, text("inner")))
		}, nil}}
	for _, enc := range encodings {
		p := reader(t, enc, true, steps...).Payload()
		for n := range p {
			if r, err := pack.NewReader(enc, true, p[:n:n]); err == nil {
				t.Fatalf("%v: %d of %d bytes are %d bytes of values", enc, n, len(p), r.Remaining())
			} else if r != nil || !errors.Is(err, pack.ErrDamaged) {
				t.Fatalf("%d bytes: %v", n, err)
			}
		}
		for i := range p {
			for _, bit := range []byte{1, 0x80} {
				q := bytes.Clone(p)
				q[i] ^= bit
				if r, err := pack.NewReader(enc, true, q); err == nil {
					drain(t, r)
				} else if !errors.Is(err, pack.ErrDamaged) {
					t.Fatal(err)
				}
			}
		}
	}
	for name, desc := range map[string][]byte{
		"no kind":             {0x20},
		"kind 31":             {0x3f},
		"count missing":       {0x01},
		"count endless":       bytes.Repeat([]byte{0x84}, 11),
		"count huge":          {0x04, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0x7f},
		"count beyond int":    {0x04, 0xff, 0xff, 0xff, 0xff, 0x07},
		"strings not there":   {0x0c, 0xff, 0xff, 0xff, 0xff, 0x07},
		"messages":            {0x0d, 0xff, 0xff, 0xff, 0xff, 0x07},
		"more than described": {0x24},
		"nothing described":   {},
	} {
		for _, enc := range encodings {
			p := append(make([]byte, 8), desc...)
			p = binary.LittleEndian.AppendUint32(p, uint32(len(desc)))
			try.Fails(pack.NewReader(enc, true, p))(t, pack.ErrDamaged, "%s", name)
		}
	}
	for _, size := range []uint32{5, math.MaxInt32, math.MaxUint32} {
		if _, err := pack.NewReader(pack.Raw, true, binary.LittleEndian.AppendUint32(make([]byte, 4), size)); !errors.Is(err, pack.ErrDamaged) {
			t.Errorf("a description of %d bytes: %v", size, err)
		}
	}
	for _, p := range [][]byte{{0xff, 0xff, 0xff, 0xff}, {0x80, 0, 0, 0}} { // a string of negative length
		r, _ := pack.NewReader(pack.Default, false, p)
		try.Fails(r.UnpackString())(t, pack.ErrDamaged)
	}
}

// A message whose last bytes lack their padding can be read; a message that was cut off earlier
// cannot.
func TestPadding(t *testing.T) {
	r, _ := pack.NewReader(pack.Default, false, []byte{1, 2, 3})
	if err := r.UnpackBytes(make([]byte, 3)); err != nil || r.Remaining() != 0 {
		t.Errorf("%v, %d bytes remain", err, r.Remaining())
	}
	r, _ = pack.NewReader(pack.Default, false, []byte{0, 0, 0, 2, 'x', 0})
	if s, err := r.UnpackString(); s != "x" || err != nil || r.Remaining() != 0 {
		t.Errorf("%q, %v, %d bytes remain", s, err, r.Remaining())
	}
}

// Strings that C programs do not write are kept as they are, too.
func TestStrings(t *testing.T) {
	for _, enc := range encodings {
		for _, s := range []string{"", "\x00", "a\x00", "a\x00b", "\x00\x00", strings.Repeat("ü", 5000)} {
			try.Check(t, text(s).unpack(reader(t, enc, true, text(s))))
		}
	}
	r, _ := pack.NewReader(pack.Raw, false, []byte{0, 0, 0, 0, 1, 0, 0, 0, 'x'})
	for _, want := range []string{"", "x"} {
		try.Gives(r.UnpackString())(t, want, "without a zero byte")
	}
}

// View returns the message's own memory if possible.
func TestView(t *testing.T) {
	v := []float64{1, 2, 3}
	r := reader(t, pack.Raw, false, numbers(v, 1), numbers([]byte{4}, 1), numbers([]int32{5}, 1))
	got, err := pack.View[float64](r, 3)
	if err != nil || !reflect.DeepEqual(got, v) {
		t.Fatalf("got %v, %v", got, err)
	}
	if one := []byte{1, 0}; binary.NativeEndian.Uint16(one) == 1 {
		r.Payload()[7] ^= 0x80
		try.Equal(t, got[0], -1, "the values are a copy: %v", got)
	}
	try.Get(pack.UnpackOne[int8](r))(t)
	if got, err := pack.View[int32](r, 1); err != nil || got[0] != 5 { // not aligned
		t.Errorf("got %v, %v", got, err)
	}
}

// A Buffer that is used again allocates nothing, and neither does a Reader.
func TestAllocs(t *testing.T) {
	dst := make([]byte, 1<<16)
	ints, doubles, some := []int32{1, 2, 3}, make([]float64, 1000), []byte("bytes")
	longs := []int64{1, 1 << 40}
	name := "name"
	for _, enc := range encodings {
		for _, typed := range []bool{false, true} {
			b, r := buffer(enc, typed), new(pack.Reader)
			use := func() {
				b.Reset(enc)
				err := errors.Join(
					pack.PackOne[int32](b, 7),
					pack.PackOne(b, 7.5),
					pack.Pack(b, ints, 1),
					b.PackString(name),
					b.PackBytes(some),
					pack.Pack(b, doubles, 2),
				)
				if typed || enc != pack.Default {
					err = errors.Join(err, pack.Pack(b, longs, 1))
				}
				try.OK(t, err)
				n := try.Get(b.Encode(dst[:b.Size()]))(t)
				try.OK(t, r.Init(enc, typed, dst[:n]))
				i, err1 := pack.UnpackOne[int32](r)
				f, err2 := pack.UnpackOne[float64](r)
				err3 := pack.Unpack(r, ints, 1)
				if err := errors.Join(err1, err2, err3); err != nil || i != 7 || f != 7.5 {
					t.Fatalf("got %v, %v, %v", i, f, err)
				}
			}
			try.Equal(t, testing.AllocsPerRun(100, use), 0, "%v, typed %v: allocations", enc, typed)
		}
	}
}

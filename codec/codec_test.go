// SPDX-License-Identifier: Apache-2.0

package codec

import (
	"bytes"
	"encoding/binary"
	"errors"
	"log/slog"
	"math"
	"math/big"
	"net/netip"
	"net/url"
	"reflect"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/fxamacker/cbor/v2"
	"go.uber.org/goleak"

	"github.com/rocl-go/rocl/internal/testkit/try"
	"github.com/rocl-go/rocl/resource"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// wire encodes v after a prefix, into memory with old contents.
func wire[T any](t testing.TB, v T) []byte {
	t.Helper()
	p := append(bytes.Repeat([]byte{0xee}, 4096)[:0], "before"...)
	p = try.Get(Append(p, &v))(t, "encoding %T", v)
	p, is := bytes.CutPrefix(p, []byte("before"))
	if !is {
		t.Fatalf("encoding %T has written before its end", v)
	}
	return p
}

// same encodes and decodes v. It checks that the value has its own memory, and that no shorter or
// longer payload is valid, except for the first elements of a slice.
func same[T any](t *testing.T, v T) {
	t.Helper()
	p := wire(t, v)
	if pl := planOf[T](); pl.format != asCBOR && Size(&v) != len(p) {
		t.Errorf("%T: size %d, but %d bytes", v, Size(&v), len(p))
	}
	sent := bytes.Clone(p)
	var got T
	if err := Decode(p, &got); err != nil || !reflect.DeepEqual(got, v) {
		t.Errorf("%T: got %+v, %v, want %+v", v, got, err, v)
	}
	for i := range p {
		p[i] = 0xa5
	}
	if !reflect.DeepEqual(got, v) {
		t.Errorf("%T lies in the payload", v)
	}
	if f := planOf[T]().format; f == asBytes || f == asString {
		return
	}
	for n := range sent {
		var short T
		err := Decode(sent[:n:n], &short)
		if planOf[T]().format == asSlice && n >= headLen && (n-headLen)%planOf[T]().size == 0 {
			try.Check(t, err, "%T: the first elements", v)
			continue
		}
		if !errors.Is(err, ErrValue) || !reflect.ValueOf(&short).Elem().IsZero() {
			t.Errorf("%T: %d of %d bytes are %+v, %v", v, n, len(sent), short, err)
		}
	}
	var long T
	if err := Decode(append(sent, 0), &long); !errors.Is(err, ErrValue) && planOf[T]().size != 1 {
		t.Errorf("%T: a byte too many is %+v, %v", v, long, err)
	}
}

type (
	celsius float64
	point   struct{ X, Y int32 }
	padded  struct {
		A bool
		B uint64
		C int16
		D [3]point
		E bool
		_ [3]byte
		f complex64
		G celsius
		H [2][3]bool
		I [40]struct {
			K uint8
			L uint32
		}
	}
	named   []byte
	tree    struct{ Left, Right *tree }
	anyhow  struct{ In any }
	note    struct{ Text string }
	secrets struct{ a, b string }
	loop    []loop
	pp      *pp
)

func somePadded() padded {
	p := padded{A: true, B: math.MaxUint64, C: -2, E: true, f: complex(1, -2), G: 36.6}
	p.D[1] = point{-1, 2}
	p.H[1][2] = true
	for i := range p.I {
		p.I[i].K, p.I[i].L = uint8(i), uint32(i)<<24
	}
	return p
}

// Promise (Buffers): `Value[T]` returns what `SendValue[T]` sent, in memory of its own. See also
// TestValue.
func TestSame(t *testing.T) {
	same(t, true)
	same(t, int8(-1))
	same(t, int16(-300))
	same(t, int32(math.MinInt32))
	same(t, int64(math.MinInt64))
	same(t, -5)
	same(t, uint(5))
	same(t, uint8(200))
	same(t, uint16(65535))
	same(t, uint32(1<<31))
	same(t, uint64(math.MaxUint64))
	same(t, float32(1.5))
	same(t, math.Inf(-1))
	same(t, complex(1, 2))
	same(t, celsius(-3))
	same(t, time.Second)
	same(t, slog.LevelWarn)
	same(t, [0]int{})
	same(t, [3]int{1, 2, 3})
	same(t, [2][2]bool{{true, false}, {false, true}})
	same(t, struct{}{})
	same(t, point{1, -2})
	same(t, somePadded())
	same(t, resource.MakeGID(1, 2, 3))
	same(t, struct {
		ID resource.GID
		N  int
	}{resource.MakeGID(4, 5, 6), 7})

	same(t, []byte("bytes"))
	same(t, named("named"))
	same(t, "text \xff\x00")
	same(t, "")
	same(t, []byte(nil))

	same(t, []int(nil))
	same(t, []int{1, -2, 3})
	same(t, []float32{1, 2, 3, 4, 5})
	same(t, []uint16{1})
	same(t, []bool{true, false, true})
	same(t, []point{{1, 2}, {3, 4}})
	same(t, []padded{somePadded(), {}, somePadded()})
	same(t, []resource.GID{resource.MakeGID(1, 2, 3), {}})

	same(t, note{"hello"})
	same(t, []note{{"a"}, {"b"}})
	same(t, []string{"a", "", "\xff"})
	same(t, [][]int{{1}, nil, {2, 3}})
	same(t, []struct{}{{}, {}})
	same(t, map[string]int{"a": 1, "b": -2})
	same(t, map[resource.GID]note{resource.MakeGID(1, 2, 3): {"x"}})
	same(t, map[int][]byte{1: []byte("x"), 2: nil})
	same(t, &point{1, 2})
	same(t, (*point)(nil))
	same(t, tree{&tree{&tree{}, nil}, &tree{}})
	same(t, struct {
		ID   resource.GID
		At   netip.AddrPort
		Name string
		N    *int64
	}{resource.MakeGID(1, 2, 3), netip.MustParseAddrPort("10.0.0.1:80"), "n", nil})
	same(t, time.Date(2026, 1, 2, 3, 4, 5, 678901234, time.UTC))
	same(t, *big.NewInt(0).Lsh(big.NewInt(3), 200))
	same(t, url.URL{Scheme: "tcp", Host: "10.0.0.7:0"})
	same(t, loop{loop{}, loop{loop{}}})
	same[any](t, nil)
	same[any](t, "text")
	same(t, anyhow{[]any{uint64(1), "a", map[any]any{"k": int64(-1)}, true, 1.5}})
	same(t, struct {
		Skip func() `cbor:"-"`
		Next *tree  `json:"-"`
		Text string
	}{Text: "x"})
}

// A raw value has the bytes that encoding/binary writes, after the name of its type.
func TestRawIsBinary(t *testing.T) {
	check := func(p []byte, v any) {
		t.Helper()
		want, err := binary.Append(nil, binary.LittleEndian, v)
		if err != nil || !bytes.Equal(p[headLen:], want) {
			t.Errorf("%T: %x, want %x, %v", v, p[headLen:], want, err)
		}
	}
	p := somePadded()
	check(wire(t, p), &p)
	check(wire(t, []point{{1, 2}, {3, 4}}), []point{{1, 2}, {3, 4}})
	check(wire(t, -7), int64(-7))
}

// The bytes on the wire must stay, because other programs and later versions rely on them.
//
// Promise (Buffers): The bytes of values on the wire do not change between versions. See also
// TestRawIsBinary.
func TestWire(t *testing.T) {
	for _, c := range []struct {
		got  []byte
		want string
	}{
		{wire(t, point{1, -2}), "\x01\xda\x25\xe0\xd4\x37\x81\xf7" + "\x01\x00\x00\x00\xfe\xff\xff\xff"},
		{wire(t, []uint16{1, 2}), "\x02\xb2\xdb\x81\x09\xc6\x46\xbf" + "\x01\x00\x02\x00"},
		{wire(t, note{"hi"}), "\xd9\xd9\xf7\xa1\x64Text\x62hi"},
		{wire(t, "hi"), "hi"},
	} {
		try.Equal(t, string(c.got), c.want)
	}
}

// CBOR from another program is decoded if it has the tag of self-described CBOR.
func TestCBORFromElsewhere(t *testing.T) {
	p := try.Get(cbor.Marshal(map[string]string{"Text": "hello"}))(t)
	var n note
	if err := Decode(append([]byte(selfDescribed), p...), &n); err != nil || n.Text != "hello" {
		t.Errorf("%v, %v", n, err)
	}
	try.Fails(Decode(p, &n))(t, ErrValue) // without the tag
}

// refused checks that a payload is not a T, and that decoding changes nothing.
func refused[T any](t *testing.T, what string, p []byte) {
	t.Helper()
	var v T
	if err := Decode(p, &v); !errors.Is(err, ErrValue) || !reflect.ValueOf(&v).Elem().IsZero() {
		t.Errorf("%s as %T: %+v, %v", what, v, v, err)
	}
}

// The same number of bytes does not make the same type.
//
// Promise (Buffers): A payload that is no value of the type is an error that matches `ErrValue`,
// never a panic. A value that cannot be sent whole is refused, and takes no memory. See also
// TestNoValue, TestValueWaitsForMemory.
func TestWrongType(t *testing.T) {
	refused[float64](t, "int64", wire(t, int64(1)))
	refused[int32](t, "uint32", wire(t, uint32(1)))
	refused[struct{ W, H int32 }](t, "point", wire(t, point{1, 2}))
	refused[struct{ Y, X int32 }](t, "point", wire(t, point{1, 2}))
	refused[[2]int32](t, "point", wire(t, point{1, 2}))
	refused[point](t, "[]point", wire(t, []point{{1, 2}}))
	refused[[]point](t, "point", wire(t, point{1, 2}))
	refused[[]int32](t, "[]uint32", wire(t, []uint32{1, 2}))
	refused[point](t, "nothing", nil)
	refused[[]point](t, "nothing", nil)
	refused[note](t, "nothing", nil)
	refused[point](t, "text", []byte("sixteen bytes of"))
	refused[point](t, "CBOR", wire(t, note{"x"}))
	refused[note](t, "raw", wire(t, point{1, 2}))
	refused[any](t, "raw", wire(t, 5))
	refused[int](t, "any", wire[any](t, 5))
	refused[note](t, "another struct", wire(t, struct{ Other string }{"x"}))
	refused[note](t, "one with more", wire(t, struct{ Text, Other string }{"x", "y"}))
	refused[note](t, "CBOR of another kind", wire(t, []string{"x"}))
	refused[map[string]int](t, "another map", wire(t, map[string]string{"x": "y"}))
	refused[[]string](t, "CBOR and more", append(wire(t, []string{"x"}), 0))

	type same struct{ X, Y int32 }
	var v same
	if err := Decode(wire(t, point{1, 2}), &v); err != nil || v != (same{1, 2}) {
		t.Errorf("a type of another name: %v, %v", v, err)
	}
	var n int64
	if err := Decode(wire(t, 7), &n); err != nil || n != 7 {
		t.Errorf("an int as int64: %v, %v", n, err)
	}
	var more struct {
		Text string
		More []int
	}
	if err := Decode(wire(t, note{"x"}), &more); err != nil || more.Text != "x" {
		t.Errorf("a receiver that knows more: %v, %v", more, err)
	}
}

// A boolean is 0 or 1, wherever it is.
func TestNoBoolean(t *testing.T) {
	for _, p := range [][]byte{wire(t, true), wire(t, [2]bool{}), wire(t, []bool{true, true}), wire(t, [3]struct {
		N uint8
		B bool
	}{})} {
		p[len(p)-1] = 2
		refused[bool](t, "2", p)
		refused[[2]bool](t, "2", p)
		refused[[]bool](t, "2", p)
		refused[[3]struct {
			N uint8
			B bool
		}](t, "2", p)
	}
}

// Types that would lose a part, or that cannot be sent, are refused. So is a value that contains
// itself.
func TestUnfit(t *testing.T) {
	unfit := func(what string, p []byte, err error) {
		t.Helper()
		if p != nil || !errors.Is(err, ErrValue) {
			t.Errorf("%s: %x, %v", what, p, err)
		}
	}
	try := func(what string, f func() ([]byte, error)) {
		t.Helper()
		p, err := f()
		unfit(what, p, err)
	}
	try("secrets", func() ([]byte, error) { return Append(nil, &secrets{"a", "b"}) })
	try("secrets within", func() ([]byte, error) { return Append(nil, &map[string][]secrets{}) })
	try("a channel", func() ([]byte, error) { c := make(chan int); return Append(nil, &c) })
	try("a function", func() ([]byte, error) { return Append(nil, &struct{ F func() }{}) })
	try("a function in an interface", func() ([]byte, error) { return Append(nil, &anyhow{func() {}}) })
	refused[secrets](t, "CBOR", wire(t, map[string]string{}))

	self := tree{}
	self.Left = &self
	try("a tree in itself", func() ([]byte, error) { return Append(nil, &self) })
	l := loop{nil}
	l[0] = l
	try("a slice in itself", func() ([]byte, error) { return Append(nil, &l) })
	m := map[string]any{}
	m["m"] = m
	try("a map in itself", func() ([]byte, error) { return Append(nil, &m) })
	var p pp
	p = &p
	try("a pointer to itself", func() ([]byte, error) { return Append(nil, &p) })
	var in any
	in = &in
	try("an interface with itself", func() ([]byte, error) { return Append(nil, &in) })

	deep := func(n int) *tree {
		top := new(tree)
		for range n {
			top = &tree{Left: top}
		}
		return top
	}
	same(t, deep(400))
	try("a deep tree", func() ([]byte, error) { d := deep(deepest); return Append(nil, &d) })
}

type badDecoder struct{ s string }

func (b badDecoder) MarshalBinary() ([]byte, error)  { return []byte(b.s), nil }
func (b *badDecoder) UnmarshalBinary(p []byte) error { panic("no") }

// If a method of a value's part panics on a payload, decoding returns an error.
func TestPanicOfPart(t *testing.T) {
	refused[badDecoder](t, "itself", wire(t, badDecoder{"x"}))
	refused[[]badDecoder](t, "several", wire(t, []badDecoder{{"x"}}))
}

// More elements than the CBOR library allows by itself.
func TestManyElements(t *testing.T) {
	many := strings.Split(strings.Repeat("x,", 300_000), ",")
	var got []string
	if err := Decode(wire(t, many), &got); err != nil || len(got) != len(many) {
		t.Errorf("%d strings, %v", len(got), err)
	}
}

// False lengths in a payload cost no memory.
func TestLyingLengths(t *testing.T) {
	for _, head := range []string{"\x9b", "\xbb", "\x5b", "\x7b"} {
		p := []byte(selfDescribed + head + "\x00\x00\x00\x00\x7f\xff\xff\xff" + "xxxx")
		refused[[]string](t, "a lie", p)
		refused[map[string]string](t, "a lie", p)
		refused[any](t, "a lie", p)
	}
	refused[any](t, "depth", []byte(selfDescribed+strings.Repeat("\x81", 1<<20)))
}

// Big-endian memory and ints of 4 bytes work, as other machines have them.
func TestOtherMachines(t *testing.T) {
	type numbers struct {
		A uint8
		B uint16
		C [3]uint32
		D float64
		E complex128
		F bool
	}
	v := numbers{1, 0x0203, [3]uint32{4, 5, 0x06070809}, 1.5, complex(2, 3), true}
	if binary.NativeEndian.Uint16([]byte{0, 1}) == 1 {
		t.Skip("this is one of them")
	}
	l := layout{isBig: true}
	l.add(reflect.TypeFor[numbers](), 0)
	pl := &plan{typ: reflect.TypeFor[numbers]()}
	pl.set(&l, int(pl.typ.Size()))
	// For this machine such a machine's memory is byte-swapped, and so is its encoding.
	p := make([]byte, pl.size)
	pl.encode(p, at(&v), 1)
	want, err := binary.Append(nil, binary.BigEndian, &v)
	if err != nil || !bytes.Equal(p, want) {
		t.Errorf("%x, want %x, %v", p, want, err)
	}
	var got numbers
	if !pl.decode(at(&got), p, 1) || got != v {
		t.Errorf("got %+v", got)
	}

	for _, c := range []struct {
		kind opKind
		wire int64
		ok   bool
	}{
		{opInt32, -1, true}, {opInt32, math.MaxInt32, true}, {opInt32, math.MinInt32, true},
		{opInt32, math.MaxInt32 + 1, false}, {opInt32, math.MinInt32 - 1, false},
		{opUint32, math.MaxUint32, true}, {opUint32, math.MaxUint32 + 1, false}, {opUint32, -1, false},
	} {
		ops := []op{{kind: c.kind, n: 1}}
		p := binary.LittleEndian.AppendUint64(nil, uint64(c.wire))
		var n uint32
		try.Equal(t, decode(ops, at(&n), p, 1, 4, 8), c.ok, "%d as an int of kind %d", c.wire, c.kind)
		if !c.ok {
			continue
		}
		again := make([]byte, 8)
		encode(ops, again, at(&n), 1, 4, 8)
		if !bytes.Equal(again, p) {
			t.Errorf("%d became %x", c.wire, again)
		}
	}
}

// Many goroutines may be the first to use a type.
func TestConcurrentPlans(t *testing.T) {
	type fresh struct {
		N [7]int
		S []string
	}
	var wg sync.WaitGroup
	for range 16 {
		wg.Go(func() {
			v := fresh{N: [7]int{1, 2, 3}, S: []string{"x"}}
			p, err := Append(nil, &v)
			var got fresh
			if err == nil {
				err = Decode(p, &got)
			}
			if err != nil || !reflect.DeepEqual(got, v) {
				t.Errorf("%+v, %v", got, err)
			}
		})
	}
	wg.Wait()
}

// Raw values are encoded and decoded without an allocation; a slice has one.
func TestAllocations(t *testing.T) {
	p := make([]byte, 0, 8192)
	v, s := somePadded(), []point{{1, 2}, {3, 4}}
	n := testing.AllocsPerRun(100, func() {
		q, err := Append(p, &v)
		var got padded
		if err != nil || Decode(q, &got) != nil || got.B != v.B {
			t.Fatal(err)
		}
	})
	try.Equal(t, n, 0, "allocations of a struct")
	n = testing.AllocsPerRun(100, func() {
		q, err := Append(p, &s)
		var got []point
		if err != nil || Decode(q, &got) != nil || got[1] != s[1] {
			t.Fatal(err)
		}
	})
	try.Equal(t, n, 1, "allocations of a slice")
}

// SPDX-License-Identifier: Apache-2.0

package pack_test

import (
	"bytes"
	_ "embed"
	"encoding/hex"
	"fmt"
	"math"
	"strings"
	"testing"

	"github.com/rocl-go/rocl/internal/testkit/try"
	"github.com/rocl-go/rocl/tpvm/pack"

	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// golden holds the messages that the PVM 3.4.6 library has packed; see testdata/golden.c.
//
//go:embed testdata/golden.txt
var golden string

// values are the values of golden.c.
var (
	someBytes   = []int8{1, -2, 3, -4, 5, -6, 7, -128, 127, 0}
	someShorts  = []int16{0, 1, -1, 32767, -32768, 258}
	someUshorts = []uint16{0, 1, 32767, 32768, 65535, 258}
	someInts    = []int32{0, 1, -1, math.MaxInt32, math.MinInt32, 16909060}
	someUints   = []uint32{0, 1, 2147483647, 2147483648, 4294967295, 16909060}
	someLongs   = []int64{0, 1, -1, math.MaxInt32, math.MinInt32, 16909060}
	someUlongs  = []uint64{0, 1, 2147483647, 2147483648, 4294967295, 16909060}
	someFloats  = []float32{0, 1, -1, 0.1, math.MaxFloat32, math.SmallestNonzeroFloat32}
	someDoubles = []float64{0, 1, -1, 0.1, math.MaxFloat64, math.SmallestNonzeroFloat64}
	someCplx    = []complex64{1 - 1i, 0.1 + 2.5i, -3 + 4i, 5 + 6i}
	someDcplx   = []complex128{1 - 1i, 0.1 + 2.5i, -3 + 4i, 5 + 6i}
)

// A step is a call that packs values, and a call that unpacks and compares them.
type step struct {
	pack   func(*pack.Buffer) error
	unpack func(*pack.Reader) error
}

func numbers[T pack.Number](v []T, stride int) step {
	var want []T
	for i := 0; i < len(v); i += stride {
		want = append(want, v[i])
	}
	return step{
		func(b *pack.Buffer) error { return pack.Pack(b, v, stride) },
		func(r *pack.Reader) error {
			got := make([]T, len(want))
			if err := pack.Unpack(r, got, 1); err != nil {
				return err
			}
			for i := range got {
				if got[i] != want[i] {
					return fmt.Errorf("value %d: got %v, want %v", i, got[i], want[i])
				}
			}
			return nil
		},
	}
}

func text(s string) step {
	return step{
		func(b *pack.Buffer) error { return b.PackString(s) },
		func(r *pack.Reader) error {
			got, err := r.UnpackString()
			if err == nil && got != s {
				err = fmt.Errorf("got %q, want %q", got, s)
			}
			return err
		},
	}
}

// buffer returns an empty Buffer.
func buffer(enc pack.Encoding, typed bool) *pack.Buffer {
	if typed {
		return pack.NewBuffer(enc, pack.WithTypes())
	}
	return pack.NewBuffer(enc)
}

// reader returns a Reader of the message that the steps pack.
func reader(tb try.TB, enc pack.Encoding, typed bool, steps ...step) *pack.Reader {
	tb.Helper()
	b := buffer(enc, typed)
	for _, s := range steps {
		try.OK(tb, s.pack(b))
	}
	p := try.Get(b.AppendTo(nil))(tb)
	return try.Get(pack.NewReader(enc, typed, p))(tb)
}

func goldenCases(tb testing.TB) map[string][]step {
	many, big := make([]float64, 1200), make([]byte, 5001)
	for i := range many {
		many[i] = float64(i) / 4
	}
	for i := range big {
		big[i] = byte(i)
	}
	message := func(enc pack.Encoding, steps ...step) step {
		return step{
			func(b *pack.Buffer) error { return b.PackMessage(reader(tb, enc, false, steps...)) },
			func(r *pack.Reader) error {
				m, err := r.UnpackMessage()
				for i := 0; err == nil && i < len(steps); i++ {
					err = steps[i].unpack(m)
				}
				return err
			},
		}
	}
	innerSteps := []step{text("inner"), numbers([]int32{2}, 1)}
	return map[string][]step{
		"byte":           {numbers(someBytes, 1)},
		"byte1":          {numbers(someBytes[:1], 1)},
		"byte4":          {numbers(someBytes[:4], 1)},
		"byte_stride3":   {numbers(someBytes[:7], 3)},
		"byte_twice":     {numbers(someBytes[:3], 1), numbers(someBytes[3:7], 1)},
		"short":          {numbers(someShorts, 1)},
		"short_stride2":  {numbers(someShorts, 2)},
		"ushort":         {numbers(someUshorts, 1)},
		"int":            {numbers(someInts, 1)},
		"int_stride2":    {numbers(someInts, 2)},
		"uint":           {numbers(someUints, 1)},
		"long":           {numbers(someLongs, 1)},
		"long_stride3":   {numbers(someLongs, 3)},
		"ulong":          {numbers(someUlongs, 1)},
		"float":          {numbers(someFloats, 1)},
		"double":         {numbers(someDoubles, 1)},
		"double_stride2": {numbers(someDoubles, 2)},
		"cplx":           {numbers(someCplx, 1)},
		"cplx_stride2":   {numbers(someCplx, 2)},
		"dcplx":          {numbers(someDcplx, 1)},
		"dcplx_stride3":  {numbers(someDcplx, 3)},
		"str":            {text("hello, world")},
		"str_empty":      {text("")},
		"str3":           {text("abc")},
		"str_each":       {text("a"), text("bc"), text("def"), text("ghij")},
		"mixed": {text("x"), numbers([]int32{2}, 1), numbers(someBytes[:3], 1), numbers([]float64{2.5}, 1),
			numbers(someShorts[:2], 1), numbers(someLongs[:2], 1), numbers(someBytes[:1], 1)},
		"packf": {numbers([]int32{2}, 1), numbers(someShorts[:3], 1), text("abc"), numbers(someDoubles[:2], 1),
			numbers([]uint64{7}, 1), numbers(someCplx[:3], 2)},
		"large":      {numbers([]int32{4}, 1), numbers(many, 1)},
		"large_byte": {numbers(big, 1), numbers([]int32{4}, 1)},
		"pkmesg":     {numbers([]int32{4}, 1), message(pack.Default, innerSteps...), numbers([]int32{2}, 1)},
		"pkmesg_raw": {message(pack.Raw, numbers(someBytes[:3], 1)), numbers([]int32{2}, 1)},
		"pkmesgbody": {numbers([]int32{4}, 1), {
			func(b *pack.Buffer) error { return b.PackMessageBody(reader(tb, b.Encoding(), false, innerSteps...)) },
			innerSteps[0].unpack,
		}, {func(*pack.Buffer) error { return nil }, innerSteps[1].unpack}},
	}
}

// Every value is packed byte for byte as PVM packs it, and is unpacked from PVM's bytes.
//
// Promise (Package tpvm): Values of encoding `Default` have the bytes of PVM 3.4. Damaged bytes are
// an error, never a panic. See also TestUnpackErrors.
func TestGolden(t *testing.T) {
	cases := goldenCases(t)
	seen := map[string]bool{}
	for line := range strings.Lines(golden) {
		f := strings.Fields(line)
		if len(f) != 3 {
			t.Fatalf("not a golden line: %q", line)
		}
		name, enc := f[0], pack.Default
		if f[1] == "raw" {
			enc = pack.Raw
		}
		want := try.Get(hex.DecodeString(f[2]))(t)
		if name == "wide" { // see TestOverflow
			continue
		}
		steps, ok := cases[name]
		if !ok {
			t.Errorf("nothing packs %s", name)
			continue
		}
		seen[name] = true
		if strings.HasPrefix(name, "pkmesg") && name != "pkmesgbody" {
			want = widenIDs(name, want)
		}
		t.Run(name+"/"+f[1], func(t *testing.T) {
			if got := reader(t, enc, false, steps...).Payload(); !bytes.Equal(got, want) {
				t.Errorf("packed\n%x, PVM packs\n%x", got, want)
			}
			r := try.Get(pack.NewReader(enc, false, want))(t)
			for i, s := range steps {
				try.Check(t, s.unpack(r), "step %d", i)
			}
			try.Equal(t, r.Remaining(), 0, "bytes remain")
		})
	}
	for name := range cases {
		if !seen[name] {
			t.Errorf("%s is not in golden.txt", name)
		}
	}
}

// widenIDs replaces the source and destination, which are ints in PVM, by two zero identifiers of
// 16 bytes.
func widenIDs(name string, p []byte) []byte {
	at := 6 * 4
	if name == "pkmesg" {
		at += 4 // an int is packed first
	}
	return append(append(bytes.Clone(p[:at]), make([]byte, 32)...), p[at+8:]...)
}

// SPDX-License-Identifier: Apache-2.0

package pack_test

import (
	"errors"
	"fmt"
	"slices"
	"testing"

	"github.com/rocl-go/rocl"
	"github.com/rocl-go/rocl/internal/testkit/try"
	"github.com/rocl-go/rocl/tpvm/pack"
	"pgregory.net/rapid"
)

// Named types are packed as their underlying type.
type (
	celsius float64
	count   int
	level   uint8
)

// same reports whether two numbers are equal or both are NaN.
func same[T pack.Number](a, b T) bool { return a == b || a != a && b != b }

// scatter returns a slice in which the values lie stride apart, with more elements after them.
func scatter[T pack.Number](t *rapid.T, values []T, stride int, filler T) []T {
	if len(values) == 0 {
		return nil
	}
	n := (len(values)-1)*stride + 1 + rapid.IntRange(0, stride-1).Draw(t, "after")
	s := slices.Repeat([]T{filler}, n)
	for i, v := range values {
		s[i*stride] = v
	}
	return s
}

// anyNumbers draws a step that packs numbers in one of several ways.
func anyNumbers[T pack.Number](g *rapid.Generator[T]) func(*rapid.T) step {
	return func(t *rapid.T) step {
		values := rapid.SliceOfN(g, 0, 20).Draw(t, "values")
		filler := g.Draw(t, "filler")
		inStride, outStride := rapid.IntRange(1, 4).Draw(t, "stride in"), rapid.IntRange(1, 4).Draw(t, "stride out")
		in, out := scatter(t, values, inStride, filler), scatter(t, values, outStride, filler)
		one := len(values) == 1 && rapid.Bool().Draw(t, "one")
		view := rapid.Bool().Draw(t, "view")
		return step{
			func(b *pack.Buffer) error {
				if one {
					return pack.PackOne(b, values[0])
				}
				return pack.Pack(b, in, inStride)
			},
			func(r *pack.Reader) error {
				var got []T
				var err error
				switch {
				case one:
					var v T
					v, err = pack.UnpackOne[T](r)
					got = []T{v}
				case view:
					got, err = pack.View[T](r, len(values))
				default:
					for i := range out {
						out[i] = filler
					}
					err = pack.Unpack(r, out, outStride)
					for i, v := range out {
						if i%outStride == 0 {
							got = append(got, v)
						} else if !same(v, filler) {
							return fmt.Errorf("value %d between the strides has become %v", i, v)
						}
					}
				}
				if err != nil {
					return err
				}
				if !slices.EqualFunc(got, values, same) {
					return fmt.Errorf("got %v, want %v", got, values)
				}
				return nil
			},
		}
	}
}

// anyStep draws a step of any kind. With within, longs fit into four bytes.
func anyStep(t *rapid.T, within bool) step {
	long, ulong := rapid.Int64(), rapid.Uint64()
	if within {
		long, ulong = rapid.Int64Range(-1<<31, 1<<31-1), rapid.Uint64Max(1<<32-1)
	}
	kinds := []func(*rapid.T) step{
		anyNumbers(rapid.Int8()), anyNumbers(rapid.Uint8()), anyNumbers(rapid.Int16()), anyNumbers(rapid.Uint16()),
		anyNumbers(rapid.Int32()), anyNumbers(rapid.Uint32()), anyNumbers(long), anyNumbers(ulong),
		anyNumbers(rapid.Int32()), anyNumbers(rapid.Float32()), anyNumbers(rapid.Float64()),
		anyNumbers(rapid.Map(rapid.Int32(), func(i int32) int { return int(i) })),
		anyNumbers(rapid.Map(rapid.Uint32(), func(i uint32) uint { return uint(i) })),
		anyNumbers(rapid.Map(rapid.Int32(), func(i int32) count { return count(i) })),
		anyNumbers(rapid.Map(rapid.Float64(), func(f float64) celsius { return celsius(f) })),
		anyNumbers(rapid.Map(rapid.Byte(), func(b byte) level { return level(b) })),
		anyNumbers(rapid.Custom(func(t *rapid.T) complex64 {
			return complex(rapid.Float32Range(-9, 9).Draw(t, "re"), rapid.Float32Range(-9, 9).Draw(t, "im"))
		})),
		anyNumbers(rapid.Custom(func(t *rapid.T) complex128 {
			return complex(rapid.Float64Range(-9, 9).Draw(t, "re"), rapid.Float64Range(-9, 9).Draw(t, "im"))
		})),
		func(t *rapid.T) step { return text(rapid.String().Draw(t, "string")) },
		anyMessage,
	}
	return rapid.SampledFrom(kinds).Draw(t, "kind")(t)
}

// anyMessage draws a step that packs a message, or its body.
func anyMessage(t *rapid.T) step {
	enc := rapid.SampledFrom([]pack.Encoding{pack.Default, pack.Raw, pack.InPlace}).Draw(t, "inner encoding")
	typed := rapid.Bool().Draw(t, "inner typed")
	body := rapid.Bool().Draw(t, "body")
	from := try.Get(rocl.ParseGID("0123456789ab-cdef01234567-89abcdef"))(t)
	env := pack.Envelope{Context: rapid.Uint32().Draw(t, "context"), Tag: rapid.Int32().Draw(t, "tag"), From: from, To: from.WithSerial(3)}
	a, c := text(rapid.String().Draw(t, "text")), numbers(rapid.SliceOf(rapid.Int32()).Draw(t, "ints"), 1)
	return step{
		func(b *pack.Buffer) error {
			if body {
				if b.Encoding() == pack.Default || enc == pack.Default {
					enc = b.Encoding()
				}
				if b.Typed() {
					typed = true
				}
			}
			r := reader(t, enc, typed, a, c)
			r.SetEnvelope(env)
			if err := a.unpack(r); err != nil { // the part that has been unpacked makes no difference
				return err
			}
			if body {
				return b.PackMessageBody(r)
			}
			return b.PackMessage(r)
		},
		func(r *pack.Reader) error {
			if !body {
				m, err := r.UnpackMessage()
				if err != nil {
					return err
				}
				if m.Encoding() != enc || m.Typed() != typed || m.Envelope() != env {
					return fmt.Errorf("got %v, %v, %v; want %v, %v, %v", m.Encoding(), m.Typed(), m.Envelope(), enc, typed, env)
				}
				r = m
			}
			return errors.Join(a.unpack(r), c.unpack(r))
		},
	}
}

// The values that are packed are unpacked, for all types, encodings and strides. A Reader in any
// state refuses to unpack more than is left, and loses none of it.
func TestRoundTrip(t *testing.T) {
	b := new(pack.Buffer)
	typedBuffer := pack.NewBuffer(pack.Default, pack.WithTypes())
	rapid.Check(t, func(t *rapid.T) {
		enc := rapid.SampledFrom([]pack.Encoding{pack.Default, pack.Raw, pack.InPlace}).Draw(t, "encoding")
		typed := rapid.Bool().Draw(t, "typed")
		b := b // used again, as programs do
		if typed {
			b = typedBuffer
		}
		b.Reset(enc)
		var steps []step
		for range rapid.IntRange(0, 12).Draw(t, "steps") {
			s := anyStep(t, enc == pack.Default && !typed)
			try.OK(t, s.pack(b))
			steps = append(steps, s)
		}
		p := try.Get(b.AppendTo([]byte("before")))(t)
		p = p[len("before"):]
		if len(p) != b.Size() || !typed && b.Len() != b.Size() {
			t.Fatalf("%d bytes, Size %d, Len %d", len(p), b.Size(), b.Len())
		}
		r := try.Get(pack.NewReader(enc, typed, p))(t)
		for range 2 {
			for i, s := range steps {
				if rapid.Bool().Draw(t, "too much") {
					was := r.Remaining()
					if err := pack.Unpack(r, make([]float64, was+1), 1); !errors.Is(err, pack.ErrNoData) && !(typed && errors.Is(err, pack.ErrType)) {
						t.Fatalf("%d doubles of %d bytes: %v", was+1, was, err)
					}
					if r.Remaining() != was {
						t.Fatal("an Unpack that failed has consumed something")
					}
				}
				try.OK(t, s.unpack(r), "step %d", i)
			}
			if r.Remaining() != 0 {
				t.Fatalf("%d bytes remain", r.Remaining())
			}
			if _, err := pack.UnpackOne[int32](r); !errors.Is(err, pack.ErrNoData) {
				t.Fatalf("beyond the end: %v", err)
			}
			r.Rewind()
		}
	})
}

// Values may be unpacked in other groups than they were packed in, even if some longs take four
// bytes and others eight.
func TestRegroup(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		enc := rapid.SampledFrom([]pack.Encoding{pack.Default, pack.Raw, pack.InPlace}).Draw(t, "encoding")
		values := rapid.SliceOfN(rapid.Int64(), 1, 100).Draw(t, "values")
		b := pack.NewBuffer(enc, pack.WithTypes())
		for i := 0; i < len(values); {
			n := rapid.IntRange(1, len(values)-i).Draw(t, "packed")
			try.OK(t, pack.Pack(b, values[i:i+n], 1))
			i += n
		}
		p, _ := b.AppendTo(nil)
		r := try.Get(pack.NewReader(enc, true, p))(t)
		for i := 0; i < len(values); {
			n, stride := rapid.IntRange(1, len(values)-i).Draw(t, "unpacked"), rapid.IntRange(1, 3).Draw(t, "stride")
			got := make([]int64, (n-1)*stride+1)
			if rapid.Bool().Draw(t, "view") {
				stride = 1
				got = try.Get(pack.View[int64](r, n))(t)
			} else if err := pack.Unpack(r, got, stride); err != nil {
				t.Fatal(err)
			}
			for j := range n {
				if got[j*stride] != values[i+j] {
					t.Fatalf("value %d: got %d, want %d", i+j, got[j*stride], values[i+j])
				}
			}
			i += n
		}
		try.Equal(t, r.Remaining(), 0, "bytes remain")
	})
}

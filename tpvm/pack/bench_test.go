// SPDX-License-Identifier: Apache-2.0

package pack_test

import (
	"fmt"
	"testing"

	"github.com/rocl-go/rocl/tpvm/pack"
)

const benchBytes = 1 << 20

func benchPack[T pack.Number](b *testing.B, enc pack.Encoding, size int) {
	v := make([]T, benchBytes/size)
	b.Run(fmt.Sprintf("pack/%T/%v", v, enc), func(b *testing.B) {
		buf, dst := pack.NewBuffer(enc), make([]byte, benchBytes)
		b.SetBytes(benchBytes)
		b.ReportAllocs()
		for b.Loop() {
			buf.Reset(enc)
			if err := pack.Pack(buf, v, 1); err != nil {
				b.Fatal(err)
			}
			if enc == pack.InPlace { // the copy that Pack makes with other encodings
				if _, err := buf.Encode(dst); err != nil {
					b.Fatal(err)
				}
			}
		}
	})
	b.Run(fmt.Sprintf("unpack/%T/%v", v, enc), func(b *testing.B) {
		p := payload(enc, false, []step{numbers(v, 1)})
		r := new(pack.Reader)
		b.SetBytes(benchBytes)
		b.ReportAllocs()
		for b.Loop() {
			if err := r.Init(enc, false, p); err != nil {
				b.Fatal(err)
			}
			if err := pack.Unpack(r, v, 1); err != nil {
				b.Fatal(err)
			}
		}
	})
}

// Bulk packs and unpacks a mebibyte, beside copy.
func BenchmarkBulk(b *testing.B) {
	src, dst := make([]byte, benchBytes), make([]byte, benchBytes)
	b.Run("copy", func(b *testing.B) {
		b.SetBytes(benchBytes)
		for b.Loop() {
			copy(dst, src)
		}
	})
	for _, enc := range encodings {
		benchPack[float64](b, enc, 8)
		benchPack[int32](b, enc, 4)
		benchPack[complex64](b, enc, 8)
	}
	benchPack[int16](b, pack.Default, 2)
	benchPack[int64](b, pack.Default, 8)
}

// Small packs and unpacks an int, a double and a string.
func BenchmarkSmall(b *testing.B) {
	for _, enc := range encodings {
		for _, typed := range []bool{false, true} {
			b.Run(fmt.Sprintf("%v/typed=%v", enc, typed), func(b *testing.B) {
				buf := pack.NewBuffer(enc)
				if typed {
					buf = pack.NewBuffer(enc, pack.WithTypes())
				}
				dst, r := make([]byte, 100), new(pack.Reader)
				b.ReportAllocs()
				for b.Loop() {
					buf.Reset(enc)
					_ = pack.PackOne[int32](buf, 7)
					_ = pack.PackOne(buf, 7.5)
					_ = buf.PackBytes(dst[90:])
					n, err := buf.Encode(dst)
					if err != nil {
						b.Fatal(err)
					}
					if err := r.Init(enc, typed, dst[:n]); err != nil {
						b.Fatal(err)
					}
					_, _ = pack.UnpackOne[int32](r)
					_, _ = pack.UnpackOne[float64](r)
					if _, err := pack.View[byte](r, 10); err != nil {
						b.Fatal(err)
					}
				}
			})
		}
	}
}

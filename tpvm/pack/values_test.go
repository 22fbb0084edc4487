// SPDX-License-Identifier: Apache-2.0

package pack_test

import (
	"bytes"
	"errors"
	"reflect"
	"testing"

	"github.com/rocl-go/rocl/internal/testkit/try"
	"github.com/rocl-go/rocl/tpvm/pack"
)

type degrees float64

// PackValues writes the same bytes as single calls, and UnpackValues reads them, in every encoding.
func TestValues(t *testing.T) {
	for _, enc := range []pack.Encoding{pack.Default, pack.Raw, pack.InPlace} {
		r := reader(t, enc, false, step{func(b *pack.Buffer) error {
			return b.PackValues("text", int32(-3), []float64{1, 2.5}, []byte("bytes"), degrees(20), []int16(nil), complex(1, 2))
		}, nil})
		single := reader(t, enc, false, step{func(b *pack.Buffer) error {
			return errors.Join(b.PackString("text"), pack.PackOne(b, int32(-3)), pack.Pack(b, []float64{1, 2.5}, 1), b.PackBytes([]byte("bytes")),
				pack.PackOne(b, degrees(20)), pack.PackOne(b, complex(1, 2)))
		}, nil})
		if !bytes.Equal(r.Payload(), single.Payload()) {
			t.Fatalf("%v: PackValues packs %x, single calls %x", enc, r.Payload(), single.Payload())
		}
		var s string
		var i int32
		f, p := make([]float64, 2), make([]byte, 5)
		var c degrees
		var z complex128
		try.OK(t, r.UnpackValues(&s, &i, f, p, &c, []int16{}, &z))
		if s != "text" || i != -3 || !reflect.DeepEqual(f, []float64{1, 2.5}) || string(p) != "bytes" || c != 20 || z != complex(1, 2) {
			t.Error(enc, s, i, f, p, c, z)
		}
		try.Fails(r.UnpackValues(&i))(t, pack.ErrNoData, "%v: more than was packed", enc)
	}
}

func TestValuesOfOtherTypes(t *testing.T) {
	b := pack.NewBuffer(pack.Raw)
	for _, v := range []any{nil, true, []string{"a"}, struct{}{}, new(int), map[int]int{}} {
		try.Fails(b.PackValues(v))(t, pack.ErrBadParam, "pack %T", v)
	}
	var r pack.Reader
	for _, p := range []any{nil, 1, "a", (*int)(nil), new(bool), []string{"a"}, struct{}{}} {
		try.Fails(r.UnpackValues(p))(t, pack.ErrBadParam, "unpack %T", p)
	}
}

// SPDX-License-Identifier: Apache-2.0

package codec

import (
	"bytes"
	"errors"
	"reflect"
	"testing"
	"unsafe"

	"github.com/rocl-go/rocl/resource"
)

func at[T any](v *T) unsafe.Pointer { return unsafe.Pointer(v) }

type everything struct {
	ID    resource.GID
	Text  string
	Bytes []byte
	List  []int16
	Map   map[string]padded
	Tree  *tree
	Any   any
	Deep  [][]map[int]*note
}

// Any bytes are a value or an error, for every kind of type. A raw value has exactly these bytes
// when it is encoded again. CBOR may change, but keeps its meaning.
func FuzzDecode(f *testing.F) {
	f.Add(wire(f, everything{Text: "x", Tree: &tree{}, Any: []any{1, "a"}, Map: map[string]padded{"p": {}}}))
	f.Add(wire(f, somePadded()))
	f.Add(wire(f, []padded{{}, somePadded()}))
	f.Add(wire(f, []bool{true, false}))
	f.Add(wire(f, true))
	f.Add(wire[any](f, map[string]any{"a": []any{1, nil}}))
	f.Add([]byte(selfDescribed + "\x9b\x00\x00\x00\x00\x7f\xff\xff\xff"))
	f.Add([]byte(selfDescribed + "\x82\x00\xc1\xf6"))
	f.Fuzz(func(t *testing.T, p []byte) {
		was := bytes.Clone(p)
		one[bool](t, p)
		one[padded](t, p)
		one[[]padded](t, p)
		one[[]bool](t, p)
		one[resource.GID](t, p)
		one[[]uint64](t, p)
		one[[]byte](t, p)
		one[string](t, p)
		one[everything](t, p)
		one[any](t, p)
		one[*tree](t, p)
		one[map[string][]string](t, p)
		if !bytes.Equal(p, was) {
			t.Error("the payload was written to")
		}
	})
}

func one[T any](t *testing.T, p []byte) {
	t.Helper()
	var v T
	if err := Decode(p, &v); err != nil {
		if !errors.Is(err, ErrValue) || !reflect.ValueOf(&v).Elem().IsZero() {
			t.Errorf("%T: %v and %+v", v, err, v)
		}
		return
	}
	q, err := Append(nil, &v)
	if planOf[T]().format == asCBOR {
		if err != nil && !errors.Is(err, ErrValue) { // such as a map in an interface whose key is a list
			t.Errorf("%T: decoded, but encoding it: %v", v, err)
		}
		return
	}
	if err != nil || !bytes.Equal(p, q) {
		t.Errorf("%T: decoded from %x, encoded to %x, %v", v, p, q, err)
	}
}

// SPDX-License-Identifier: Apache-2.0

package main

import (
	"slices"
	"unsafe"

	"github.com/rocl-go/rocl/tpvm/pack"
)

// A valueType is a type of the values that the program packs.
type valueType struct {
	pk, upk    string // the names of its functions
	size, wire int    // bytes of a value in memory, and in a message of encoding Default
	// pack and unpack take the values at p, stride apart, for which isMemory reports true.
	pack   func(b *pack.Buffer, p unsafe.Pointer, count, stride int) error
	unpack func(r *pack.Reader, p unsafe.Pointer, count, stride int) error
}

// types has the types by their numbers in pvm3.h.
var types = [...]valueType{
	typeOf[byte]("str", 1), typeOf[byte]("byte", 1), typeOf[int16]("short", 4), typeOf[int32]("int", 4), typeOf[float32]("float", 4),
	typeOf[complex64]("cplx", 8), typeOf[float64]("double", 8), typeOf[complex128]("dcplx", 16), typeOf[int64]("long", 4),
	typeOf[uint16]("ushort", 4), typeOf[uint32]("uint", 4), typeOf[uint64]("ulong", 4),
}

func typeOf[T pack.Number](name string, wire int) valueType {
	values := func(p unsafe.Pointer, count, stride int) []T {
		if count == 0 {
			return nil
		}
		return unsafe.Slice((*T)(p), (count-1)*stride+1)
	}
	return valueType{
		pk: "pvm_pk" + name, upk: "pvm_upk" + name, size: int(unsafe.Sizeof(*new(T))), wire: wire,
		pack: func(b *pack.Buffer, p unsafe.Pointer, count, stride int) error {
			v := values(p, count, stride)
			if stride == 0 { // packs one value count times
				v = slices.Repeat(v, count)
			}
			return pack.Pack(b, v, max(stride, 1))
		},
		unpack: func(r *pack.Reader, p unsafe.Pointer, count, stride int) error {
			v := values(p, count, stride)
			if stride > 0 || count == 0 {
				return pack.Unpack(r, v, max(stride, 1))
			}
			same := make([]T, count) // the last one stays
			err := pack.Unpack(r, same, 1)
			if err == nil {
				v[0] = same[count-1]
			}
			return err
		},
	}
}

// isMemory reports whether count values, stride apart, can be at p.
func isMemory(p unsafe.Pointer, count, stride int) bool {
	return count >= 0 && (count == 0 || p != nil) && stride >= 0
}

// typeFor returns the type with a number for count values at p.
func typeFor(p unsafe.Pointer, count, typ int) (*valueType, error) {
	if typ < 0 || typ >= len(types) || !isMemory(p, count, 1) {
		return nil, badParam
	}
	return &types[typ], nil
}

// wireSize returns how many bytes a value takes in a message.
func (t *valueType) wireSize(enc pack.Encoding) int {
	if enc == pack.Default {
		return t.wire
	}
	return t.size
}

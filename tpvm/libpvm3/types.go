// SPDX-License-Identifier: Apache-2.0

package main

import (
	"unsafe"

	"github.com/rocl-go/rocl/tpvm/pack"
)

// The types of values.
const (
	typeStr = iota
	typeByte
	typeShort
	typeInt
	typeFloat
	typeCplx
	typeDouble
	typeDcplx
	typeLong
	typeUshort
	typeUint
	typeUlong
)

// sizes lists the sizes of the types in memory.
var sizes = [...]int{1, 1, 2, 4, 4, 8, 8, 16, 8, 2, 4, 8}

// wireSize returns how many bytes a value of a type takes in a message.
func wireSize(enc pack.Encoding, typ int) int {
	if enc != pack.Default {
		return sizes[typ]
	}
	switch typ {
	case typeShort, typeUshort, typeLong, typeUlong:
		return 4
	}
	return sizes[typ]
}

// packType packs n values of a type.
func packType(b *pack.Buffer, p unsafe.Pointer, n, typ int) error {
	v := slice(p, n, typ)
	if v == nil {
		return badParam
	}
	return b.PackValues(v)
}

// unpackType unpacks n values of a type.
func unpackType(r *pack.Reader, p unsafe.Pointer, n, typ int) error {
	v := slice(p, n, typ)
	if v == nil {
		return badParam
	}
	return r.UnpackValues(v)
}

// slice returns the slice of n values of a type at p, or nil if there is no such type.
func slice(p unsafe.Pointer, n, typ int) any {
	switch typ {
	case typeStr, typeByte:
		return unsafe.Slice((*byte)(p), n)
	case typeShort:
		return unsafe.Slice((*int16)(p), n)
	case typeUshort:
		return unsafe.Slice((*uint16)(p), n)
	case typeInt:
		return unsafe.Slice((*int32)(p), n)
	case typeUint:
		return unsafe.Slice((*uint32)(p), n)
	case typeFloat:
		return unsafe.Slice((*float32)(p), n)
	case typeDouble:
		return unsafe.Slice((*float64)(p), n)
	case typeCplx:
		return unsafe.Slice((*complex64)(p), n)
	case typeDcplx:
		return unsafe.Slice((*complex128)(p), n)
	case typeLong:
		return unsafe.Slice((*int64)(p), n)
	case typeUlong:
		return unsafe.Slice((*uint64)(p), n)
	}
	return nil
}

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

// packType packs count values of a type.
func packType(b *pack.Buffer, p unsafe.Pointer, n, typ int) error {
	switch typ {
	case typeStr, typeByte:
		return pack.Pack(b, unsafe.Slice((*byte)(p), n), 1)
	case typeShort:
		return pack.Pack(b, unsafe.Slice((*int16)(p), n), 1)
	case typeUshort:
		return pack.Pack(b, unsafe.Slice((*uint16)(p), n), 1)
	case typeInt:
		return pack.Pack(b, unsafe.Slice((*int32)(p), n), 1)
	case typeUint:
		return pack.Pack(b, unsafe.Slice((*uint32)(p), n), 1)
	case typeFloat:
		return pack.Pack(b, unsafe.Slice((*float32)(p), n), 1)
	case typeDouble:
		return pack.Pack(b, unsafe.Slice((*float64)(p), n), 1)
	case typeCplx:
		return pack.Pack(b, unsafe.Slice((*complex64)(p), n), 1)
	case typeDcplx:
		return pack.Pack(b, unsafe.Slice((*complex128)(p), n), 1)
	case typeLong:
		return pack.Pack(b, unsafe.Slice((*int64)(p), n), 1)
	case typeUlong:
		return pack.Pack(b, unsafe.Slice((*uint64)(p), n), 1)
	}
	return badParam
}

// unpackType unpacks n values of a type.
func unpackType(r *pack.Reader, p unsafe.Pointer, n, typ int) error {
	switch typ {
	case typeStr, typeByte:
		return pack.Unpack(r, unsafe.Slice((*byte)(p), n), 1)
	case typeShort:
		return pack.Unpack(r, unsafe.Slice((*int16)(p), n), 1)
	case typeUshort:
		return pack.Unpack(r, unsafe.Slice((*uint16)(p), n), 1)
	case typeInt:
		return pack.Unpack(r, unsafe.Slice((*int32)(p), n), 1)
	case typeUint:
		return pack.Unpack(r, unsafe.Slice((*uint32)(p), n), 1)
	case typeFloat:
		return pack.Unpack(r, unsafe.Slice((*float32)(p), n), 1)
	case typeDouble:
		return pack.Unpack(r, unsafe.Slice((*float64)(p), n), 1)
	case typeCplx:
		return pack.Unpack(r, unsafe.Slice((*complex64)(p), n), 1)
	case typeDcplx:
		return pack.Unpack(r, unsafe.Slice((*complex128)(p), n), 1)
	case typeLong:
		return pack.Unpack(r, unsafe.Slice((*int64)(p), n), 1)
	case typeUlong:
		return pack.Unpack(r, unsafe.Slice((*uint64)(p), n), 1)
	}
	return badParam
}

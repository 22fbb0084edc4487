// SPDX-License-Identifier: Apache-2.0

package pack

import (
	"encoding/binary"
	"unsafe"
)

// Most messages hold a few single numbers. The functions of this file pack and unpack the commonest
// of them in an untyped message, without the generality of a vector. The result is the same.

// wordSize returns 4 or 8 if a value of kind k has that size in memory and on the wire. Otherwise
// it returns 0.
func wordSize(k kind, enc Encoding) int {
	switch k {
	case intKind, uintKind, floatKind:
		return 4
	case doubleKind:
		return 8
	case longKind, ulongKind:
		if enc != Default {
			return 8
		}
	}
	return 0
}

// packWord packs *v. It reports false, and does nothing, if pack must do so.
func packWord[T Number](b *Buffer, v *T) bool {
	size := wordSize(kindOf[T](), b.enc)
	if b.typed || b.enc >= InPlace || size != int(unsafe.Sizeof(*v)) || b.size > maxMessage-8 {
		return false
	}
	switch b.size += size; {
	case size == 8 && b.enc == Default:
		b.data = binary.BigEndian.AppendUint64(b.data, *(*uint64)(unsafe.Pointer(v)))
	case size == 8:
		b.data = binary.LittleEndian.AppendUint64(b.data, *(*uint64)(unsafe.Pointer(v)))
	case b.enc == Default:
		b.data = binary.BigEndian.AppendUint32(b.data, *(*uint32)(unsafe.Pointer(v)))
	default:
		b.data = binary.LittleEndian.AppendUint32(b.data, *(*uint32)(unsafe.Pointer(v)))
	}
	return true
}

// unpackWord unpacks into *v. It reports false, and does nothing, if unpack must do so or must
// fail.
func unpackWord[T Number](r *Reader, v *T) bool {
	size := wordSize(kindOf[T](), r.enc)
	if r.typed || size != int(unsafe.Sizeof(*v)) || len(r.data)-r.off < size {
		return false
	}
	p := r.data[r.off:]
	switch r.off += size; {
	case size == 8 && r.enc == Default:
		*(*uint64)(unsafe.Pointer(v)) = binary.BigEndian.Uint64(p)
	case size == 8:
		*(*uint64)(unsafe.Pointer(v)) = binary.LittleEndian.Uint64(p)
	case r.enc == Default:
		*(*uint32)(unsafe.Pointer(v)) = binary.BigEndian.Uint32(p)
	default:
		*(*uint32)(unsafe.Pointer(v)) = binary.LittleEndian.Uint32(p)
	}
	return true
}

// SPDX-License-Identifier: Apache-2.0

package pack

import (
	"encoding/binary"
	"math"
	"math/bits"
	"unsafe"
)

// A unit is the bits of a number.
type unit interface{ uint16 | uint32 | uint64 }

// isLittle reports whether this machine stores the low byte of a number first. The compiler
// evaluates it.
func isLittle() bool { return binary.NativeEndian.Uint16([]byte{1, 0}) == 1 }

// swaps reports whether the bytes of a number must be reversed: XDR is big-endian, Raw is
// little-endian.
func swaps(xdr bool) bool { return xdr == isLittle() }

// padded returns n rounded up to a multiple of four.
func padded(n int) int { return (n + 3) &^ 3 }

// store writes x to the start of p in the machine's byte order. p may be unaligned. For each U, the
// compiler makes one instruction of it.
func store[U unit](p []byte, x U) {
	switch unsafe.Sizeof(x) {
	case 2:
		binary.NativeEndian.PutUint16(p, uint16(x))
	case 4:
		binary.NativeEndian.PutUint32(p, uint32(x))
	case 8:
		binary.NativeEndian.PutUint64(p, uint64(x))
	}
}

// load reads a number that store wrote.
func load[U unit](p []byte) U {
	var x U
	switch unsafe.Sizeof(x) {
	case 2:
		return U(binary.NativeEndian.Uint16(p))
	case 4:
		return U(binary.NativeEndian.Uint32(p))
	default:
		return U(binary.NativeEndian.Uint64(p))
	}
}

// reverse returns x with its bytes reversed.
func reverse[U unit](x U) U {
	switch unsafe.Sizeof(x) {
	case 2:
		return U(bits.ReverseBytes16(uint16(x)))
	case 4:
		return U(bits.ReverseBytes32(uint32(x)))
	default:
		return U(bits.ReverseBytes64(uint64(x)))
	}
}

// reverseEach returns x with the bytes of each U in it reversed.
func reverseEach[U unit](x uint64) uint64 {
	switch unsafe.Sizeof(*new(U)) {
	case 2:
		const low = 0x00ff00ff00ff00ff
		return x>>8&low | x&low<<8
	case 4:
		return bits.RotateLeft64(bits.ReverseBytes64(x), 32)
	default:
		return bits.ReverseBytes64(x)
	}
}

// bytesOf returns the memory of src.
func bytesOf[U unit](src []U) []byte {
	return unsafe.Slice((*byte)(unsafe.Pointer(unsafe.SliceData(src))), len(src)*int(unsafe.Sizeof(*new(U))))
}

// copyUnits copies units, with their bytes reversed if swap is set.
func copyUnits[U unit](dst, src []byte, swap bool) {
	if !swap {
		copy(dst, src)
		return
	}
	for len(src) >= 32 && len(dst) >= 32 { // this form has no bounds checks
		store(dst, reverseEach[U](load[uint64](src)))
		store(dst[8:], reverseEach[U](load[uint64](src[8:])))
		store(dst[16:], reverseEach[U](load[uint64](src[16:])))
		store(dst[24:], reverseEach[U](load[uint64](src[24:])))
		src, dst = src[32:], dst[32:]
	}
	size := int(unsafe.Sizeof(*new(U)))
	for len(src) >= size && len(dst) >= size {
		store(dst, reverse(load[U](src)))
		src, dst = src[size:], dst[size:]
	}
}

// put writes the first per units of every step units to dst, which has exactly their size.
func put[U unit](dst []byte, src []U, per, step int, swap bool) {
	if step == per {
		copyUnits[U](dst, bytesOf(src), swap)
		return
	}
	size := int(unsafe.Sizeof(*new(U)))
	for i := 0; i < len(src); i += step {
		for _, x := range src[i : i+per] {
			if swap {
				x = reverse(x)
			}
			store(dst, x)
			dst = dst[size:]
		}
		if len(src)-i <= step { // the sum could overflow
			return
		}
	}
}

// get reads units that put wrote.
func get[U unit](dst []U, src []byte, per, step int, swap bool) {
	if step == per {
		copyUnits[U](bytesOf(dst), src, swap)
		return
	}
	size := int(unsafe.Sizeof(*new(U)))
	for i := 0; i < len(dst); i += step {
		group := dst[i : i+per]
		for j := range group {
			x := load[U](src)
			if swap {
				x = reverse(x)
			}
			group[j] = x
			src = src[size:]
		}
		if len(dst)-i <= step {
			return
		}
	}
}

// putWords writes every step-th number as an XDR word of four bytes, sign-extended if the type is
// signed.
func putWords[U int16 | uint64](dst []byte, src []U, step int) {
	if step == 1 {
		for len(src) > 0 && len(dst) >= 4 {
			binary.BigEndian.PutUint32(dst, uint32(src[0]))
			src, dst = src[1:], dst[4:]
		}
		return
	}
	for i := range len(dst) / 4 {
		binary.BigEndian.PutUint32(dst[i*4:], uint32(src[i*step]))
	}
}

// getWords reads XDR words, sign-extended if the type is signed.
func getWords[U uint16 | int64 | uint64](dst []U, src []byte, step int) {
	isSigned := U(0)-1 < 0
	for i := range len(src) / 4 {
		w := binary.BigEndian.Uint32(src)
		src = src[4:]
		if isSigned {
			dst[i*step] = U(int32(w))
		} else {
			dst[i*step] = U(w)
		}
	}
}

// steps returns how many units a value of kind k has, and the distance in units from one value of x
// to the next. If the stride is too large for an int, step is the largest int: x has one value
// then.
func (x vector) steps(k kind) (per, step int) {
	per = kindInfo[k].units
	if x.stride > math.MaxInt/2 {
		return per, math.MaxInt
	}
	return per, x.stride * per
}

// put writes the values of x to dst, which has exactly their size without padding. k is x.k, or the
// hyper kind of it. If a long takes four bytes, each value must fit.
func (x vector) put(dst []byte, k kind, xdr bool) {
	if x.n == 0 {
		return
	}
	per, step := x.steps(k)
	narrow := xdr && (k == longKind || k == ulongKind)
	switch {
	case k == byteKind:
		src := unsafe.Slice((*byte)(x.p), x.n)
		if step == 1 {
			copy(dst, src)
			return
		}
		for i := range dst {
			dst[i] = src[i*step]
		}
	case x.half && narrow: // an int of four bytes is written as such
		put(dst, units[uint32](x), 1, step, swaps(xdr))
	case x.half:
		x.putHalf(dst, swaps(xdr))
	case narrow:
		putWords(dst, units[uint64](x), step)
	case kindInfo[k].unit == 2 && xdr: // PVM writes an unsigned short as if it had a sign
		putWords(dst, unsafe.Slice((*int16)(x.p), x.n), step)
	case kindInfo[k].unit == 2:
		put(dst, units[uint16](x), per, step, swaps(xdr))
	case kindInfo[k].unit == 4:
		put(dst, units[uint32](x), per, step, swaps(xdr))
	default:
		put(dst, units[uint64](x), per, step, swaps(xdr))
	}
}

// get reads the values of x from src, which has exactly their size without padding. In src they are
// of kind k. If a value is too large for an int of four bytes, get reports false, and may have
// changed some of the values.
func (x vector) get(src []byte, k kind, xdr bool) bool {
	if x.n == 0 {
		return true
	}
	per, step := x.steps(k)
	narrow := xdr && (k == longKind || k == ulongKind)
	switch {
	case k == byteKind:
		dst := unsafe.Slice((*byte)(x.p), x.n)
		if step == 1 {
			copy(dst, src)
			return true
		}
		for i, c := range src {
			dst[i*step] = c
		}
	case x.half && narrow:
		get(units[uint32](x), src, 1, step, swaps(xdr))
	case x.half:
		return x.getHalf(src, swaps(xdr))
	case narrow && k == longKind:
		getWords(unsafe.Slice((*int64)(x.p), x.n), src, step)
	case narrow:
		getWords(units[uint64](x), src, step)
	case kindInfo[k].unit == 2 && xdr:
		getWords(units[uint16](x), src, step)
	case kindInfo[k].unit == 2:
		get(units[uint16](x), src, per, step, swaps(xdr))
	case kindInfo[k].unit == 4:
		get(units[uint32](x), src, per, step, swaps(xdr))
	default:
		get(units[uint64](x), src, per, step, swaps(xdr))
	}
	return true
}

// putHalf writes ints of four bytes as longs of eight bytes.
func (x vector) putHalf(dst []byte, swap bool) {
	src := unsafe.Slice((*uint32)(x.p), x.n)
	for i := range len(dst) / 8 {
		v := uint64(src[i*x.stride])
		if x.k == longKind {
			v = uint64(int32(v))
		}
		if swap {
			v = reverse(v)
		}
		store(dst[i*8:], v)
	}
}

// getHalf reads longs of eight bytes into ints of four bytes. It reports false if one does not fit.
func (x vector) getHalf(src []byte, swap bool) bool {
	dst := unsafe.Slice((*uint32)(x.p), x.n)
	for i := range len(src) / 8 {
		v := load[uint64](src[i*8:])
		if swap {
			v = reverse(v)
		}
		if x.k == longKind && int64(v) != int64(int32(v)) || x.k == ulongKind && v>>32 != 0 {
			return false
		}
		dst[i*x.stride] = uint32(v)
	}
	return true
}

// fits reports whether each long of x can be written in four bytes.
func (x vector) fits() bool {
	if x.half || x.n == 0 {
		return true
	}
	var high uint64
	src := units[uint64](x)
	bias := uint64(0)
	if x.k == longKind {
		bias = 1 << 31 // shifts the range -1<<31 … 1<<31-1 to 0 … 1<<32-1
	}
	if x.stride == 1 {
		for _, v := range src {
			high |= v + bias
		}
	} else {
		for i := range x.count() {
			high |= src[i*x.stride] + bias
		}
	}
	return high>>32 == 0
}

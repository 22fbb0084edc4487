// SPDX-License-Identifier: Apache-2.0

package pack

import (
	"errors"
	"fmt"
	"reflect"
	"unsafe"
)

// The errors of this package. Match them with errors.Is.
var (
	// ErrNoData is returned when more values are unpacked than were packed (PvmNoData).
	ErrNoData = errors.New("pack: no more data in the message")
	// ErrType is returned when a value of a typed message is unpacked as another type than it was
	// packed.
	ErrType = errors.New("pack: the type differs from what was packed")
	// ErrOverflow is returned when a value does not fit into its bytes (PvmOverflow): a long in
	// encoding Default, or a value that is unpacked into an int of four bytes.
	ErrOverflow = errors.New("pack: value too large for the encoding")
	// ErrBadParam is returned for an argument that is never valid, such as a stride of zero
	// (PvmBadParam).
	ErrBadParam = errors.New("pack: invalid argument")
	// ErrMismatch is returned by PackMessageBody if the two messages have different encodings, or
	// if only the destination is typed (PvmMismatch).
	ErrMismatch = errors.New("pack: the encodings of the messages differ")
	// ErrDamaged is returned when no Buffer can have encoded a message (PvmBadMsg).
	ErrDamaged = errors.New("pack: the message is damaged")
)

// An Encoding is the form in which values travel. Sender and receiver must use the same one;
// package tpvm puts it into the byte behind the message.
type Encoding uint8

// The encodings. The numbers are those of PVM.
const (
	// Default is XDR as PVM 3.4.6 writes it (PvmDataDefault).
	Default Encoding = iota
	// Raw is the form in which a little-endian 64-bit machine keeps values in memory (PvmDataRaw).
	Raw
	// InPlace is Raw for the receiver. The Buffer refers to the caller's values and reads them
	// when the message is sent (PvmDataInPlace).
	InPlace

	encodings
)

func (e Encoding) String() string {
	switch e {
	case Default:
		return "default"
	case Raw:
		return "raw"
	case InPlace:
		return "in place"
	}
	return fmt.Sprintf("Encoding(%d)", uint8(e))
}

// A Number is a value that Pack packs and Unpack unpacks. The package comment has a table of the
// PVM types and their Go types.
type Number interface {
	~int8 | ~int16 | ~int32 | ~int64 | ~int |
		~uint8 | ~uint16 | ~uint32 | ~uint64 | ~uint |
		~float32 | ~float64 | ~complex64 | ~complex128
}

// A kind is a PVM type. The numbers are part of the description of a typed message.
type kind uint8

const (
	noKind kind = iota
	byteKind
	shortKind
	ushortKind
	intKind
	uintKind
	longKind
	ulongKind
	floatKind
	doubleKind
	cplxKind
	dcplxKind
	strKind
	messageKind
	hyperKind  // longs of which at least one needs more than four bytes; only in a typed message of encoding Default
	uhyperKind // the same for unsigned longs

	kinds
)

// kindInfo describes the values of each kind. unit is the size of a number in memory, units is how
// many numbers make a value, and xdr is the size of a value in encoding Default without padding.
var kindInfo = [kinds]struct {
	name             string
	unit, units, xdr int
}{
	noKind:      {"nothing", 0, 0, 0},
	byteKind:    {"byte", 1, 1, 1},
	shortKind:   {"short", 2, 1, 4},
	ushortKind:  {"ushort", 2, 1, 4},
	intKind:     {"int", 4, 1, 4},
	uintKind:    {"uint", 4, 1, 4},
	longKind:    {"long", 8, 1, 4},
	ulongKind:   {"ulong", 8, 1, 4},
	floatKind:   {"float", 4, 1, 4},
	doubleKind:  {"double", 8, 1, 8},
	cplxKind:    {"cplx", 4, 2, 8},
	dcplxKind:   {"dcplx", 8, 2, 16},
	strKind:     {"str", 0, 0, 0},
	messageKind: {"message", 0, 0, 0},
	hyperKind:   {"long", 8, 1, 8},
	uhyperKind:  {"ulong", 8, 1, 8},
}

func (k kind) String() string {
	if k < kinds {
		return kindInfo[k].name
	}
	return fmt.Sprintf("kind(%d)", uint8(k))
}

// size returns the bytes of a value on the wire, without padding. It returns 0 if the kind has no
// fixed size.
func (k kind) size(xdr bool) int {
	if xdr {
		return kindInfo[k].xdr
	}
	return kindInfo[k].unit * kindInfo[k].units
}

// plain returns the kind that a caller of Unpack gives: a long has one kind, whatever its size on
// the wire.
func (k kind) plain() kind {
	switch k {
	case hyperKind:
		return longKind
	case uhyperKind:
		return ulongKind
	}
	return k
}

// kindOf returns the kind that Pack[T] packs.
func kindOf[T Number]() kind { return kindOfType(reflect.TypeFor[T]()) }

// kindsOfGo has the kinds of Go's types of numbers.
var kindsOfGo = [...]kind{
	reflect.Int8: byteKind, reflect.Uint8: byteKind, reflect.Int16: shortKind, reflect.Uint16: ushortKind, reflect.Int32: intKind, reflect.Uint32: uintKind,
	reflect.Int64: longKind, reflect.Int: longKind, reflect.Uint64: ulongKind, reflect.Uint: ulongKind,
	reflect.Float32: floatKind, reflect.Float64: doubleKind, reflect.Complex64: cplxKind, reflect.Complex128: dcplxKind,
}

// kindOfType returns the kind of a number's type, or noKind for other types.
func kindOfType(t reflect.Type) kind {
	if k := t.Kind(); int(k) < len(kindsOfGo) {
		return kindsOfGo[k]
	}
	return noKind
}

// A vector is the memory of a slice of numbers. Only every stride-th value belongs to the vector.
type vector struct {
	p      unsafe.Pointer
	n      int // number of values in the slice
	stride int
	k      kind
	half   bool // the longs are Go's int or uint, and have four bytes in memory
}

// vectorOf returns the vector of v. stride must be positive.
func vectorOf[T Number](v []T, stride int) vector {
	k, z := kindOf[T](), T(0)
	return vector{unsafe.Pointer(unsafe.SliceData(v)), len(v), stride, k,
		(k == longKind || k == ulongKind) && unsafe.Sizeof(z) == 4}
}

// count returns the number of values of the vector.
func (x vector) count() int {
	if x.n == 0 || x.stride == 1 {
		return x.n
	}
	return (x.n-1)/x.stride + 1
}

// from returns the vector without its first n values.
func (x vector) from(n int) vector {
	if n >= x.count() {
		x.n = 0
		return x
	}
	skip := n * x.stride
	unit := kindInfo[x.k].unit * kindInfo[x.k].units
	if x.half {
		unit = 4
	}
	x.p, x.n = unsafe.Add(x.p, skip*unit), x.n-skip
	return x
}

// first returns the vector of the first n values. x must have so many.
func (x vector) first(n int) vector {
	if n == 0 {
		x.n = 0
	} else {
		x.n = (n-1)*x.stride + 1
	}
	return x
}

// units returns the memory of a vector as numbers of its unit size. It is a function because a
// method cannot have a type parameter.
func units[U unit](x vector) []U {
	return unsafe.Slice((*U)(x.p), x.n*kindInfo[x.k].units)
}

// SPDX-License-Identifier: Apache-2.0

package tpvm

import (
	"cmp"
	"math/cmplx"
	"reflect"
	"unsafe"

	"github.com/rocl-go/rocl/tpvm/pack"
)

// Sum is an operation for Reduce: acc[i] += x[i].
func Sum[T pack.Number](acc, x []T) {
	for i, v := range x[:len(acc)] {
		acc[i] += v
	}
}

// Product is an operation for Reduce: acc[i] *= x[i].
func Product[T pack.Number](acc, x []T) {
	for i, v := range x[:len(acc)] {
		acc[i] *= v
	}
}

// Max is an operation for Reduce: the greater of acc[i] and x[i]. Of complex numbers it is the one
// with the greater modulus, or acc[i] if both moduli are equal. A NaN is greater than all other
// values.
func Max[T pack.Number](acc, x []T) { choose(acc, x, 1) }

// Min is an operation for Reduce: the lesser of acc[i] and x[i]. For complex numbers see Max. A NaN
// is less than all other values.
func Min[T pack.Number](acc, x []T) { choose(acc, x, -1) }

// choose implements Max, for sign 1, and Min, for sign -1.
func choose[T pack.Number](acc, x []T, sign int) {
	switch reflect.TypeFor[T]().Kind() {
	case reflect.Int8:
		chooseOrdered(as[int8](acc), as[int8](x), sign)
	case reflect.Int16:
		chooseOrdered(as[int16](acc), as[int16](x), sign)
	case reflect.Int32:
		chooseOrdered(as[int32](acc), as[int32](x), sign)
	case reflect.Int64:
		chooseOrdered(as[int64](acc), as[int64](x), sign)
	case reflect.Int:
		chooseOrdered(as[int](acc), as[int](x), sign)
	case reflect.Uint8:
		chooseOrdered(as[uint8](acc), as[uint8](x), sign)
	case reflect.Uint16:
		chooseOrdered(as[uint16](acc), as[uint16](x), sign)
	case reflect.Uint32:
		chooseOrdered(as[uint32](acc), as[uint32](x), sign)
	case reflect.Uint64:
		chooseOrdered(as[uint64](acc), as[uint64](x), sign)
	case reflect.Uint:
		chooseOrdered(as[uint](acc), as[uint](x), sign)
	case reflect.Float32:
		chooseOrdered(as[float32](acc), as[float32](x), sign)
	case reflect.Float64:
		chooseOrdered(as[float64](acc), as[float64](x), sign)
	case reflect.Complex64:
		chooseModulus(as[complex64](acc), as[complex64](x), sign)
	case reflect.Complex128:
		chooseModulus(as[complex128](acc), as[complex128](x), sign)
	}
}

// as returns v as a slice of K, the underlying type of T. The memory is the same.
func as[K, T pack.Number](v []T) []K {
	return unsafe.Slice((*K)(unsafe.Pointer(unsafe.SliceData(v))), len(v))
}

func chooseOrdered[K cmp.Ordered](acc, x []K, sign int) {
	x = x[:len(acc)]
	if sign > 0 {
		for i, v := range x {
			acc[i] = max(acc[i], v)
		}
		return
	}
	for i, v := range x {
		acc[i] = min(acc[i], v)
	}
}

func chooseModulus[K complex64 | complex128](acc, x []K, sign int) {
	for i, v := range x[:len(acc)] {
		a, b := cmplx.Abs(complex128(acc[i])), cmplx.Abs(complex128(v))
		if a == a && (b != b || cmp.Compare(b, a) == sign) {
			acc[i] = v
		}
	}
}

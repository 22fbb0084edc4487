// SPDX-License-Identifier: Apache-2.0

package tpvm_test

import (
	"math"
	"testing"

	"github.com/rocl-go/rocl/internal/testkit/try"
	"github.com/rocl-go/rocl/tpvm"
	"github.com/rocl-go/rocl/tpvm/pack"
)

type myFloat float32

func TestGroupOps(t *testing.T) {
	ops[int8](t)
	ops[int16](t)
	ops[int32](t)
	ops[int64](t)
	ops[int](t)
	ops[uint8](t)
	ops[uint16](t)
	ops[uint32](t)
	ops[uint64](t)
	ops[uint](t)
	ops[float32](t)
	ops[float64](t)
	ops[myFloat](t)
	ops[complex64](t)
	ops[complex128](t)

	acc := []complex128{3 + 4i, 1, -5}
	x := []complex128{5, -1, 4}
	tpvm.Max(acc, x)
	if acc[0] != 3+4i || acc[1] != 1 || acc[2] != -5 { // by the modulus; the first if equal
		t.Error(acc)
	}
	tpvm.Min(acc, x)
	try.Equal(t, acc[2], 4, "%v", acc)
	f := []float64{math.NaN(), 1}
	tpvm.Max(f, []float64{1, math.NaN()})
	if f[0] == f[0] || f[1] == f[1] {
		t.Error(f)
	}
}

func ops[T pack.Number](t *testing.T) {
	t.Helper()
	for _, c := range []struct {
		name string
		op   func(acc, x []T)
		want [2]T
	}{
		{"max", tpvm.Max[T], [2]T{3, 5}},
		{"min", tpvm.Min[T], [2]T{2, 4}},
		{"sum", tpvm.Sum[T], [2]T{5, 9}},
		{"product", tpvm.Product[T], [2]T{6, 20}},
	} {
		acc := []T{3, 4}
		c.op(acc, []T{2, 5})
		if acc[0] != c.want[0] || acc[1] != c.want[1] {
			t.Errorf("%s of %T: %v, want %v", c.name, acc, acc, c.want)
		}
	}
}

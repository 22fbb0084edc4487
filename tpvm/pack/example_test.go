// SPDX-License-Identifier: Apache-2.0

package pack_test

import (
	"errors"
	"fmt"
	"log"

	"github.com/rocl-go/rocl/tpvm/pack"
)

// A message has a name, a count and a column of a matrix.
func Example() {
	matrix := []float64{
		1, 2, 3,
		4, 5, 6,
	}
	b := pack.NewBuffer(pack.Default)
	err := errors.Join(
		b.PackString("column 1"),
		pack.PackOne[int32](b, 2),
		pack.Pack(b, matrix[1:], 3),
	)
	if err != nil {
		log.Fatal(err)
	}
	message, err := b.AppendTo(nil) // package tpvm encodes into memory that it sends
	if err != nil {
		log.Fatal(err)
	}

	r, err := pack.NewReader(pack.Default, false, message)
	if err != nil {
		log.Fatal(err)
	}
	name, err1 := r.UnpackString()
	n, err2 := pack.UnpackOne[int32](r)
	if err := errors.Join(err1, err2); err != nil {
		log.Fatal(err)
	}
	column, err := pack.View[float64](r, int(n)) // fails if n is more than the message has
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(name, column, len(message), "bytes")
	// Output: column 1 [2 5] 36 bytes
}

// A typed message cannot be unpacked as another type.
func ExampleWithTypes() {
	b := pack.NewBuffer(pack.Raw, pack.WithTypes())
	if err := pack.Pack(b, []int32{1, 2, 3}, 1); err != nil {
		log.Fatal(err)
	}
	message, _ := b.AppendTo(nil)

	r, err := pack.NewReader(b.Encoding(), b.Typed(), message)
	if err != nil {
		log.Fatal(err)
	}
	err = pack.Unpack(r, make([]float32, 3), 1)
	fmt.Println(errors.Is(err, pack.ErrType), err)
	err = pack.Unpack(r, make([]int32, 4), 1)
	fmt.Println(errors.Is(err, pack.ErrNoData), err)
	ints := make([]int32, 3)
	fmt.Println(pack.Unpack(r, ints, 1), ints)
	// Output:
	// true pack: the type differs from what was packed: 3 float, but value 1 was packed as int
	// true pack: no more data in the message: 3 of 4 int are left
	// <nil> [1 2 3]
}

// Values that were packed InPlace are read when the message is sent.
func ExamplePack_inPlace() {
	grid := []int16{1, 2, 3}
	b := pack.NewBuffer(pack.InPlace)
	if err := pack.Pack(b, grid, 1); err != nil {
		log.Fatal(err)
	}
	grid[0] = 100
	message, _ := b.AppendTo(nil)
	fmt.Println(message)
	// Output: [100 0 2 0 3 0]
}

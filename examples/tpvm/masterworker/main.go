// SPDX-License-Identifier: Apache-2.0

// Command masterworker shares a vector with worker processes. Each multiplies the vector's sum by
// its own place among them, and adds the product of its neighbour on the left:
//
//	go run ./examples/tpvm/masterworker -n 4
package main

import (
	"context"
	"flag"
	"fmt"
	"log"
	"slices"

	"github.com/rocl-go/rocl/tpvm"
	"github.com/rocl-go/rocl/tpvm/pack"
)

// The tags of messages.
const (
	data      = iota // to the workers: the length of the vector, and the vector
	neighbour        // to the worker on the right: a product
	result           // to the master: the place of a worker, and its result
)

var n = flag.Int("n", 4, "number of workers")

func main() {
	flag.Parse()
	if err := tpvm.Run(context.Background(), run); err != nil {
		log.Fatal(err)
	}
}

func run(ctx context.Context, t *tpvm.Task) error {
	if !t.Parent().IsZero() {
		return work(ctx, t)
	}
	workers, err := t.Spawn(ctx, tpvm.Self, *n, tpvm.EndWithParent())
	if err != nil {
		return err
	}
	vector := slices.Repeat([]float64{1}, 100)
	b := t.Buffer(pack.Default)
	if err := b.PackValues(len(vector), vector); err != nil {
		return err
	}
	if err := t.Mcast(ctx, workers, data, b); err != nil {
		return err
	}
	for _, w := range workers {
		var place int
		var sum float64
		if _, err := t.RecvInto(ctx, w, result, &place, &sum); err != nil {
			return err
		}
		left := (place + *n - 1) % *n
		fmt.Printf("worker %d: %v (expected %d)\n", place, sum, (place+left)*len(vector))
	}
	return nil
}

func work(ctx context.Context, t *tpvm.Task) error {
	workers, err := t.Siblings(ctx)
	if err != nil {
		return err
	}
	me, n := slices.Index(workers, t.ID()), len(workers)
	m, err := t.Recv(ctx, t.Parent(), data)
	if err != nil {
		return err
	}
	defer m.Release()
	length, err := pack.UnpackOne[int](&m.Reader)
	if err != nil {
		return err
	}
	vector, err := pack.View[float64](&m.Reader, length)
	if err != nil {
		return err
	}
	var product, other float64
	for _, v := range vector {
		product += float64(me) * v
	}
	if err := t.SendPacked(ctx, workers[(me+1)%n], neighbour, product); err != nil {
		return err
	}
	if _, err := t.RecvInto(ctx, workers[(me+n-1)%n], neighbour, &other); err != nil {
		return err
	}
	return t.SendPacked(ctx, t.Parent(), result, me, product+other)
}

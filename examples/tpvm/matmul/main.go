// SPDX-License-Identifier: Apache-2.0

// Command matmul multiplies two matrices with several processes. It compares the result, and the
// time, with those of one goroutine:
//
//	go run ./examples/tpvm/matmul -n 1024
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"log"
	"math/rand/v2"
	"runtime"
	"slices"
	"time"

	"github.com/rocl-go/rocl/tpvm"
	"github.com/rocl-go/rocl/tpvm/pack"
)

// The tags of messages.
const (
	factor = iota // to the workers: the width of the matrices, and the right factor
	rows          // to a worker: rows of the left factor; to the master: rows of the product
)

var (
	n         = flag.Int("n", 1024, "width of the matrices")
	processes = flag.Int("p", runtime.NumCPU(), "`number` of processes")
)

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
	r := rand.New(rand.NewPCG(1, 2))
	a, b := random(r, *n), random(r, *n)
	serial := make([]float64, len(a))
	began := time.Now()
	multiply(serial, a, b, *n)
	report("one goroutine", time.Since(began))

	workers, err := t.Spawn(ctx, tpvm.Self, *processes, tpvm.EndWithParent())
	if err != nil {
		return err
	}
	product := make([]float64, len(a))
	began = time.Now()
	if err := share(ctx, t, workers, product, a, b); err != nil {
		return err
	}
	report(fmt.Sprintf("%d processes", len(workers)), time.Since(began))
	if !slices.Equal(product, serial) {
		return errors.New("the products differ")
	}
	fmt.Println("the products are the same")
	return nil
}

// share gives each worker the matrix b and a part of the rows of a, and collects the rows of the
// product. The matrices are read in place when the messages are sent.
func share(ctx context.Context, t *tpvm.Task, workers []tpvm.TID, product, a, b []float64) error {
	m := t.Buffer(pack.InPlace)
	if err := m.PackValues(*n, b); err != nil {
		return err
	}
	if err := t.Mcast(ctx, workers, factor, m); err != nil {
		return err
	}
	part := func(i int, m []float64) []float64 { // returns the rows of worker i
		return m[*n*i/len(workers)**n : *n*(i+1)/len(workers)**n]
	}
	for i, w := range workers {
		if err := t.SendPacked(ctx, w, rows, part(i, a)); err != nil {
			return err
		}
	}
	for i, w := range workers {
		if _, err := t.RecvInto(ctx, w, rows, part(i, product)); err != nil {
			return err
		}
	}
	return nil
}

// work multiplies rows by a matrix. It reads both in place, in the messages.
func work(ctx context.Context, t *tpvm.Task) error {
	m, err := t.Recv(ctx, t.Parent(), factor)
	if err != nil {
		return err
	}
	defer m.Release()
	n, err := pack.UnpackOne[int](&m.Reader)
	if err != nil {
		return err
	}
	b, err := pack.View[float64](&m.Reader, n*n)
	if err != nil {
		return err
	}
	left, err := t.Recv(ctx, t.Parent(), rows)
	if err != nil {
		return err
	}
	defer left.Release()
	a, err := pack.View[float64](&left.Reader, left.Len()/8)
	if err != nil {
		return err
	}
	product := make([]float64, len(a))
	multiply(product, a, b, n)
	return t.SendPacked(ctx, t.Parent(), rows, product)
}

// multiply adds a times b to c. b has n rows of n values; a and c have rows of n values. It uses
// one block of b after another, each small enough for the processor's cache.
func multiply(c, a, b []float64, n int) {
	const block = 128
	for k0 := 0; k0 < n; k0 += block {
		for j0 := 0; j0 < n; j0 += block {
			k1, j1 := min(k0+block, n), min(j0+block, n)
			for i := 0; i < len(c); i += n {
				multiplyBlock(c[i+j0:i+j1], a[i+k0:i+k1], b[k0*n+j0:], n)
			}
		}
	}
}

// multiplyBlock adds a row a times the rows of b, which lie n values apart, to c.
func multiplyBlock(c, a, b []float64, n int) {
	for ; len(a) >= 4; a, b = a[4:], b[min(4*n, len(b)):] {
		a0, a1, a2, a3 := a[0], a[1], a[2], a[3]
		b0, b1, b2, b3 := b[:len(c)], b[n:][:len(c)], b[2*n:][:len(c)], b[3*n:][:len(c)]
		for j := range c {
			c[j] += a0*b0[j] + a1*b1[j] + a2*b2[j] + a3*b3[j]
		}
	}
	for k, x := range a {
		for j, y := range b[k*n:][:len(c)] {
			c[j] += x * y
		}
	}
}

func random(r *rand.Rand, n int) []float64 {
	m := make([]float64, n*n)
	for i := range m {
		m[i] = r.Float64()
	}
	return m
}

func report(who string, d time.Duration) {
	fmt.Printf("%-14s %8.3f s %8.2f GFLOP/s\n", who, d.Seconds(), 2*float64(*n)*float64(*n)*float64(*n)/d.Seconds()/1e9)
}

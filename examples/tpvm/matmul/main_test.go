// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"math"
	"math/rand/v2"
	"strings"
	"testing"

	"github.com/rocl-go/rocl/examples/internal/example"
)

func TestMain(m *testing.M) { example.Main(m, main) }

func TestProducts(t *testing.T) {
	node := example.New(t)
	for _, n := range []int{1, 7, 300} {
		if said := node.Run("-n", fmt.Sprint(n), "-p", "3"); !strings.Contains(said, "the same") {
			t.Errorf("%d: %q", n, said)
		}
	}
}

// Blocks and their remainders give the same result as the definition.
func TestMultiply(t *testing.T) {
	r := rand.New(rand.NewPCG(3, 4))
	for _, n := range []int{1, 2, 5, 127, 128, 130} {
		a, b, c := random(r, n), random(r, n), make([]float64, n*n)
		multiply(c, a, b, n)
		for i := range n {
			for j := range n {
				var sum float64
				for k := range n {
					sum += a[i*n+k] * b[k*n+j]
				}
				if math.Abs(sum-c[i*n+j]) > 1e-9 {
					t.Fatalf("%d: [%d, %d] is %v, want %v", n, i, j, c[i*n+j], sum)
				}
			}
		}
	}
}

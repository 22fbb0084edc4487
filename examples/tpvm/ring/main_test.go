// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"testing"

	"github.com/rocl-go/rocl/examples/internal/example"
)

func TestMain(m *testing.M) { example.Main(m, main) }

func TestRing(t *testing.T) {
	node := example.New(t)
	for _, n := range []int{1, 2, 5} {
		said := node.Run("-n", fmt.Sprint(n))
		if want := fmt.Sprintf("the token made %d hops\n", n); said != want {
			t.Errorf("%q, want %q", said, want)
		}
	}
}

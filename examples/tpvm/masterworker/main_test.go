// SPDX-License-Identifier: Apache-2.0

package main

import (
	"testing"

	"github.com/rocl-go/rocl/examples/internal/example"
)

func TestMain(m *testing.M) { example.Main(m, main) }

func TestResults(t *testing.T) {
	const want = `worker 0: 200 (expected 200)
worker 1: 100 (expected 100)
worker 2: 300 (expected 300)
`
	if said := example.New(t).Run("-n", "3"); said != want {
		t.Errorf("%q", said)
	}
}

// SPDX-License-Identifier: Apache-2.0

package main

import (
	"testing"

	"github.com/rocl-go/rocl/examples/internal/example"
)

func TestMain(m *testing.M) { example.Main(m, main) }

func TestGroup(t *testing.T) {
	const want = "5 members, sum of their squares: 30\nmembers that are left: 0\n"
	if said := example.New(t).Run("-n", "5"); said != want {
		t.Errorf("%q", said)
	}
}

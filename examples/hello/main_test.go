// SPDX-License-Identifier: Apache-2.0

package main

import (
	"regexp"
	"testing"

	"github.com/rocl-go/rocl/examples/internal/example"
)

func TestMain(m *testing.M) { example.Main(m, main) }

func TestHello(t *testing.T) {
	if said := example.New(t).Run(); !regexp.MustCompile(`^hello from \S+\n$`).MatchString(said) {
		t.Errorf("it said %q", said)
	}
}

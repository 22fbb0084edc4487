// SPDX-License-Identifier: Apache-2.0

package main

import (
	"regexp"
	"testing"

	"github.com/rocl-go/rocl/examples/internal/example"
)

func TestMain(m *testing.M) { example.Main(m, main) }

func TestHello(t *testing.T) {
	said := example.New(t).Run()
	if !regexp.MustCompile(`^from \S+: hello, world from \S+\n$`).MatchString(said) {
		t.Errorf("%q", said)
	}
}

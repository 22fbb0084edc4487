// SPDX-License-Identifier: Apache-2.0

package main

import (
	"strings"
	"testing"

	"github.com/rocl-go/rocl/examples/internal/example"
)

func TestMain(m *testing.M) { example.Main(m, main) }

func TestTiming(t *testing.T) {
	said := example.New(t).Run("-trips", "3")
	if strings.Count(said, "\n") != 7 || !strings.Contains(said, "262144") {
		t.Errorf("%q", said)
	}
}

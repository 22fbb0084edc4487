// SPDX-License-Identifier: Apache-2.0

package main

import (
	"strings"
	"testing"

	"github.com/rocl-go/rocl/examples/internal/example"
)

func TestMain(m *testing.M) { example.Main(m, main) }

func TestBandwidth(t *testing.T) {
	said := example.New(t).Run("-mb", "4")
	if strings.Count(said, "in place") != 3 || !strings.Contains(said, "1048576") {
		t.Errorf("%q", said)
	}
}

// SPDX-License-Identifier: Apache-2.0

package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// The pages are what the command writes. Each error of package rocl is explained, and each line
// that is logged for operators at level info or above.
func TestPages(t *testing.T) {
	const root = "../.."
	made, err := pages(root)
	if err != nil {
		t.Fatal(err)
	}
	for path, want := range made {
		text, err := os.ReadFile(filepath.Join(root, path))
		if err != nil {
			t.Fatal(err)
		}
		if string(text) != want {
			t.Errorf("%s is not what the code says: run go run ./tests/pages", path)
		}
		if n := strings.Count(want, "\n## "); n < 6 {
			t.Errorf("%s has %d sections", path, n)
		}
	}
	if n := strings.Count(made["docs/TROUBLESHOOTING.md"], "\n### "); n < 150 {
		t.Errorf("%d messages are explained", n)
	}
}

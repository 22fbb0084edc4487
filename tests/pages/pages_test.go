// SPDX-License-Identifier: Apache-2.0

package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"go.uber.org/goleak"

	"github.com/rocl-go/rocl/internal/testkit/try"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// The pages are what the command writes. Each error of package rocl is explained, and each line
// that is logged for operators at level warn or error.
func TestPages(t *testing.T) {
	const root = "../.."
	made := try.Get(pages(root))(t)
	for path, want := range made {
		text := try.Get(os.ReadFile(filepath.Join(root, path)))(t)
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

// A promise without a known section, without a text, or away from a test is refused.
func TestFormOfPromise(t *testing.T) {
	for text, want := range map[string]int{
		"Promise (Calls): One. See also TestA,\nfolder: TestB.\n\nPromise (Keys): Two.\n": 2,
		"TestX does something.\n":      0,
		"Promise: One.\n":              -1,
		"Promise (Nothing): One.\n":    -1,
		"Promises are made elsewhere.": 0,
	} {
		found, err := promise{tests: []string{"TestX"}}.readComment(text)
		if want < 0 != (err != nil) || want >= 0 && len(found) != want {
			t.Errorf("%q: %v, %v", text, found, err)
		}
	}
}

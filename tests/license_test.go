// SPDX-License-Identifier: Apache-2.0

package tests

import (
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/rocl-go/rocl/internal/testkit/try"
	"github.com/rocl-go/rocl/tests/tree"
)

// Each source file names its license within its first three lines.
func TestLicense(t *testing.T) {
	const line = "SPDX-License-Identifier: Apache-2.0"
	isSource := func(p string) bool {
		return slices.Contains([]string{".go", ".sh"}, path.Ext(p)) || path.Dir(p) == ".ci"
	}
	for _, p := range try.Get(tree.Files("..", isSource))(t) {
		head := strings.SplitN(string(try.Get(os.ReadFile(filepath.Join("..", p)))(t)), "\n", 4)
		if !strings.Contains(strings.Join(head[:min(3, len(head))], "\n"), line) {
			t.Errorf("%s does not say %q", p, line)
		}
	}
}

// SPDX-License-Identifier: Apache-2.0

package tests

import (
	"go/parser"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/rocl-go/rocl/internal/testkit/try"
	"github.com/rocl-go/rocl/tests/tree"
)

// TestStabilityNamesPackages finds each package that a program can import in docs/STABILITY.md, and
// no other one.
func TestStabilityNamesPackages(t *testing.T) {
	named := map[string]bool{}
	text := try.Get(os.ReadFile("../docs/STABILITY.md"))(t)
	for line := range strings.Lines(string(text)) {
		if cells := strings.Split(line, "|"); len(cells) == 4 && strings.HasPrefix(line, "| `") {
			for _, m := range regexp.MustCompile("`([^`]+)`").FindAllStringSubmatch(cells[1], -1) {
				named[m[1]] = true
			}
		}
	}
	for _, f := range try.Get(tree.Go("..", parser.PackageClauseOnly, tree.IsCode))(t) {
		dir := f.Folder()
		if top, _, _ := strings.Cut(dir, "/"); f.Name.Name == "main" || strings.Contains("/"+dir+"/", "/internal/") || slices.Contains([]string{"cmd", "examples", "tests"}, top) {
			continue
		}
		if dir == "." {
			dir = "rocl"
		}
		if _, ok := named[dir]; !ok {
			t.Errorf("docs/STABILITY.md does not say what package %s is for", dir)
		}
		named[dir] = false // found
	}
	for dir, isMissing := range named {
		if isMissing {
			t.Errorf("docs/STABILITY.md names %s, which is no package", dir)
		}
	}
}

// SPDX-License-Identifier: Apache-2.0

package tests

import (
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// TestStabilityNamesPackages finds each package that a program can import in docs/STABILITY.md, and
// no other one.
func TestStabilityNamesPackages(t *testing.T) {
	named := map[string]bool{}
	text := got(os.ReadFile("../docs/STABILITY.md"))(t)
	for line := range strings.Lines(string(text)) {
		if cells := strings.Split(line, "|"); len(cells) == 4 && strings.HasPrefix(line, "| `") {
			for _, m := range regexp.MustCompile("`([^`]+)`").FindAllStringSubmatch(cells[1], -1) {
				named[m[1]] = true
			}
		}
	}
	err := filepath.WalkDir("..", func(path string, e fs.DirEntry, err error) error {
		if err != nil || !e.IsDir() {
			return err
		}
		switch e.Name() {
		case "internal", "testdata", "cmd", "examples", "tests", ".git":
			return filepath.SkipDir
		}
		if !importable(t, path) {
			return nil
		}
		dir, err := filepath.Rel("..", path)
		if err != nil {
			return err
		}
		if dir == "." {
			dir = "rocl"
		}
		if !named[dir] {
			t.Errorf("docs/STABILITY.md does not say what package %s is for", dir)
		}
		delete(named, dir)
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	for dir := range named {
		t.Errorf("docs/STABILITY.md names %s, which is no package", dir)
	}
}

// importable reports whether a folder has a package that programs can import.
func importable(t *testing.T, dir string) bool {
	t.Helper()
	files := got(filepath.Glob(filepath.Join(dir, "*.go")))(t)
	for _, f := range files {
		if strings.HasSuffix(f, "_test.go") {
			continue
		}
		parsed := got(parser.ParseFile(token.NewFileSet(), f, nil, parser.PackageClauseOnly))(t)
		return parsed.Name.Name != "main"
	}
	return false
}

// SPDX-License-Identifier: Apache-2.0

package tests

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// The tests that the documents name exist. Every promise has a test and is made once.
func TestDocumentsNameTests(t *testing.T) {
	docs, err := filepath.Glob("../docs/*.md")
	if err != nil || len(docs) == 0 {
		t.Fatal(docs, err)
	}
	place := regexp.MustCompile("`(?:([a-z][a-z0-9/]*): )?((?:Test|Fuzz)\\w+)")
	seen := 0
	for _, doc := range docs {
		text, err := os.ReadFile(doc)
		if err != nil {
			t.Fatal(err)
		}
		promises := false // the line is in a table of promises
		stand := map[string]bool{}
		for line := range strings.Lines(string(text)) {
			dir := "" // a name without a package is in the package that was named before
			found := place.FindAllStringSubmatch(line, -1)
			switch {
			case strings.HasPrefix(line, "| promise"):
				promises = true
			case !strings.HasPrefix(line, "|"):
				promises = false
			case promises && strings.HasPrefix(line, "| ") && len(found) == 0:
				t.Errorf("no test shows %s", line)
			}
			if promise, _, _ := strings.Cut(strings.TrimPrefix(line, "| "), " |"); promises && strings.HasPrefix(line, "| ") && promise != "promise" {
				if stand[promise] {
					t.Errorf("%s: promised twice: %s", doc, promise)
				}
				stand[promise] = true
			}
			for _, m := range found {
				if m[1] != "" {
					dir = m[1]
				}
				if dir == "" {
					t.Errorf("%s: %s is of no package", doc, m[2])
					continue
				}
				if dir == "rocl" {
					dir = "."
				}
				seen++
				if !hasFunc(t, dir, m[2]) {
					t.Errorf("%s: %s is not in %s", doc, m[2], dir)
				}
			}
		}
	}
	if seen < 20 {
		t.Errorf("only %d tests are named", seen)
	}
}

func hasFunc(t *testing.T, dir, name string) bool {
	files, err := filepath.Glob(filepath.Join("..", dir, "*_test.go"))
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range files {
		text, err := os.ReadFile(f)
		if err != nil {
			t.Fatal(err)
		}
		if strings.Contains(string(text), "\nfunc "+name+"(") {
			return true
		}
	}
	return false
}

// SPDX-License-Identifier: Apache-2.0

package tests

import (
	"cmp"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// The tests that the documents name exist. tests/guarantees prints and checks docs/GUARANTEES.md.
func TestDocumentsNameTests(t *testing.T) {
	place := regexp.MustCompile("`(?:([a-z][a-z0-9/]*): )?((?:Test|Fuzz)\\w+)")
	docs, err := filepath.Glob("../docs/*.md")
	if err != nil || len(docs) == 0 {
		t.Fatal(docs, err)
	}
	for _, doc := range docs {
		text := got(os.ReadFile(doc))(t)
		dir := "" // a name without a folder is in the folder that was named before
		for _, m := range place.FindAllStringSubmatch(string(text), -1) {
			dir = cmp.Or(m[1], dir)
			if !hasFunc(t, dir, m[2]) {
				t.Errorf("%s: %s is not in folder %q", doc, m[2], dir)
			}
		}
	}
}

func hasFunc(t *testing.T, dir, name string) bool {
	files := got(filepath.Glob(filepath.Join("..", dir, "*_test.go")))(t)
	for _, f := range files {
		text := got(os.ReadFile(f))(t)
		if strings.Contains(string(text), "\nfunc "+name+"(") {
			return true
		}
	}
	return false
}

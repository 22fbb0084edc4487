// SPDX-License-Identifier: Apache-2.0

package tests

import (
	"cmp"
	"go/ast"
	"os"
	"path/filepath"
	"regexp"
	"testing"

	"github.com/rocl-go/rocl/internal/testkit/try"
	"github.com/rocl-go/rocl/tests/tree"
)

// The tests that the documents name exist. tests/guarantees prints and checks docs/GUARANTEES.md.
func TestDocumentsNameTests(t *testing.T) {
	place := regexp.MustCompile("`(?:([a-z][a-z0-9/]*): )?((?:Test|Fuzz)\\w+)")
	isThere := map[string]bool{} // by folder and name
	for _, f := range try.Get(tree.Go("..", 0, tree.IsTest))(t) {
		for _, d := range f.Decls {
			if fn, ok := d.(*ast.FuncDecl); ok {
				isThere[f.Folder()+" "+fn.Name.Name] = true
			}
		}
	}
	for _, doc := range try.Get(filepath.Glob("../docs/*.md"))(t) {
		dir := "" // a name without a folder is in the folder that was named before
		for _, m := range place.FindAllStringSubmatch(string(try.Get(os.ReadFile(doc))(t)), -1) {
			dir = cmp.Or(m[1], dir)
			if !isThere[dir+" "+m[2]] {
				t.Errorf("%s: %s is not in folder %q", doc, m[2], dir)
			}
		}
	}
}

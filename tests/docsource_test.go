// SPDX-License-Identifier: Apache-2.0

package tests

import (
	"bytes"
	"flag"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/rocl-go/rocl/internal/testkit/try"
)

var updateDocs = flag.Bool("update-docs", false, "TestDocumentsShowSource writes the source into the documents")

// shown matches a block of code that must be the same as a source file, or as some declarations of
// a Go file. The line before the block is <!-- source: FILE [NAME ...] -->.
var shown = regexp.MustCompile(`(?m)^<!-- source: (\S+)((?: \S+)*) -->\n` + "(```(?:go|ini)\n)((?s:.*?))```\n")

// TestDocumentsShowSource compares the programs in documents with the source files that the
// documents name. The build compiles these files, and other tests run them. To bring the documents
// up to date: go test ./tests -run TestDocumentsShowSource -update-docs.
func TestDocumentsShowSource(t *testing.T) {
	seen := 0
	for _, doc := range documents(t) {
		text := try.Get(os.ReadFile(doc))(t)
		fresh := shown.ReplaceAllFunc(text, func(block []byte) []byte {
			seen++
			m := shown.FindSubmatch(block)
			want, err := source(filepath.Join("..", string(m[1])), strings.Fields(string(m[2])))
			if err != nil {
				t.Errorf("%s: %v", doc, err)
				return block
			}
			if !bytes.Equal(m[4], want) && !*updateDocs {
				t.Errorf("%s: the block is not the same as%s in %s; bring it up to date with -update-docs", doc, m[2], m[1])
			}
			head, _, _ := bytes.Cut(block, m[3])
			return slices.Concat(head, m[3], want, []byte("```\n"))
		})
		if markers := bytes.Count(text, []byte("\n<!-- source:")); markers != len(shown.FindAll(text, -1)) {
			t.Errorf("%s: a line \"<!-- source: …\" has no block of code behind it", doc)
		}
		if filepath.Base(doc) == "COOKBOOK.md" && bytes.Count(text, []byte("\n```go\n")) != len(shown.FindAll(text, -1)) {
			t.Errorf("%s: a block of Go is from no source file", doc)
		}
		if *updateDocs && !bytes.Equal(text, fresh) {
			try.OK(t, os.WriteFile(doc, fresh, 0o644))
		}
	}
	if seen < 10 {
		t.Errorf("only %d blocks are compared", seen)
	}
}

// source returns the declarations of these names in a Go file, with their comments. Without names
// it returns the whole of any file but its license.
func source(file string, names []string) ([]byte, error) {
	text, err := os.ReadFile(file)
	if err != nil {
		return nil, err
	}
	if len(names) == 0 {
		_, text, _ = bytes.Cut(text, []byte("\n\n"))
		return text, nil
	}
	files := token.NewFileSet()
	f, err := parser.ParseFile(files, file, text, parser.ParseComments)
	if err != nil {
		return nil, err
	}
	parts := make([][]byte, len(names))
	for _, d := range f.Decls {
		declared, from := declaredBy(d)
		if i := slices.IndexFunc(names, func(n string) bool { return slices.Contains(declared, n) }); i >= 0 {
			to := files.Position(d.End()).Offset
			end := bytes.IndexByte(text[to:], '\n') // a comment may follow on the line
			parts[i] = text[files.Position(from).Offset : to+end+1]
		}
	}
	for i, p := range parts {
		if p == nil {
			return nil, fmt.Errorf("%s declares no %s", file, names[i])
		}
	}
	return bytes.Join(parts, []byte("\n")), nil
}

// declaredBy returns the names that a declaration declares, and its beginning, comment included.
func declaredBy(d ast.Decl) (names []string, from token.Pos) {
	from = d.Pos()
	switch d := d.(type) {
	case *ast.FuncDecl:
		names = []string{d.Name.Name}
		if d.Doc != nil {
			from = d.Doc.Pos()
		}
	case *ast.GenDecl:
		if d.Doc != nil {
			from = d.Doc.Pos()
		}
		for _, s := range d.Specs {
			switch s := s.(type) {
			case *ast.TypeSpec:
				names = append(names, s.Name.Name)
			case *ast.ValueSpec:
				for _, n := range s.Names {
					names = append(names, n.Name)
				}
			}
		}
	}
	return names, from
}

// documents returns the paths of all Markdown files that users read.
func documents(t *testing.T) []string {
	t.Helper()
	var all []string
	for _, pattern := range []string{"../*.md", "../docs/*.md"} {
		docs, err := filepath.Glob(pattern)
		if err != nil || len(docs) == 0 {
			t.Fatal(pattern, docs, err)
		}
		all = append(all, docs...)
	}
	return all
}

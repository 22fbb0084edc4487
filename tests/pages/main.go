// SPDX-License-Identifier: Apache-2.0

// Command pages writes the documents whose text stands beside the code: docs/PROTOCOL.md from the
// comments that begin with "Protocol:", and docs/TROUBLESHOOTING.md from those with "Cause:".
package main

import (
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

// A file is a Go file of the tree that is not a test.
type file struct {
	path string // slashes, relative to the root of the tree
	set  *token.FileSet
	*ast.File
}

func main() {
	if len(os.Args) > 1 {
		fmt.Fprintln(os.Stderr, "usage: go run ./tests/pages")
		os.Exit(2)
	}
	pages, err := pages(".")
	for _, path := range slices.Sorted(maps.Keys(pages)) {
		if err == nil {
			err = os.WriteFile(filepath.FromSlash(path), []byte(pages[path]), 0o644)
		}
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

// pages returns the text of each page by its path.
func pages(root string) (map[string]string, error) {
	files, err := parse(root)
	if err != nil {
		return nil, err
	}
	wire, err := protocol(root, files)
	if err != nil {
		return nil, err
	}
	troubles, err := troubleshooting(root, files)
	return map[string]string{"docs/PROTOCOL.md": wire, "docs/TROUBLESHOOTING.md": troubles}, err
}

// parse returns the Go files below root in the order of their paths, without tests.
func parse(root string) (files []file, err error) {
	err = filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		rel, _ := filepath.Rel(root, path)
		switch rel = filepath.ToSlash(rel); {
		case err != nil:
			return err
		case d.IsDir():
			if rel == "tests" || d.Name() == ".git" || d.Name() == "build" || d.Name() == "testdata" {
				return fs.SkipDir
			}
		case strings.HasSuffix(rel, ".go") && !strings.HasSuffix(rel, "_test.go"):
			f := file{path: rel, set: token.NewFileSet()}
			if f.File, err = parser.ParseFile(f.set, path, nil, parser.ParseComments|parser.SkipObjectResolution); err == nil {
				files = append(files, f)
			}
		}
		return err
	})
	return files, err
}

// at returns the position of p for an error.
func (f *file) at(p token.Pos) string {
	return fmt.Sprintf("%s:%d", f.path, f.set.Position(p).Line)
}

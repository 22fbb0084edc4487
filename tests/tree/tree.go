// SPDX-License-Identifier: Apache-2.0

// Package tree reads the files of the repository, for tests and commands that check or print them.
package tree

import (
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"path"
	"path/filepath"
	"slices"
	"strings"
)

// Files returns the paths of the files below root that isWanted wants, in their order. The paths
// have slashes and are relative to root. Files returns none of git's own, of folders testdata, or
// of folders build, in which nothing is written by hand.
func Files(root string, isWanted func(path string) bool) (paths []string, err error) {
	err = filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if d.IsDir() && slices.Contains([]string{".git", "build", "testdata"}, d.Name()) {
			return fs.SkipDir
		}
		rel, err := filepath.Rel(root, path)
		if rel = filepath.ToSlash(rel); err == nil && d.Type().IsRegular() && isWanted(rel) {
			paths = append(paths, rel)
		}
		return err
	})
	if err == nil && len(paths) == 0 {
		err = fmt.Errorf("tree: %s has no such files", root)
	}
	return paths, err
}

// A File is a Go file.
type File struct {
	Path string         // relative to the root of the tree, with slashes
	Set  *token.FileSet // of all files that were read together
	*ast.File
}

// Go returns the Go files below root that isWanted wants, in the order of their paths.
func Go(root string, mode parser.Mode, isWanted func(path string) bool) (files []*File, err error) {
	paths, err := Files(root, func(path string) bool { return strings.HasSuffix(path, ".go") && isWanted(path) })
	set := token.NewFileSet()
	for _, p := range paths {
		f := &File{Path: p, Set: set}
		if f.File, err = parser.ParseFile(f.Set, filepath.Join(root, p), nil, mode|parser.SkipObjectResolution); err != nil {
			return nil, err
		}
		files = append(files, f)
	}
	return files, err
}

// IsTest reports whether the file at a path belongs to a test.
func IsTest(path string) bool { return strings.HasSuffix(path, "_test.go") }

// IsCode reports whether the file at a path does not belong to a test.
func IsCode(path string) bool { return !IsTest(path) }

// Folder returns the folder of a file, which is "." at the root.
func (f *File) Folder() string { return path.Dir(f.Path) }

// Line returns the line of a position.
func (f *File) Line(p token.Pos) int { return f.Set.Position(p).Line }

// At returns a position as FILE:LINE.
func (f *File) At(p token.Pos) string { return fmt.Sprintf("%s:%d", f.Path, f.Line(p)) }

// SPDX-License-Identifier: Apache-2.0

// Command elsewhere checks the types of packages and their tests for other systems:
//
//	go run ./tests/elsewhere darwin/arm64,openbsd/amd64 ./...
//
// It compiles nothing, and so takes some seconds where go vet takes minutes if the packages of a
// system, and the standard library, are not in the cache.
package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"go/types"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
)

func main() {
	if len(os.Args) < 3 {
		fmt.Fprintln(os.Stderr, "usage: elsewhere SYSTEM/PROCESSOR,... PACKAGES...")
		os.Exit(2)
	}
	failed := false
	for _, target := range strings.Split(os.Args[1], ",") {
		system, processor, _ := strings.Cut(target, "/")
		errs, err := check(system, processor, os.Args[2:])
		if err != nil {
			errs = append(errs, err)
		}
		for _, err := range errs {
			fmt.Fprintf(os.Stderr, "%s: %v\n", target, err)
			failed = true
		}
	}
	if failed {
		os.Exit(1)
	}
}

// A listed package is one that go list describes. The test variant of a package is one of its own.
type listed struct {
	ImportPath, Dir string
	Standard        bool
	GoFiles         []string
	ImportMap       map[string]string
	Error           *struct{ Err string }
}

// check checks packages and what they import, and returns what is wrong outside
// the standard library.
func check(system, processor string, patterns []string) (errs []error, err error) {
	cmd := exec.Command("go", append([]string{"list", "-e", "-deps", "-test", "-json=ImportPath,Dir,Standard,GoFiles,ImportMap,Error"}, patterns...)...)
	cmd.Env = append(os.Environ(), "GOOS="+system, "GOARCH="+processor, "CGO_ENABLED=0")
	cmd.Stderr = os.Stderr
	out, err := cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	if err = cmd.Start(); err != nil {
		return nil, err
	}
	sizes := types.SizesFor("gc", processor)
	done := importer{"unsafe": types.Unsafe}
	for d := json.NewDecoder(out); ; { // what a package imports comes before it
		var p listed
		if err = d.Decode(&p); err != nil {
			break
		}
		if p.ImportPath == "unsafe" || strings.HasSuffix(p.ImportPath, ".test") {
			continue // the program of the tests is made by go test
		}
		if p.Error != nil {
			errs = append(errs, errors.New(p.Error.Err))
		}
		conf := types.Config{
			Importer:         renamed{done, p.ImportMap},
			Sizes:            sizes,
			IgnoreFuncBodies: p.Standard,
			Error: func(err error) {
				if !p.Standard {
					errs = append(errs, err)
				}
			},
		}
		files := token.NewFileSet()
		var parsed []*ast.File
		for _, name := range p.GoFiles {
			f, err := parser.ParseFile(files, filepath.Join(p.Dir, name), nil, parser.SkipObjectResolution)
			if err != nil {
				errs = append(errs, err)
				continue
			}
			parsed = append(parsed, f)
		}
		path, _, _ := strings.Cut(p.ImportPath, " ")
		done[p.ImportPath], _ = conf.Check(path, files, parsed, nil) // Error has them all
	}
	if err == io.EOF {
		err = nil
	}
	return errs, errors.Join(err, cmd.Wait())
}

// An importer has the packages that were checked, by the names of go list.
type importer map[string]*types.Package

// renamed is an importer with the names that one package's imports have in go list.
type renamed struct {
	importer
	names map[string]string
}

// Import implements types.Importer.
func (r renamed) Import(path string) (*types.Package, error) {
	if name, ok := r.names[path]; ok {
		path = name
	}
	if p := r.importer[path]; p != nil {
		return p, nil
	}
	return nil, fmt.Errorf("package %s is not there", path)
}

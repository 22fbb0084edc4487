// SPDX-License-Identifier: Apache-2.0

// Command figures prints the size of the source: of the working tree, or of the given commits.
package main

import (
	"flag"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
)

const hello = `package main; import ("context"; "github.com/rocl-go/rocl"); func main() { c, _ := rocl.Open(context.Background()); c.Close() }`

func main() {
	flag.Usage = func() {
		fmt.Fprintln(flag.CommandLine.Output(), "usage: go run ./tests/figures [COMMIT...]")
	}
	flag.Parse()
	if flag.NArg() == 0 {
		measure("working tree", ".")
	}
	for _, rev := range flag.Args() {
		dir := filepath.Join(os.TempDir(), "rocl-figures-"+rev)
		run(".", "git", "worktree", "add", "--detach", dir, rev)
		measure(rev, dir)
		run(".", "git", "worktree", "remove", "--force", dir)
	}
}

func run(dir, name string, args ...string) string {
	cmd := exec.Command(name, args...)
	cmd.Dir, cmd.Stderr = dir, os.Stderr
	return string(must(cmd.Output()))
}

func must[T any](v T, err error) T {
	if err != nil {
		panic(err)
	}
	return v
}

func measure(name, dir string) {
	var code, tests, exported, comments, words, sleeps int
	packages, importable := map[string]bool{}, map[string]bool{}
	for path := range strings.FieldsSeq(run(dir, "git", "ls-files", "*.go")) {
		b := string(must(os.ReadFile(filepath.Join(dir, path))))
		f := must(parser.ParseFile(token.NewFileSet(), path, b, parser.ParseComments))
		for _, c := range f.Comments {
			comments, words = comments+strings.Count(c.Text(), "\n"), words+len(strings.Fields(c.Text()))
		}
		lines, folder := strings.Count(b, "\n"), filepath.Dir(path)
		if strings.HasSuffix(path, "_test.go") || strings.HasPrefix(folder, "tests") {
			tests, sleeps = tests+lines, sleeps+strings.Count(b, "time.Sleep(")
			continue
		}
		code, packages[folder] = code+lines, true
		if f.Name.Name == "main" || strings.Contains(folder, "internal") {
			continue
		}
		importable[folder] = true
		ast.FileExports(f)
		for _, d := range f.Decls {
			exported++ // a function or method, or the first name of a declaration
			if g, ok := d.(*ast.GenDecl); ok {
				exported += len(g.Specs) - 1
			}
		}
	}
	prose := 0
	for path := range strings.FieldsSeq(run(dir, "git", "ls-files", "README.md", "docs/*.md")) {
		prose += len(strings.Fields(string(must(os.ReadFile(filepath.Join(dir, path))))))
	}
	exe := filepath.Join(must(os.MkdirTemp("", "rocl-figures-")), "hello")
	defer os.RemoveAll(filepath.Dir(exe))
	must(0, os.WriteFile(exe+".go", []byte(hello), 0o600)) // the overlay adds it to the commit
	must(0, os.WriteFile(exe+".json", fmt.Appendf(nil, `{"Replace": {%q: %q}}`, must(filepath.Abs(dir+"/hello/main.go")), exe+".go"), 0o600))
	run(dir, "go", "build", "-overlay", exe+".json", "-ldflags=-s -w", "-o", exe, "./hello")
	modules := strings.Count(run(dir, "go", "version", "-m", exe), "\tdep\t")
	fmt.Printf("%s:\n%d lines of Go and %d of tests\n%d words of README and docs\n%d packages, %d of them importable, with %d exported names\nhello: %d modules, %d bytes, stripped\n%.1f words in a line of comment\n%d time.Sleep in tests\n",
		name, code, tests, prose, len(packages), len(importable), exported, modules, must(os.Stat(exe)).Size(), float64(words)/float64(comments), sleeps)
}

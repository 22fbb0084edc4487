// SPDX-License-Identifier: Apache-2.0

// Command guarantees prints docs/GUARANTEES.md from the promises that stand above tests:
//
//	go run ./tests/guarantees > docs/GUARANTEES.md
//
// A promise is a paragraph in the comment of a test. It begins with the section of the page in
// which it is printed, and may name more tests that show it. A test of another folder needs the
// folder only if several tests have its name:
//
//	// Promise (Calls): If Call fails, the buffer stays the caller's. See also TestCallFails,
//	// rpc: TestCall.
package main

import (
	"bytes"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
)

// sections lists the headings of the page in their order.
var sections = []string{
	"Delivery", "Sending", "Buffers", "Receiving", "Mailboxes", "Memory", "Ends", "Calls", "Transports", "Waiting", "Shared memory", "Hostile peers", "TLS",
	"Resources", "Watches", "Takeover", "Directory", "Index", "Clusters", "Cluster searches", "Cuts and restarts", "Keys", "Nodes", "Options", "Commands", "Source tree",
	"Package netrocl", "Package rpc", "Package bulk", "Package pool", "Package tpvm",
}

const head = `# Guarantees

A guarantee is a promise of the library that tests show. Each promise stands above a test, and
` + "`go run ./tests/guarantees`" + ` prints this page from there. "dispatch/TestMoves" is the test "TestMoves"
in the folder "dispatch", which runs by ` + "`go test -run '^TestMoves$' ./dispatch`" + `; "rocl" is the root
of the repository.

[Delivery](DELIVERY.md) defines *accepted*, *delivered*, *received* and *reported*, and the
[glossary](GLOSSARY.md) other terms. Not promised are:

- Fairness among [processes of one user](DAEMON.md#what-has-no-limit) or members of a cluster.
- Right answers beside a hostile [member that has the key](../SECURITY.md#which-part-trusts-which).
- Service during a flood that takes the processors or the network.
- Delivery to a peer that acknowledges nothing. It is cut.
`

// A promise is a promise above a test.
type promise struct {
	at      string // file and line of the test
	section string
	text    string
	tests   []string // the test, and the others that the promise names
	dir     string
}

func main() {
	var page bytes.Buffer
	if err := printPage(&page, "."); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	fmt.Print(page.String())
}

// printPage prints the page of the repository at root.
func printPage(w io.Writer, root string) error {
	promises, folders, err := read(root)
	if err != nil {
		return err
	}
	fmt.Fprint(w, head)
	stands := map[string]string{} // the place of each text
	for _, section := range sections {
		fmt.Fprintf(w, "\n## %s\n\n", section)
		for _, p := range promises {
			if p.section != section {
				continue
			}
			if stands[p.text] != "" {
				return fmt.Errorf("%s: promised before, at %s: %s", p.at, stands[p.text], p.text)
			}
			stands[p.text] = p.at
			names, err := p.names(folders)
			if err != nil {
				return err
			}
			fmt.Fprintf(w, "- %s\n", strings.Join(wrapped(p.text), "\n  "))
			fmt.Fprintf(w, "  %s\n", strings.Join(wrapped(names), "\n  "))
		}
	}
	return nil
}

// read returns the promises in the order of the files, and the folders that have a test of each
// name.
func read(root string) (promises []promise, folders map[string][]string, err error) {
	folders = map[string][]string{}
	err = filepath.WalkDir(root, func(path string, e fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case e.IsDir() && (e.Name() == ".git" || e.Name() == "testdata"):
			return filepath.SkipDir
		case !strings.HasSuffix(path, "_test.go"):
			return nil
		}
		files := token.NewFileSet()
		f, err := parser.ParseFile(files, path, nil, parser.ParseComments|parser.SkipObjectResolution)
		if err != nil {
			return err
		}
		dir, err := filepath.Rel(root, filepath.Dir(path))
		if err != nil {
			return err
		}
		above := map[*ast.CommentGroup]bool{}
		for _, d := range f.Decls {
			test, ok := d.(*ast.FuncDecl)
			if !ok || !isTest.MatchString(test.Name.Name) {
				continue
			}
			folders[test.Name.Name] = append(folders[test.Name.Name], dir)
			above[test.Doc] = true
			p := promise{at: files.Position(test.Pos()).String(), tests: []string{test.Name.Name}, dir: dir}
			found, err := p.readComment(test.Doc.Text())
			if err != nil {
				return err
			}
			promises = append(promises, found...)
		}
		for _, c := range f.Comments {
			if !above[c] && isPromise.MatchString(c.Text()) {
				return fmt.Errorf("%s: a promise is not above a test", files.Position(c.Pos()))
			}
		}
		return nil
	})
	return promises, folders, err
}

var (
	isTest    = regexp.MustCompile(`^(Test|Fuzz)[^a-z]`)
	isPromise = regexp.MustCompile(`(?m)^Promise\b`)
	form      = regexp.MustCompile(`^Promise \(([^)]+)\): (.+?)(?: See also (.+)\.)?$`)
)

// readComment returns the promises in the comment of a test. p has what they have in common.
func (p promise) readComment(text string) (found []promise, err error) {
	for paragraph := range strings.SplitSeq(text, "\n\n") {
		if !isPromise.MatchString(paragraph) {
			continue
		}
		m := form.FindStringSubmatch(strings.Join(strings.Fields(paragraph), " "))
		if m == nil || !slices.Contains(sections, m[1]) {
			return nil, fmt.Errorf("%s: the form is \"Promise (SECTION): TEXT See also TESTS.\", with one of the sections %q", p.at, sections)
		}
		one := p
		one.section, one.text = m[1], m[2]
		if m[3] != "" {
			one.tests = append(slices.Clone(p.tests), strings.Split(m[3], ", ")...)
		}
		found = append(found, one)
	}
	return found, nil
}

// names returns the tests of a promise with their folders.
func (p promise) names(folders map[string][]string) (string, error) {
	var all []string
	for _, test := range p.tests {
		dir, name, ok := strings.Cut(test, ": ")
		if !ok {
			name, dir = test, p.dir
			if has := folders[name]; len(has) == 1 {
				dir = has[0]
			}
		} else if dir == "rocl" {
			dir = "."
		}
		if !slices.Contains(folders[name], dir) {
			return "", fmt.Errorf("%s: no test %s in folder %s; the folders are %q", p.at, name, dir, folders[name])
		}
		if dir == "." {
			dir = "rocl"
		}
		all = append(all, "`"+dir+"/"+name+"`")
	}
	return strings.Join(all, ", "), nil
}

// wrapped returns the lines of a text.
func wrapped(text string) (lines []string) {
	for word := range strings.FieldsSeq(text) {
		if n := len(lines); n > 0 && len(lines[n-1])+1+len(word) <= 98 {
			lines[n-1] += " " + word
		} else {
			lines = append(lines, word)
		}
	}
	return lines
}

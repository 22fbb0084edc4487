// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"go/ast"
	"go/parser"
	"path"
	"regexp"
	"slices"
	"strings"

	"github.com/rocl-go/rocl/tests/tree"
)

// guaranteeSections lists the headings of docs/GUARANTEES.md in their order.
var guaranteeSections = []string{
	"Delivery", "Sending", "Buffers", "Receiving", "Mailboxes", "Memory", "Ends", "Calls", "Transports", "Waiting", "Shared memory", "Hostile peers", "TLS",
	"Resources", "Watches", "Takeover", "Directory", "Index", "Clusters", "Cluster searches", "Cuts and restarts", "Keys", "Nodes", "Options", "Commands", "Observing", "Source tree",
	"Package netrocl", "Package rpc", "Package live", "Package election", "Package work", "Package group", "Package bulk", "Package pool", "Package tpvm", "Dataflow",
}

const guaranteesHead = `# Guarantees

A guarantee is a promise of the library that tests show. Each promise stands above a test, and
` + "`go run ./tests/pages`" + ` prints this page from there. The numbers behind a promise lead to its tests.

[Delivery](DELIVERY.md) defines *accepted*, *delivered*, *received* and *reported*, and the
[glossary](GLOSSARY.md) other terms. Not promised are:

- Fairness among [processes of one user](DAEMON.md#what-has-no-limit) or members of a cluster.
- Right answers beside a hostile [member that has the key](../SECURITY.md#which-part-trusts-which).
- Service during a flood that takes the processors or the network.
- Delivery to a peer that acknowledges nothing. It is cut.
`

// A promise is a paragraph in the comment of a test. It begins with the section of the page in
// which it is printed, and may name more tests that show it. A test of another folder needs the
// folder only if several tests have its name:
//
//	// Promise (Calls): If Call fails, the buffer stays the caller's. See also TestCallFails,
//	// rpc: TestCall.
type promise struct {
	at      string // file and line of the test
	section string
	text    string
	tests   []string // the test, and the others that the promise names
	dir     string
}

// guarantees returns the text of docs/GUARANTEES.md.
func guarantees(root string) (string, error) {
	promises, places, err := promisesOf(root)
	if err != nil {
		return "", err
	}
	var page strings.Builder
	page.WriteString(guaranteesHead)
	stands := map[string]string{} // the place of each text
	for _, section := range guaranteeSections {
		fmt.Fprintf(&page, "\n## %s\n\n", section)
		for _, p := range promises {
			if p.section != section {
				continue
			}
			if stands[p.text] != "" {
				return "", fmt.Errorf("%s: promised before, at %s: %s", p.at, stands[p.text], p.text)
			}
			stands[p.text] = p.at
			links, err := p.links(places)
			if err != nil {
				return "", err
			}
			fmt.Fprintf(&page, "- %s%s\n", strings.ReplaceAll(wrap(p.text, 98), "\n", "\n  "), links)
		}
	}
	return page.String(), nil
}

// promisesOf returns the promises in the order of the files, and the files that have a test of each
// name.
func promisesOf(root string) (promises []promise, places map[string][]string, err error) {
	files, err := tree.Go(root, parser.ParseComments, tree.IsTest)
	places = map[string][]string{}
	for _, f := range files {
		above := map[*ast.CommentGroup]bool{}
		for _, d := range f.Decls {
			test, ok := d.(*ast.FuncDecl)
			if !ok || !isTest.MatchString(test.Name.Name) {
				continue
			}
			places[test.Name.Name] = append(places[test.Name.Name], f.Path)
			above[test.Doc] = true
			p := promise{at: f.At(test.Pos()), tests: []string{test.Name.Name}, dir: f.Folder()}
			found, err := p.readComment(test.Doc.Text())
			if err != nil {
				return nil, nil, err
			}
			promises = append(promises, found...)
		}
		for _, c := range f.Comments {
			if !above[c] && isPromise.MatchString(c.Text()) {
				return nil, nil, fmt.Errorf("%s: a promise is not above a test", f.At(c.Pos()))
			}
		}
	}
	return promises, places, err
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
		if m == nil || !slices.Contains(guaranteeSections, m[1]) {
			return nil, fmt.Errorf("%s: the form is \"Promise (SECTION): TEXT See also TESTS.\", with one of the sections %q", p.at, guaranteeSections)
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

// links returns links to the files of a promise's tests. places has the files of each test by its
// name.
func (p promise) links(places map[string][]string) (string, error) {
	var linked []string
	var all strings.Builder
	for _, test := range p.tests {
		dir, name, ok := strings.Cut(test, ": ")
		files := places[name]
		switch {
		case !ok:
			name, dir = test, p.dir
			if files = places[name]; len(files) == 1 {
				dir = path.Dir(files[0])
			}
		case dir == "rocl":
			dir = "."
		}
		k := slices.IndexFunc(files, func(f string) bool { return path.Dir(f) == dir })
		if k < 0 {
			return "", fmt.Errorf("%s: no test %s in folder %s; the files are %q", p.at, name, dir, files)
		}
		if file := files[k]; !slices.Contains(linked, file) {
			linked = append(linked, file)
			fmt.Fprintf(&all, "[[%d]](../%s)", len(linked), file)
		}
	}
	return all.String(), nil
}

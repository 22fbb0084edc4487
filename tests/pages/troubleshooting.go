// SPDX-License-Identifier: Apache-2.0

package main

import (
	"cmp"
	"errors"
	"fmt"
	"go/ast"
	"go/token"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"

	"github.com/rocl-go/rocl/tests/tree"
)

// A trouble is a message with its explanation, which stands in a comment before the message:
//
//	// Cause: why the message is written. Remedy: what to do.
//
// A level in parentheses behind "Cause" marks a line that is logged elsewhere.
type trouble struct {
	text    string // of the message, with … for what varies
	sign    string // the name of an error, the level of a log line, or ""
	body    string
	section string
}

// sections maps folders to the section for their messages. The first that fits counts.
var sections = []struct{ folder, errors, logs string }{
	{"cmd/dirserver", "daemon", "log of the daemon"},
	{"directory/cluster", "daemon", "log of the cluster"},
	{"directory/certificates.go", "daemon", ""},
	{"directory/internal/mux", "daemon", "log of the cluster"},
	{"directory", "errors", "log of the directory"},
	{"", "errors", "log of programs"},
}

// levels are the levels of the log lines that are explained.
var levels = []string{"info", "warn", "error"}

// quiet are the folders whose log lines need no explanation: they are not for operators.
var quiet = []string{"cmd/rocl", "cmd/tpvm", "tpvm", "examples", "subsys/subsystest", "pool"}

var (
	explanation = regexp.MustCompile(`(?s)(?:^|\n)Cause(?: \((\w+)\))?: (.+)`)
	remedy      = regexp.MustCompile(`\s+Remedy: `)
	verb        = regexp.MustCompile(`%[-+# 0]*[\d.]*[a-zA-Z]`)
	table       = regexp.MustCompile(`(?m)^\{\{(.+)\}\}\n`)
)

// troubleshooting returns the text of docs/TROUBLESHOOTING.md: troubleshooting.md with the messages
// of each section, sorted.
func troubleshooting(root string, files []*tree.File) (string, error) {
	missing := map[string]bool{} // errors of package rocl without an explanation
	signs := slices.Clone(levels)
	for _, f := range files {
		if f.Folder() != "." {
			continue
		}
		ast.Inspect(f.File, func(n ast.Node) bool {
			if v, ok := n.(*ast.ValueSpec); ok && strings.HasPrefix(v.Names[0].Name, "Err") {
				missing[v.Names[0].Name] = true
				signs = append(signs, v.Names[0].Name)
			}
			return true
		})
	}
	var all []trouble
	var faults []error
	logged := map[string]string{} // the place of each line that is logged without an explanation, by its text
	for _, f := range files {
		found, err := troubles(f, logged)
		all, faults = append(all, found...), append(faults, err)
	}
	for i := range all {
		t := &all[i]
		delete(missing, t.sign)
		delete(logged, t.text)
		if !slices.Contains(signs, t.sign) { // an error that programs do not see
			t.sign = ""
		}
	}
	for name := range missing {
		faults = append(faults, fmt.Errorf("no comment explains rocl.%s", name))
	}
	for text, place := range logged {
		faults = append(faults, fmt.Errorf("%s: no comment with \"Cause:\" explains %q", place, text))
	}
	slices.SortStableFunc(all, func(a, b trouble) int { return cmp.Or(cmp.Compare(a.text, b.text), cmp.Compare(a.sign, b.sign)) })
	all = slices.CompactFunc(all, func(a, b trouble) bool { return a == b })
	frame, err := os.ReadFile(filepath.Join(root, "tests/pages/troubleshooting.md"))
	if err != nil {
		return "", err
	}
	page := table.ReplaceAllStringFunc(string(frame), func(line string) string {
		section := table.FindStringSubmatch(line)[1]
		var here []trouble
		for _, t := range all {
			if t.section == section {
				here = append(here, t)
			}
		}
		return show(here)
	})
	return strings.TrimRight(page, "\n") + "\n", errors.Join(faults...)
}

// show returns messages with their explanations. Messages that have the same explanation stand
// together, and so do explanations of the same message.
func show(all []trouble) string {
	var b strings.Builder
	for len(all) > 0 {
		first, rest := all[0], all[:0:0]
		fmt.Fprintf(&b, "### `%s`\n\n", first.text)
		body := first.body
		for _, t := range all[1:] {
			switch {
			case t.sign != first.sign || t.text != first.text && t.body != first.body:
				rest = append(rest, t)
			case t.text == first.text:
				body += " " + t.body
			default:
				fmt.Fprintf(&b, "### `%s`\n\n", t.text)
			}
		}
		if first.sign != "" && !slices.Contains(levels, first.sign) { // a log line has its level
			body = fmt.Sprintf("`%s`. %s", first.sign, body)
		}
		b.WriteString(wrap(body, 100) + "\n\n")
		all = rest
	}
	return b.String()
}

// troubles returns the explained messages of a file. It adds the lines to logged that are logged at
// level warn or error without an explanation, unless they are for no operator.
func troubles(f *tree.File, logged map[string]string) (all []trouble, err error) {
	explained := map[token.Pos]*ast.CommentGroup{} // by the message
	var texts []*ast.BasicLit
	ast.Inspect(f.File, func(n ast.Node) bool {
		if lit, ok := n.(*ast.BasicLit); ok && lit.Kind == token.STRING && lit.Value != `""` {
			texts = append(texts, lit)
		}
		return true
	})
	for _, c := range f.Comments {
		if explanation.MatchString(c.Text()) {
			i := slices.IndexFunc(texts, func(l *ast.BasicLit) bool { return l.Pos() > c.End() })
			if i < 0 {
				return nil, fmt.Errorf("%s: no message follows", f.At(c.Pos()))
			}
			explained[texts[i].Pos()] = c
		}
	}
	name := "" // of the variable that is being declared
	ast.Inspect(f.File, func(n ast.Node) bool {
		switch n := n.(type) {
		case *ast.ValueSpec:
			name = n.Names[0].Name
		case *ast.FuncDecl:
			name = ""
		case *ast.CallExpr:
			sign, lit := message(n)
			if lit == nil {
				break
			}
			if c := explained[lit.Pos()]; c != nil {
				delete(explained, lit.Pos())
				all = append(all, troubleOf(f, c, lit, cmp.Or(sign, declared(name), wrapped(n))))
			} else if sign != "" && sign != "info" && !slices.ContainsFunc(quiet, func(dir string) bool { return strings.HasPrefix(f.Path, dir+"/") }) {
				logged[textOf(lit)] = f.At(lit.Pos())
			}
		}
		return true
	})
	for at, c := range explained { // texts that are no argument of a call
		i := slices.IndexFunc(texts, func(l *ast.BasicLit) bool { return l.Pos() == at })
		all = append(all, troubleOf(f, c, texts[i], ""))
	}
	return all, nil
}

// textOf returns the text of a message with … for what varies.
func textOf(lit *ast.BasicLit) string {
	text, _ := strconv.Unquote(lit.Value)
	text = verb.ReplaceAllString(strings.TrimPrefix(text, "%w: "), "…")
	if strings.HasPrefix(text, ":") { // the part before it is no literal
		text = "…" + text
	}
	return text
}

// troubleOf returns the message lit, which c explains. sign is the name of an error, a level or "".
func troubleOf(f *tree.File, c *ast.CommentGroup, lit *ast.BasicLit, sign string) trouble {
	m := explanation.FindStringSubmatch(c.Text())
	t := trouble{text: textOf(lit), sign: cmp.Or(m[1], sign)}
	body := strings.Join(strings.Fields(m[2]), " ")
	for i, part := range remedy.Split(body, 2) {
		if i > 0 {
			t.body += " "
		}
		n := len(part) - len(strings.TrimLeft(part, "["))
		t.body += part[:n] + strings.ToUpper(part[n:n+1]) + part[n+1:]
	}
	i := slices.IndexFunc(sections, func(s struct{ folder, errors, logs string }) bool {
		return s.folder == "" || f.Path == s.folder || strings.HasPrefix(f.Path, s.folder+"/")
	})
	t.section = sections[i].errors
	if slices.Contains(levels, t.sign) {
		t.section = sections[i].logs
	}
	return t
}

// message returns the text that a call logs, or gives an error, and the level if it logs. lit is
// nil for any other call.
func message(call *ast.CallExpr) (level string, lit *ast.BasicLit) {
	sel, ok := call.Fun.(*ast.SelectorExpr)
	if !ok {
		return "", nil
	}
	if x, ok := sel.X.(*ast.Ident); !ok || x.Name != "http" {
		level = map[string]string{"Info": "info", "Warn": "warn", "Error": "error"}[sel.Sel.Name]
	}
	if level == "" && !slices.Contains([]string{"New", "Errorf", "Sprintf"}, sel.Sel.Name) {
		return "", nil
	}
	for _, arg := range call.Args[:min(2, len(call.Args))] { // a limited line names its source first
		if sum, ok := arg.(*ast.BinaryExpr); ok {
			arg = sum.Y
		}
		if l, ok := arg.(*ast.BasicLit); ok && l.Kind == token.STRING && l.Value != `""` {
			return level, l
		}
	}
	return "", nil
}

// declared returns the name of a variable if it is that of an error that programs see.
func declared(name string) string {
	if strings.HasPrefix(name, "Err") {
		return name
	}
	return ""
}

// wrapped returns the name of the error that a call of fmt.Errorf wraps first, if programs see it.
func wrapped(call *ast.CallExpr) string {
	for _, arg := range call.Args {
		switch x := arg.(type) {
		case *ast.SelectorExpr:
			if n := declared(x.Sel.Name); n != "" {
				return n
			}
		case *ast.Ident:
			if n := declared(x.Name); n != "" {
				return n
			}
		}
	}
	return ""
}

// wrap returns text in lines of at most so many columns, unless a word is longer.
func wrap(text string, columns int) string {
	var b strings.Builder
	column := 0
	for word := range strings.FieldsSeq(text) {
		n := utf8.RuneCountInString(word)
		switch {
		case column > 0 && column+1+n > columns:
			b.WriteByte('\n')
			column = 0
		case column > 0:
			b.WriteByte(' ')
			column++
		}
		b.WriteString(word)
		column += n
	}
	return b.String()
}

// SPDX-License-Identifier: Apache-2.0

package words

import (
	"fmt"
	"go/ast"
	"go/token"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/rocl-go/rocl/tests/tree"
)

// complaint is one breach of a rule.
type complaint struct {
	line int
	text string
}

// Every Go and Markdown file follows the rules on words.
func TestDocWords(t *testing.T) {
	report := func(path string, found []complaint) {
		for _, c := range found {
			t.Errorf("%s:%d: %s", path, c.line, c.text)
		}
	}
	for _, f := range parsed(t, anyFile) {
		report(f.Path, check(f))
	}
	for _, path := range files(t, ".md") {
		report(path, checkMarkdown(read(t, path)))
	}
}

// Every package has a comment. The comment of a library begins with the name of the package.
func TestDocPackages(t *testing.T) {
	comments := map[string]string{} // by folder
	name := map[string]string{}
	for _, f := range parsed(t, tree.IsCode) {
		name[f.Folder()] = f.Name.Name
		if text := f.Doc.Text(); text != "" && !strings.HasPrefix(text, "Code generated") {
			comments[f.Folder()] += text
		}
	}
	for dir, is := range name {
		if comments[dir] == "" {
			t.Errorf("%s: package %s has no comment", dir, is)
		} else if is != "main" && !strings.HasPrefix(comments[dir], "Package "+is+" ") {
			t.Errorf("%s: the comment of package %s begins %q", dir, is, shorten(comments[dir]))
		}
	}
}

// check returns the breaches in a Go file.
func check(f *tree.File) (found []complaint) {
	for _, g := range f.Comments {
		for _, s := range sentences(commentProse(g.Text())) {
			for _, breach := range breaches(s) {
				found = append(found, complaint{f.Line(g.Pos()), breach})
			}
		}
	}
	if tree.IsTest(f.Path) {
		return found
	}
	ast.Inspect(f.File, func(n ast.Node) bool {
		call, ok := n.(*ast.CallExpr)
		if ok && isMessage(call.Fun) {
			for _, arg := range call.Args {
				if lit, ok := arg.(*ast.BasicLit); ok && lit.Kind == token.STRING {
					text, _ := strconv.Unquote(lit.Value)
					for _, breach := range append(breaches(text), people(text)...) {
						found = append(found, complaint{f.Line(lit.Pos()), breach})
					}
				}
			}
		}
		return true
	})
	for _, d := range f.Decls {
		for _, c := range checkDecl(d) {
			found = append(found, complaint{f.Line(c.at), c.text})
		}
	}
	return found
}

// isMessage reports whether a function makes an error or writes a log line.
func isMessage(fun ast.Expr) bool {
	f, ok := fun.(*ast.SelectorExpr)
	return ok && slices.Contains([]string{"New", "Errorf", "Debug", "Info", "Warn", "Error", "Log"}, f.Sel.Name)
}

// person matches words for people. Errors and log lines name the process, the member or the
// goroutine.
var person = regexp.MustCompile(`(?i)\b(nobody|somebody|anybody|everybody|whoever|strangers?)\b`)

// people returns the words for people in the text of an error or of a log line.
func people(text string) (found []string) {
	for _, word := range person.FindAllString(text, -1) {
		found = append(found, fmt.Sprintf("%q: name the subject: %s", word, shorten(text)))
	}
	return found
}

// words matches the words of a comment.
var words = regexp.MustCompile(`\w+`)

// An undocumented describes an exported name without a doc comment in the standard form.
type undocumented struct {
	at   token.Pos
	text string
}

// checkDecl returns the exported names of a declaration whose doc comment is missing or does not
// begin with the name. A comment above a group, or behind one of its names, documents the names of
// the group. Where several names stand on one line, the comment must contain those after the first.
func checkDecl(d ast.Decl) (found []undocumented) {
	needs := func(name *ast.Ident, doc *ast.CommentGroup) {
		if !name.IsExported() {
			return
		}
		if doc == nil {
			found = append(found, undocumented{name.Pos(), name.Name + " has no doc comment"})
		} else if !begins(doc.Text(), name.Name) {
			found = append(found, undocumented{name.Pos(), "the doc comment of " + name.Name + " does not begin with the name"})
		}
	}
	switch d := d.(type) {
	case *ast.FuncDecl:
		if d.Recv == nil || receiver(d).IsExported() && !isUsual(d.Name.Name) {
			needs(d.Name, d.Doc)
		}
	case *ast.GenDecl:
		grouped := d.Lparen.IsValid()
		for _, s := range d.Specs {
			names, doc, behind := specParts(s)
			if doc != nil && strings.HasPrefix(doc.Text(), "Cause: ") { // for docs/TROUBLESHOOTING.md
				doc = nil
			}
			if !grouped {
				doc = d.Doc
			}
			if grouped && doc == nil && (d.Doc != nil || behind != nil) {
				continue
			}
			for i, name := range names {
				if i == 0 || doc == nil || !slices.Contains(words.FindAllString(doc.Text(), -1), name.Name) {
					needs(name, doc)
				}
			}
		}
	}
	return found
}

// isUsual reports whether a method has the same meaning in all types, so that it needs no comment.
func isUsual(name string) bool {
	return slices.Contains([]string{"Error", "Unwrap", "Is", "As", "String"}, name)
}

func receiver(d *ast.FuncDecl) *ast.Ident {
	e := d.Recv.List[0].Type
	for {
		switch x := e.(type) {
		case *ast.StarExpr:
			e = x.X
		case *ast.IndexExpr:
			e = x.X
		case *ast.IndexListExpr:
			e = x.X
		case *ast.Ident:
			return x
		default:
			return ast.NewIdent("_")
		}
	}
}

// specParts returns the names of a type, constants or variables, the comment above them, and the
// comment behind them.
func specParts(s ast.Spec) (names []*ast.Ident, above, behind *ast.CommentGroup) {
	switch s := s.(type) {
	case *ast.TypeSpec:
		return []*ast.Ident{s.Name}, s.Doc, s.Comment
	case *ast.ValueSpec:
		return s.Names, s.Doc, s.Comment
	}
	return nil, nil, nil
}

// begins reports whether a doc comment begins with the name, after an article or none.
func begins(doc, name string) bool {
	for _, a := range []string{"A ", "An ", "The "} {
		if rest, ok := strings.CutPrefix(doc, a); ok {
			doc = rest
			break
		}
	}
	rest, ok := strings.CutPrefix(doc, name)
	return ok && (rest == "" || !isWord(rest[0])) || strings.HasPrefix(doc, "Deprecated: ")
}

func isWord(c byte) bool {
	return c == '_' || c >= '0' && c <= '9' || c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z'
}

// banned lists the words and openings that no sentence may have.
var banned = []struct {
	is  *regexp.Regexp
	say string
}{
	{regexp.MustCompile(`(?i)^(who|whom|whose|whoever|those who|he|somebody|one (who|that)|what is there)\b`), "a sentence begins with %q: name the subject"},
	{regexp.MustCompile(`(?i)\b((and|but|of|by|to|for|from|with|than|as|lets?) who|whoever)\b`), "%q: name the subject"},
	{regexp.MustCompile(`(?i)\b(he|him|his|himself)\b`), "%q: nothing in the code is a person"},
	{regexp.MustCompile(`\b(PRACTICE|FEATURES|DESIGN)\b|\bA-[0-9]{2}\b|\bC[0-9] M[0-9]+\b|\b(BK|M[A-Z]|UT)[0-9]{1,2}\b|\((?:[A-Z]-?[0-9]{1,2}(?:, )?)+\)`), "%q is not a document of the repository"},
}

// breaches returns the breaches of rules in a sentence. A question may begin with a question word.
func breaches(sentence string) (found []string) {
	for _, b := range banned {
		if m := b.is.FindString(sentence); m != "" && !strings.HasSuffix(sentence, "?") {
			found = append(found, fmt.Sprintf(b.say, m)+": "+shorten(sentence))
		}
	}
	return found
}

func shorten(s string) string {
	if r := []rune(s); len(r) > 80 {
		return string(r[:80]) + "…"
	}
	return s
}

// commentProse returns the paragraphs and list items of a comment, without code.
func commentProse(text string) (blocks []string) {
	open := false
	for line := range strings.Lines(text) {
		line = strings.TrimRight(line, "\n")
		item, isItem := strings.CutPrefix(strings.TrimLeft(line, " "), "- ")
		switch {
		case strings.TrimSpace(line) == "", strings.HasPrefix(line, "\t"), strings.HasPrefix(line, "#"):
			open = false
		case isItem:
			blocks, open = append(blocks, item), true
		case open:
			blocks[len(blocks)-1] += " " + strings.TrimSpace(line)
		default:
			blocks, open = append(blocks, strings.TrimSpace(line)), true
		}
	}
	return blocks
}

var endOfSentence = regexp.MustCompile(`[.!?] +`)

// sentences splits blocks of text into sentences.
func sentences(blocks []string) (all []string) {
	for _, b := range blocks {
		from := 0
		for _, at := range endOfSentence.FindAllStringIndex(b, -1) {
			all = append(all, b[from:at[0]+1])
			from = at[1]
		}
		all = append(all, b[from:])
	}
	return all
}

var (
	codeSpan   = regexp.MustCompile("`[^`]*`")
	blockStart = regexp.MustCompile(`^\s*([-*]|[0-9]+\.|>) +`)
)

// checkMarkdown returns the breaches in a document. Code and headings are left out.
func checkMarkdown(text string) (found []complaint) {
	fenced, open := false, false
	var block string
	var begun int
	flush := func() {
		for _, s := range sentences([]string{strings.TrimLeft(block, "*_ ")}) {
			for _, b := range breaches(strings.TrimLeft(s, "*_")) {
				found = append(found, complaint{begun, b})
			}
		}
		block, open = "", false
	}
	n := 0
	for line := range strings.Lines(text) {
		n++
		line = strings.TrimRight(line, "\n")
		if strings.HasPrefix(strings.TrimSpace(line), "```") {
			flush()
			fenced = !fenced
			continue
		}
		line = codeSpan.ReplaceAllString(line, "CODE")
		switch {
		case fenced:
		case strings.TrimSpace(line) == "", strings.HasPrefix(line, "#"):
			flush()
		case strings.HasPrefix(line, "|"):
			flush()
			for cell := range strings.SplitSeq(line, "|") {
				block, begun = strings.TrimSpace(cell), n
				flush()
			}
		case blockStart.MatchString(line), !open:
			flush()
			block, begun, open = blockStart.ReplaceAllString(line, ""), n, true
		default:
			block += " " + strings.TrimSpace(line)
		}
	}
	flush()
	return found
}

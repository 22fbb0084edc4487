// SPDX-License-Identifier: Apache-2.0

package words

import (
	"cmp"
	"fmt"
	"os"
	"path"
	"regexp"
	"strings"
	"testing"
	"unicode"

	"github.com/rocl-go/rocl/internal/testkit/try"
)

var (
	link    = regexp.MustCompile(`(?m)(?:\]\(|^ {0,3}\[[^\]]+\]:[ \t]+)([^)\s]+)`) // [x](path), and [x]: path on a line of its own
	named   = regexp.MustCompile(`\bdocs/[A-Za-z0-9_.-]+\.(md|svg)\b`)
	heading = regexp.MustCompile(`^#+ +(.*)$`)
)

// templates maps texts from which programs write documents to these documents.
var templates = map[string]string{"directory/internal/scale/scaling.md": "docs/SCALING.md", "tests/pages/protocol.md": "docs/PROTOCOL.md", "tests/pages/troubleshooting.md": "docs/TROUBLESHOOTING.md"}

// Every link of a document leads to a file and heading of the tree, and every document that a Go
// file names exists.
func TestDocLinks(t *testing.T) {
	anchors := map[string]map[string]bool{}
	for _, doc := range files(t, ".md") {
		anchors[doc] = anchorsOf(read(t, doc))
	}
	seen := 0
	for doc := range anchors {
		for _, m := range link.FindAllStringSubmatch(codeSpan.ReplaceAllString(withoutCode(read(t, doc)), ""), -1) {
			if strings.Contains(m[1], "://") || strings.HasPrefix(m[1], "mailto:") {
				continue
			}
			seen++
			file, anchor, hasAnchor := strings.Cut(m[1], "#")
			to := path.Join(path.Dir(cmp.Or(templates[doc], doc)), file)
			if file == "" {
				to = cmp.Or(templates[doc], doc)
			}
			if _, err := os.Stat(path.Join(root, to)); err != nil {
				t.Errorf("%s: the link %s leads to no file", doc, m[1])
			} else if at, ok := anchors[to]; hasAnchor && ok && !at[anchor] {
				t.Errorf("%s: the link %s leads to no heading", doc, m[1])
			}
		}
	}
	if seen < 50 {
		t.Errorf("only %d links are found", seen)
	}
	for _, file := range files(t, ".go") {
		for _, doc := range named.FindAllString(read(t, file), -1) {
			try.Works(os.Stat(path.Join(root, doc)))(t, "%s names %s, which is not there", file, doc)
		}
	}
}

// anchorsOf returns the anchors of the headings of a document, as the forge makes them.
func anchorsOf(text string) map[string]bool {
	all := map[string]bool{}
	for line := range strings.Lines(withoutCode(text)) {
		m := heading.FindStringSubmatch(strings.TrimRight(line, "\n"))
		if m == nil {
			continue
		}
		anchor := slug(m[1])
		for n := 1; all[anchor]; n++ {
			anchor = fmt.Sprintf("%s-%d", slug(m[1]), n)
		}
		all[anchor] = true
	}
	return all
}

// slug returns the anchor of a heading: letters and digits in lower case, hyphens for spaces.
func slug(text string) string {
	text = regexp.MustCompile(`\[([^]]*)\]\([^)]*\)`).ReplaceAllString(text, "$1")
	var b strings.Builder
	for _, r := range strings.ToLower(text) {
		switch {
		case unicode.IsLetter(r), unicode.IsDigit(r), r == '-', r == '_':
			b.WriteRune(r)
		case r == ' ':
			b.WriteByte('-')
		}
	}
	return b.String()
}

// withoutCode returns a document without its fenced blocks.
func withoutCode(text string) string {
	var b strings.Builder
	fenced := false
	for line := range strings.Lines(text) {
		if strings.HasPrefix(strings.TrimSpace(line), "```") {
			fenced = !fenced
		} else if !fenced {
			b.WriteString(line)
		}
	}
	return b.String()
}

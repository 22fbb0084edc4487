// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"

	"github.com/rocl-go/rocl/tests/tree"
)

// place is a line of protocol.md in whose place the sections of a Go file come.
var place = regexp.MustCompile(`(?m)^\{\{(.+)\}\}\n`)

// protocol returns the text of docs/PROTOCOL.md: protocol.md with the sections of the files that it
// names. A section is a comment whose first line is "Protocol:" and its heading.
func protocol(root string, files []*tree.File) (string, error) {
	sections := map[string]string{} // by file
	for _, f := range files {
		for _, c := range f.Comments {
			heading, body, _ := strings.Cut(c.Text(), "\n")
			if name, ok := strings.CutPrefix(heading, "Protocol: "); ok {
				sections[f.Path] += "## " + name + "\n" + joinRows(body) + "\n"
			}
		}
	}
	frame, err := os.ReadFile(filepath.Join(root, "tests/pages/protocol.md"))
	if err != nil {
		return "", err
	}
	page := place.ReplaceAllStringFunc(string(frame), func(line string) string {
		path := place.FindStringSubmatch(line)[1]
		text := sections[path]
		if text == "" {
			err = fmt.Errorf("protocol.md names %s, which has no section", path)
		}
		delete(sections, path)
		return text
	})
	for path := range sections {
		err = fmt.Errorf("protocol.md does not name %s, which has a section", path)
	}
	return strings.TrimRight(page, "\n") + "\n", err
}

// joinRows returns text with each row of a table in one line. In a comment a row may have several.
func joinRows(text string) string {
	var b strings.Builder
	open := false // the last line is a row that goes on
	for line := range strings.Lines(text) {
		line = strings.TrimRight(line, "\n")
		if open {
			b.WriteByte(' ')
			line = strings.TrimSpace(line)
		}
		b.WriteString(line)
		if open = (open || strings.HasPrefix(line, "|")) && !strings.HasSuffix(line, "|"); !open {
			b.WriteByte('\n')
		}
	}
	return b.String()
}

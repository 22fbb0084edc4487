// SPDX-License-Identifier: Apache-2.0

package words

import (
	"regexp"
	"strings"
	"testing"
	"unicode/utf8"
)

const (
	maxWidth = 100 // columns of a line of prose
	tabWidth = 4
)

var (
	commentLine   = regexp.MustCompile(`^\t*// \S`)
	unwrappedLine = regexp.MustCompile(`^\t*// (Output:|\[.*\]: )`) // output of examples, addresses of links
)

// The prose of comments that stand on lines of their own is wrapped at 100 columns. Indented text,
// such as tables and diagrams, may be wider, and so may a word that does not fit into a line.
func TestDocWidth(t *testing.T) {
	for _, path := range files(t, ".go") {
		for i, line := range strings.Split(read(t, path), "\n") {
			if !commentLine.MatchString(line) || unwrappedLine.MatchString(line) {
				continue
			}
			wide := utf8.RuneCountInString(strings.ReplaceAll(line, "\t", strings.Repeat(" ", tabWidth)))
			if wide > maxWidth && strings.Count(strings.TrimLeft(line, "\t"), " ") > 1 {
				t.Errorf("%s:%d: a comment of %d columns", path, i+1, wide)
			}
		}
	}
}

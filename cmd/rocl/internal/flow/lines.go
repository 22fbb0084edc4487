// SPDX-License-Identifier: Apache-2.0

package flow

import (
	"bytes"
	"fmt"
	"io"
	"sync"

	"github.com/rocl-go/rocl/cmd/rocl/internal/cli"
	"github.com/rocl-go/rocl/internal/display"
)

const (
	longestLine = 64 << 10 // a longer line is cut into several
	lastLines   = 100      // of a group that is not shown, in case it fails
)

// A printer prints the lines of all groups.
type printer struct {
	mu     sync.Mutex
	asJSON bool
}

// A lineJSON is a line of output with --json.
type lineJSON struct {
	Group  string `json:"group"`
	Stream string `json:"stream"`
	Line   string `json:"line"`
}

// lines is one of the outputs of a group. It prints whole lines with the group's name in front.
type lines struct {
	*printer
	group, stream string
	to            io.Writer
	isShown       bool
	part          []byte // a line whose end has not come
	last          *tail  // of a group that is not shown
}

// A tail has the last lines of a group, as they would have been printed.
type tail [][]byte

// Write implements io.Writer.
func (l *lines) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for rest := p; len(rest) > 0; {
		line, more, isWhole := bytes.Cut(rest, []byte("\n"))
		l.part = append(l.part, line...)
		if rest = more; isWhole || len(l.part) >= longestLine {
			l.endLine()
		}
	}
	return len(p), nil
}

// end prints a last line that has no end.
func (l *lines) end() {
	l.mu.Lock()
	defer l.mu.Unlock()
	if len(l.part) > 0 {
		l.endLine()
	}
}

// endLine prints the line, or keeps it. mu must be held.
func (l *lines) endLine() {
	var text bytes.Buffer
	if l.asJSON {
		_ = cli.Print(&text, lineJSON{l.group, l.stream, string(l.part)})
	} else {
		_, _ = fmt.Fprintf(display.Text(&text), "[%s] %s\n", l.group, l.part)
	}
	l.part = l.part[:0]
	if l.isShown {
		_, _ = l.to.Write(text.Bytes())
		return
	}
	if *l.last = append(*l.last, text.Bytes()); len(*l.last) > lastLines {
		*l.last = (*l.last)[1:]
	}
}

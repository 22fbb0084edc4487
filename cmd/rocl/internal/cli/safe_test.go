// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/rocl-go/rocl"
	"github.com/rocl-go/rocl/directory"
	"github.com/rocl-go/rocl/internal/display"
	"github.com/rocl-go/rocl/internal/testkit/try"
	"github.com/rocl-go/rocl/resource"
)

// evil moves the cursor, sets the title, reverses text and hides some of it.
const evil = "\x1b[2J\x1b]0;owned\a\u009b31m\x7f\u202e\u200b\u3164\r\n\tx"

// unsafe returns the first character of printed text that would control a terminal, or "".
func unsafe(s string) string {
	for _, r := range s {
		if !display.IsSafe(r) && r != '\n' {
			return fmt.Sprintf("%q", r)
		}
	}
	return ""
}

// printsSafely runs a command line, which prints text, and JSON with --json, that controls no
// terminal.
func printsSafely(t *testing.T, sock, line string) {
	t.Helper()
	for _, format := range [][]string{nil, {"--json"}} {
		words := slices.Concat(strings.Split(line, " "), format, []string{"--timeout", long.String(), "--socket", sock})
		out, errOut, code := execute(t.Context(), strings.NewReader(""), words...)
		if u := unsafe(out + errOut); u != "" || out+errOut == "" && code == 0 {
			t.Errorf("%q printed %s: %q, %q", words, u, out, errOut)
		}
		for l := range strings.Lines(out) {
			if format != nil && !json.Valid([]byte(l)) {
				t.Errorf("%q printed %q, which is not JSON", words, l)
			}
		}
	}
}

// Text that another process chose never reaches the terminal unchanged: not in attributes, labels,
// payloads or errors, and not in JSON, whose meaning stays the same.
//
// Promise (Commands): Text of another process cannot control the terminal. See also TestLogIsSafe.
func TestNothingUnsafeIsPrinted(t *testing.T) {
	_, sock := labelled(t, resource.Attrs{"label" + evil: evil})
	c := open(t, sock)
	try.Get(c.Register(t.Context(), rocl.Attrs{"evil": "yes", "name" + evil: evil, "bytes": "\xff\x9b"}))(t)
	for _, args := range []string{"find evil=yes", "find --cluster evil=yes", "find --contexts", "nodes", "search-trace evil=yes", "search-trace name" + evil + "=x", "routes",
		"find x" + evil, "find x" + evil + "=\x1b --first --cluster", "find --want x" + evil, "no" + evil, "help " + evil, "search-trace --search " + evil + " a=b", "recv --count " + evil + " a=b"} {
		printsSafely(t, sock, args)
	}
	out, _, _ := execute(t.Context(), nil, "find", "--json", "--socket", sock, "evil=yes")
	var f struct{ Attrs map[string]any }
	if err := json.Unmarshal([]byte(out), &f); err != nil || f.Attrs["name"+evil] != evil {
		t.Errorf("%q means %v (%v)", out, f.Attrs, err)
	}

	for _, format := range [][]string{nil, {"--json"}} {
		w := start(t, append(format, "watch", "--socket", sock, "evil=yes")...)
		l := w.line()
		if format != nil {
			l += w.line() // the first line says that the watch is synced
		}
		if u := unsafe(l); u != "" || !strings.Contains(l, "appeared") {
			t.Errorf("watch printed %s: %q", u, l)
		}
		w.stop()
		r := start(t, append(format, "recv", "--socket", sock, "--count", "2", "name=there")...)
		r.line()
		if _, errOut, code := execute(t.Context(), strings.NewReader(strings.ReplaceAll(evil, "\n", "")+"\none\ttwo\n"), "send", "--socket", sock, "--wait", "10s", "name=there"); code != 0 {
			t.Fatal(errOut)
		}
		one, two := r.line(), r.line()
		if u := unsafe(one + strings.ReplaceAll(two, "\t", "")); u != "" || format == nil && two != "one\ttwo" {
			t.Errorf("recv printed %s: %q, %q", u, one, two)
		}
		r.stop()
	}

	var e strings.Builder
	root := Root()
	root.SetErr(&e)
	report(context.Background(), root, nil, errors.Join(errors.New("no"+evil), fmt.Errorf("%w: \x1b[2J", directory.ErrNoDirectory)))
	try.Equal(t, unsafe(e.String()), "", "unsafe in the error %q", &e)
}

// A list is printed so that values cannot be mistaken for other attributes.
func TestListsAreUnambiguous(t *testing.T) {
	l := try.Get(attributes([]string{"a=b", "list=a,b", "c=d, e=f", `q="x"`, "what=?"}))(t)
	try.Equal(t, l.String(), `{a=b, list=a,b, c="d, e=f", q="\"x\"", what="?"}`)
}

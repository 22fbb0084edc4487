// SPDX-License-Identifier: Apache-2.0

// Package display makes text from outside the process safe to show on a terminal, in a table or in
// a log.
//
// Attribute values, names of machines and payloads are bytes that another process chose. Printed
// raw, control characters move the cursor or change the terminal's settings, and invisible
// characters make text look like other text.
package display

import (
	"io"
	"strconv"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"
)

// IsSafe reports whether a terminal shows r and does nothing else with it. Control characters are
// not safe. Neither are characters that change the direction of text or have no width, such as
// U+202E and U+200B.
func IsSafe(r rune) bool {
	return strconv.IsPrint(r) && !unicode.Is(unicode.Other_Default_Ignorable_Code_Point, r)
}

// Quote returns s if every character of it is safe. Otherwise it returns s in
// double quotes, with Go's escapes.
func Quote(s string) string {
	if isSafe(s) {
		return s
	}
	return quoted(s)
}

// QuoteIf returns s in double quotes, with Go's escapes, if isQuoted or if s has
// a character that is not safe. It returns s otherwise.
func QuoteIf(isQuoted bool, s string) string {
	if isQuoted {
		return quoted(s)
	}
	return Quote(s)
}

// Line returns a payload as one line: as it is if it has safe characters and
// tabs only, in double quotes with Go's escapes otherwise.
func Line(b []byte) string {
	s := string(b)
	if isSafe(strings.ReplaceAll(s, "\t", "")) {
		return s
	}
	return quoted(s)
}

// Escape returns s with Go's escape in place of each character that is not safe.
// Unlike [Quote] it adds no quotes: it is for sentences, such as errors.
func Escape(s string) string {
	if isSafe(s) {
		return s
	}
	return string(appendEscaped(nil, s, false))
}

// Error returns the text of an error with each line escaped, and every line after the first
// indented. So no text within it can imitate the beginning of a line.
func Error(err error) string {
	lines := strings.Split(err.Error(), "\n")
	for i, l := range lines {
		lines[i] = Escape(l)
	}
	return strings.Join(lines, "\n  ")
}

// JSON returns JSON text with the same meaning as b. Characters that are not safe become \u escapes
// within strings.
func JSON(b []byte) []byte {
	for i := 0; i < len(b); {
		r, n := utf8.DecodeRune(b[i:])
		if r != '\n' && (!IsSafe(r) || r == utf8.RuneError && n == 1) {
			return appendJSON(append([]byte(nil), b[:i]...), b[i:])
		}
		i += n
	}
	return b
}

// Text returns a writer that escapes what is written to w, except for the ends
// of lines. Each Write must end where a character ends.
func Text(w io.Writer) io.Writer {
	return filter{w, func(b []byte) []byte {
		if isSafe(strings.ReplaceAll(string(b), "\n", "")) {
			return b
		}
		return appendEscaped(nil, string(b), true)
	}}
}

// JSONLines returns a writer that passes what is written, which is JSON text,
// through [JSON] to w. Each Write must end where a character ends.
func JSONLines(w io.Writer) io.Writer { return filter{w, JSON} }

type filter struct {
	w    io.Writer
	safe func([]byte) []byte
}

func (f filter) Write(p []byte) (int, error) {
	if _, err := f.w.Write(f.safe(p)); err != nil {
		return 0, err
	}
	return len(p), nil
}

func isSafe(s string) bool {
	for i, r := range s {
		if !IsSafe(r) || r == utf8.RuneError && isInvalid(s[i:]) {
			return false
		}
	}
	return true
}

func isInvalid(s string) bool {
	_, n := utf8.DecodeRuneInString(s)
	return n == 1
}

func quoted(s string) string {
	b := []byte{'"'}
	for s != "" {
		r, n := utf8.DecodeRuneInString(s)
		if r == '"' || r == '\\' {
			b = append(b, '\\', byte(r))
		} else {
			b = appendEscaped(b, s[:n], false)
		}
		s = s[n:]
	}
	return string(append(b, '"'))
}

// appendEscaped appends s with escapes, but keeps the ends of lines if lines.
func appendEscaped(b []byte, s string, lines bool) []byte {
	for s != "" {
		r, n := utf8.DecodeRuneInString(s)
		switch {
		case r == utf8.RuneError && n == 1:
			b = append(b, '\\', 'x', hex[s[0]>>4], hex[s[0]&15])
		case IsSafe(r) || lines && r == '\n':
			b = append(b, s[:n]...)
		case strconv.IsPrint(r): // Go would leave it as it is
			b = appendRune(b, r)
		default:
			q := strconv.QuoteRune(r)
			b = append(b, q[1:len(q)-1]...)
		}
		s = s[n:]
	}
	return b
}

const hex = "0123456789abcdef"

func appendRune(b []byte, r rune) []byte {
	u, digits := byte('u'), 4
	if r > 0xffff {
		u, digits = 'U', 8
	}
	b = append(b, '\\', u)
	for i := digits - 1; i >= 0; i-- {
		b = append(b, hex[r>>(4*i)&15])
	}
	return b
}

func appendJSON(b, text []byte) []byte {
	for len(text) > 0 {
		r, n := utf8.DecodeRune(text)
		switch {
		case r == '\n' || IsSafe(r) && (r != utf8.RuneError || n > 1):
			b = append(b, text[:n]...)
		case r > 0xffff:
			r -= 0x10000
			b = appendRune(appendRune(b, 0xd800+r>>10), 0xdc00+r&0x3ff)
		default:
			b = appendRune(b, r)
		}
		text = text[n:]
	}
	return b
}

// Duration returns d rounded to about three digits, or to seconds, with its unit.
func Duration(d time.Duration) string {
	for unit := time.Duration(1); ; unit *= 10 {
		if d < 1000*unit || unit == time.Second {
			return d.Round(unit).String()
		}
	}
}
